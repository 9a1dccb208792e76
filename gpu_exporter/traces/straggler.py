"""Which of several ranks makes the others wait, and whether its host or its GPU is slow.

In synchronous training every step takes equally long on all ranks, so steps do not tell. Self time does: the step
without the communication that nothing hides, in which a rank waits for the others.
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
    compute_seconds: float  # kernels other than communication, per step


def straggler_of(ranks: Sequence[RankResult], least: float) -> Straggler | None:
    """Return the rank whose self time exceeds the median of the others by at least `least` of a step."""
    if len(ranks) < 2:
        return None
    steps = [rank_step(rank) for rank in ranks]
    slow = max(range(len(ranks)), key=lambda row: steps[row].self_seconds)
    others = [step for row, step in enumerate(steps) if row != slow]
    excess = steps[slow].self_seconds - median(step.self_seconds for step in others)
    if excess < least * median(step.seconds for step in steps) or excess <= 0:
        return None
    on_gpu = steps[slow].compute_seconds - median(step.compute_seconds for step in others)
    return Straggler(ranks[slow].rank, "gpu" if on_gpu >= excess / 2 else "host", excess)


def rank_step(rank: RankResult) -> RankStep:
    """Return the median step of a rank."""
    steps = rank.steps[1:] if len(rank.steps) > FEWEST_STEPS else rank.steps
    if not steps:
        return RankStep(rank.span_seconds, rank.span_seconds - rank.exposed_communication_seconds, rank.compute_seconds)
    return RankStep(
        median(step.seconds for step in steps),
        median(step.self_seconds for step in steps),
        median(step.busy_ratio * step.seconds - step.exposed_communication_seconds for step in steps),
    )
