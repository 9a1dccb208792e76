"""Self time where CPUs run ahead of their GPUs: a rank that waits because its CPU is ahead is not waited for either."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pytest

from gpu_exporter.catalogue import job_signals as j
from gpu_exporter.model.job_message import WAITING
from gpu_exporter.training import recorder as r
from gpu_exporter.training.recorder import ONLY_WAITING, Recorder
from gpu_exporter.training.totals import StepTotals

RANKS = 4
# Launches that fit into the queue of a GPU.
QUEUE = 1024
STEPS = 120
LAUNCH, TRANSFER = 10e-6, 0.1e-3


@dataclass(frozen=True)
class Mark:
    """An event: when the CPU queued it, for how long, and when the GPU passed it."""

    queued_at: float
    queued_in: float
    passed: float


class Clock:
    """Tells times between events that have passed."""

    def between(self, begin: Mark, end: Mark) -> float:
        return end.passed - begin.passed


class Job:
    """Ranks whose CPUs queue work for their GPUs, and whose GPUs wait for each other in collectives."""

    def __init__(self) -> None:
        self.cpu, self.gpu = [0.0] * RANKS, [0.0] * RANKS
        self.done: list[list[float]] = [[] for _ in range(RANKS)]

    def launch(self, cpu: Sequence[float], gpu: Sequence[float]) -> None:
        """Queue a kernel on each rank, which takes the CPU and the GPU so long."""
        for rank in range(RANKS):
            self._queue(rank, cpu[rank])
            self._run(rank, gpu[rank])

    def reduce(self, cpu: Sequence[float], transfer: float = TRANSFER) -> None:
        """Queue a collective, which begins when all ranks have arrived."""
        for rank in range(RANKS):
            self._queue(rank, cpu[rank])
        begin = max(*self.cpu, *self.gpu)
        for rank in range(RANKS):
            self.gpu[rank] = begin
            self._run(rank, transfer)

    def sync(self) -> None:
        """Let each CPU wait for its GPU, as to read a loss."""
        self.cpu = [max(cpu, gpu) for cpu, gpu in zip(self.cpu, self.gpu, strict=True)]

    def sleep(self, seconds: Sequence[float]) -> None:
        """Let each CPU do something else."""
        self.cpu = [cpu + more for cpu, more in zip(self.cpu, seconds, strict=True)]

    def marks(self) -> list[Mark]:
        """Queue an event on each rank."""
        marks = []
        for rank in range(RANKS):
            begin = self.cpu[rank]
            self._queue(rank, 2e-6)
            self._run(rank, 0.0)
            marks.append(Mark(self.cpu[rank], self.cpu[rank] - begin, self.gpu[rank]))
        return marks

    def _queue(self, rank: int, seconds: float) -> None:
        self.cpu[rank] += seconds
        if len(self.done[rank]) >= QUEUE:
            self.cpu[rank] = max(self.cpu[rank], self.done[rank][-QUEUE])

    def _run(self, rank: int, seconds: float) -> None:
        self.gpu[rank] = max(self.gpu[rank], self.cpu[rank]) + seconds
        self.done[rank].append(self.gpu[rank])


@dataclass(frozen=True)
class Loop:
    """A job by layer: what a launch takes the CPU, and a kernel the GPU, of each rank, in seconds.

    `loads` is what the loader takes, and `reads` where the loop reads a value: after the forward pass, or at the end.
    """

    cpu: Sequence[float]
    gpu: Sequence[float]
    layers: int = 20
    launches: int = 6
    jitter: float = 0.1
    loads: Sequence[float] = (0.0,) * RANKS
    transfer: float = TRANSFER
    reads: str = ""


Step = Callable[[Job, Loop, Callable[[Sequence[float]], Sequence[float]]], list[tuple[Any, list[Mark]]]]


def layers(job: Job, loop: Loop, vary: Callable[[Sequence[float]], Sequence[float]]) -> None:
    """Queue the kernels of a pass."""
    for _ in range(loop.layers * loop.launches):
        job.launch(vary(loop.cpu), loop.gpu)


def ddp(job: Job, loop: Loop, vary: Callable[[Sequence[float]], Sequence[float]]) -> list[tuple[Any, list[Mark]]]:
    """A step of DistributedDataParallel: one wait at its end."""
    job.sleep(loop.loads)
    layers(job, loop, vary)
    between = (getattr(r, "BETWEEN", r.PAUSE), job.marks())
    if loop.reads == "forward":
        job.sync()
    backward = (getattr(r, "BACKWARD", r.RESUME), job.marks())
    layers(job, loop, vary)
    enter = (WAITING, job.marks())
    job.reduce(vary(loop.cpu), loop.transfer)
    leave = (r.LEAVE, job.marks())
    layers(job, Loop(loop.cpu, [each / 10 for each in loop.gpu], loop.layers, 1), vary)
    if loop.reads == "end":
        job.sync()
    # Earlier versions know no marks between the passes.
    middle = [between, backward] if hasattr(r, "BETWEEN") else []
    return [*middle, enter, leave]


def fsdp(job: Job, loop: Loop, vary: Callable[[Sequence[float]], Sequence[float]]) -> list[tuple[Any, list[Mark]]]:
    """A step of FSDP: a wait before each layer, in both passes."""
    marks: list[tuple[Any, list[Mark]]] = []
    job.sleep(loop.loads)
    for layer in range(2 * loop.layers):
        if layer == loop.layers and loop.reads == "forward":
            job.sync()
        marks.append((WAITING, job.marks()))
        job.reduce(vary(loop.cpu))
        marks.append((r.LEAVE, job.marks()))
        for _ in range(loop.launches):
            job.launch(vary(loop.cpu), loop.gpu)
    if loop.reads == "end":
        job.sync()
    return marks


def excess(step: Step, loop: Loop) -> Mapping[int, float]:
    """Return by how much the self time of each rank exceeds the usual one, as a share of the step, if it counts."""
    chance = random.Random(1)

    def vary(seconds: Sequence[float]) -> Sequence[float]:
        return [each * (1 + loop.jitter * chance.expovariate(1)) for each in seconds]

    job = Job()
    totals = [StepTotals() for _ in range(RANKS)]
    recorders = [Recorder(each, threading.Lock(), ONLY_WAITING, gpu=True) for each in totals]
    for recorder in recorders:
        recorder.on_gpu, recorder._clock = True, Clock()  # type: ignore[assignment]
        if hasattr(recorder, "follows_host"):
            recorder.follows_host = True
        recorder.watch = step is fsdp or None  # type: ignore[assignment]
    begin = job.marks()
    for number in range(STEPS):
        marks = step(job, loop, vary)
        end = job.marks()
        is_sampled = number < 3 or number % 8 == 0
        for rank, recorder in enumerate(recorders):
            of_rank = [(begins, each[rank]) for begins, each in marks] if is_sampled else []
            recorder._add(begin[rank], end[rank], of_rank, is_sampled=is_sampled)
        begin = end
    own = {rank: each.own.mean for rank, each in enumerate(totals)}
    usual, seconds = median(own.values()), median(each.step.mean for each in totals)
    margin = j.DEVIATION_OF_MEDIANS * median(abs(each - usual) for each in own.values()) + j.LEAST_SHARE * usual
    return {
        rank: (each - usual) / seconds
        for rank, each in own.items()
        if each - usual > max(0.05 * seconds, j.DEVIATIONS * margin)
    }


EQUAL = (LAUNCH,) * RANKS
AT_LIMIT = (LAUNCH / 10,) * RANKS
# The CPUs of a node differ a little; the slowest is not much slower.
SPREAD = (LAUNCH, 0.97 * LAUNCH, 1.05 * LAUNCH, 0.99 * LAUNCH)
# Kernels that take longer than their launches.
LONG = (3 * LAUNCH,) * RANKS
SLOW = (3 * LAUNCH, 4 * LAUNCH, 3 * LAUNCH, 3 * LAUNCH)


@pytest.mark.parametrize("step", [ddp, fsdp])
@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(Loop(EQUAL, AT_LIMIT), id="launch-bound"),
        pytest.param(Loop(SPREAD, AT_LIMIT), id="launch-bound, a CPU is a little slower"),
        pytest.param(Loop(SPREAD, AT_LIMIT, jitter=1.0), id="launch-bound, launches vary"),
        pytest.param(Loop(SPREAD, AT_LIMIT, reads="end"), id="launch-bound, reads its loss"),
        pytest.param(Loop(EQUAL, LONG), id="bound by its GPUs"),
        pytest.param(
            Loop(EQUAL, LONG, loads=(0.004, 0.0, 0.0, 0.0), transfer=0.0008), id="bound by its GPUs, a rank logs more"
        ),
        pytest.param(Loop(EQUAL, LONG, reads="forward"), id="bound by its GPUs, reads its loss"),
    ],
)
def test_nobody_is_slow(step: Step, loop: Loop) -> None:
    assert excess(step, loop) == {}


@pytest.mark.parametrize("step", [ddp, fsdp])
@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(Loop(EQUAL, SLOW), id="a slow GPU, full queues"),
        pytest.param(Loop(EQUAL, SLOW, launches=3), id="a slow GPU"),
        pytest.param(Loop(EQUAL, SLOW, reads="forward"), id="a slow GPU, the loss is read after the forward pass"),
        pytest.param(Loop(EQUAL, SLOW, reads="end"), id="a slow GPU, the loss is read at the end"),
        pytest.param(Loop(EQUAL, LONG, loads=(0.0, 0.01, 0.0, 0.0)), id="a slow loader"),
        pytest.param(Loop((LAUNCH, 2 * LAUNCH, LAUNCH, LAUNCH), AT_LIMIT), id="a CPU that is twice as slow"),
    ],
)
def test_one_rank_is_slow(step: Step, loop: Loop) -> None:
    assert excess(step, loop).keys() == {1}
