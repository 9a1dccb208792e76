"""How much is asked of a host engine: less of one that falls behind, and everything again later. Pure functions.

A host engine reads everything that is watched on one thread. If that takes longer than the shortest interval, it never
sleeps, its samples grow old, and its answers come late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from gpu_exporter.model.metric import Metric, MetricSet, Pace

# How often the host engine samples what is read at a pace, so that no answer is much older than its pace.
SAMPLED_SECONDS = {Pace.STEADY: 5.0, Pace.SLOW: 7.5, Pace.RARE: 30.0, Pace.STATIC: 600.0}
# A sample is late if it is older than this many intervals, an answer if it took longer than this share of its timeout.
LATE_INTERVALS, LATE_SHARE = 2.0, 0.5
# So many late reads in a row mean that the host engine falls behind.
LATE_READS = 5
# New watches cost more than those that exist, so nothing is concluded for so many seconds after a change.
GRACE_SECONDS = 15.0
# After how many seconds without a late read more is asked again; twice as long each time that this was too much.
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 60.0, 3600.0
# How much less often slow fields are sampled, and then fast ones.
SLOW_FACTOR, FAST_FACTOR = 4.0, 5.0
# The reason why a metric that the host engine could read is not read.
OVERLOADED = "hostengine_overloaded"


class Demand(IntEnum):
    """How much is asked of a host engine, from most to least."""

    ALL = 0
    NO_EXTRAS = 1
    LESS_OFTEN = 2

    @property
    def text(self) -> str:
        """What is not asked, in words; empty if everything is."""
        extras = f"no metrics beyond --metrics default, slow fields {SLOW_FACTOR:.0f} times less often"
        fast = f"{extras}, fast fields {FAST_FACTOR:.0f} times less often"
        return ("", extras, fast)[self]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What is asked of a host engine since `since` (monotonic seconds), and how many reads in a row were late.

    `patience` is after how many calm seconds more is asked; `more` is whether the last change was to ask for more.
    """

    demand: Demand = Demand.ALL
    late_reads: int = 0
    since: float = 0.0
    patience: float = RETRY_SECONDS
    more: bool = False

    def after(self, now: float, *, late: bool) -> EngineLoad:
        """Return the load after another read."""
        if now - self.since < GRACE_SECONDS:
            return self
        if not late:
            return self._calm(now)
        if self.late_reads + 1 < LATE_READS:
            return replace(self, late_reads=self.late_reads + 1)
        patience = min(self.patience * 2, LONGEST_RETRY_SECONDS) if self.more else self.patience
        return EngineLoad(Demand(min(self.demand + 1, Demand.LESS_OFTEN)), 0, now, patience)

    def _calm(self, now: float) -> EngineLoad:
        if now - self.since < self.patience:
            return replace(self, late_reads=0)
        if self.demand is Demand.ALL:
            return replace(self, late_reads=0, patience=RETRY_SECONDS, more=False)
        return EngineLoad(Demand(self.demand - 1), 0, now, self.patience, more=True)


def is_late(age: float, took: float, interval: float, timeout: float) -> bool:
    """Return whether the newest sample is too old, or the answer took too long; all in seconds."""
    return age > LATE_INTERVALS * interval or took > LATE_SHARE * timeout


class SampleAge:
    """The age of the newest sample, by how its time stamp advances: the clock of the host engine may be another."""

    def __init__(self) -> None:
        self._stamp, self._changed_at, self._gap, self._read_at = 0, 0.0, 0.0, float("inf")

    def age(self, now: float, stamp: int, interval: float) -> float | None:
        """Return the longer of the time since the newest sample (its stamp is in microseconds) was first read, and the
        time between it and the one before; None if the reads themselves were too far apart to tell."""
        known, apart = self._stamp > 0, now - self._read_at > 1.5 * interval
        self._read_at = now
        if stamp != self._stamp:
            self._gap = (stamp - self._stamp) / 1e6 if known and not apart else 0.0
            self._stamp, self._changed_at = stamp, now
        return None if apart or not known else max(self._gap, now - self._changed_at)


def is_asked(metric: Metric, demand: Demand) -> bool:
    """Return whether a metric is read."""
    return demand is Demand.ALL or metric.set is MetricSet.DEFAULT


def interval_of(interval: float, demand: Demand) -> float:
    """Return the seconds between two samples of fast fields."""
    return interval * (FAST_FACTOR if demand is Demand.LESS_OFTEN else 1.0)


def sampling(interval: float, demand: Demand) -> Mapping[Pace, float]:
    """Return the seconds between two samples of a field, by its pace."""
    factor = 1.0 if demand is Demand.ALL else SLOW_FACTOR
    slow = {pace: max(interval, seconds * factor) for pace, seconds in SAMPLED_SECONDS.items()}
    return {**slow, Pace.FAST: interval_of(interval, demand)}


def sampling_of_means(interval: float, demand: Demand) -> Mapping[Pace, float]:
    """Return the same for profiling fields. Each sample is a mean, and each is read."""
    fast = interval_of(interval, demand)
    return {pace: max(fast, pace.value) for pace in Pace}
