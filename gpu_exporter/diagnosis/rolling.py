"""The signals of the last seconds of scrapes that keep coming, for a view that is diagnosed again and again.

At its end, the result is that of `seen` for the scrapes of these seconds. Each scrape is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.evaluate import Device, Points
from gpu_exporter.catalogue.signal import Derived, Read, Signal
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.diagnosis.scrape import DeviceKey, Scrape, plausible
from gpu_exporter.diagnosis.signal_reader import ByName, reader
from gpu_exporter.diagnosis.window import DeviceIdentity, Identities, Window, latest_of

# Families of gpu-exporter by which all its devices are known.
_IDENTIFYING = (m.UP, m.INFO, m.DOWN, m.HOST_PROCESS, m.POD_INFO, m.GR_ENGINE_ACTIVE, m.SM_ACTIVE, m.FB_USED)
IDENTIFY = tuple(row.name for row in _IDENTIFYING)
Signals = Mapping[tuple[Device, Signal], Points]


class RollingWindow:
    """Keeps the points of the last `seconds`. With `job`, all devices are ranks of a job of that name."""

    def __init__(self, seconds: float, *, job: str = "") -> None:
        self._seconds, self._job, self._now = seconds, job, 0.0
        self._identities = Identities()
        self._readers = {
            (signal, way): reader(way, per_instance=signal.per_instance, seconds=seconds)
            for signal in SIGNALS
            for way in signal.definitions
            if isinstance(way, Read)
        }
        self._derived = {
            (signal, way): _Formula(way) for signal in SIGNALS for way in signal.definitions if isinstance(way, Derived)
        }

    def take(self, at: float, by_name: ByName) -> None:
        """Add the samples of a scrape, which is newer than those before, and drop what is too old."""
        self._now = at
        # Of a page with thousands of samples, a few families identify all devices and owners.
        names = IDENTIFY if m.UP.name in by_name else by_name
        self._identities.take(Scrape(at, [sample for name in names for sample in by_name.get(name, ())]))
        for of_way in self._readers.values():
            of_way.take(at, by_name)
            of_way.forget(at - self._seconds)

    def seen_at(self, device: DeviceKey) -> float:
        """Return when a device was last seen (unix seconds)."""
        return self._identities.seen_at[device]

    def window(self) -> Window:
        """Return the signals of the devices that were seen within these seconds."""
        devices: dict[DeviceKey, DeviceIdentity] = {}
        for key, identity in self._identities.devices().items():
            if self.seen_at(key) > self._now - self._seconds:
                identity.workload = self._job or identity.workload
                devices[key] = identity
        signals: dict[tuple[Device, Signal], Points] = {}
        for signal in SIGNALS:
            for way in signal.definitions:
                if isinstance(way, Derived):
                    by_device = self._derived[signal, way].points(devices, signals, self._now - self._seconds)
                else:
                    by_device = self._readers[signal, way].points
                for device, points in by_device.items():
                    if points and device in devices:
                        signals.setdefault((device, signal), points)
        return Window(self._now, devices, signals)


class _Formula:
    """A signal that is computed from others: at each time once."""

    def __init__(self, way: Derived) -> None:
        self._way, self._inputs = way, tuple(way.signals())
        self._points: dict[DeviceKey, list[tuple[float, float]]] = {}

    def points(
        self, devices: Mapping[DeviceKey, DeviceIdentity], signals: Signals, since: float
    ) -> Mapping[DeviceKey, Points]:
        """Return its points since a time, and add those for which its inputs have new ones."""
        for key in devices:
            inputs = [signals.get((key, signal), ()) for signal in self._inputs]
            before = self._points.pop(key, [])
            if not all(inputs):
                continue
            last = before[-1][0] if before else -1.0
            times = {t for points in inputs for t in _later(points, last)}
            new = ((t, self._way.value(partial(latest_of, signals, key, t))) for t in sorted(times))
            kept = [point for point in before if point[0] >= since]
            kept += [(t, value) for t, value in new if value is not None and plausible(value)]
            self._points[key] = kept or before[-1:]
        return {key: self._points[key] for key in devices if key in self._points}


def _later(points: Points, than: float) -> Iterator[float]:
    """Yield the times of the points after a time, the last one first."""
    for t, _ in reversed(points):
        if t <= than:
            return
        yield t
