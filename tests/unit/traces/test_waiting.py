"""Collectives divided into transfer and waiting, and the verdicts on simulated jobs of several ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.html_page import page
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import AnalysisResult, RankResult
from gpu_exporter.traces.text_report import lines
from tests.support.simulated_jobs import Jitter, Job
from tests.support.traces import SyntheticTrace

US = 1e-6
ALLREDUCE = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "dtype": "Float",
    "Group size": 2,
    "Process Group Name": "0",
}
Call = tuple[float, float, dict[str, Any] | None]  # start and duration, us, and what differs from ALLREDUCE


def _analyzed(folder: Path, *traces: SyntheticTrace) -> AnalysisResult:
    return analyze([read(trace.write(folder / f"{rank}.json")) for rank, trace in enumerate(traces)])


def _ranks(folder: Path, *ranks: list[Call], computes: tuple[float, float] = (0, 10)) -> tuple[RankResult, ...]:
    """Return ranks that communicate at these times, and compute for a time."""
    traces = []
    for calls in ranks:
        trace = SyntheticTrace()
        trace.device(*computes, launched=-20)
        for start, duration, args in calls:
            arguments = {} if args is None else {**ALLREDUCE, **args}
            trace.device(start, duration, "ncclDevKernel_X", launched=-10, stream=9, args=arguments)
        traces.append(trace)
    return _analyzed(folder, *traces).ranks


def _parts(rank: RankResult) -> tuple[float | None, float | None]:
    """Return exposed transfer and waiting, us."""
    parts = rank.exposed_transfer_seconds, rank.exposed_waiting_seconds
    return tuple(None if part is None else round(part / US, 3) for part in parts)  # type: ignore[return-value]


TWO: dict[str, tuple[list[Call], list[Call], tuple[Any, Any], tuple[Any, Any]]] = {
    "the shortest is the transfer": ([(20, 50, {"Seq": 1})], [(40, 30, {"Seq": 1})], (30, 20), (30, 0)),
    "in each collective another one": (
        [(20, 50, {"Seq": 1}), (80, 10, {"Seq": 2})], [(40, 30, {"Seq": 1}), (75, 15, {"Seq": 2})], (40, 20), (40, 5)
    ),
    "by their order": ([(20, 50, {}), (80, 10, {})], [(40, 30, {}), (75, 15, {})], (40, 20), (40, 5)),
    "coalesced ones have one number": (
        [(20, 50, {"Seq": 1}), (80, 10, {"Seq": 1})], [(40, 30, {"Seq": 1}), (75, 15, {"Seq": 1})], (40, 20), (40, 5)
    ),
    # The first belongs to the time before the other rank's window.
    "without arguments, by their order from the end": (
        [(15, 5, None), (20, 50, None)], [(40, 30, None)], (35, 20), (30, 0)
    ),
    "no other rank": ([(20, 50, {"Process Group Name": "1"})], [(40, 30, {})], (None, None), (None, None)),
    "more files than ranks in the group": (
        [(20, 50, {"Group size": 1})], [(40, 30, {"Group size": 1})], (None, None), (None, None)
    ),
    # Another rank sends what one receives: as fast as the fastest message of that size.
    "point to point": (
        [(20, 10, {}), (40, 50, {"Collective name": "recv"})],
        [(20, 10, {}), (70, 20, {"Collective name": "send"})],
        (30, 30), (30, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TWO)
def test_transfer_and_waiting(tmp_path: Path, case: str) -> None:
    first, second, *expected = TWO[case]
    assert [_parts(rank) for rank in _ranks(tmp_path, first, second)] == expected


def test_one_file_says_nothing_about_waiting(tmp_path: Path) -> None:
    (rank,) = _ranks(tmp_path, [(20, 50, {"Seq": 1})])
    assert _parts(rank) == (None, None)
    assert rank.waiting == ()


def test_what_a_kernel_hides_is_not_exposed(tmp_path: Path) -> None:
    """Of 50 us, 20 us are waiting; 15 us of these and nothing of the transfer are hidden."""
    first, _ = _ranks(tmp_path, [(20, 50, {"Seq": 1})], [(40, 30, {"Seq": 1})], computes=(25, 15))
    assert _parts(first) == (30, 5)
    assert [(waiting.rank, round(waiting.seconds / US, 3)) for waiting in first.waiting] == [(1, 5)]


def test_collectives_say_how_much_is_transfer(tmp_path: Path) -> None:
    first, second = _ranks(tmp_path, [(20, 50, {"Seq": 1})], [(40, 30, {"Seq": 1})])
    assert [rank.collectives[0].transfer_seconds for rank in (first, second)] == pytest.approx([30 * US, 30 * US])


@pytest.mark.parametrize(("others", "waited"), [(1, None), (2, 20.0)])
def test_messages_without_arguments(tmp_path: Path, others: int, waited: float | None) -> None:
    """An all-to-all, if all ranks run them equally often; otherwise nobody knows which belong together."""
    traces = []
    for starts in ([(20, 50), (90, 10)], [(40, 30), (90, 10)][:others]):
        trace = SyntheticTrace()
        trace.device(0, 10, launched=-20)
        for start, duration in starts:
            trace.device(start, duration, "ncclDevKernel_SendRecv", launched=-10, stream=9)
        traces.append(trace)
    assert _parts(_analyzed(tmp_path, *traces).ranks[0])[1] == waited


def on(slow: int, time: float) -> Jitter:
    """Return this time on one rank."""
    return lambda random, rank, step: time if rank == slow else 0.0


def up_to(time: float) -> Jitter:
    """Return any time up to this."""
    return lambda random, rank, step: random.uniform(0, time)


def in_turn(ranks: int, time: float) -> Jitter:
    """Return this time on another rank in each step."""
    return lambda random, rank, step: time if step % ranks == rank else 0.0


def both(*parts: Jitter) -> Jitter:
    """Return the sum."""

    def total(random: Random, rank: int, step: int) -> float:
        return sum(part(random, rank, step) for part in parts)

    return total


def leads(random: Random, rank: int, step: int) -> float:
    """Return a delay of the last rank in the first step only: the other host stays ahead."""
    return 900.0 if (rank, step) == (1, 0) else 0.0


TINY = Job(overlaps=False, kernel=15.0, transfer=15.0, launch=60.0, layers=40)
PAIRS = ((0, 1), (2, 3))
# The class, and the kind and rank of the straggler.
JOBS: dict[str, tuple[Job, str, tuple[str, int] | None]] = {
    "balanced": (Job(gpu=up_to(30)), "compute-bound", None),
    "balanced, with large steps": (
        Job(ranks=2, layers=20, kernel=25000, transfer=2000, gpu=up_to(700)), "compute-bound", None
    ),
    "without overlap, another rank is slowest in each step": (
        Job(overlaps=False, kernel=5000, transfer=50, gpu=both(up_to(50), in_turn(4, 300))), "compute-bound", None
    ),
    "a late host": (Job(host=on(2, 5000)), "straggler", ("host", 2)),
    "a late host, collectives without arguments": (
        Job(host=on(0, 5000), has_arguments=False), "straggler", ("host", 0)
    ),
    "a late host of two, tiny steps": (
        Job(ranks=2, layers=3, kernel=100, transfer=20, host=on(1, 400)), "straggler", ("host", 1)
    ),
    "a late host of eight, by 12 %": (Job(ranks=8, host=on(7, 1600)), "straggler", ("host", 7)),
    "a slow GPU": (Job(gpu=both(up_to(20), on(3, 400))), "straggler", ("gpu", 3)),
    "a slow GPU of eight": (
        Job(ranks=8, overlaps=False, gpu=both(up_to(20), on(5, 500))), "straggler", ("gpu", 5)
    ),
    "a slow GPU in a tensor-parallel pair": (
        Job(groups=PAIRS, transfer=50, gpu=both(up_to(10), on(3, 400))), "straggler", ("gpu", 3)
    ),
    "balanced tensor-parallel pairs": (Job(groups=PAIRS, transfer=20, gpu=up_to(10)), "compute-bound", None),
    "exposed transfer": (Job(overlaps=False, transfer=3000), "communication-bound", None),
    "exposed transfer, and a rank that is 5 % late": (
        Job(overlaps=False, kernel=180, transfer=1000, gpu=both(up_to(10), on(1, 80))), "communication-bound", None
    ),
    "slow launches": (replace(TINY, host=up_to(60)), "launch-bound", None),
    "slow launches, and a host that leads": (replace(TINY, ranks=2, host=leads), "launch-bound", None),
    "slow loaders": (Job(loads=8000), "data-loading-bound", None),
    "slow loaders, and a slow GPU that costs less": (
        Job(loads=12000, gpu=on(1, 400)), "data-loading-bound", ("gpu", 1)
    ),
    "uneven work, another rank is slowest in each step": (Job(gpu=in_turn(4, 700)), "mixed", None),
}  # fmt: skip


@pytest.mark.parametrize("case", JOBS)
def test_verdicts_on_jobs(tmp_path: Path, case: str) -> None:
    job, trace_class, straggler = JOBS[case]
    result = _analyzed(tmp_path, *job.traces())
    found = result.straggler
    assert (result.verdict.trace_class.value, found and (found.kind, found.rank)) == (trace_class, straggler)
    # The sentence names the straggler first if that is the class.
    text = result.verdict.because
    assert text.startswith("rank") is (trace_class == "straggler")
    assert ("makes the others wait" in text) is (straggler is not None)


def test_the_straggler_is_named_with_what_it_does_longer(tmp_path: Path) -> None:
    result = _analyzed(tmp_path, *JOBS["a late host"][0].traces())
    assert result.straggler is not None
    assert result.straggler.frames[0] == "train.py(9): augment"
    assert {(of.rank, of.cause, of.frames[0]) for rank in result.ranks for of in rank.waiting} == {
        (2, "python", "train.py(9): augment")
    }


def test_reports_divide_communication(tmp_path: Path) -> None:
    """The text and the page have both parts for each rank, and for whom it waited."""
    traces = [read(trace.write(tmp_path / f"{rank}.json")) for rank, trace in enumerate(Job(host=on(2, 5000)).traces())]
    result = analyze(traces, details=True)
    text = "\n".join(lines(result))
    words = "rank 2, which spent longer running other code on the host"
    assert "exposed transfer  exposed waiting" in text
    assert f"For whom rank 0 waited in collectives\n    26 %     24 ms  {words}" in text
    assert "x allreduce of group 0 on 4 ranks, 15.7 GB/s bus bandwidth, 12 ms of it transfer, starts differ" in text
    html = page(result)
    assert "<h3>For whom it waited in collectives</h3>" in html
    assert words in html
    assert "exposed waiting" in html
    # One rank says nothing about waiting.
    alone = "\n".join(lines(analyze(traces[:1])))
    assert "waiting" not in alone.splitlines()[3]
    assert "For whom" not in alone
