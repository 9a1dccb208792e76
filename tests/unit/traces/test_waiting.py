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
from tests.support.simulated_jobs import Jitter, Job, Pipeline
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


BOTH = [(20, 50), (90, 10)], [(40, 30), (90, 10)]


@pytest.mark.parametrize(
    ("ranks", "world_size", "waited"),
    [
        (BOTH, 2, 20.0),
        (BOTH, None, 20.0),
        # One of the two that communicate may have no file.
        (BOTH, 4, None),
        # Not equally often.
        ((BOTH[0], BOTH[1][:1]), 2, None),
        # Of two ranks, or of all.
        ((*BOTH, BOTH[1]), 3, None),
    ],
)
def test_messages_without_arguments(
    tmp_path: Path, ranks: tuple[list[tuple[float, float]], ...], world_size: int | None, waited: float | None
) -> None:
    """In a job of two ranks, those belong together that both run equally often; otherwise nobody knows which do."""
    traces = []
    for number, starts in enumerate(ranks):
        trace = SyntheticTrace(rank=number, world_size=world_size) if world_size else SyntheticTrace()
        trace.device(0, 10, launched=-20)
        for start, duration in starts:
            trace.device(start, duration, "ncclDevKernel_SendRecv", launched=-10, stream=9)
        traces.append(trace)
    assert _parts(_analyzed(tmp_path, *traces).ranks[0])[1] == waited


SEND, RECEIVE = {"Collective name": "send", "Dst Rank": 1}, {"Collective name": "recv", "Src Rank": 0}
# What rank 0 runs, what rank 1 runs, and for which rank each waited how long, us.
MESSAGES: dict[str, tuple[list[Call], list[Call], list[tuple[int, float]], list[tuple[int, float]]]] = {
    "the receiver came last": ([(20, 50, SEND)], [(40, 30, RECEIVE)], [(1, 20)], []),
    "the sender came last": ([(40, 30, SEND)], [(20, 50, RECEIVE)], [], [(0, 20)]),
    "their own numbers do not count": (
        [(20, 50, {**SEND, "Seq": 7})], [(40, 30, {**RECEIVE, "Seq": 9})], [(1, 20)], []
    ),
    "by their order from the end": (
        [(20, 50, SEND), (90, 20, SEND)], [(100, 10, RECEIVE)], [(1, 50)], []
    ),
    "those of other sizes belong to others": (
        [(20, 50, SEND)], [(40, 30, {**RECEIVE, "In msg nelems": 9, "Out msg nelems": 9})], [], []
    ),
    "the other rank has no file": ([(20, 50, {**SEND, "Dst Rank": 3}), (80, 20, {**SEND, "Dst Rank": 3})], [], [], []),
}  # fmt: skip


RECORDED = {
    "all_to_all": ("nccl:all_to_all", (200, 300), (200, 0)),
    "scatter": ("nccl:scatter", (200, 300), (200, 0)),
    "a message is no collective": ("nccl:send 0->1", (None, None), (None, None)),
    "several messages are none": ("nccl:coalesced", (None, None), (None, None)),
    "nothing is recorded": ("forward", (None, None), (None, None)),
}


