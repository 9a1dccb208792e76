"""A recording in memory: the values of each metric of each GPU over time."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpu_exporter.catalogue.metrics import BY_KEY
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Kind

# A value covers the time since the previous tick. A longer pause is a hole, in which no value is known.
HOLE_INTERVALS = 10


class HeldValues(NamedTuple):
    """The known values of a period: for how many seconds they were held, their integral, the lowest and the highest."""

    seconds: float
    area: float
    low: float
    high: float


def mean(parts: Sequence[HeldValues]) -> float | None:
    """Return the mean of parts of a period by their seconds; None if no value is known.

    Rounding never takes it outside the values: a constant is its own mean, and no bound of a value is exceeded.
    """
    seconds = sum(part.seconds for part in parts)
    if seconds <= 0:
        return None
    area = sum(part.area for part in parts)
    return min(max(area / seconds, min(part.low for part in parts)), max(part.high for part in parts))


@dataclass(slots=True)
class Column:
    """One value over time. `values[n]` was held for the `seconds[n]` until `times[n]`, with the integral `areas[n]`.

    Where a hole ends, the seconds are 0: the values of the hole are unknown.
    """

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    areas: list[float] = field(default_factory=list)

    def append(self, t: float, value: float, interval: float) -> None:
        """Add the value of a tick."""
        start = self.times[-1] if self.times else -math.inf
        if t - start > HOLE_INTERVALS * interval:
            start = t - interval
            self._point(start, value, 0.0)
        self._point(t, value, t - start)

    def _point(self, t: float, value: float, seconds: float) -> None:
        self.times.append(t)
        self.values.append(value)
        self.seconds.append(seconds)
        self.areas.append(value * seconds)

    def value_at(self, t: float) -> float:
        """Return the value at time t; before and after the recording, the first or last one."""
        return self.values[min(bisect_left(self.times, t), len(self.times) - 1)]

    def ticks(self, after: float, until: float) -> Iterator[tuple[float, float]]:
        """Yield the times and values of the ticks of this period. The point where a value begins to hold is no tick."""
        for n in range(bisect_right(self.times, after), bisect_right(self.times, until)):
            if self.seconds[n]:
                yield self.times[n], self.values[n]

    def held_values(self, after: float, until: float) -> Iterator[HeldValues]:
        """Yield what is known of this period, if anything is. Only its own values are summed up, so none loses digits
        to larger ones that were recorded before.
        """
        times = self.times
        first, last = max(1, bisect_right(times, after)), min(len(times) - 1, bisect_left(times, until))
        seconds, area = sum(self.seconds[first + 1 : last]), sum(self.areas[first + 1 : last])
        for n in {first, last} if first <= last else ():
            if self.seconds[n]:
                part = min(times[n], until) - max(times[n - 1], after)
                seconds, area = seconds + part, area + part * self.values[n]
        if seconds > 0:
            values = self.values[first : last + 1 if self.seconds[last] else last]
            yield HeldValues(seconds, area, min(values), max(values))


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
