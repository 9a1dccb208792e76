"""The points of a signal by device, read from one scrape after another. No scrape is kept."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.evaluate import LOOKBACK_SECONDS, Points
from gpu_exporter.conditions.signal import Read
from gpu_exporter.diagnosis.scrape import LARGEST, ByName, DeviceKey, LabelReader, ReadLabels, SampleColumn

# Points that are much older are dropped. The longest window of a failure mode is shorter.
KEPT_SECONDS = 9000.0
# They are dropped when they reach so far back: not at each point, because each deletion moves all others.
LONGEST_SECONDS = 2 * KEPT_SECONDS
# Counters that have stood still for longer than this have ended, or their rate is 0 whenever they grow again.
FORGOTTEN_SECONDS = 900.0
# How often these are looked for.
FORGET_SECONDS = 60.0
# How often metrics are read; scrapes in between repeat the last value.
PERIODS = {metric.name: metric.nvml_pace.value for metric in m.METRICS}


class SignalReader(Protocol):
    """Reads one definition of a signal. `points` has the devices that had a value."""

    @property
    def points(self) -> Mapping[DeviceKey, Points]:
        """The points so far, by device."""

    def take(self, at: float, by_name: ByName, read: LabelReader) -> None:
        """Add the samples of a scrape at unix time `at`; scrapes come in order of time."""

    def forget(self, before: float) -> None:
        """Drop the points of before this unix time, and devices without others."""


def reader(way: Read, *, per_instance: bool, seconds: float) -> SignalReader:
    """Return the reader of a definition. A histogram counts for this many seconds."""
    return ShapeReader(way, per_instance, seconds) if way.shape else ValueReader(way, per_instance)


# How late a read may be, by a collection that was slow or skipped. Until then, no counter that grew stands still.
LATE_SECONDS = 1.5
# A counter: since when it has its value, the value, whether it changed at that time, so was really read then, and
# whether it stands still.
Count = tuple[float, float, bool, bool]


@dataclass(slots=True)
class ValueReader:
    """Reads a signal from samples; of several samples of a device the highest."""

    way: Read
    per_instance: bool
    points: dict[DeviceKey, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _before: dict[Hashable, Count] = field(default_factory=dict)
    _forgot: float = -math.inf
    _first: float = math.inf
    _period: float = 0.0
    _is_plain: bool = True
    _highest: float = LARGEST

    def __post_init__(self) -> None:
        way = self.way
        self._period = PERIODS.get(way.name, 0.0)
        self._highest = LARGEST if way.highest is None else way.highest
        self._is_plain = not (way.codes or way.age_by or way.rate or way.where or way.any_of) and way.bit is None

    def take(self, at: float, by_name: ByName, read: LabelReader) -> None:
        """Add the samples of a scrape."""
        column, way = by_name.get(self.way.name), self.way
        if column is None:
            return
        values: Iterable[tuple[DeviceKey | None, float]]
        if self._is_plain:
            devices = read.column(column).devices(per_instance=self.per_instance)
            scale, values = way.scale, zip(devices, column.values, strict=True)
        else:
            scale, values = 1.0, self._values(at, column, by_name, read)
        highest = self._highest
        if not self.points:
            self._first = at
        is_long, by_device = at - self._first > LONGEST_SECONDS, self.points
        for key, number in values:
            value = number * scale
            # Some exporters write NaN for a missing value.
            if key is None or not (-LARGEST <= number <= highest and -LARGEST <= value <= LARGEST):
                continue
            points = by_device[key]
            if points and points[-1][0] == at:
                if value > points[-1][1]:
                    points[-1] = (at, value)
                continue
            points.append((at, value))
            if is_long and at - points[0][0] > LONGEST_SECONDS:
                _shorten(points, at)

    def _values(
        self, at: float, column: SampleColumn, by_name: ByName, read: LabelReader
    ) -> Iterator[tuple[DeviceKey | None, float]]:
        """Yield the values of the samples, which are not just their numbers, with their devices."""
        way, is_selective = self.way, bool(self.way.where or self.way.any_of)
        # gpu-exporter counts XIDs, so dcgm-exporter's gauges of the last code and of recent ones are not needed
        counts = by_name.get(way.unless) if way.unless else None
        counted = {labels.get("UUID") for labels in counts.labels} if counts else ()
        clocks = {_exporter(sample.labels): sample.value for sample in by_name.get(way.age_by, ())}
        for of_labels, number in zip(read.column(column).read, column.values, strict=True):
            if of_labels is None or (is_selective and not self._matches(of_labels.labels)):
                continue
            if not -LARGEST <= number <= self._highest or of_labels.device.uuid in counted:
                continue
            value: float | None
            if way.rate:
                value = self._rate(at, of_labels, number)
            elif way.codes:  # how long a code has been shown is unknown, so every code counts
                value = 1.0 if number in way.codes else None
            elif way.counted is not None:
                value = way.counted if number > 0 else None
            elif way.age_by:
                clock = clocks.get(_exporter(of_labels.labels))
                value = None if clock is None else clock - number
            elif way.bit is not None:
                value = float((int(number) >> way.bit) & 1)
            else:
                value = number * way.scale
            if value is not None:
                yield of_labels.device if self.per_instance else of_labels.gpu, value

    def forget(self, before: float) -> None:
        """Drop the points of before this unix time; of a value that is read rarely, an older one may be the latest."""
        _forget(self.points, before, 3 * self._period)
        if before >= self._forgot + FORGET_SECONDS:  # not each time: there are thousands of counters
            self._forgot, oldest = before, before - FORGOTTEN_SECONDS
            self._before = {key: count for key, count in self._before.items() if count[0] >= oldest}

    def _matches(self, labels: Mapping[str, str]) -> bool:
        way = self.way
        for name, value in way.where:
            if labels.get(name, "") != value:
                return False
        return way.any_of is None or labels.get(way.any_of[0]) in way.any_of[1]

    def _rate(self, at: float, labels: ReadLabels, number: float) -> float | None:
        """Return the rate of a counter; None until it was really read twice."""
        key, period = labels.series(), self._period
        last = self._before.get(key)
        if last is None:
            self._before[key] = at, number, False, False
            return None
        since, before, fresh, stands = last
        elapsed = at - since
        if number != before:
            self._before[key] = at, number, True, False
        elif elapsed >= period + (LATE_SECONDS if fresh and not stands else 0.0):
            self._before[key] = at - period, number, fresh, True
        else:
            return None
        if not 0 < elapsed <= LOOKBACK_SECONDS or (elapsed < period and not fresh):
            return None
        way = self.way
        value = (number - before if number >= before else number) / elapsed * way.scale
        return value if way.most is None else min(value, way.most)


@dataclass(slots=True)
class Grown:
    """The buckets of a histogram: their last values, and their growth up to each scrape of the window.

    A reset counts as growth from 0, as in Prometheus.
    """

    last: Mapping[float, float] = field(default_factory=dict)
    until: deque[tuple[float, Mapping[float, float]]] = field(default_factory=deque)

    def take(self, at: float, now: Mapping[float, float], seconds: float) -> Mapping[float, float]:
        """Add the buckets of a scrape; return their growth within the last seconds, in order of their edges."""
        grown = self.until[-1][1] if self.until else {}
        sums = {
            edge: grown.get(edge, 0.0) + now[edge] - (last if (last := self.last.get(edge, 0.0)) <= now[edge] else 0.0)
            for edge in sorted(now)
        }
        self.last = now
        self.until.append((at, sums))
        while self.until[0][0] < at - seconds:
            self.until.popleft()
        first = self.until[0][1]
        return {edge: total - first.get(edge, total) for edge, total in sums.items()}


@dataclass(slots=True)
class ShapeReader:
    """Computes a signal from histograms; of several histograms of a device the highest."""

    way: Read
    per_instance: bool
    seconds: float
    points: dict[DeviceKey, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _growth: dict[Hashable, Grown] = field(default_factory=lambda: defaultdict(Grown))

    def take(self, at: float, by_name: ByName, read: LabelReader) -> None:
        """Add the samples of a scrape."""
        now: dict[Hashable, dict[float, float]] = defaultdict(dict)
        devices: dict[Hashable, DeviceKey] = {}
        column = by_name.get(self.way.series)
        of_column = zip(read.column(column).read, column.values, strict=True) if column else ()
        for of_labels, value in of_column:
            if of_labels is None or not 0 <= value <= LARGEST:
                continue
            edge = _edge(of_labels.labels.get("le", ""))
            if edge is not None:
                series = of_labels.series_of_buckets()
                now[series][edge] = value
                devices[series] = of_labels.device if self.per_instance else of_labels.gpu
        highest: dict[DeviceKey, float] = {}
        for series, buckets in now.items():
            grown = self._growth[series].take(at, buckets, self.seconds)
            share = self.way.shape.value(grown) if self.way.shape else None
            if share is not None:
                highest[devices[series]] = max(highest.get(devices[series], share), share)
        for key, value in highest.items():
            points = self.points[key]
            points.append((at, value))
            if at - points[0][0] > LONGEST_SECONDS:
                _shorten(points, at)

    def forget(self, before: float) -> None:
        """Drop the points of before this unix time."""
        _forget(self.points, before, 0.0)


def _forget(points: dict[DeviceKey, list[tuple[float, float]]], before: float, longer: float) -> None:
    """Drop the points of before a time; the last one only if it is `longer` seconds older than that."""
    for device, of_device in list(points.items()):
        kept = bisect_left(of_device, before, key=itemgetter(0))
        if kept == len(of_device) and of_device[-1][0] < before - longer:
            del points[device]
        elif kept == len(of_device):
            points[device] = of_device[-1:]
        elif kept:
            points[device] = of_device[kept:]  # a new list: a window may still read the old one


def _exporter(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("cluster", "job", "instance"))


def _shorten(points: list[tuple[float, float]], at: float) -> None:
    """Drop the points that are not kept at this unix time."""
    del points[: bisect_left(points, at - KEPT_SECONDS, key=itemgetter(0))]


def _edge(text: str) -> float | None:
    try:
        edge = float(text)
    except ValueError:
        return None
    return None if math.isnan(edge) else edge
