"""The report on traces as text, and the numbers, the class and the sentence in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpu_exporter.traces.collectives import straggler_of
from gpu_exporter.traces.exports import folded_lines
from gpu_exporter.traces.memory import FailedAllocation, Holder, MemoryResult
from gpu_exporter.traces.result import (
    Advice,
    AnalysisResult,
    CollectiveTime,
    IdleCause,
    Kernels,
    RankResult,
    StepTime,
    Straggler,
    TraceClass,
    TraceVerdict,
)
from gpu_exporter.traces.text_report import lines, memory_words
from gpu_exporter.traces.verdict import Thresholds, because, class_of, losses

GIB = 1 << 30
LOADING = IdleCause("data_loading", 2.0, 0.2, ("data.py(3): decode", "data.py(9): pad", "data.py(12): left_out"))
MEMORY = MemoryResult(
    device=0,
    peak_allocated_bytes=6 * GIB,
    peak_reserved_bytes=10 * GIB,
    peak_seconds=1.0,
    largest_allocation_bytes=GIB,
    unused_ratio=0.25,
    by_category=(Holder("optimizer", 4 * GIB, 2 / 3, 3), Holder("other", 2 * GIB, 1 / 3, 1)),
    by_code=(Holder("train.py(5): step", 6 * GIB, 1.0, 4),),
    total_bytes=80 * GIB,
    failed=FailedAllocation(3 * GIB, 6 * GIB, 2 * GIB, "train.py(6): big"),
)


def _steps(*selves: float, host: float = 0.0, gpu: float = 1.0, seconds: float = 4.0) -> tuple[StepTime, ...]:
    """Return steps with these seconds without exposed communication."""
    return tuple(
        StepTime(f"ProfilerStep#{number}", number * seconds, seconds, 0.7, seconds - self, self, host, gpu)
        for number, self in enumerate(selves)
    )


FAST = RankResult(
    rank=0,
    device=0,
    span_seconds=10.0,
    busy_ratio=0.7,
    idle_ratio=0.3,
    compute_seconds=6.0,
    communication_seconds=2.0,
    exposed_communication_seconds=1.0,
    copy_seconds=0.05,
    kernels=123,
    steps=_steps(2.0, 2.0),
    idle_causes=(LOADING, IdleCause("python", 1.0, 0.1, ()), IdleCause("unknown", 0.009, 0.0009, ())),
    device_name="NVIDIA H200",
    exposed_copy_seconds=0.02,
    communication_frames=("ddp.py(8): sync",),
    kernel_classes=(
        Kernels("gemm", "gemm", 100, 5.0, 5 / 7),
        Kernels("communication", "communication", 23, 2.0, 2 / 7),
    ),
    top_kernels=(Kernels("sgemm", "gemm", 100, 5.0, 5 / 7),),
    collectives=(
        CollectiveTime("allreduce", "default", 2, 20, 1.5, 1 << 20, 123.4e9, 0.002),
        CollectiveTime("allgather", "", 2, 3, 0.5, 0, None, None),
    ),
    memory=MEMORY,
)
SLOW = replace(
    FAST,
    rank=1,
    idle_ratio=0.1,
    busy_ratio=0.9,
    steps=_steps(3.0, 3.0, gpu=2.0),
    idle_causes=(),
    collectives=(),
    memory=None,
)
RESULT = AnalysisResult(
    ranks=(FAST,),
    verdict=TraceVerdict(
        TraceClass.DATA_LOADING,
        "the GPU was busy",
        (
            Advice("data_loading", "use workers.", 2.0, 0.2, ("data.py(3): decode", "data.py(9): pad")),
            Advice("fusion", "fuse", 0.5, 0.05),
        ),
    ),
    straggler=None,
    dropped_events=3,
    dropped_reasons={"not valid JSON": 2, "without a valid time": 1},
    repaired_events=4,
    idle_stacks={0: {"data_loading;main;decode": 2.0, "python": 1e-6, "unknown": 1e-7}, 1: {"python;a  b": 2.5}},
)
REPORT = """\
Verdict: data-loading-bound
  The GPU was busy.

