"""Readings of one GPU -> the samples it exposes: ranges, integrals, windows, histograms, counters that never fall."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.collection.histograms import Histogram, HistogramRows, Histograms
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Kind, Labels, Metric

NO_HISTOGRAMS: HistogramRows = MappingProxyType({})
INTEGRALS = {row.integral_of: row for row in METRICS if row.integral_of is not None}
# More digits than a metric can resolve are noise that every scrape would transfer.
DIGITS = {"ratio": 6, "seconds": 6, "bytes": 0, "bytes per second": 0}


# The number of points that are kept of a trailing window, however many ticks it has: it is up to 1/30 too long.
WINDOW_POINTS = 30


@dataclass(slots=True)
class _Integral:
    """The integral of a mean, and the seconds that it covers. `window` contains (at, total, seconds) in one flat array;
    `mean` is the mean over it."""

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
    """A counter that never falls, made of a library's that may wrap, or start again when the driver is reloaded."""

    last: float = 0.0
    total: float = 0.0

    def add(self, raw: float) -> float:
        if raw < self.last / 2:  # a new start; a smaller fall is jitter: wait until the counter has caught up
            self.last = 0.0
        if raw > self.last:
            self.total += raw - self.last
            self.last = raw
        return self.total


# Does what `Sample(*item)` does, without a Python call for each of hundreds of samples.
_sample: Callable[[tuple[Series, float]], Sample] = partial(tuple.__new__, Sample)


class Accumulator:
    """The totals of one GPU (one UUID). They outlive every handle: integrals and counters continue after a loss."""

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

    def apply(self, reading: Reading, histograms: HistogramRows = NO_HISTOGRAMS) -> tuple[Sample, ...]:
        """Take a reading; return every sample that is valid now. A series that failed has none."""
        self.take(reading, histograms)
        return self.samples()

    def samples(self) -> tuple[Sample, ...]:
        """Return every sample that is valid now."""
        for series, integral in self._moved.items():
            self._values[series] = round(integral.mean, DIGITS[series.metric.unit])
            self._show_total(series, integral)
        self._moved.clear()
        for histogram, gpu in self._changed.values():
            self._values.update(histogram.samples(gpu))
        self._changed.clear()
        return tuple(map(_sample, self._values.items()))

    def take(self, reading: Reading, histograms: HistogramRows = NO_HISTOGRAMS) -> None:
        """Take a reading. `histograms` are made of its means; those of buffered samples are always made."""
        for series in reading.ended:
            for histogram in self._histograms.end(series):
                self._changed.pop(id(histogram), None)
                for part in histogram.close():
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
        """Drop a gauge. A counter keeps its value: nobody can tell one that vanishes and returns from a new one."""
        if moved := self._moved.pop(series, None):
            self._show_total(series, moved)
        if series.metric.kind is Kind.GAUGE:
            self._values.pop(series, None)

    def renew(self, *, gone: bool = False) -> None:
        """Make all series anew: another handle of the same GPU takes over. Totals and windows continue."""
        self._values.clear()
        self._changed.clear()
        self._moved.clear()
        self._total_of.clear()
        self._histograms.renew(gone=gone)

    def detach(self) -> None:
        """End all series: the handle is gone. Totals stay for the next one."""
        self.renew(gone=True)
        for integral in self._integrals.values():
            del integral.window[:]
