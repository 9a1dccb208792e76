"""A fleet over a period: what each GPU does, what is true of it, and what is scraped besides GPUs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.mode import Ramp
from tests.operation.loads import IDLE
from tests.rules.series import Device, Generation, Stretch
from tests.rules.shapes import STEP, Part

HOUR = 3600 // STEP
DAY = 24 * HOUR
# Minutes by which interruptions may delay an alert.
SPARE = 30.0


def steps(minutes: float) -> int:
    """Return the number of scrapes in so many minutes, at least one."""
    return max(1, round(minutes * 60 / STEP))


@dataclass(frozen=True, slots=True)
class Truth:
    """What is wrong from scrape `start` to `end` with GPUs of a node, or with the node if there are none.

    The alerts of `must` have to fire, within `within` minutes, and until the end if it `lasts`; those of `may` describe
    the same thing and are right, too.
    """

    what: str
    node: str
    gpus: frozenset[int]
    start: int
    end: int
    must: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    within: float = 0.0
    lasts: bool = False


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An XID at a scrape, because of which the GPU is unhealthy until another one."""

    at: int
    code: int
    until: int


class Timeline:
    """The story of one device."""

    def __init__(self, device: Device, total: int) -> None:
        self.device, self.total = device, total
        self._starts: list[int] = [0]
        self._stretches: list[Stretch] = [Stretch(total, IDLE, owner={})]

    @property
    def story(self) -> Sequence[Stretch]:
        """Return all stretches, in order."""
        return self._stretches

    def at(self, step: int) -> Stretch:
        """Return the stretch at a scrape."""
        return self._stretches[bisect_right(self._starts, step) - 1]

    def put(self, start: int, stretches: Iterable[Stretch]) -> int:
        """Replace what happens from a scrape on; return the scrape at which that ends. The period cuts it off."""
        place = start
        for stretch in stretches:
            length = min(stretch.steps, self.total - place)
            if length > 0:
                self._replace(place, place + length, [replace(stretch, steps=length)])
                place += length
        return place

    def change(self, start: int, end: int, change: Callable[[Stretch], Stretch]) -> None:
        """Change all that happens between two scrapes."""
        end = min(end, self.total)
        if start < end:
            first, last = self._cut(start), self._cut(end)
            self._replace(start, end, [change(each) for each in self._stretches[first:last]])

    def _replace(self, start: int, end: int, stretches: list[Stretch]) -> None:
        first, last = self._cut(start), self._cut(end)
        self._stretches[first:last] = stretches
        starts, place = [], start
        for stretch in stretches:
            starts.append(place)
            place += stretch.steps
        self._starts[first:last] = starts

    def _cut(self, step: int) -> int:
        """Make a stretch begin at a scrape; return its index."""
        if step >= self.total:
            return len(self._stretches)
        index = bisect_right(self._starts, step) - 1
        before = step - self._starts[index]
        if before:
            stretch = self._stretches[index]
            self._stretches[index : index + 1] = [replace(stretch, steps=before), _later(stretch, before)]
            self._starts.insert(index + 1, step)
            return index + 1
        return index


def _later(stretch: Stretch, before: int) -> Stretch:
    """Return the rest of a stretch after some scrapes; ramps continue."""
    values = {
        row: Ramp(shape.start + shape.per_second * before * STEP, shape.per_second)
        if isinstance(shape, Ramp)
        else shape
        for row, shape in stretch.values.items()
    }
    return replace(stretch, steps=stretch.steps - before, values=values)


@dataclass
class Fleet:
    """All devices of a period of `total` scrapes, of which those from `first` on are judged.

    `xids` are by node and GPU. `clocks` are steps of a node's clock: from a scrape on it is so many seconds ahead.
    `cordoned` and `stopped` (Prometheus does not run) are from one scrape to another. `silences` are nodes with the
    scrape at which scrapes begin to fail, and how many do. `series` are those of other exporters.
    """

    total: int
    first: int = 0
    timelines: list[Timeline] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    xids: dict[tuple[str, int], list[XidEvent]] = field(default_factory=dict)
    clocks: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    cordoned: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    stopped: list[tuple[int, int]] = field(default_factory=list)
    silences: list[tuple[str, int, int]] = field(default_factory=list)
    series: dict[tuple[str, tuple[tuple[str, str], ...]], Sequence[Part]] = field(default_factory=dict)

    def cut(self, first: int, last: int) -> None:
        """Judge only what is between two scrapes: alerts on faults that begin before, or at its end, are right, but not
        needed."""
        self.first, self.total = first, last
        self.truths = [
            truth
            if first <= truth.start and truth.start + steps(truth.within + SPARE) < last
            else replace(truth, must=(), may=(*truth.must, *truth.may))
            for truth in self.truths
            if truth.start < last
        ]

    def node(self, name: str, gpus: int, generation: Generation, *, full: bool = False) -> list[Timeline]:
        """Add a node; return its GPUs."""
        made = [Timeline(Device(name, gpu, (), generation, full=full), self.total) for gpu in range(gpus)]
        self.timelines += made
        return made

    def of(self, node: str) -> list[Timeline]:
        """Return the devices of a node."""
        return [each for each in self.timelines if each.device.node == node]

    @property
    def nodes(self) -> Sequence[str]:
        """Return the names of all nodes."""
        return list(dict.fromkeys(each.device.node for each in self.timelines))

    def devices(self) -> Iterator[Device]:
        """Yield the devices with their stories."""
        for timeline in self.timelines:
            yield replace(timeline.device, story=timeline.story)

    def reboot(self, node: str, start: int, minutes: float, *, planned: bool = True) -> int:
        """Reboot a node; return the scrape at which it answers again. A planned reboot cordons it first."""
        end = min(start + steps(minutes), self.total)
        for timeline in self.of(node):
            timeline.change(start, end, lambda each: replace(each, fault="reboot"))
        if planned:
            self.cordoned.setdefault(node, []).append((start - steps(10), end + steps(5)))
        return end

    def xid(self, node: str, gpu: int, at: int, code: int, until: int, repaired: int) -> None:
        """Add an XID; the GPU is unhealthy because of it until a scrape, and the driver shows it until the repair."""
        self.xids.setdefault((node, gpu), []).append(XidEvent(at, code, until))
        for timeline in self.of(node):
            if timeline.device.gpu == gpu and not timeline.device.instance:
                timeline.change(
                    at, repaired, lambda each: replace(each, values={**each.values, m.XID_ERRORS: float(code)})
                )

    def silence(self, node: str, start: int, minutes: float, fault: str = "down") -> None:
        """Make scrapes of a node fail, or remove its target (`absent`)."""
        self.silences.append((node, start, steps(minutes)))
        for timeline in self.of(node):
            timeline.change(start, start + steps(minutes), lambda each: replace(each, fault=fault))

    def true(self, what: str, gpus: Sequence[Timeline], start: int, end: int, *may: str) -> None:
        """Say that these alerts describe what the GPUs do."""
        if may:
            of = frozenset(each.device.gpu for each in gpus)
            self.truths.append(Truth(what, gpus[0].device.node, of, start, end, may=may))


Owner = Mapping[str, str]
