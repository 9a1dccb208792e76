"""How often GPUs are read and pages are made, over which windows metrics are computed, and what a worker reads.

The terms of this package: a *step* is a wake-up of the clock. A *collection*, or *tick*, is a read of all GPUs, and the
*interval* is the time from one to the next. A *page* is a rendered /metrics response. With high resolution there are
several steps in an interval; with an interval below a second, several collections for a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_exporter.collection.dcgm_counts import DcgmExporterCounts
from gpu_exporter.collection.histograms import HistogramRows, histograms_of
from gpu_exporter.collection.sums import Sums
from gpu_exporter.model.metric import Metric

# With shorter intervals, a page is still made only this often, and what only pages show is only read then.
PAGE_SECONDS = 1.0
# A GPU whose read takes longer than this, or than an interval if that is longer, counts as stuck in its driver.
DEADLINE_SECONDS = 1.0
# The length of a step with high resolution: the shortest window for which GPM answers correctly.
STEP_SECONDS = 0.1
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
class Plan:
    """What a worker reads and computes: the metrics to ask its source for, the histograms made from their means, sums,
    dcgm-exporter's counts, and times in seconds."""

    metrics: Sequence[Metric]
    histograms: HistogramRows
    sums: Sums
    counts: DcgmExporterCounts
    interval: float
    deadline: float
    short_intervals: bool


def make_plan(metrics: Sequence[Metric], settings: CollectionSettings, *, xids_reported: bool) -> Plan:
    """Return the plan that exposes `metrics`. `xids_reported`: whether the exporter can learn of XIDs."""
    read = [row for row in metrics if row.histogram_of is None]
    counts = DcgmExporterCounts(read, settings.clock_events_count_window, xids_reported=xids_reported)
    return Plan(
        counts.source_metrics,
        histograms_of(metrics),
        Sums(read),
        counts,
        settings.interval,
        settings.deadline,
        settings.short_intervals,
    )
