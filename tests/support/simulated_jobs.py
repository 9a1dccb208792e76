"""Simulates jobs of several ranks, and writes their traces: hosts that launch, GPUs, and collectives that wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

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
    `overlaps`, the next kernel waits for the collective. `loads` is the time in the data loader of every step.
    """

    ranks: int = 4
    steps: int = 6
    layers: int = 10
    kernel: float = 1000.0
    transfer: float = 200.0
    launch: float = LAUNCH
    overlaps: bool = True
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


class _Rank:
    def __init__(self, rank: int, job: Job) -> None:
        self.trace = SyntheticTrace(rank=rank, world_size=job.ranks)
        self._rank, self._job = rank, job
        self._host = self._compute = self._communication = self._start = 0.0

    def begin(self, step: int, random: Random) -> None:
        """Load data, and do what the host does."""
        self._start = self._host
        for frame, time in (
            ("data.py(4): load_batch", self._job.loads),
            ("train.py(9): augment", self._job.host(random, self._rank, step)),
        ):
            if time > 0:
                self.trace.host(frame, self._host, time)
                self._host += time

    def compute(self, step: int, random: Random) -> None:
        """Launch a kernel."""
        launched = self._launched()
        start = max(self._compute, launched + DELAY)
        duration = self._job.kernel + self._job.gpu(random, self._rank, step)
        self.trace.device(start, duration, "nvjet_tst_128x256", launched=launched, stream=COMPUTE_STREAM)
        self._compute = start + duration

    def ready(self) -> float:
        """Launch a collective. Returns when it starts."""
        self._collective_launched = self._launched()
        return max(self._communication, self._compute, self._collective_launched + DELAY)

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
        self.trace.device(
            start,
            end - start,
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            launched=self._collective_launched,
            stream=COMMUNICATION_STREAM,
            args=args if self._job.has_arguments else {},
        )
        self._communication = end
        if not self._job.overlaps or group != "0":
            self._compute = end

    def end(self, step: int) -> None:
        """Update the weights after all collectives, and wait for the loss."""
        self._compute = max(self._compute, self._communication)
        launched = self._launched()
        start = max(self._compute, launched + DELAY)
        self.trace.device(start, 100, "multi_tensor_apply_kernel", launched=launched, stream=COMPUTE_STREAM)
        self._compute = start + 100
        self.trace.host("train.py(20): log_loss", self._host, max(1.0, self._compute - self._host + 5))
        self.trace.host("cudaStreamSynchronize", self._host, max(1.0, self._compute - self._host), "cuda_runtime")
        self._host = max(self._host + 1, self._compute + 5)
        self.trace.host("train.py(3): main", self._start, self._host - self._start)
        self.trace.step(step, self._start, self._host - self._start)

    def _launched(self) -> float:
        self._host += self._job.launch
        return self._host - self._job.launch
