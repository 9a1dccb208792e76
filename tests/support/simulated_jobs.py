"""Simulates jobs of several ranks, and writes their traces: hosts that launch, GPUs, and collectives that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.traces import SyntheticTrace

# us
DELAY, LAUNCH = 8.0, 10.0
COMPUTE_STREAM, COMMUNICATION_STREAM = 7, 13
Jitter = Callable[[Random, int, int], float]


def none(random: Random, rank: int, step: int) -> float:
    """Return 0 for every rank and step."""
    return 0.0


@dataclass(frozen=True)
class Job:
    """A training job in which every step has layers, and every layer a collective after its kernel. Times are us.

    `host` is what the host does before a step, `gpu` what each kernel takes longer, both by rank and step. Without
    `overlaps`, the next kernel waits for the collective. `loads` is the time in the data loader of every step. If it
    does not wait for the loss, a host runs ahead of its GPU.
    """

    ranks: int = 4
    steps: int = 6
    layers: int = 10
    kernel: float = 1000.0
    transfer: float = 200.0
    launch: float = LAUNCH
    overlaps: bool = True
    waits_for_loss: bool = True
    loads: float = 0.0
    host: Jitter = none
    gpu: Jitter = none
    groups: Sequence[Sequence[int]] = ()  # ranks with collectives of their own, before that of all
    has_arguments: bool = True

    def traces(self) -> list[SyntheticTrace]:
        """Return the trace of each rank."""
        random = Random(1)
        ranks = [_Rank(rank, self) for rank in range(self.ranks)]
        for step in range(self.steps):
            for rank in ranks:
                rank.begin(step, random)
            for layer in range(self.layers):
                for rank in ranks:
                    rank.compute(step, random)
                for number, group in enumerate(self.groups):
                    self._collective([ranks[rank] for rank in group], f"{number + 1}", step * self.layers + layer)
                self._collective(ranks, "0", step * self.layers + layer)
            for rank in ranks:
                rank.end(step)
        return [rank.trace for rank in ranks]

    def _collective(self, ranks: Sequence[_Rank], group: str, number: int) -> None:
        starts = [rank.ready() for rank in ranks]
        for rank, start in zip(ranks, starts, strict=True):
            rank.communicate(start, max(starts) + self.transfer, group, number, len(ranks))


@dataclass(frozen=True)
class Message:
    """Batch `number`, forward to the next stage or backward to the one before."""

    source: int
    destination: int
    number: int

    def arguments(self, rank: int) -> dict[str, Any]:
        """Return what the profiler records on one of its ends. Both number their messages by themselves."""
        sends = rank == self.source
        return {
            "Collective name": "send" if sends else "recv",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "dtype": "BFloat16",
            "Group size": 4,
            "Process Group Name": "0",
            "Seq": 2 * self.number + sends,
            "Dst Rank" if sends else "Src Rank": self.destination if sends else self.source,
        }


# What a stage does next: compute this often, or exchange messages together.
Work = int | tuple[Message, ...]


@dataclass(frozen=True)
class Pipeline:
    """Stages that train by the 1F1B schedule. `job` has ranks, steps and times; each kernel is one of a batch.

    With `has_arguments`, kernels that send or receive one message have its arguments; several at once have none, but
    the host records each. Without, nothing is recorded.
    """

    job: Job
    batches: int = 12
    has_arguments: bool = True

    def traces(self) -> list[SyntheticTrace]:
        """Return the trace of each rank."""
        random = Random(1)
        ranks = [_Rank(rank, self.job) for rank in range(self.job.ranks)]
        for step in range(self.job.steps):
            for rank in ranks:
                rank.begin(step, random)
            self._run(ranks, [list(self._stage(rank)) for rank in range(len(ranks))], step, random)
            for rank in ranks:
                rank.end(step)
        return [rank.trace for rank in ranks]

    def _stage(self, rank: int) -> Iterator[Work]:
        """Yield what a stage does in a step: a forward pass is one kernel, a backward pass two."""
        last = self.job.ranks - 1
        ahead = min(last - rank, self.batches)

        def forward(source: int, number: int) -> tuple[Message, ...]:
            return (Message(source, source + 1, number),) if 0 <= source < last and number < self.batches else ()

        def backward(source: int, number: int) -> tuple[Message, ...]:
            return (Message(source, source - 1, number),) if 0 < source <= last else ()

        for number in range(ahead):
            yield from (forward(rank - 1, number), 1, forward(rank, number))
        yield forward(rank - 1, ahead)
        for number in range(self.batches - ahead):
            yield from (1, forward(rank, ahead + number) + backward(rank + 1, number), 2)
            yield backward(rank, number) + forward(rank - 1, ahead + number + 1)
        for number in range(self.batches - ahead, self.batches):
            yield from (backward(rank + 1, number), 2, backward(rank, number))

    def _run(self, ranks: Sequence[_Rank], left: Sequence[list[Work]], step: int, random: Random) -> None:
        """Run all stages: messages pass when both ends are there, and a kernel ends with the last of its messages."""
        begun: dict[int, float] = {}
        arrived: dict[int, dict[Message, float]] = {rank: {} for rank in range(len(ranks))}
        while any(left):
            for row, rank in enumerate(ranks):
                if not left[row]:
                    continue
                work = left[row][0]
                if isinstance(work, int) or not work:
                    for _ in range(work if isinstance(work, int) else 0):
                        rank.compute(step, random)
                    left[row].pop(0)
                    continue
                if row not in begun:
                    self._record(rank, work)
                    begun[row] = rank.ready()
                    arrived[row] |= dict.fromkeys(work, begun[row])
                ends = [
                    [arrived[end].get(message) for end in (message.source, message.destination)] for message in work
                ]
                if all(time is not None for times in ends for time in times):
                    end = max(time for times in ends for time in times if time is not None) + self.job.transfer
                    has_arguments = self.has_arguments and len(work) == 1
                    arguments = work[0].arguments(row) if has_arguments else {}
                    rank.write(begun.pop(row), end, "ncclDevKernel_SendRecv", arguments)
                    left[row].pop(0)

    def _record(self, rank: _Rank, work: Sequence[Message]) -> None:
        if self.has_arguments:
            for message in work:
                rank.request(message.arguments(rank.number))


class _Rank:
    def __init__(self, rank: int, job: Job) -> None:
        self.trace = SyntheticTrace(rank=rank, world_size=job.ranks)
        self.number, self._job = rank, job
        self._host = self._compute = self._communication = self._start = 0.0

    def begin(self, step: int, random: Random) -> None:
        """Load data, and do what the host does."""
        self._start = self._host
        for frame, time in (
            ("data.py(4): load_batch", self._job.loads),
            ("train.py(9): augment", self._job.host(random, self.number, step)),
        ):
            if time > 0:
                self.trace.host(frame, self._host, time)
                self._host += time

    def compute(self, step: int, random: Random) -> None:
        """Launch a kernel."""
        launched = self._launched()
        start = max(self._compute, launched + DELAY)
        duration = self._job.kernel + self._job.gpu(random, self.number, step)
        self.trace.device(start, duration, "nvjet_tst_128x256", launched=launched, stream=COMPUTE_STREAM)
        self._compute = start + duration

    def ready(self) -> float:
        """Launch a collective. Returns when it starts."""
        self._collective_launched = self._launched()
        return max(self._communication, self._compute, self._collective_launched + DELAY)

    def request(self, arguments: Mapping[str, Any]) -> None:
        """Record the request of a message on the host."""
        self.trace.host("record_param_comms", self._host, 1.0, "cpu_op", **arguments)
        self._host += 1.0

    def communicate(self, start: float, end: float, group: str, number: int, size: int) -> None:
        """Wait in a collective until the others are there and it is done."""
        args = {
            "Collective name": "allreduce",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "dtype": "BFloat16",
            "Group size": size,
            "Process Group Name": group,
            "Seq": number,
        }
        before = self._compute
        self.write(start, end, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", args if self._job.has_arguments else {})
        if self._job.overlaps and group == "0":
            self._compute = before

    def write(self, start: float, end: float, name: str, args: Mapping[str, Any]) -> None:
        """Write a kernel for communication, for which the next kernel waits."""
        launched = self._collective_launched
        self.trace.device(start, end - start, name, launched=launched, stream=COMMUNICATION_STREAM, args=args)
        self._communication = self._compute = end

    def end(self, step: int) -> None:
        """Update the weights after all collectives, and wait for the loss."""
        self._compute = max(self._compute, self._communication)
        launched = self._launched()
        start = max(self._compute, launched + DELAY)
        self.trace.device(start, 100, "multi_tensor_apply_kernel", launched=launched, stream=COMPUTE_STREAM)
        self._compute = start + 100
        if self._job.waits_for_loss:
            self.trace.host("train.py(20): log_loss", self._host, max(1.0, self._compute - self._host + 5))
            self.trace.host("cudaStreamSynchronize", self._host, max(1.0, self._compute - self._host), "cuda_runtime")
            self._host = max(self._host + 1, self._compute + 5)
        self.trace.host("train.py(3): main", self._start, self._host - self._start)
        self.trace.step(step, self._start, self._host - self._start)

    def _launched(self) -> float:
        self._host += self._job.launch
        return self._host - self._job.launch
