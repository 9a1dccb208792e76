"""dcgm-exporter's own metrics (`DCGM_EXP_*`), computed from samples and events as dcgm-exporter computes them.

Source: NVIDIA/dcgm-exporter 4.5.3-4.8.2, `internal/pkg/collector/expcollector.go` and `clock_events_collector.go`; for
the totals 4.8.3's `clock_events_total_collector.go` and `xid_total_collector.go`. Each sample of the clock's mask in a
window counts once for each of its bits. So a count depends on `--interval`, as dcgm-exporter's depends on its collect
interval. The window ends at the collection, not at a scrape, so that all scrapers see the same. `events.EventLog`
counts XIDs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Labels, Metric

# By bit of the mask, with dcgm-exporter's names.
CLOCK_EVENTS = (
    "gpu_idle",
    "clocks_setting",
    "power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
)
OF_CLOCK = frozenset({m.EXP_CLOCK_COUNT, m.EXP_CLOCK_TOTAL})
OF_XIDS = frozenset({m.EXP_XID_COUNT, m.EXP_XID_TOTAL})
NEEDS_DCGM = "needs_dcgm"
NO_EVENTS = "no_events"


def milliseconds(seconds: float) -> str:
    """Return a window as the value of its label."""
    return str(round(seconds * 1000))


class ClockEvents:
    """Clock events of one GPU: how many samples within a window show each event, and how often each began."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, int]] = deque()
        self._counts = [0] * len(CLOCK_EVENTS)
        self._begun: Counter[int] = Counter()
        self._before: int | None = None

    def take(self, at: float, mask: int) -> None:
        """Add a sample of the mask. Events in the first sample do not count as begun."""
        self._window.append((at, mask))
        for bit in _bits(mask):
            self._counts[bit] += 1
        if self._before is not None:
            self._begun.update(_bits(mask & ~self._before))
        self._before = mask

    def counts(self, now: float, window: float) -> Mapping[str, int] | None:
        """Return how many samples of the last `window` seconds show each event; None if there was no sample."""
        while self._window and self._window[0][0] <= now - window:
            for bit in _bits(self._window.popleft()[1]):
                self._counts[bit] -= 1
        if not self._window:
            return None
        return {CLOCK_EVENTS[bit]: count for bit, count in enumerate(self._counts) if count}

    def totals(self) -> Mapping[str, int]:
        """Return how often each event began, without those that never began."""
        return {CLOCK_EVENTS[bit]: count for bit, count in sorted(self._begun.items())}


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(len(CLOCK_EVENTS)) if mask >> bit & 1]


class DcgmExporterCounts:
    """Which of these metrics are exposed, and which metrics a source must read to compute them (`source_metrics`).

    `clock_window` is the window of clock events in seconds. `xids_reported`: whether the exporter can learn of XIDs.
    """

    def __init__(self, metrics: Sequence[Metric], clock_window: float, *, xids_reported: bool) -> None:
        chosen = frozenset(metrics)
        self.clock = chosen & OF_CLOCK
        self.xids = chosen & OF_XIDS
        read = tuple(row for row in metrics if row not in OF_CLOCK | OF_XIDS)
        self._mask_hidden = bool(self.clock) and m.CLOCK_EVENTS not in chosen
        self.source_metrics = (*read, m.CLOCK_EVENTS) if self._mask_hidden else read
        self._window = clock_window
        self._health = m.EXP_HEALTH in chosen
        self._without_xids: Mapping[Metric, str] = {} if xids_reported else dict.fromkeys(self.xids, NO_EVENTS)
        self._series: dict[tuple[Gpu, Metric, str | None], Series] = {}

    def unsupported(self, samples: Iterable[Sample], by_source: Mapping[Metric, str]) -> Mapping[Metric, str]:
        """Return why a GPU has no value of a metric: not supported by the source, or it needs DCGM or XIDs."""
        health_unknown = self._health and m.EXP_HEALTH not in by_source
        if health_unknown and all(sample.series.metric is not m.EXP_HEALTH for sample in samples):
            by_source = {**by_source, m.EXP_HEALTH: NEEDS_DCGM}
        return {**by_source, **self._without_xids} if self._without_xids else by_source

    def samples(
        self, gpu: Gpu, events: ClockEvents, reading: Reading, samples: tuple[Sample, ...]
    ) -> tuple[Sample, ...]:
        """Return all samples of a GPU: its `samples` after this reading, and the counts."""
        if not self.clock:
            return samples
        mask = next((value for series, value in reading.values.items() if series.metric is m.CLOCK_EVENTS), None)
        if mask is not None and m.CLOCK_EVENTS.in_range(mask):
            events.take(reading.at, int(mask))
        counts = events.counts(reading.at, self._window)
        if self._mask_hidden:
            samples = tuple(sample for sample in samples if sample.series.metric is not m.CLOCK_EVENTS)
        counted: list[Sample] = []
        if m.EXP_CLOCK_COUNT in self.clock:
            counted += [self._sample(gpu, m.EXP_CLOCK_COUNT, event, n) for event, n in (counts or {}).items()]
            counted += [self._sample(gpu, m.EXP_CLOCK_COUNT, None, 0)] if counts is None else []
        if m.EXP_CLOCK_TOTAL in self.clock:
            counted += [self._sample(gpu, m.EXP_CLOCK_TOTAL, event, n) for event, n in events.totals().items()]
        return (*samples, *counted)

    def _sample(self, gpu: Gpu, metric: Metric, event: str | None, value: float) -> Sample:
        series = self._series.get((gpu, metric, event))
        if series is None:
            labels: Labels = () if event is None else (("clock_event", event),)
            if metric is m.EXP_CLOCK_COUNT:
                labels += (("window_size_in_ms", milliseconds(self._window)),)
            series = self._series[gpu, metric, event] = Series(metric, gpu, labels)
        return Sample(series, value)
