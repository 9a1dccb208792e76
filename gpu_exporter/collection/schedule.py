"""When the fields of one GPU are due: each pace has its period; slow reads of different GPUs are spread over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from gpu_exporter.model.metric import Pace

# Slow reads are spread evenly over this many GPUs: a node has eight. A ninth would read together with the first.
SPREAD = 8
# How often in a row a pace is retried before its period is over.
MOST_RETRIES = 3


class Schedule:
    """Tracks when each pace was last read, for the GPU of one index."""

    def __init__(self, index: int) -> None:
        self._phase = index % SPREAD / SPREAD
        self._read_at: dict[Pace, float] = {}
        self._due: frozenset[Pace] = frozenset()
        self._failures: Counter[Pace] = Counter()

    def reset(self) -> None:
        """Make everything due, because the GPU has a new handle."""
        self._read_at.clear()
        self._failures.clear()

    def take_due(self, now: float, interval: float) -> frozenset[Pace]:
        """Return the paces whose period is over, and start their next one. All are due at the first read.

        A read may be early by less than half an interval. The first period of a slow pace is shortened by a different
        share on each GPU, because the driver serves one call at a time, and calls that wait for it burn CPU.
        """
        slack = interval / 2
        due = frozenset(pace for pace in Pace if now - self._read_at.get(pace, -float("inf")) >= pace.value - slack)
        for pace in due:
            self._read_at[pace] = now if pace in self._read_at else now - self._phase * pace.value
        self._due = due
        return due

    def retry_soon(self, failed: Collection[Pace], now: float) -> None:
        """After a read, make the paces that failed due within 15 s (the period of SLOW), even rare ones.

        A field that fails for good would have all fields of its pace read that often: after a few failures in a row,
        the pace keeps to its period.
        """
        due, self._due = self._due, frozenset()
        for pace in due.difference(failed):
            self._failures[pace] = 0
        for pace in failed:
            self._failures[pace] += 1
            if self._failures[pace] <= MOST_RETRIES:
                self._read_at[pace] = min(self._read_at.get(pace, now), now + Pace.SLOW.value - pace.value)
