"""The signals of the last seconds of scrapes that keep coming, for a view that is diagnosed again and again.

At its end, the result is that of `seen` for the scrapes of these seconds. Each scrape is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.conditions.evaluate import Device, Points
from gpu_exporter.conditions.signal import Derived, Signal
from gpu_exporter.diagnosis.scrape import DeviceKey, Scrape, plausible
from gpu_exporter.diagnosis.signal_reader import ByName
from gpu_exporter.diagnosis.window import DeviceIdentity, SignalReaders, Window, latest_of

# Families of gpu-exporter by which all its devices are known.
_OF_GPUS = (m.UP, m.INFO, m.DOWN, m.GR_ENGINE_ACTIVE, m.SM_ACTIVE, m.FB_USED)
_IDENTIFYING = (*_OF_GPUS, m.HOST_PROCESS, m.POD_INFO, m.JOB_INFO)
IDENTIFY = tuple(row.name for row in _IDENTIFYING)
Signals = Mapping[tuple[Device, Signal], Points]


class RollingWindow(SignalReaders):
    """Keeps the points of the last `seconds`. With `job`, all devices are ranks of a job of that name."""

    def __init__(self, seconds: float, *, job: str = "") -> None:
        super().__init__(seconds)
        self._seconds, self._job = seconds, job
        ways = (way for signal in SIGNALS for way in signal.definitions if isinstance(way, Derived))
        self._formulas = {id(way): _Formula(way) for way in ways}

    def add(self, at: float, by_name: ByName) -> None:
        """Add the samples of a scrape, which is newer than those before, and drop what is too old."""
        # Of a page with thousands of samples, a few families identify all devices and owners.
        names = IDENTIFY if m.UP.name in by_name else by_name
        self._identities.take(Scrape(at, [sample for name in names for sample in by_name.get(name, ())]))
        self._read(at, by_name)
        self.forget(at - self._seconds)

    def seen_at(self, device: DeviceKey) -> float:
        """Return when a device was last seen (unix seconds)."""
        return self._identities.seen_at[device]

    def recent(self) -> Window:
        """Return the signals of the devices that were seen within these seconds."""
        window = self.window({}, job=self._job)
        since = self._now - self._seconds
        window.devices = {key: identity for key, identity in window.devices.items() if self.seen_at(key) > since}
        return window

    def _derived(
        self, way: Derived, devices: Mapping[DeviceKey, DeviceIdentity], signals: Signals
    ) -> Mapping[DeviceKey, Points]:
        return self._formulas[id(way)].points(devices, signals, self._now - self._seconds)


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
