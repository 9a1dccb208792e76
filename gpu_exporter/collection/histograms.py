"""What lies between two scrapes: means and buffered samples of one GPU -> cumulative histograms that never fall.

A histogram is a distribution (of shares of time, of power) or, of `gpu_idle_gap_seconds`, how long the SMs were idle
each time. Distributions of means are weighed by time: each observation stands for a millisecond, so that rates mean the
same at any interval and nothing is lost with a late tick. Of coarser ones, a tick that is a little longer than the
others would get more than its share, and the load decides which ticks those are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Labels, Metric

OBSERVATION_SECONDS = 0.001
# An idle SM reads 0; the smallest kernels that were measured, launched one after another, read twice this.
IDLE_RATIO = 1e-4
# Only what a sum can resolve: more digits are noise that every scrape would carry.
DIGITS = 6

Made = Mapping[Metric, Sequence[Metric]]


def histograms_of(metrics: Iterable[Metric]) -> Made:
    """Which histograms of these rows are made of which row."""
    found: dict[Metric, list[Metric]] = {}
    for row in metrics:
        if row.histogram_of is not None:
            found.setdefault(row.histogram_of, []).append(row)
    return found


@dataclass(slots=True)
class Histogram:
    """Counts by bucket and the sum, as long as the exporter runs; `series` while there is a handle."""

    metric: Metric
    labels: Labels
    counts: list[int] = field(init=False)
    total: float = 0.0
    series: tuple[Series, ...] = ()
    rest: float = 0.0
    gap: float = 0.0
    stamp: float = float("-inf")

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.metric.edges) + 1)

    def observe(self, value: float) -> None:
        """Count a value, which is in the bucket of the first edge that is not below it."""
        self.counts[bisect_left(self.metric.edges, value)] += 1
        self.total += value

    def mean(self, value: float, span: float) -> None:
        """Take the mean over `span` seconds; what is left of a millisecond goes to the next one."""
        self.rest += span / OBSERVATION_SECONDS
        times, value = int(self.rest + 1e-6), min(value, self.metric.edges[-1])
        self.rest -= times
        self.counts[bisect_left(self.metric.edges, value)] += times
        self.total += value * span / OBSERVATION_SECONDS

    def idle(self, value: float, span: float) -> None:
        """Take the share of active SMs over `span` seconds: a gap is observed when a tick ends it."""
        if value < IDLE_RATIO:
            self.gap += span
        elif self.gap:
            self.observe(self.gap)
            self.gap = 0.0

    def unused(self, samples: Sequence[tuple[float, float]]) -> list[float]:
        """The values that were not taken before, by their stamps.

        A buffer always holds its newest sample. If that is older than one that was taken, the clock that stamps them
        was set back: nothing of it is taken, and the next ones by the new time.
        """
        newest = max((stamp for stamp, _ in samples), default=self.stamp)
        found = [value for stamp, value in samples if stamp > self.stamp]
        self.stamp = newest
        return found

    def samples(self, gpu: Gpu | None) -> Iterable[tuple[Series, float]]:
        """Its series and their values, in the order of a page."""
        if not self.series:
            edges = (*(repr(edge) for edge in self.metric.edges), "+Inf")
            buckets = (Series(self.metric, gpu, (*self.labels, ("le", edge)), "_bucket") for edge in edges)
            rest = (Series(self.metric, gpu, self.labels, part) for part in ("_sum", "_count"))
            self.series = (*buckets, *rest)
        below = list(accumulate(self.counts))
        return zip(self.series, (*below, round(self.total, DIGITS), below[-1]), strict=True)

    def close(self) -> Sequence[Series]:
        """Nothing is taken for now; return the series that end with that."""
        ended, self.series, self.gap = self.series, (), 0.0
        return ended


class Histograms:
    """All histograms of one GPU. They outlive every handle."""

    def __init__(self) -> None:
        self._all: dict[tuple[Metric, Labels], Histogram] = {}
        self._made_of: dict[Series, list[Histogram]] = {}

    def take_mean(self, rows: Sequence[Metric], series: Series, value: float, span: float) -> Iterable[Histogram]:
        """A mean of `series`, of which these rows are made; return what changed."""
        found = self._made_of.get(series)
        if found is None or [each.metric for each in found] != list(rows):
            found = self._made_of[series] = [self._of(row, series.labels) for row in rows]
        for each in found:
            if each.metric is m.IDLE_GAPS:
                each.idle(value, span)
            else:
                each.mean(value, span)
        return found

    def take_samples(self, series: Series, samples: Sequence[tuple[float, float]]) -> tuple[Histogram, int]:
        """Samples of the driver's buffer; return the histogram, and how many were out of range."""
        histogram = self._of(series.metric, series.labels)
        self._made_of.setdefault(series, [histogram])
        values = histogram.unused(samples)
        good = [value for value in values if series.metric.low <= value <= series.metric.high]
        for value in good:
            histogram.observe(value)
        return histogram, len(values) - len(good)

    def _of(self, metric: Metric, labels: Labels) -> Histogram:
        return self._all.setdefault((metric, labels), Histogram(metric, labels))

    def end(self, series: Series) -> Sequence[Histogram]:
        """A series is no more; return what was made of it."""
        return self._made_of.pop(series, ())

    def renew(self, *, gone: bool) -> None:
        """Another handle takes over: all series come anew. With `gone`, after a time of which nothing is known, so
        that a gap is cut off there, whose end nobody saw."""
        self._made_of.clear()
        for each in self._all.values():
            each.series = ()
            if gone:
                each.gap = 0.0
