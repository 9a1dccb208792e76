"""The measurements that the live view shows, in order. They are made of signals: any exporter will do."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.signal import Signal
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import Window

# A value that is older was not measured by the last scrapes. Some metrics are read only every 15 s.
FRESH_SECONDS = 3.0
SHARE, WATTS, CELSIUS, BYTES, BYTES_PER_SECOND = "share", "W", "celsius", "bytes", "bytes/s"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The sum of signals, and the sum of others as its limit. A share has the limit 1."""

    name: str
    words: str
    unit: str
    signals: tuple[Signal, ...]
    limits: tuple[Signal, ...] = ()
    fresh: float = FRESH_SECONDS

    def value(self, window: Window, device: DeviceKey) -> float | None:
        """Return its latest value; None if there is none that is fresh."""
        return _sum(window, device, self.signals, self.fresh)

    def limit(self, window: Window, device: DeviceKey) -> float | None:
        """Return its limit; None if that is unknown."""
        if self.unit == SHARE:
            return 1.0
        return _sum(window, device, self.limits, 60.0) if self.limits else None


def _sum(window: Window, device: DeviceKey, signals: tuple[Signal, ...], fresh: float) -> float | None:
    total = 0.0
    for signal in signals:
        points = window.points(device, signal)
        if not points or points[-1][0] < window.now - fresh:
            return None
        total += points[-1][1]
    return total


MEASUREMENTS = (
    Measurement("sm_active", "SM", SHARE, (s.SM_ACTIVE,)),
    Measurement("tensor_active", "tensor", SHARE, (s.TENSOR_ACTIVE,)),
    Measurement("dram_active", "DRAM", SHARE, (s.DRAM_ACTIVE,)),
    Measurement("nvlink_bytes", "NVLink", BYTES_PER_SECOND, (s.NVLINK,)),
    Measurement("pcie_bytes", "PCIe", BYTES_PER_SECOND, (s.PCIE_RX, s.PCIE_TX)),
    Measurement("power", "power", WATTS, (s.POWER,), (s.POWER_LIMIT,), 20.0),
    Measurement("temperature", "temp", CELSIUS, (s.GPU_TEMP,), (s.SLOWDOWN_TEMP,), 20.0),
    Measurement("memory_used", "memory", BYTES, (s.FB_USED,), (s.FB_USED, s.FB_FREE), 20.0),
)
BY_NAME = {measurement.name: measurement for measurement in MEASUREMENTS}
