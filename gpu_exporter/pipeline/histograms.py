"""Means and buffered samples of one GPU -> cumulative histograms, which show what happens between two scrapes.

A histogram is a distribution (of shares of time, of power); that of `gpu_idle_gap_seconds` shows how long the SMs were
idle each time. Distributions of means are weighted by time: each observation stands for a millisecond. So rates mean
the same at any interval, and a late collection loses nothing. With coarser observations, an interval that is a little
longer than the others would get more than its share, and the load decides which intervals those are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.pipeline.buffered import NewSamples, Stamped

OBSERVATION_SECONDS = 0.001
# An idle SM reads 0. The smallest measured kernels, launched back to back, read twice this value.
IDLE_RATIO = 1e-4
# More digits would only be noise that every scrape transfers.
DIGITS = 6

# The histograms that are made from a row's means, by that row.
HistogramRows = Mapping[Metric, Sequence[Metric]]


def histograms_of(metrics: Iterable[Metric]) -> HistogramRows:
    """Return the histograms among these rows, by the row whose means they are made from."""
    histograms: dict[Metric, list[Metric]] = {}
    for row in metrics:
        if row.histogram_of is not None:
            histograms.setdefault(row.histogram_of, []).append(row)
    return histograms


@dataclass(slots=True)
class Histogram:
    """Counts by bucket and their sum, which last as long as the exporter; `series` last as long as a handle."""

    metric: Metric
    labels: Labels
    counts: list[int] = field(init=False)
    total: float = 0.0
    series: tuple[Series, ...] = ()
    rest: float = 0.0
    gap: float = 0.0
    new: NewSamples = field(default_factory=NewSamples)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.metric.edges) + 1)

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose upper edge it does not exceed."""
        self.counts[bisect_left(self.metric.edges, value)] += 1
        self.total += value

    def observe_mean(self, value: float, span: float) -> None:
        """Count the mean over `span` seconds. The rest of a millisecond is added to the next mean."""
        self.rest += span / OBSERVATION_SECONDS
        times, value = int(self.rest + 1e-6), min(value, self.metric.edges[-1])
        self.rest -= times
        self.counts[bisect_left(self.metric.edges, value)] += times
        self.total += value * span / OBSERVATION_SECONDS

    def observe_idle(self, value: float, span: float) -> None:
        """Add the share of active SMs over `span` seconds. A gap is counted when it ends."""
        if value < IDLE_RATIO:
            self.gap += span
        elif self.gap:
            self.observe(self.gap)
            self.gap = 0.0

    def samples(self, gpu: Gpu | None) -> Iterable[tuple[Series, float]]:
        """Return its series and their values, in the order of a page."""
        if not self.series:
            edges = (*(repr(edge) for edge in self.metric.edges), "+Inf")
            buckets = (Series(self.metric, gpu, (*self.labels, ("le", edge)), "_bucket") for edge in edges)
            rest = (Series(self.metric, gpu, self.labels, part) for part in ("_sum", "_count"))
            self.series = (*buckets, *rest)
        below = list(accumulate(self.counts))
        return zip(self.series, (*below, round(self.total, DIGITS), below[-1]), strict=True)

    def close(self) -> Sequence[Series]:
        """End the series, and return them."""
        ended, self.series, self.gap = self.series, (), 0.0
        return ended


class Histograms:
    """All histograms of one GPU. They outlive every handle."""

    def __init__(self) -> None:
        self._all: dict[tuple[Metric, Labels], Histogram] = {}
        self._made_of: dict[Series, list[Histogram]] = {}

    def take_mean(self, rows: Sequence[Metric], series: Series, value: float, span: float) -> Iterable[Histogram]:
        """Add a mean of `series` to the histograms of these rows; return those that changed."""
        histograms = self._made_of.get(series)
        if histograms is None or [histogram.metric for histogram in histograms] != list(rows):
            histograms = self._made_of[series] = [self._histogram(row, series.labels) for row in rows]
        for histogram in histograms:
            if histogram.metric is m.IDLE_GAPS:
                histogram.observe_idle(value, span)
            else:
                histogram.observe_mean(value, span)
        return histograms

    def take_samples(self, series: Series, samples: Stamped) -> tuple[Histogram, Sequence[float], int]:
        """Add samples of the driver's buffer; return the histogram, their values, and how many were out of range."""
        histogram = self._histogram(series.metric, series.labels)
        self._made_of.setdefault(series, [histogram])
        values = [value for _, value in histogram.new.take(samples)]
        good = [value for value in values if series.metric.in_range(value)]
        for value in good:
            histogram.observe(value)
        return histogram, good, len(values) - len(good)

    def _histogram(self, metric: Metric, labels: Labels) -> Histogram:
        histogram = self._all.get((metric, labels))
        if histogram is None:
            histogram = self._all[metric, labels] = Histogram(metric, labels)
        return histogram

    def end(self, series: Series) -> Sequence[Histogram]:
        """Forget a series that has ended; return the histograms that were made from it."""
        return self._made_of.pop(series, ())

    def renew(self, *, gone: bool) -> None:
        """Create all series anew, because another handle takes over. With `gone`, the GPU was not read for a time: an
        open gap is not counted, because its end was not observed."""
        self._made_of.clear()
        for histogram in self._all.values():
            histogram.series = ()
            if gone:
                histogram.gap = 0.0
