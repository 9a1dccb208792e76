"""What NVML says about the GPUs while they are tested: clocks, power, temperature and what holds the clock down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import Snapshot

ROWS = (m.SM_CLOCK, m.MAX_SM_CLOCK, m.POWER_INSTANT, m.POWER, m.POWER_LIMIT, m.GPU_TEMP, m.MEMORY_TEMP, m.CLOCK_EVENTS)
# How often they are read during the test (seconds).
INTERVAL = 0.1
# How long a GPU that begins to work needs until its clock has risen.
RISE_SECONDS = 0.1
REASONS = tuple(dict(metric.labels)["reason"] for metric in m.CLOCK_EVENT_ACTIVE)
IDLE_BIT = 0


@dataclass(slots=True)
class LoadExtremes:
    """The extremes of one GPU under load. None and 0 where nothing was read. `events` is the union of all masks."""

    clock_low: float | None = None
    clock_high: float | None = None
    clock_max: float | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: float | None = None
    memory_temperature: float | None = None
    events: int = 0

    def take(self, values: Mapping[Metric, float]) -> None:
        """Add a reading. One of an idle GPU only counts for its limits."""
        self.clock_max = values.get(m.MAX_SM_CLOCK, self.clock_max)
        self.power_limit = values.get(m.POWER_LIMIT, self.power_limit)
        events = int(values.get(m.CLOCK_EVENTS, 0))
        if events >> IDLE_BIT & 1:
            return
        self.events |= events
        clock = values.get(m.SM_CLOCK)
        if clock is not None:
            self.clock_low = clock if self.clock_low is None else min(clock, self.clock_low)
            self.clock_high = clock if self.clock_high is None else max(clock, self.clock_high)
        self.power = _higher(self.power, values.get(m.POWER_INSTANT, values.get(m.POWER)))
        self.temperature = _higher(self.temperature, values.get(m.GPU_TEMP))
        self.memory_temperature = _higher(self.memory_temperature, values.get(m.MEMORY_TEMP))

    @property
    def reasons(self) -> list[str]:
        """What held the clock down, by name."""
        return [reason for bit, reason in enumerate(REASONS) if self.events >> bit & 1 and bit != IDLE_BIT]


@dataclass(slots=True)
class Loads:
    """The load of each GPU by index, from snapshots."""

    by_gpu: dict[int, LoadExtremes] = field(default_factory=dict)
    _at: float = 0.0

    def take(self, snapshot: Snapshot, working: Mapping[int, float]) -> None:
        """Add a snapshot, once. Only readings of GPUs that work count; `working` has since when (monotonic seconds)."""
        if snapshot.at == self._at:
            return
        self._at = snapshot.at
        read_at = {status.gpu.index: status.read_at or 0.0 for status in snapshot.gpus}
        for index, values in readings(snapshot).items():
            if index in working and read_at[index] >= working[index] + RISE_SECONDS:
                self.by_gpu.setdefault(index, LoadExtremes()).take(values)


def readings(snapshot: Snapshot) -> dict[int, dict[Metric, float]]:
    """Return the values of each GPU that answers, by its index."""
    values: dict[int, dict[Metric, float]] = {status.gpu.index: {} for status in snapshot.gpus if status.up}
    for series, value in snapshot.samples:
        if series.gpu is not None and series.gpu.index in values and not series.labels:
            values[series.gpu.index][series.metric] = value
    return values


def _higher(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)
