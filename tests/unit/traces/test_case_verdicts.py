"""The verdicts on recorded cases: what is compared with the truth, and what is written about it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from benchmarks.trace_cases.case import slow_rank
from benchmarks.trace_cases.jobs import JOBS
from benchmarks.trace_truth import archive, judge, verdicts_on
from tests.support.simulated_jobs import Job
from tests.unit.traces.test_waiting import on

LATE = Job(ranks=2, host=on(0, 5000))
TRUTH = {"class": "straggler", "cause": "host", "function": "augment", "straggler": 0}


def _written(folder: Path, case: str, job: Job) -> list[Path]:
    files = []
    for rank, trace in enumerate(job.traces()):
        files.append(trace.write(folder / f"{case}-rank{rank}of{job.ranks}.json.gz"))
    return files


@pytest.mark.parametrize(
    ("differs", "wrong"),
    [
        ({}, []),
        ({"class": "compute-bound"}, ["class"]),
        ({"cause": "gpu"}, ["cause"]),
        ({"function": "load_batch"}, ["code"]),
        ({"straggler": 1}, ["straggler"]),
        # A straggler is named where there is none.
        ({"straggler": None}, ["straggler"]),
        ({"class": "", "cause": "", "function": ""}, []),
    ],
)
def test_what_is_said_is_compared_with_the_truth(tmp_path: Path, differs: Mapping[str, Any], wrong: list[str]) -> None:
    found = judge("late", {**TRUTH, **differs}, _written(tmp_path, "late", LATE))
    assert [what for what, right in found.right.items() if not right] == wrong
    assert ("WRONG" in found.row()) is (not found.is_right) is bool(wrong)


def test_a_trace_that_cannot_be_analysed_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}')
    found = judge("empty", TRUTH, [path])
    assert not any(found.right.values())
    assert "no events" in found.row()


def test_verdicts_are_written_with_the_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that were judged wrongly are the first in the archive."""
    traces, verdicts = tmp_path / "traces", tmp_path / "verdicts"
    traces.mkdir()
    truth = {}
    for case, differs in (("a-right", {}), ("b-wrong", {"straggler": 1})):
        first = _written(traces, case, LATE)[0]
        truth[first.name] = {**TRUTH, **differs}
    (traces / "truth-2.json").write_text(json.dumps(truth))
    assert verdicts_on(traces, verdicts) == 1
    table = capsys.readouterr().out
    assert table.endswith("1 of 2 right\n")
    assert (verdicts / "verdicts.txt").read_text() == table
    rows = json.loads((verdicts / "verdicts.json").read_text())
    assert [(row["case"], row["is_right"], row["archived"]) for row in rows] == [
        ("a-right", True, True),
        ("b-wrong", False, True),
    ]
    content = zstd.decompress((verdicts / "traces.tar.zst").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as archived:
        members = {member.name: archived.extractfile(member) for member in archived}
    assert [*members] == [f"{case}-rank{rank}of2.json" for case in ("b-wrong", "a-right") for rank in (0, 1)]
    for name, file in members.items():
        assert file is not None
        assert file.read() == gzip.decompress((traces / f"{name}.gz").read_bytes())


def test_an_archive_is_bounded(tmp_path: Path) -> None:
    large, small = [_written(tmp_path, case, job) for case, job in (("large", LATE), ("small", Job(ranks=1, steps=1)))]
    path = tmp_path / "archive"
    assert archive(path, [large, small]) == {*large, *small}
    assert archive(path, [small]) == set(small)
    assert archive(path, [large, small], path.stat().st_size) == set(small)


@pytest.mark.parametrize("ranks", [2, 4])
def test_jobs_name_their_straggler(ranks: int) -> None:
    """Each kind of parallelism has one whose host is slow, and one whose GPU is; all others have none."""
    truths = {name: case.truth(ranks) for name, case in JOBS.items()}
    slow = {name for name, truth in truths.items() if truth["straggler"] is not None}
    kinds = ("ddp", "fsdp", "tensor", "pipeline", "send_recv")
    assert slow == {f"{kind}_{what}" for kind in kinds for what in ("late_host", "slow_gpu")}
    assert {truths[name]["straggler"] for name in slow} == {slow_rank(ranks)}
    assert {truth["class"] for truth in truths.values()} >= {"compute-bound", "communication-bound", "launch-bound"}