rank            GPU  span  busy  idle  compute  communication  exposed  copies  kernels  step
   0  0 NVIDIA H200  10 s  70 %  30 %      6 s            2 s      1 s   50 ms      123   4 s

Why GPU 0 of rank 0 was idle (30 % of 10 s)
 of span      time  cause
    20 %       2 s  waiting for the data loader
                    data.py(3): decode
                    data.py(9): pad
    10 %       1 s  running other code on the host

GPU time of rank 0: 7 s in all
  of all      time  launches  class of kernel
    71 %       5 s       100  gemm
    29 %       2 s        23  communication
  of all      time  launches  kernel
    71 %       5 s       100  sgemm

Collectives of rank 0
     1.5 s      20 x allreduce of group default on 2 ranks, 123 GB/s bus bandwidth, starts differ by up to 2 ms
    500 ms       3 x allgather of group ? on 2 ranks

Memory of rank 0 at its peak: 6 GiB of 80 GiB in tensors, at most 10 GiB reserved by PyTorch, \
25 % of what was reserved then unused
    67 %      4 GiB  optimizer
    33 %      2 GiB  other
  and by code
   100 %      6 GiB  train.py(5): step
  An allocation of 3 GiB failed while tensors used 6 GiB and 2 GiB were reserved without use: \
1 GiB more would have been needed; at train.py(6): big

What to do; each saving is an upper bound
  at most 2 s (20 %): Use workers.
    at data.py(3): decode
  at most 500 ms (5 %): Fuse.