@pytest.mark.parametrize("case", RECORDED)
def test_kernels_of_sendrecv_are_collectives_if_they_are_launched_inside_one(tmp_path: Path, case: str) -> None:
    """Old versions of PyTorch, and RCCL, record no arguments of kernels, but the range of the operation."""
    recorded, early, late = RECORDED[case]
    traces = []
    for rank, start in enumerate((100, 100, 400)):
        trace = SyntheticTrace(rank=rank, world_size=3)
        trace.device(0, start, launched=-20)
        trace.host(recorded, 50, 20, "user_annotation")
        trace.device(start, 600 - start, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", launched=55, stream=9)
        traces.append(trace)
    ranks = _analyzed(tmp_path, *traces).ranks
    assert [_parts(rank) for rank in ranks] == [early, early, late]
    assert {waiting.rank for rank in ranks for waiting in rank.waiting} == ({2} if early[0] else set())


def test_a_slow_host_is_named_by_what_the_host_did(tmp_path: Path) -> None:
    """Although its GPU also takes a larger share of its shorter span."""
    traces = []
    for rank in range(3):
        trace, now = SyntheticTrace(rank=rank, world_size=3), 0.0
        for step in range(6):
            slow = rank == 1
            end, begin = now + 20_000, now + (4_000 if slow else 0)
            trace.step(step, now, 20_000)
            if slow:
                trace.host("train.py(10): tokenize", now, 4_000)
            computed = 8_900 if slow else 5_000
            trace.device(begin + 20, computed, launched=begin + 10)
            arguments = {**ALLREDUCE, "Group size": 3, "Seq": step}
            start = begin + 20 + computed
            trace.device(start, end - 100 - start, "ncclDevKernel_X", launched=begin + 30, stream=9, args=arguments)
            trace.host("cudaStreamSynchronize", begin + 40, end - begin - 50, "cuda_runtime")
            now = end
        traces.append(trace)
    straggler = _analyzed(tmp_path, *traces).straggler
    assert straggler
    assert (straggler.rank, straggler.kind, straggler.frames[:1]) == (1, "host", ("train.py(10): tokenize",))


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_are_compared_between_their_two_ranks(tmp_path: Path, case: str) -> None:
    *calls, first, second = MESSAGES[case]
    traces = []
    for rank, of_rank in enumerate(calls):
        trace = SyntheticTrace(rank=rank, world_size=4)
        trace.device(0, 10, launched=-20)
        for start, duration, args in of_rank:
            arguments = {**ALLREDUCE, **(args or {})}
            trace.device(start, duration, "ncclDevKernel_SendRecv", launched=-10, stream=9, args=arguments)
        traces.append(trace)
    waiting = [
        [(of.rank, round(of.seconds / US, 3)) for of in rank.waiting if of.rank is not None]
        for rank in _analyzed(tmp_path, *traces).ranks
    ]
    assert waiting == [first, second]


def test_a_kernel_with_messages_of_several_ranks_waits_for_unknown_ones(tmp_path: Path) -> None:
    traces = []
    for rank, peers in enumerate(((1, 2), (0, 0))):
        trace = SyntheticTrace(rank=rank, world_size=3)
        trace.device(0, 10, launched=-20)
        for number, duration in enumerate((20, 50)):
            for peer in peers:
                request: dict[str, Any] = {**ALLREDUCE, "Collective name": "send", "Dst Rank": peer}
                trace.host("record_param_comms", 100 * number, 1, "cpu_op", **request)
            trace.device(100 * number + 20, duration, "ncclDevKernel_SendRecv", launched=100 * number + 10, stream=9)
        traces.append(trace)
    of_several, of_one = _analyzed(tmp_path, *traces).ranks
    assert of_several.waiting == ()
    assert [(of.rank, round(of.seconds / US, 3)) for of in of_one.waiting] == [(0, 30)]


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
    "a late host, and another that runs ahead of its GPU": (
        Job(ranks=2, host=on(0, 20000), waits_for_loss=False), "straggler", ("host", 0)
    ),
    "a slow GPU, and hosts that run ahead": (
        Job(waits_for_loss=False, gpu=both(up_to(20), on(3, 400))), "straggler", ("gpu", 3)
    ),
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


# The class, and the kind and rank of the straggler.
PIPELINES: dict[str, tuple[Pipeline, str, tuple[str, int] | None]] = {
    "balanced": (Pipeline(Job(gpu=up_to(20), transfer=20), batches=32), "compute-bound", None),
    "balanced, two stages": (Pipeline(Job(ranks=2, gpu=up_to(20))), "compute-bound", None),
    "one batch for each stage: each waits for the others": (Pipeline(Job(transfer=20), batches=4), "mixed", None),
    "a late host in the first stage": (Pipeline(Job(host=on(0, 20_000))), "straggler", ("host", 0)),
    "a late host in the second stage": (Pipeline(Job(host=on(1, 20_000))), "straggler", ("host", 1)),
    "a slow GPU in the second stage": (Pipeline(Job(gpu=on(1, 700))), "straggler", ("gpu", 1)),
    "a slow GPU in the last stage": (Pipeline(Job(gpu=on(3, 700))), "straggler", ("gpu", 3)),
    "two larger stages, of which none is an exception": (
        Pipeline(Job(gpu=lambda random, rank, step: (0.0, 300.0, 280.0, 0.0)[rank]), batches=32), "mixed", None
    ),
    "a slow GPU of two, without arguments": (
        Pipeline(Job(ranks=2, gpu=on(0, 700)), has_arguments=False), "straggler", ("gpu", 0)
    ),
    # Nobody can tell for whom they wait.
    "a slow GPU of four, without arguments": (
        Pipeline(Job(gpu=on(1, 700)), has_arguments=False), "communication-bound", None
    ),
    "large messages": (Pipeline(Job(kernel=500, transfer=3000)), "communication-bound", None),
    "slow launches": (Pipeline(Job(kernel=15, transfer=10, launch=60)), "launch-bound", None),
}  # fmt: skip


@pytest.mark.parametrize("case", PIPELINES)
def test_verdicts_on_pipelines(tmp_path: Path, case: str) -> None:
    pipeline, trace_class, straggler = PIPELINES[case]
    result = _analyzed(tmp_path, *pipeline.traces())
    found = result.straggler
    assert (result.verdict.trace_class.value, found and (found.kind, found.rank)) == (trace_class, straggler)


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
    assert f"For whom rank 0 waited in collectives\n of span      time  rank\n    26 %     24 ms  {words}" in text
    assert "x allreduce of group 0 on 4 ranks, 15.7 GB/s bus bandwidth, 12 ms of it transfer, starts differ" in text
    html = page(result)
    assert "<h3>For whom it waited in collectives</h3>" in html
    assert words in html
    assert "exposed waiting" in html
    # One rank says nothing about waiting.
    alone = "\n".join(lines(analyze(traces[:1])))
    assert "waiting" not in alone.splitlines()[3]
    assert "For whom" not in alone
