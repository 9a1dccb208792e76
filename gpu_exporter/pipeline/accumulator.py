"""Readings of one GPU -> the samples it exposes: plausible values, integrals, windows, peaks, histograms, counters."""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from gpu_exporter.catalogue.metrics import ENERGY_JOULES, METRICS, POWER, REJECTED, XID_ERRORS
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series, XidEvent
from gpu_exporter.model.metric import Kind, Labels, Metric, scaled
from gpu_exporter.pipeline.buffered import SampledIntegral, Stamped
from gpu_exporter.pipeline.estimate import Estimate
from gpu_exporter.pipeline.histograms import Histogram, HistogramRows, Histograms
from gpu_exporter.pipeline.peaks import PEAKS, PEAKS_OF_SAMPLES, Peak
from gpu_exporter.pipeline.plausibility import RELATED, Ceilings, DriverCounter, Zeros

log = logging.getLogger(__name__)

NO_VALUE = "no_value"
NO_HISTOGRAMS: HistogramRows = MappingProxyType({})
INTEGRALS = {row.integral_of: row for row in METRICS if row.integral_of is not None}
# More digits than a metric can resolve are noise that every scrape would transfer.
DIGITS = {"ratio": 6, "seconds": 6, "joules": 3, "bytes": 0, "bytes per second": 0}


# At most how many points of a trailing window are kept. The window is too long by up to 1/30 plus one interval.
WINDOW_POINTS = 30


@dataclass(slots=True)
class _Integral:
    """The integral of a mean, and the seconds that it covers. `window` contains (at, total, seconds) in one flat array;
    `mean` is the mean over the window."""

    total: float = 0.0
    seconds: float = 0.0
    mean: float = 0.0
    window: array[float] = field(default_factory=lambda: array("d"))

    def add(self, at: float, mean: float, span: float, gauge_window: float) -> None:
        """Add a mean over `span` seconds."""
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


# Does what `Sample(*item)` does, without a Python call for each of hundreds of samples.
_sample: Callable[[tuple[Series, float]], Sample] = partial(tuple.__new__, Sample)


