"""dcgm-exporter's own metrics (`DCGM_EXP_*`), made of our samples and events as it makes them of DCGM's.

Source: NVIDIA/dcgm-exporter 4.5.3-4.8.2, `internal/pkg/collector/expcollector.go` and `clock_events_collector.go`; of
the totals 4.8.3's `clock_events_total_collector.go` and `xid_total_collector.go`. Each sample of the clock's mask in a
window counts once for each of its bits, so that a count depends on `--interval`, as there on its collect interval. The
window ends at the tick, not at a scrape: any number of scrapers see the same. Xids are counted by `events.EventLog`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.collection.histograms import histograms_of
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Labels, Metric

# By bit of the mask, in dcgm-exporter's words.
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
NO_WITNESS = "no_events"


def milliseconds(seconds: float) -> str:
    """A window as its label has it."""
    return str(round(seconds * 1000))


class ClockEvents:
    """What one GPU's clock was held down by: counts of samples within a window, and of beginnings."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, int]] = deque()
        self._counts = [0] * len(CLOCK_EVENTS)
        self._begun: Counter[int] = Counter()
        self._before: int | None = None

    def take(self, at: float, mask: int) -> None:
        """A sample of the mask. What holds the clock down at the first one did not begin then."""
        self._window.append((at, mask))
        for bit in _bits(mask):
            self._counts[bit] += 1
        if self._before is not None:
            self._begun.update(_bits(mask & ~self._before))
        self._before = mask

    def counts(self, now: float, window: float) -> Mapping[str, int] | None:
        """By event, samples of the last `window` seconds; events without one are left out. None without any sample."""
        while self._window and self._window[0][0] <= now - window:
            for bit in _bits(self._window.popleft()[1]):
                self._counts[bit] -= 1
        if not self._window:
            return None
        return {CLOCK_EVENTS[bit]: count for bit, count in enumerate(self._counts) if count}

    def totals(self) -> Mapping[str, int]:
        """By event, how often it began; events that never did are left out."""
        return {CLOCK_EVENTS[bit]: count for bit, count in sorted(self._begun.items())}


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(len(CLOCK_EVENTS)) if mask >> bit & 1]


class Own:
    """Which of them are exposed, and what has to be asked for that. `told`: whether anyone here tells of Xids."""

    def __init__(self, metrics: Sequence[Metric], clock_window: float, *, told: bool) -> None:
        chosen = frozenset(metrics)
        self.clock = chosen & OF_CLOCK
        self.xids = chosen & OF_XIDS
        asked = [row for row in metrics if row not in OF_CLOCK | OF_XIDS and row.histogram_of is None]
        self.histograms = histograms_of(metrics)
        self._masked = bool(self.clock) and m.CLOCK_EVENTS not in chosen
        self.asked = (*asked, m.CLOCK_EVENTS) if self._masked else tuple(asked)
        self._window = clock_window
        self._health = m.EXP_HEALTH in chosen
        self._untold: Mapping[Metric, str] = {} if told else dict.fromkeys(self.xids, NO_WITNESS)
        self._series: dict[tuple[Gpu, Metric, str | None], Series] = {}

    def unsupported(self, samples: Iterable[Sample], found: Mapping[Metric, str]) -> Mapping[Metric, str]:
        """What a GPU can't answer: what its source says, and what nobody here can make."""
        if self._health and m.EXP_HEALTH not in found and all(s.series.metric is not m.EXP_HEALTH for s in samples):
            found = {**found, m.EXP_HEALTH: NEEDS_DCGM}
        return {**found, **self._untold} if self._untold else found

    def samples(
        self, gpu: Gpu, events: ClockEvents, reading: Reading, samples: tuple[Sample, ...]
    ) -> tuple[Sample, ...]:
        """What a GPU exposes: `samples` of a reading, and what is made of them."""
        if not self.clock:
            return samples
        mask = next((value for series, value in reading.values.items() if series.metric is m.CLOCK_EVENTS), None)
        if mask is not None and m.CLOCK_EVENTS.low <= mask <= m.CLOCK_EVENTS.high:
            events.take(reading.at, int(mask))
        counts = events.counts(reading.at, self._window)
        if self._masked:
            samples = tuple(sample for sample in samples if sample.series.metric is not m.CLOCK_EVENTS)
        own: list[Sample] = []
        if m.EXP_CLOCK_COUNT in self.clock:
            own += [Sample(self._of(gpu, m.EXP_CLOCK_COUNT, event), n) for event, n in (counts or {}).items()]
            own += [Sample(self._of(gpu, m.EXP_CLOCK_COUNT, None), 0)] if counts is None else []
        if m.EXP_CLOCK_TOTAL in self.clock:
            own += [Sample(self._of(gpu, m.EXP_CLOCK_TOTAL, event), n) for event, n in events.totals().items()]
        return (*samples, *own)

    def _of(self, gpu: Gpu, metric: Metric, event: str | None) -> Series:
        series = self._series.get((gpu, metric, event))
        if series is None:
            labels: Labels = () if event is None else (("clock_event", event),)
            if metric is m.EXP_CLOCK_COUNT:
                labels += (("window_size_in_ms", milliseconds(self._window)),)
            series = self._series[gpu, metric, event] = Series(metric, gpu, labels)
        return series
