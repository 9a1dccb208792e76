"""Compares what `trace analyze` says about recorded cases with what is true: `python -m benchmarks.trace_truth FOLDER`.

The folder contains traces and the `truth*.json` that `benchmarks.trace_cases` wrote. Ranks of a job are analysed
together.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import AnalysisResult

COPIES = {"copy-bound": "copies"}
_RANK = re.compile(r"-rank\d+of\d+")


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


def judged(truth: Mapping[str, Any], result: AnalysisResult) -> tuple[bool, bool, bool]:
    """Return whether class, cause and responsible function are right. An empty one may be anything."""
    found = result.verdict.trace_class.value
    # The line that makes the others wait is that of the straggler.
    slow = result.straggler.rank if result.straggler else result.ranks[0].rank
    causes = next(rank for rank in result.ranks if rank.rank == slow).idle_causes
    cause, function = truth["cause"], truth.get("function", "")
    named = any(function in frame for each in causes[:1] for frame in each.frames[:2])
    named |= any(function in frame for advice in result.verdict.advice[:1] for frame in advice.frames)
    kind = result.straggler.kind if result.straggler else ""
    said = {each.cause for each in causes[:1]} | {kind, found.removesuffix("-bound"), COPIES.get(found, "")}
    return found == truth["class"] or not truth["class"], not cause or cause in said, named or not function


def main() -> int:
    """Print a line for each case; fail if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    wrong = 0
    for case, truth, files in cases(parser.parse_args().folder):
        result = analyze([read(path) for path in files])
        verdicts = judged(truth, result)
        wrong += not all(verdicts)
        names = ("class", "cause", "code")
        marks = " ".join(f"{what} {'right' if each else 'WRONG'}" for what, each in zip(names, verdicts, strict=True))
        print(f"{case:24} {truth['class']:19} {marks}  {result.verdict.trace_class.value}: {result.verdict.because}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