class Accumulator:
    """The totals of one GPU (one UUID). They outlive every handle: integrals and counters continue after a loss.

    `check_rates` is False for sources that are not live: counters of a replay rise at the replay's speed.
    """

    def __init__(self, gauge_window: float, *, check_rates: bool = True) -> None:
        self._gauge_window = gauge_window
        self._check_rates = check_rates
        self._integrals: dict[tuple[Metric, Labels], _Integral] = {}
        self._sampled: dict[Metric, SampledIntegral] = {}
        self._sampled_series: dict[Series, SampledIntegral] = {}
        self._peaks: dict[tuple[Metric, Labels], Peak] = defaultdict(Peak)
        self._peak_series: dict[tuple[Metric, Labels], Series] = {}
        self._at = 0.0
        self._counters: dict[tuple[Metric, Labels], DriverCounter] = {}
        self._energy = Estimate()
        self._energy_series: Series | None = None
        self._ceilings = Ceilings()
        self._zeros = Zeros()
        self._unknown: set[Series] = set()
        self._values: dict[Series, float] = {}
        self._total_of: dict[Series, Series] = {}
        self._histograms = Histograms()
        self._changed_integrals: dict[Series, _Integral] = {}
        self._changed: dict[int, tuple[Histogram, Gpu | None]] = {}
        self.rejected: Counter[str] = Counter()
        self.field_failures: Counter[tuple[str, str]] = Counter()

    def apply(self, reading: Reading, histograms: HistogramRows = NO_HISTOGRAMS) -> tuple[Sample, ...]:
        """Add a reading; return every sample that is valid now. A series that failed has none."""
        self.take(reading, histograms)
        return self.samples()

    def samples(self) -> tuple[Sample, ...]:
        """Return every sample that is valid now."""
        for series, integral in self._changed_integrals.items():
            self._values[series] = round(integral.mean, DIGITS[series.metric.unit])
            self._show_total(series, integral)
        self._changed_integrals.clear()
        for key, series in self._peak_series.items():
            highest = self._peaks[key].highest(self._at)
            if highest is None:
                self._values.pop(series, None)
            else:
                self._values[series] = highest
        for histogram, gpu in self._changed.values():
            self._values.update(histogram.samples(gpu))
        self._changed.clear()
        return tuple(map(_sample, self._values.items()))

    def take(self, reading: Reading, histograms: HistogramRows = NO_HISTOGRAMS) -> None:
        """Add a reading. `histograms` says which histograms to update from its means; those of buffered samples are
        always updated.
        """
        for series in reading.ended:
            for histogram in self._histograms.end(series):
                self._changed.pop(id(histogram), None)
                for part in histogram.close():
                    self._values.pop(part, None)
            self._changed_integrals.pop(series, None)
            self._values.pop(series, None)
            if counter := self._counters.get((series.metric, series.labels)):
                counter.restarted = True
            self._values.pop(self._total_of.pop(series, series), None)
            if peak := PEAKS.get(series.metric):
                self._peaks.pop((peak, series.labels), None)
                self._values.pop(self._peak_series.pop((peak, series.labels), series), None)
        for series, reason in reading.failed.items():
            self._drop_gauge(series)
            self.field_failures[series.metric.name, reason] += 1
        self._at = reading.at
        related: dict[Series, float] = {}
        watts: float | None = None
        zeros = self._zeros.take(reading.values)
        if self._unknown or zeros:
            self._unknown = (self._unknown - reading.values.keys() - reading.ended) | zeros
        for series, value in reading.values.items():
            metric = series.metric
            if series in zeros:
                self._drop_gauge(series)
            elif not metric.low <= value <= metric.high:  # or NaN
                self._reject(
                    series, value, f"outside {round(metric.low, 3):g} to {metric.high:g}" if value else "impossible"
                )
            elif metric in INTEGRALS:
                self._integrate(series, value, reading, histograms.get(metric, ()))
            elif metric.kind is Kind.COUNTER and (metric.rate < math.inf or not metric.classic):
                self._count(series, value, reading.at)
            elif metric.peak_of:  # of a simulated GPU
                self._add_peak(metric, series, value / metric.scale)
            else:
                self._values[series] = value
                if metric in RELATED:
                    related[series] = value
                elif metric is POWER:
                    watts = value
        for series, value, limit in self._ceilings.exceeded(related):
            self._reject(series, value, f"more than {series.metric.at_most}, which is {limit:g}")
        for series, value in reading.values.items():
            if series.metric in PEAKS and series in self._values:
                self._add_peak(PEAKS[series.metric], series, value)
        for series, taken in reading.buffered.items():
            self._take_samples(series, taken)
        for series, sampled in self._sampled_series.items():
            self._values[series] = round(sampled.total(self._at), DIGITS[series.metric.unit])
        if self._energy_series is not None and self._check_rates:
            self._estimate_energy(self._energy_series, reading, watts)

    def _take_samples(self, series: Series, taken: Stamped) -> None:
        """Take samples of the driver's buffer."""
        metric = series.metric
        if metric.integrates_samples:
            if not taken:
                return
            integral = self._sampled.get(metric)
            if integral is None:
                delay = metric.nvml_pace.value if self._check_rates else 0.0
                integral = self._sampled[metric] = SampledIntegral(delay)
            self._sampled_series[series] = integral
            rejected = integral.take(taken, metric.rate, self._at)
        else:
            histogram, values, rejected = self._histograms.take_samples(series, taken)
            self._changed[id(histogram)] = histogram, series.gpu
            if values and metric in PEAKS_OF_SAMPLES:
                self._add_peak(PEAKS_OF_SAMPLES[metric], series, max(values))
        if rejected:
            self._count_rejected(metric, series.gpu, "buffered samples outside the range", rejected)

    def _add_peak(self, peak: Metric, series: Series, value: float) -> None:
        key = (peak, series.labels)
        if key not in self._peak_series:
            self._peak_series[key] = Series(peak, series.gpu, series.labels)
        self._peaks[key].add(self._at, scaled(value, peak.scale))

    def unknown(self) -> Mapping[Metric, str]:
        """Return the metrics for which the driver only returned a 0 that cannot be true, with the reason."""
        known = {series.metric for series in self._values} if self._unknown else set()
        return {series.metric: NO_VALUE for series in self._unknown if series.metric not in known}

    def plausible_xids(self, events: Sequence[XidEvent]) -> Sequence[XidEvent]:
        """Return the XIDs with a valid code; count the others as rejected."""
        plausible = [event for event in events if XID_ERRORS.in_range(event.code)]
        if dropped := len(events) - len(plausible):
            self._count_rejected(XID_ERRORS, None, "XIDs with invalid codes", dropped)
        return plausible

    def _count(self, series: Series, value: float, at: float) -> None:
        """Take a counter. A classic one shows the driver's value, any other what it has counted over all restarts."""
        metric = series.metric
        counter = self._counters.get((metric, series.labels))
        if counter is None:
            counter = self._counters[metric, series.labels] = DriverCounter()
        last = counter.last
        if not counter.take(value, at, metric.rate if self._check_rates else math.inf):
            self._reject(
                series, value, f"contradicts the last value {last:.16g}; accepted if the next read confirms it"
            )
        elif counter.last is not None:
            self._values[series] = counter.last if metric.classic else counter.total
            if metric is ENERGY_JOULES:
                self._energy_series = series

    def _estimate_energy(self, series: Series, reading: Reading, watts: float | None) -> None:
        """Show the energy as it probably is now. It is read rarely, because a read costs 4 ms of CPU; power, often."""
        if watts is not None:
            self._energy.rise(reading.at, watts)
        counter = self._counters[series.metric, series.labels]
        if series in reading.values and counter.at == reading.at:
            self._energy.read(reading.at, counter.total)
        self._values[series] = round(self._energy.value, DIGITS[series.metric.unit])

    def _reject(self, series: Series, value: float, why: str) -> None:
        """Drop a misread value. A gauge then has no sample; a counter keeps its previous one."""
        self._drop_gauge(series)
        self._count_rejected(series.metric, series.gpu, f"{value:.16g}: {why}")

    def _count_rejected(self, metric: Metric, gpu: Gpu | None, what: str, times: int = 1) -> None:
        """Count rejected values of a metric, and log the first."""
        if not self.rejected[metric.name]:
            where = "" if gpu is None else f"GPU {gpu.index}: "
            log.warning("%s%s: dropped %s. This is logged once; %s counts all", where, metric, what, REJECTED)
        self.rejected[metric.name] += times

    def _integrate(self, series: Series, value: float, reading: Reading, histograms: Sequence[Metric]) -> None:
        span = reading.spans.get(series, reading.span)
        if span is None or span <= 0:
            return
        integral = self._changed_integrals.get(series)
        if integral is None:
            key = (series.metric, series.labels)
            integral = self._integrals.get(key)
            if integral is None:
                integral = self._integrals[key] = _Integral()
            self._changed_integrals[series] = integral
        integral.add(reading.at, value, span, self._gauge_window)
        for histogram in self._histograms.take_mean(histograms, series, value, span) if histograms else ():
            self._changed[id(histogram)] = histogram, series.gpu

    def _show_total(self, series: Series, integral: _Integral) -> None:
        total = self._total_of.get(series)
        if total is None:
            total = self._total_of[series] = Series(INTEGRALS[series.metric], series.gpu, series.labels)
        self._values[total] = round(integral.total, DIGITS[total.metric.unit])

    def _drop_gauge(self, series: Series) -> None:
        """Drop a gauge. A counter keeps its value, because one that vanishes and returns looks like a new one."""
        if changed := self._changed_integrals.pop(series, None):
            self._show_total(series, changed)
        if series.metric.kind is Kind.GAUGE:
            self._values.pop(series, None)

    def renew(self, *, gone: bool = False) -> None:
        """Create all series anew, because another handle of the same GPU takes over. Totals and windows continue."""
        self._values.clear()
        self._changed.clear()
        self._changed_integrals.clear()
        self._total_of.clear()
        self._peak_series.clear()
        self._sampled_series.clear()
        self._energy_series = None
        self._unknown.clear()
        self._histograms.renew(gone=gone)

    def detach(self) -> None:
        """End all series, because the handle is released. Totals continue with the next handle."""
        self.renew(gone=True)
        self._ceilings.clear()
        self._energy.interrupt()
        for counter in self._counters.values():
            counter.restarted, counter.unconfirmed = True, None
        for integral in self._integrals.values():
            del integral.window[:]
