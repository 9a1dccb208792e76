"""How often GPUs are read and pages are made, over which windows metrics are computed, and what a worker reads.

The terms of this package: a *step* is a wake-up of the clock. A *collection*, or *tick*, is a read of all GPUs, and the
*interval* is the time from one to the next. A *page* is a rendered /metrics response. With high resolution there are
several steps in an interval; with an interval below a second, several collections for a page.

Metrics that are sums of others, such as the NVLink traffic in both directions, are computed from the samples of a page,
so they have the same window as their parts and cost no driver call. DCGM has fields for some of them. Where it lacks
the parts, the value that it read for the sum is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Labels, Metric, Pace, scaled
from gpu_exporter.pipeline.dcgm_counts import DcgmExporterCounts
from gpu_exporter.pipeline.histograms import HistogramRows, histograms_of


class Sums:
    """The sums among these metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._rows = tuple(row for row in metrics if row.sum_of)
        self._used = frozenset(self._rows) | {part for row in self._rows for part in row.sum_of}
        self._series: dict[tuple[Metric, Gpu | None, Labels], Series] = {}

    def samples(self, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Return the samples of a GPU with the sums added. A sum without all of its parts has no sample."""
        if not self._rows:
            return samples
        known: dict[Metric, dict[Labels, Sample]] = defaultdict(dict)
        for sample in samples:
            series = sample.series
            if series.metric in self._used:
                known[series.metric][series.labels] = sample
        rows = [row for row in self._rows if row not in known]
        return (*samples, *(sample for row in rows for sample in self._sums(row, known)))

    def _sums(self, row: Metric, known: Mapping[Metric, Mapping[Labels, Sample]]) -> list[Sample]:
        parts = [known.get(part, {}) for part in row.sum_of]
        return [
            Sample(
                self._sum_series(row, sample.series.gpu, labels),
                scaled(fsum(part[labels].value for part in parts), row.scale),
            )
            for labels, sample in parts[0].items()
            if all(labels in part for part in parts)
        ]

    def _sum_series(self, row: Metric, gpu: Gpu | None, labels: Labels) -> Series:
        """Return the same series for the same arguments each time."""
        key = (row, gpu, labels)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(*key)
        return series

    def unsupported(self, by_source: Mapping[Metric, str]) -> Mapping[Metric, str]:
        """Return why a GPU has no value of a metric. A sum that the source does not read lacks what its parts lack."""
        if not self._rows:
            return by_source
        reasons = {metric: why for metric, why in by_source.items() if not metric.sum_of}
        missing = {row: [part for part in row.sum_of if part in by_source] for row in self._rows if row in by_source}
        return {**reasons, **{row: by_source[parts[0]] for row, parts in missing.items() if parts}}


# With shorter intervals, a page is still made only this often, and what only pages show is only read then.
PAGE_SECONDS = 1.0
# A GPU whose read takes longer than this, or than an interval if that is longer, counts as stuck in its driver.
DEADLINE_SECONDS = 1.0
# The length of a step with high resolution: the shortest window for which GPM answers correctly.
STEP_SECONDS = 0.1
# With longer intervals, the driver would overwrite samples before they are read: it keeps utilisation for 14 s, power
# for 2.4 s.
LONGEST_SAMPLED_SECONDS = {Pace.BUFFERED: 10.0, Pace.FAST: 2.0}
TOO_LONG = "interval_too_long"
# The default window of dcgm-exporter's counts.
COUNT_WINDOW_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """Intervals and windows in seconds. `expected_gpus` is None where the number of GPUs is to be detected."""

    interval: float = 1.0
    gauge_window: float = 15.0
    expected_gpus: int | None = None
    high_resolution: bool = False
    xid_count_window: float = COUNT_WINDOW_SECONDS
    clock_events_count_window: float = COUNT_WINDOW_SECONDS

    @property
    def short_intervals(self) -> bool:
        """Whether the interval is shorter than the time between two pages."""
        return self.interval < PAGE_SECONDS

    @property
    def deadline(self) -> float:
        """Seconds after which a read counts as stuck."""
        return max(self.interval, DEADLINE_SECONDS)

    @property
    def step(self) -> float:
        """Seconds between two wake-ups of the clock: an interval, or an equal part of it with high resolution."""
        steps = max(1, int(self.interval / STEP_SECONDS + 1e-6)) if self.high_resolution else 1
        return self.interval / steps

    @property
    def steps_per_page(self) -> int:
        """The number of steps from one page to the next, if no client scrapes more often."""
        return max(1, round(max(self.interval, PAGE_SECONDS) / self.step))


DEFAULT_SETTINGS = CollectionSettings()


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """What a worker reads and computes: the metrics to ask its source for, the histograms made from their means, sums,
    dcgm-exporter's counts, and times in seconds. `not_read` are metrics that cannot be read at this interval, with the
    reason."""

    metrics: Sequence[Metric]
    histograms: HistogramRows
    sums: Sums
    counts: DcgmExporterCounts
    interval: float
    deadline: float
    short_intervals: bool
    not_read: Mapping[Metric, str] = field(default_factory=dict)


def make_plan(metrics: Sequence[Metric], settings: CollectionSettings, *, xids_reported: bool) -> CollectionPlan:
    """Return the plan that exposes `metrics`. `xids_reported`: whether the exporter can learn of XIDs."""
    sampled = (row for row in metrics if row.integrates_samples)
    not_read = {row: TOO_LONG for row in sampled if settings.interval > LONGEST_SAMPLED_SECONDS[row.nvml_pace]}
    read = [row for row in metrics if row.histogram_of is None and row not in not_read]
    counts = DcgmExporterCounts(read, settings.clock_events_count_window, xids_reported=xids_reported)
    return CollectionPlan(
        counts.source_metrics,
        histograms_of(metrics),
        Sums(read),
        counts,
        settings.interval,
        settings.deadline,
        settings.short_intervals,
        not_read,
    )
