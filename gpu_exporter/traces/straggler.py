"""Which of several ranks makes the others wait, and whether its host or its GPU is slow.

In synchronous training every step takes equally long on all ranks, so steps do not tell. What a rank needs itself does:
the longer of its self time on the GPU, which is the step without the communication that nothing hides, and of the time
of its host. The GPU alone does not tell: hosts do not wait in collectives, so where both launch too slowly for their
GPUs, the GPU of the host that leads waits for the other in each collective, by a lead that was gained only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gpu_exporter.traces.result import RankResult, Straggler

# The first step of a trace often has the cost of the profiler's start.
FEWEST_STEPS = 3


@dataclass(frozen=True)
class RankStep:
    """The median step of a rank; without steps, its span."""

    seconds: float
    self_seconds: float
    host_seconds: float  # 0 if it is not known
    gpu_seconds: float  # kernels and copies other than communication, per step

    @property
    def own_seconds(self) -> float:
        """What the rank needs if it waits for no other: the GPU and the host work at the same time."""
        return max(self.self_seconds, self.host_seconds)


def straggler_of(ranks: Sequence[RankResult], least: float) -> Straggler | None:
    """Return the rank whose own time exceeds the median of the others by at least `least` of a step."""
    if len(ranks) < 2:
        return None
    steps = [rank_step(rank) for rank in ranks]
    slow = max(range(len(ranks)), key=lambda row: steps[row].own_seconds)
    others = [step for row, step in enumerate(steps) if row != slow]
    excess = steps[slow].own_seconds - median(step.own_seconds for step in others)
    if excess < least * median(step.seconds for step in steps) or excess <= 0:
        return None
    on_gpu = steps[slow].gpu_seconds - median(step.gpu_seconds for step in others)
    return Straggler(ranks[slow].rank, "gpu" if on_gpu >= excess / 2 else "host", excess)


def rank_step(rank: RankResult) -> RankStep:
    """Return the median step of a rank."""
    steps = rank.steps[1:] if len(rank.steps) > FEWEST_STEPS else rank.steps
    if not steps:
        span = rank.span_seconds
        return RankStep(span, span - rank.exposed_communication_seconds, 0.0, rank.compute_seconds)
    return RankStep(
        median(step.seconds for step in steps),
        median(step.self_seconds for step in steps),
        median(step.host_seconds for step in steps),
        median(step.gpu_seconds for step in steps),
    )
