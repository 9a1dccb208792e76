"""Readings of one GPU -> the samples it exposes: ranges, integrals, windows, histograms, counters that never fall."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.collection.histograms import Histogram, Histograms, Made
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Kind, Labels, Metric

EMPTY: Made = MappingProxyType({})
INTEGRALS = {row.integral_of: row for row in METRICS if row.integral_of is not None}
# Only what a metric can resolve: more digits than these are noise that every scrape would carry.
DIGITS = {"ratio": 6, "seconds": 6, "bytes": 0, "bytes per second": 0}


# Points that a trailing window is remembered by, however many ticks it holds: it is up to 1/30 longer than asked.
WINDOW_POINTS = 30


@dataclass(slots=True)
class _Integral:
    """The integral of a mean, and the seconds it was known for; `window` holds (at, total, seconds), flat, of which
    `mean` is the mean."""

    total: float = 0.0
    seconds: float = 0.0
    mean: float = 0.0
    window: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at: float, mean: float, span: float, gauge_window: float) -> None:
        """Take a mean over `span` seconds."""
        window = self.window
        if not window:
            window.extend((at - span, self.total, self.seconds))
        self.total += mean * span
        self.seconds += span
        while len(window) > 3 and window[3] <= at - gauge_window:
            del window[:3]
        self.mean = (self.total - window[1]) / (self.seconds - window[2])
        if at - window[-3] >= gauge_window / WINDOW_POINTS:
            window.extend((at, self.total, self.seconds))


@dataclass(slots=True)
class _Rising:
    """A counter of ours over a library counter that starts again at a driver reload, or wraps."""

    last: float = 0.0
    total: float = 0.0

    def add(self, raw: float) -> float:
        if raw < self.last / 2:  # a new start; a smaller fall is jitter, and waits until it is caught up with
            self.last = 0.0
        if raw > self.last:
            self.total += raw - self.last
            self.last = raw
        return self.total


# What `Sample(*item)` does, without a call of Python for each of hundreds of samples.
_sample: Callable[[tuple[Series, float]], Sample] = partial(tuple.__new__, Sample)


class Accumulator:
    """What is known of one GPU (one UUID). It outlives every handle: integrals and counters go on after a loss."""

    def __init__(self, gauge_window: float) -> None:
        self._gauge_window = gauge_window
        self._integrals: dict[tuple[Metric, Labels], _Integral] = {}
        self._rising: dict[tuple[Metric, Labels], _Rising] = {}
        self._values: dict[Series, float] = {}
        self._total_of: dict[Series, Series] = {}
        self._histograms = Histograms()
        self._moved: dict[Series, _Integral] = {}
        self._changed: dict[int, tuple[Histogram, Gpu | None]] = {}
        self.rejected: Counter[str] = Counter()
        self.field_failures: Counter[tuple[str, str]] = Counter()

    def apply(self, reading: Reading, histograms: Made = EMPTY) -> tuple[Sample, ...]:
        """Take a reading; return every sample that holds now. A series that failed has none."""
        self.take(reading, histograms)
        return self.samples()

    def samples(self) -> tuple[Sample, ...]:
        """Every sample that holds now."""
        for series, integral in self._moved.items():
            self._values[series] = round(integral.mean, DIGITS[series.metric.unit])
            self._show_total(series, integral)
        self._moved.clear()
        for histogram, gpu in self._changed.values():
            self._values.update(histogram.samples(gpu))
        self._changed.clear()
        return tuple(map(_sample, self._values.items()))

    def take(self, reading: Reading, histograms: Made = EMPTY) -> None:
        """Take a reading. `histograms` are made of its means, those of buffered samples always."""
        for series in reading.ended:
            for ended in self._histograms.end(series):
                self._changed.pop(id(ended), None)
                for part in ended.close():
                    self._values.pop(part, None)
            self._moved.pop(series, None)
            self._values.pop(series, None)
            self._values.pop(self._total_of.pop(series, series), None)
        for series, reason in reading.failed.items():
            self._forget(series)
            self.field_failures[series.metric.name, reason] += 1
        for series, value in reading.values.items():
            metric = series.metric
            if not metric.low <= value <= metric.high:  # NaN compares false, too
                self._forget(series)
                self.rejected[metric.name] += 1
            elif metric in INTEGRALS:
                self._integrate(series, value, reading, histograms.get(metric, ()))
            elif metric.kind is Kind.COUNTER and not metric.classic:
                rising = self._rising.setdefault((metric, series.labels), _Rising())
                self._values[series] = rising.add(value)
            else:
                self._values[series] = value
        for series, taken in reading.buffered.items():
            histogram, rejected = self._histograms.take_samples(series, taken)
            if rejected:
                self.rejected[series.metric.name] += rejected
            self._changed[id(histogram)] = histogram, series.gpu

    def _integrate(self, series: Series, value: float, reading: Reading, histograms: Sequence[Metric]) -> None:
        span = reading.spans.get(series, reading.span)
        if span is None:
            return
        integral = self._moved.get(series)
        if integral is None:
            integral = self._integrals.setdefault((series.metric, series.labels), _Integral())
            self._moved[series] = integral
        integral.add(reading.at, value, span, self._gauge_window)
        for histogram in self._histograms.take_mean(histograms, series, value, span) if histograms else ():
            self._changed[id(histogram)] = histogram, series.gpu

    def _show_total(self, series: Series, integral: _Integral) -> None:
        total = self._total_of.get(series)
        if total is None:
            total = self._total_of[series] = Series(INTEGRALS[series.metric], series.gpu, series.labels)
        self._values[total] = round(integral.total, DIGITS[total.metric.unit])

    def _forget(self, series: Series) -> None:
        """Drop a gauge; a counter keeps its value, for a counter that vanishes and returns looks like new to nobody."""
        if moved := self._moved.pop(series, None):
            self._show_total(series, moved)
        if series.metric.kind is Kind.GAUGE:
            self._values.pop(series, None)

    def renew(self, *, gone: bool = False) -> None:
        """Another handle of the same GPU takes over at once: all series come anew, totals and windows go on."""
        self._values.clear()
        self._changed.clear()
        self._moved.clear()
        self._total_of.clear()
        self._histograms.renew(gone=gone)

    def detach(self) -> None:
        """The handle is gone: its series end, the totals stay for the next one."""
        self.renew(gone=True)
        for integral in self._integrals.values():
            del integral.window[:]
