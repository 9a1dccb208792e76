"""The last hour of each GPU in compact arrays: the mean of each measurement and the last class of every ten seconds."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan

STEP_SECONDS = 10
POINTS = 360
NO_CLASS = -1
Point = Mapping[str, float]


class GpuTrack:
    """The points of one device: one array per measurement (NaN where there was none), and the classes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.values = {name: array("f", [nan]) * POINTS for name in names}
        self.classes = array("b", [NO_CLASS]) * POINTS
        self.newest = -1

    def clear(self, places: Iterator[int] | range) -> None:
        """Remove the points at these places."""
        for place in places:
            self.classes[place % POINTS] = NO_CLASS
            for values in self.values.values():
                values[place % POINTS] = nan


class LiveHistory:
    """The tracks of all devices, by id. A point is complete when its ten seconds are over."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._tracks: dict[str, GpuTrack] = {}
        self._sums: dict[str, dict[str, tuple[float, int]]] = {}
        self._classes: dict[str, int] = {}
        self._slot = -1

    def take(self, at: float, devices: Mapping[str, Point], classes: Mapping[str, int]) -> bool:
        """Add the measurements and classes of one moment; return whether that completed a point.

        After the clock was set back, the history begins again.
        """
        slot, complete = int(at // STEP_SECONDS), False
        if slot < self._slot:
            self._tracks.clear()
            self._sums.clear()
        elif self._slot not in (slot, -1):
            self._finish()
            complete = True
        self._slot = slot
        for device, values in devices.items():
            sums = self._sums.setdefault(device, {})
            for name, value in values.items():
                total, number = sums.get(name, (0.0, 0))
                sums[name] = total + value, number + 1
        self._classes = dict(classes)
        return complete

    def _finish(self) -> None:
        for device, sums in self._sums.items():
            track = self._tracks.get(device)
            if track is None:
                track = self._tracks[device] = GpuTrack(self.names)
                track.newest = self._slot - 1
            track.clear(range(max(track.newest + 1, self._slot - POINTS + 1), self._slot + 1))
            for name, (total, number) in sums.items():
                track.values[name][self._slot % POINTS] = total / number
            track.classes[self._slot % POINTS] = self._classes.get(device, NO_CLASS)
            track.newest = self._slot
        self._sums.clear()
        ended = [device for device, track in self._tracks.items() if track.newest <= self._slot - POINTS]
        for device in ended:
            del self._tracks[device]

    @property
    def start(self) -> float:
        """The Unix time at which the first of POINTS complete points begins."""
        return float((self._slot - POINTS) * STEP_SECONDS)

    def newest(self) -> Mapping[str, tuple[Point, int]]:
        """Return the point that was completed last: the measurements and the class of each device that has one."""
        slot = self._slot - 1
        place = slot % POINTS
        return {
            device: (
                {name: values[place] for name, values in track.values.items() if not isnan(values[place])},
                track.classes[place],
            )
            for device, track in self._tracks.items()
            if track.newest == slot
        }

    def rows(self) -> Iterator[tuple[str, str, Sequence[float | None]]]:
        """Yield the id, the name of the row ("class" or a measurement) and POINTS values, the oldest first."""
        begin = self._slot - POINTS
        for device, track in list(self._tracks.items()):
            places = [(begin + n) % POINTS for n in range(POINTS)]
            there = [begin + n <= track.newest for n in range(POINTS)]
            classes = track.classes
            yield (
                device,
                "class",
                [classes[p] if ok and classes[p] != NO_CLASS else None for p, ok in zip(places, there, strict=True)],
            )
            for name, values in track.values.items():
                row = [values[p] if ok and not isnan(values[p]) else None for p, ok in zip(places, there, strict=True)]
                if any(value is not None for value in row):
                    yield device, name, row