Not analysed: 2 events not valid JSON
Not analysed: 1 event without a valid time
Repaired: 4 events that were not valid JSON
"""


def test_a_whole_report() -> None:
    assert "\n".join(lines(RESULT)) + "\n" == REPORT


def test_what_a_trace_does_not_have_is_left_out() -> None:
    rank = replace(FAST, idle_causes=(), collectives=(), memory=None, steps=(), device_name="")
    text = "\n".join(lines(AnalysisResult((rank,), TraceVerdict(TraceClass.COMPUTE, "busy", ()), None, 0)))
    assert text.splitlines()[4].split()[:2] == ["0", "0"]
    assert text.splitlines()[4].endswith(" -")
    for heading in ("Why", "Collectives", "Memory", "What to do", "Not analysed", "Repaired"):
        assert heading not in text
    assert "What to do" not in text
    assert text.endswith("sgemm")


def test_long_lists_are_cut() -> None:
    """The number of lines of a report does not depend on the job."""
    rank = replace(
        FAST,
        device_name="H" * 50,
        idle_causes=(replace(LOADING, share=0.001),) * 9,
        kernel_classes=FAST.kernel_classes[:1] * 9,
        top_kernels=FAST.top_kernels * 9,
        collectives=FAST.collectives[:1] * 9,
        memory=replace(MEMORY, by_code=MEMORY.by_code * 9),
    )
    text = "\n".join(lines(replace(RESULT, ranks=(rank,))))
    counts = {
        "data loader": 6, "decode": 6 + 1, "pad": 6, "left_out": 0, "  gemm": 8, "sgemm": 5, "default": 5,
        "step\n": 1 + 8,
    }  # fmt: skip
    assert {part: text.count(part) for part in counts} == counts
    assert len(text.splitlines()[4].split()[2]) < 50


def test_repaired_events_alone_are_reported() -> None:
    assert list(lines(replace(RESULT, dropped_reasons={})))[-2:] == ["", REPORT.splitlines()[-1]]


@pytest.mark.parametrize(
    ("straggler", "described"),
    [(None, [2, 0]), (Straggler(1, "gpu", 1.0), [1, 2])],
)
def test_of_many_ranks_two_are_described(straggler: Straggler | None, described: Sequence[int]) -> None:
    """The rank with the most idle time, and before it the one that the others wait for."""
    ranks = (FAST, SLOW, replace(FAST, rank=2, idle_ratio=0.5))
    text = list(lines(replace(RESULT, ranks=ranks, straggler=straggler)))
    assert [line for line in text if line.startswith("GPU time")] == [
        f"GPU time of rank {rank}: 7 s in all" for rank in described
    ]


def test_memory_of_an_unknown_gpu() -> None:
    assert memory_words(replace(MEMORY, total_bytes=0)).startswith("6 GiB in tensors, at most 10 GiB")


def test_idle_time_as_folded_stacks() -> None:
    """The most costly first, in whole microseconds; what rounds to none is left out."""
    assert folded_lines(RESULT) == [
        "rank 1;python;a b 2500000",
        "rank 0;data_loading;main;decode 2000000",
        "rank 0;python 1",
    ]


def test_losses_are_shares_of_the_time_of_all_gpus() -> None:
    found = losses([FAST, replace(SLOW, span_seconds=30.0, exposed_copy_seconds=0.0)])
    assert list(found) == ["data_loading", "exposed_communication", "python", "exposed_copies", "unknown"]
    assert list(found.values()) == pytest.approx([2 / 40, 2 / 40, 1 / 40, 0.02 / 40, 0.009 / 40])
    assert losses([replace(FAST, idle_causes=(), exposed_communication_seconds=0.0, exposed_copy_seconds=0.0)]) == {}
    assert losses([]) == {}


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ({}, TraceClass.COMPUTE),
        ({"data_loading": 0.19}, TraceClass.COMPUTE),
        ({"data_loading": 0.2}, TraceClass.DATA_LOADING),
        ({"data_loading": 0.19, "python": 0.18}, TraceClass.MIXED),
        ({"data_loading": 0.21, "exposed_communication": 0.22}, TraceClass.COMMUNICATION),
        ({"data_loading": 0.3, "python": 0.4}, TraceClass.MIXED),  # the largest has no class
        ({"data_loading": 0.25, "copies": 0.13, "exposed_copies": 0.13}, TraceClass.COPY),  # of one class together
        ({"synchronisation": 0.2}, TraceClass.SYNC),
        ({"launch_overhead": 0.2}, TraceClass.LAUNCH),
        ({"checkpoint": 0.2}, TraceClass.CHECKPOINT),
    ],
)
def test_the_largest_loss_is_the_class(lost: dict[str, float], expected: TraceClass) -> None:
    assert class_of(lost, None, Thresholds()) is expected
    assert class_of(lost, Straggler(1, "gpu", 1.0), Thresholds()) is TraceClass.STRAGGLER


def test_one_gpu_in_a_sentence() -> None:
    """Losses of less than 2 % are not mentioned."""
    rank = replace(FAST, exposed_communication_seconds=0.19, copy_frames=("train.py(7): move",))
    assert because([rank], losses([rank]), None) == (
        "the GPU was busy 70 % of 10 s; of the time, 20 % waiting for the data loader (data.py(3): decode),"
        " 10 % running other code on the host"
    )
    rank = replace(rank, idle_causes=(), exposed_copy_seconds=0.2)
    assert because([rank], losses([rank]), None) == (
        "the GPU was busy 70 % of 10 s; of the time, 2 % copying while no kernel runs (train.py(7): move)"
    )
    assert because([rank], {}, None) == "the GPU was busy 70 % of 10 s"


@pytest.mark.parametrize(("kind", "why"), [("gpu", "its GPU computes longer"), ("host", "its host is slower")])
def test_several_gpus_in_a_sentence(kind: str, why: str) -> None:
    """Busy by time, with the code of the rank that loses most."""
    ranks = [FAST, replace(SLOW, span_seconds=30.0, exposed_communication_seconds=2.0, communication_frames=("slow",))]
    straggler = Straggler(1, "gpu" if kind == "gpu" else "host", 0.0123)
    assert because(ranks, losses(ranks), straggler) == (
        f"rank 1 makes the others wait 12.3 ms per step, because {why}; the 2 GPUs were busy 85 % of 20 s;"
        " of the time, 7.5 % communicating while nothing computes (slow),"
        " 5 % waiting for the data loader (data.py(3): decode), 2.5 % running other code on the host"
    )


FAST3 = replace(FAST, steps=_steps(*(2.0,) * 3))
STRAGGLERS: dict[str, tuple[Sequence[RankResult], tuple[int, str, float] | None]] = {
    "one rank": ([SLOW], None),
    "equal ranks": ([FAST, FAST], None),
    "of two": ([FAST, SLOW], (1, "gpu", 1.0)),
    "in another order": ([SLOW, FAST], (1, "gpu", 1.0)),
    "whose GPU does half of the excess": ([FAST, replace(SLOW, steps=_steps(3.0, gpu=1.5))], (1, "gpu", 1.0)),
    "whose GPU does less": ([FAST, replace(SLOW, steps=_steps(3.0, gpu=1.4))], (1, "host", 1.0)),
    "whose host is slow": ([FAST, replace(FAST, rank=1, steps=_steps(2.0, host=3.5))], (1, "host", 1.5)),
    "by an eighth of a step": ([FAST, replace(SLOW, steps=_steps(2.5))], (1, "host", 0.5)),
    "by less": ([FAST, replace(SLOW, steps=_steps(2.49))], None),
    "for which the others wait unequally": (
        [FAST, replace(FAST, rank=2, steps=_steps(0.5)), replace(FAST, rank=3, steps=_steps(2.5)), SLOW],
        (1, "gpu", (1.0 + 2.5 + 0.5) / 3),
    ),
    "in one of three steps": ([FAST3, replace(FAST, rank=1, steps=_steps(2.0, 2.0, 9.0))], None),
    "the first of four steps does not count": (
        [replace(FAST, steps=_steps(*(2.0,) * 4)), replace(FAST, rank=1, steps=_steps(0.0, 3.0, 3.0, 4.0))],
        (1, "host", 1.0),
    ),
    "in two of three steps": ([FAST3, replace(FAST, rank=1, steps=_steps(3.0, 3.0, 0.0))], (1, "host", 1.0)),
    "without steps": (
        [
            replace(FAST, steps=(), exposed_communication_seconds=2.0),
            replace(FAST, steps=(), rank=1, exposed_communication_seconds=0.0),
        ],
        (1, "host", 2.0),
    ),
    "without steps, on the GPU": (
        [
            replace(FAST, steps=(), exposed_communication_seconds=2.0),
            replace(FAST, steps=(), rank=1, exposed_communication_seconds=0.0, compute_seconds=7.0),
        ],
        (1, "gpu", 2.0),
    ),
}  # fmt: skip


def _own(rank: RankResult) -> list[float]:
    """Return what a rank needs itself in each step; without steps, in all."""
    own = [max(step.self_seconds, step.host_seconds) for step in rank.steps]
    return own or [rank.span_seconds - rank.exposed_communication_seconds]


def _waits(ranks: Sequence[RankResult]) -> list[np.ndarray]:
    """Return what each rank waits for the one that needs longest, in each step."""
    own = np.array([_own(rank)[-min(len(_own(each)) for each in ranks) :] for rank in ranks])
    found = np.zeros((len(ranks), own.shape[1], len(ranks)))
    for step, slow in enumerate(own.argmax(axis=0)):
        found[:, step, slow] = own[slow, step] - own[:, step]
    return list(found)


@pytest.mark.parametrize("case", STRAGGLERS)
def test_stragglers(case: str) -> None:
    ranks, expected = STRAGGLERS[case]
    found = straggler_of(ranks, _waits(ranks), 0.125)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.rank, found.kind) == expected[:2]
        assert found.excess_seconds == pytest.approx(expected[2])
