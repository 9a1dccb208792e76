"""The measurements that people are shown, in order. They are made of signals, so any exporter will do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_exporter.catalogue import signals as s
from gpu_exporter.conditions.evaluate import LOOKBACK_SECONDS, Points
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import Window
from gpu_exporter.model.metric import Pace

# A value that is older was not measured by the last scrapes. Some metrics are read only every 15 s.
FRESH_SECONDS = 3.0
# Without profiling counters, engine and DRAM activity come from samples that are read every 10 s.
SAMPLED_SECONDS = FRESH_SECONDS + Pace.BUFFERED.value


@dataclass(frozen=True, slots=True)
class Measurement:
    """The sum of signals, and the sum of others as its limit (1 for a share). `short` is for narrow columns.

    `peak` is its highest value within a minute, between scrapes too.
    """

    name: str
    words: str
    short: str
    signals: tuple[Signal, ...]
    limits: tuple[Signal, ...] = ()
    fresh: float = FRESH_SECONDS
    peak: Signal | None = None

    @property
    def unit(self) -> str:
        """The unit of its signals."""
        return self.signals[0].unit

    def at_peaks(self, window: Window, device: DeviceKey) -> Measurement:
        """Return the measurement of its peaks; itself where there are none."""
        if self.peak is None or not window.points(device, self.peak):
            return self
        return replace(self, words=f"{self.words}, peak of each minute", signals=(self.peak,))

    def value(self, window: Window, device: DeviceKey) -> float | None:
        """Return its latest value; None if there is none that is fresh."""
        return _sum(window, device, self.signals, self.fresh)

    def limit(self, window: Window, device: DeviceKey) -> float | None:
        """Return its limit; None if that is unknown."""
        if self.unit == "ratio":
            return 1.0
        return _sum(window, device, self.limits, 60.0) if self.limits else None

    def points(self, window: Window, device: DeviceKey, seconds: float) -> Points:
        """Return its values over the last seconds, at the times when each of its signals has one."""
        first, *others = (window.points(device, signal) for signal in self.signals)
        since = window.now - seconds
        by_time = [dict(points) for points in others]
        return [
            (at, value + sum(points[at] for points in by_time))
            for at, value in first
            if at >= since and all(at in points for points in by_time)
        ]

    def last_limit(self, window: Window, device: DeviceKey) -> float | None:
        """Return its limit at the end of the window; None if it has none, or it is unknown."""
        return _sum(window, device, self.limits, LOOKBACK_SECONDS) if self.limits else None


def _sum(window: Window, device: DeviceKey, signals: tuple[Signal, ...], fresh: float) -> float | None:
    total = 0.0
    for signal in signals:
        points = window.points(device, signal)
        if not points or points[-1][0] < window.now - fresh:
            return None
        total += points[-1][1]
    return total


MEASUREMENTS = (
    Measurement("engine_active", "engine activity", "engine", (s.GR_ACTIVE,), fresh=SAMPLED_SECONDS),
    Measurement("sm_active", "SM activity", "SM", (s.SM_ACTIVE,)),
    Measurement("tensor_active", "tensor core activity", "tensor", (s.TENSOR_ACTIVE,)),
    Measurement("dram_active", "DRAM activity", "DRAM", (s.DRAM_ACTIVE,), fresh=SAMPLED_SECONDS),
    Measurement("nvlink", "NVLink traffic", "NVLink", (s.NVLINK,)),
    Measurement("pcie", "PCIe traffic", "PCIe", (s.PCIE_RX, s.PCIE_TX)),
    Measurement("power", "power", "power", (s.POWER_NOW,), (s.POWER_LIMIT,), 20.0),
    Measurement("temperature", "temperature", "temp", (s.GPU_TEMP,), (s.SLOWDOWN_TEMP,), 20.0),
    Measurement("memory_used", "memory in use", "memory", (s.FB_USED,), (s.FB_USED, s.FB_FREE), 20.0, s.FB_PEAK),
)
BY_NAME = {measurement.name: measurement for measurement in MEASUREMENTS}
