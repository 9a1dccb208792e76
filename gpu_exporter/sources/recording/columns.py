"""A recording in memory: the values of each metric of each GPU over time."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_exporter.catalogue.metrics import BY_KEY
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Kind

# A value covers the time since the previous tick. A longer pause is a hole, in which no value is known.
HOLE_INTERVALS = 10


@dataclass(slots=True)
class Column:
    """One value over time. Between two `times` the integral grows linearly, and so do the `covered` seconds."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    integral: list[float] = field(default_factory=list)
    covered: list[float] = field(default_factory=list)

    def append(self, t: float, value: float, interval: float) -> None:
        """Add the value of a tick."""
        since = self.times[-1] if self.times else -math.inf
        start = since if t - since <= HOLE_INTERVALS * interval else t - interval
        total, covered = (self.integral[-1], self.covered[-1]) if self.times else (0.0, 0.0)
        if start != since:
            self._point(start, value, total, covered)
        self._point(t, value, total + value * (t - start), covered + t - start)

    def _point(self, t: float, value: float, integral: float, covered: float) -> None:
        self.times.append(t)
        self.values.append(value)
        self.integral.append(integral)
        self.covered.append(covered)

    def at(self, t: float) -> float:
        """Return the value at time t; before and after the recording, the first or last one."""
        return self.values[min(bisect_left(self.times, t), len(self.times) - 1)]

    def ticks(self, after: float, until: float) -> Iterator[tuple[float, float]]:
        """Yield the times and values of the ticks of this period. The point where a value begins to hold is no tick."""
        for n in range(bisect_right(self.times, after), bisect_right(self.times, until)):
            if self.covered[n] > (self.covered[n - 1] if n else 0.0):
                yield self.times[n], self.values[n]

    def until(self, t: float) -> tuple[float, float]:
        """Return the integral and the covered seconds from the beginning to time t."""
        right = bisect_right(self.times, t)
        if right == 0:
            return 0.0, 0.0
        if right == len(self.times):
            return self.integral[-1], self.covered[-1]
        share = (t - self.times[right - 1]) / (self.times[right] - self.times[right - 1])
        return (
            self.integral[right - 1] + share * (self.integral[right] - self.integral[right - 1]),
            self.covered[right - 1] + share * (self.covered[right] - self.covered[right - 1]),
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording. Times are seconds from its beginning, which is one interval before the first tick."""

    path: Path
    interval: float
    duration: float
    gpus: tuple[Gpu, ...]
    columns: Mapping[int, Mapping[str, Column]]
    simulated: bool = False


@dataclass(slots=True)
class Timeline:
    """Builds columns from ticks in order. A period without a tick of any GPU is a pause of the recorder: it is cut out.

    `cut` are the seconds cut out so far, `offsets` the counter increases within them by GPU and metric.
    """

    interval: float
    columns: dict[int, dict[str, Column]]
    begin: float | None = None
    now: float = 0.0
    cut: float = 0.0
    last: dict[int, float] = field(default_factory=dict)
    offsets: dict[int, dict[str, float]] = field(default_factory=dict)
    resume: set[int] = field(default_factory=set)

    def add(self, t: float, index: int, samples: Mapping[str, float]) -> bool:
        """Add one tick; return False if it is not later than the previous tick of this GPU."""
        t -= self.cut
        if self.begin is None:
            self.begin = t - self.interval
        elif t - self.now > HOLE_INTERVALS * self.interval:
            pause = t - self.now - self.interval
            self.cut += pause
            t -= pause
            self.resume = set(self.columns)
        if t <= self.last.get(index, -math.inf):
            return False
        self.last[index] = t
        self.now = max(self.now, t)
        columns, offsets = self.columns[index], self.offsets.setdefault(index, {})
        for name, value in samples.items():
            column = columns.setdefault(name, Column())
            if name in BY_KEY and BY_KEY[name].kind is Kind.COUNTER:
                if index in self.resume and column.values:  # the increase during the pause is not part of the recording
                    offsets[name] = value - column.values[-1]
                value -= offsets.get(name, 0.0)
            column.append(t, value, self.interval)
        self.resume.discard(index)
        return True

    def finished(self) -> Mapping[int, Mapping[str, Column]]:
        """Return the columns with times from the beginning."""
        begin = self.begin or 0.0
        for columns in self.columns.values():
            for column in columns.values():
                column.times = [t - begin for t in column.times]
        return self.columns
