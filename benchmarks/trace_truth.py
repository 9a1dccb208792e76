"""Compares what `trace analyze` says about recorded cases with what is true: `python -m benchmarks.trace_truth FOLDER`.

The folder contains traces and the `truth*.json` that `benchmarks.trace_cases` wrote. Ranks of a job are analysed
together. With `--verdicts OTHER`, the verdicts are also written to OTHER/verdicts.json and as a table, with as many of
the traces as fit into an archive, those that were judged wrongly first.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import re
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.ranks import cpus
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import AnalysisResult

COPIES = {"copy-bound": "copies"}
JUDGED = ("class", "cause", "code", "straggler")
_RANK = re.compile(r"-rank\d+of\d+")
MOST_ARCHIVED = 12 << 20


@dataclass(frozen=True)
class Judged:
    """What was said about a case, and whether that is right. What the truth does not say is right."""

    case: str
    truth: Mapping[str, Any]
    right: Mapping[str, bool]  # by JUDGED
    trace_class: str
    straggler: int | None
    because: str
    advice: str

    @property
    def is_right(self) -> bool:
        """Return whether all of it is right."""
        return all(self.right.values())

    def row(self) -> str:
        """Return a line for people."""
        marks = " ".join(f"{what} {'right' if right else 'WRONG'}" for what, right in self.right.items())
        return f"{self.case:30} {self.truth['class']:19} {marks}  {self.trace_class}: {self.because}"


def cases(folder: Path) -> Iterator[tuple[str, Mapping[str, Any], list[Path]]]:
    """Yield the name, the truth and the files of each case."""
    for file in sorted(folder.glob("truth*.json")):
        files: dict[str, list[Path]] = defaultdict(list)
        truths = {}
        for name, truth in json.loads(file.read_text()).items():
            case = _RANK.sub("", name).removesuffix(".json.gz")
            truths[case] = truth
            pattern = _RANK.sub("-rank*of*", name)
            files[case] += sorted(folder.glob(pattern)) if _RANK.search(name) else [folder / name]
        for case, truth in truths.items():
            yield case, truth, files[case]


def judged(truth: Mapping[str, Any], result: AnalysisResult) -> dict[str, bool]:
    """Return whether class, cause, responsible function and straggler are right. An empty one may be anything."""
    found = result.verdict.trace_class.value
    # The line that makes the others wait is that of the straggler.
    slow = result.straggler.rank if result.straggler else result.ranks[0].rank
    causes = next(rank for rank in result.ranks if rank.rank == slow).idle_causes
    cause, function = truth["cause"], truth.get("function", "")
    named = any(function in frame for each in causes[:1] for frame in each.frames[:2])
    named |= any(function in frame for advice in result.verdict.advice[:1] for frame in advice.frames)
    kind = result.straggler.kind if result.straggler else ""
    said = {each.cause for each in causes[:1]} | {kind, found.removesuffix("-bound"), COPIES.get(found, "")}
    straggler = result.straggler.rank if result.straggler else None
    right = (
        found == truth["class"] or not truth["class"],
        not cause or cause in said,
        named or not function,
        truth.get("straggler", straggler) == straggler,
    )
    return dict(zip(JUDGED, right, strict=True))


def judge(case: str, truth: Mapping[str, Any], files: Sequence[Path]) -> Judged:
    """Analyse a case, and compare what is said with what is true."""
    try:
        result = analyze([read(path) for path in files])
    except GpuExporterError as error:
        return Judged(case, truth, dict.fromkeys(JUDGED, False), "", None, str(error), "")
    advice = next((one.text for one in result.verdict.advice), "")
    straggler = result.straggler.rank if result.straggler else None
    verdict = result.verdict
    return Judged(case, truth, judged(truth, result), verdict.trace_class.value, straggler, verdict.because, advice)


def verdicts_on(folder: Path, to: Path | None = None) -> int:
    """Print a line for each case, and return how many are judged wrongly; write everything `to` a folder, if given."""
    chosen = list(cases(folder))
    with ProcessPoolExecutor(cpus(), multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(judge, *zip(*chosen, strict=True))) if chosen else []
    wrong = sum(not one.is_right for one in found)
    lines = [*(one.row() for one in found), f"{len(found) - wrong} of {len(found)} right"]
    print("\n".join(lines), flush=True)
    if to:
        to.mkdir(parents=True, exist_ok=True)
        files = {case: paths for case, _, paths in chosen}
        kept = archive(to / "traces.tar.zst", [files[one.case] for one in sorted(found, key=lambda one: one.is_right)])
        rows = [{**asdict(one), "is_right": one.is_right, "archived": files[one.case][0] in kept} for one in found]
        (to / "verdicts.json").write_text(json.dumps(rows, indent=1))
        (to / "verdicts.txt").write_text("\n".join(lines) + "\n")
    return wrong


def archive(path: Path, of_cases: Sequence[Sequence[Path]], most: int = MOST_ARCHIVED) -> set[Path]:
    """Write an archive of cases of at most `most` bytes; return the files in it. Those that do not fit are left out."""
    kept: set[Path] = set()
    packed = b""
    for files in of_cases:
        more = b"".join(_packed(file) for file in files)
        if len(packed) + len(more) <= most:
            packed += more
            kept.update(files)
    path.write_bytes(packed + _compressed(bytes(2 * tarfile.BLOCKSIZE)))
    return kept


def _packed(file: Path) -> bytes:
    """Return a trace as a compressed member of an archive: frames of zstd can be joined."""
    content = gzip.decompress(file.read_bytes())
    member = tarfile.TarInfo(file.name.removesuffix(".gz"))
    member.size = len(content)
    padding = bytes(-len(content) % tarfile.BLOCKSIZE)
    return _compressed(member.tobuf() + content + padding)


def _compressed(content: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return bytes(zstd.compress(content, level=6))


def main() -> int:
    """Judge the traces in a folder; fail if one verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verdicts", type=Path, metavar="OTHER")
    chosen = parser.parse_args()
    return 1 if verdicts_on(chosen.folder, chosen.verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
