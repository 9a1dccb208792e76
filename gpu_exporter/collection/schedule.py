"""When the fields of one GPU are due: each pace has its period; slow reads of different GPUs are spread over time."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_exporter.model.metric import Pace

# Slow reads are spread evenly over this many GPUs: a node has eight. A ninth would read together with the first.
SPREAD = 8


class Schedule:
    """Tracks when each pace was last read, for the GPU of one index."""

    def __init__(self, index: int) -> None:
        self._phase = index % SPREAD / SPREAD
        self._read_at: dict[Pace, float] = {}

    def reset(self) -> None:
        """Make everything due, because the GPU has a new handle."""
        self._read_at.clear()

    def take_due(self, now: float, interval: float) -> frozenset[Pace]:
        """Return the paces whose period is over, and start their next one. All are due at the first read.

        A read may be early by less than half an interval. The first period of a slow pace is shortened by a different
        share on each GPU, because the driver serves one call at a time, and calls that wait for it burn CPU.
        """
        slack = interval / 2
        due = frozenset(pace for pace in Pace if now - self._read_at.get(pace, -float("inf")) >= pace.value - slack)
        for pace in due:
            self._read_at[pace] = now if pace in self._read_at else now - self._phase * pace.value
        return due

    def retry_soon(self, paces: Iterable[Pace], now: float) -> None:
        """After a failed read, make these paces due within 15 s (the period of SLOW), even rare ones."""
        for pace in paces:
            self._read_at[pace] = min(self._read_at.get(pace, now), now + Pace.SLOW.value - pace.value)
