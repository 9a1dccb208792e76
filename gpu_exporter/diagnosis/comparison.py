"""Two sources side by side: on which metrics of which GPU they agree, and how far they differ. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.collection.accumulator import INTEGRALS
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Kind, Labels, Metric, Pace
from gpu_exporter.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two values of one thing may be apart: a share of the larger, or `least` in the metric's unit."""

    share: float
    least: float
    why: str

    def around(self, a: float, b: float) -> float:
        """What is allowed between these two."""
        return max(self.share * max(abs(a), abs(b)), self.least)


EXACT = Tolerance(1e-9, 0.0, "both read the same number")
# By unit. What a counter counts of these is compared as its rise per second.
TOLERANCES: Mapping[str, Tolerance] = {
    "ratio": Tolerance(0.05, 0.02, "the two windows begin and end up to a tick apart"),
    "bytes per second": Tolerance(0.10, 1e7, "the same, and traffic comes in bursts"),
    "bytes": Tolerance(0.10, 1e7, "the same"),
    "percent": Tolerance(0.0, 5.0, "the driver's own window of up to a second, looked at at other moments"),
    "MHz": Tolerance(0.03, 30.0, "clocks move in steps of 15 MHz within a tick"),
    "watts": Tolerance(0.05, 10.0, "power of the moment swings within a tick"),
    "millijoules": Tolerance(0.05, 1e4, "as watts: the counter is read at other moments"),
    "joules": Tolerance(0.05, 10.0, "the same"),
    "celsius": Tolerance(0.0, 2.0, "whole degrees, read at other moments"),
    "MiB": Tolerance(0.01, 64.0, "programs allocate meanwhile"),
    "seconds": Tolerance(0.05, 0.05, "counted by the driver in steps, read at other moments"),
}
# Counters of these are compared by their rise per second, all others by what they have come to.
FLOWS = frozenset({"bytes", "millijoules", "joules", "seconds"})
# Of these a mean says nothing: they agree if there is a state that both have seen.
STATES = frozenset({"bitmask", "bool", "state", "action", "status", "code", "generation", "lanes", "xid", "sxid"})


# What someone has set, or what the board has: read again and again, and always equal.
SETTINGS = frozenset({m.POWER_LIMIT, m.POWER_SET, m.FB_TOTAL, m.BAR1_TOTAL})


class Verdict(Enum):
    """What a comparison came to."""

    SAME = "same"
    ONLY_A = "only a"
    ONLY_B = "only b"
    DIFFERS = "differs"


Key = tuple[str, Metric, Labels]
RISE = "rise per second"


def compares(metric: Metric) -> bool:
    """Whether it is read, or given by DCGM; an integral says what its gauge does, and so does a histogram."""
    return (
        metric.integral_of is None
        and metric.kind is not Kind.HISTOGRAM
        and (metric.nvml is not None or metric.dcgm is not None)
    )


@dataclass(slots=True)
class Track:
    """What one series was, tick by tick. `changed_at` is when its last value was first seen (monotonic seconds)."""

    first: float
    last: float
    since: float
    changed_at: float
    total: float = 0.0
    ticks: int = 0
    states: set[float] = field(default_factory=set)

    def add(self, at: float, value: float) -> None:
        """One more tick."""
        if value != self.last:
            self.last, self.changed_at = value, at
        self.total += value
        self.ticks += 1
        self.states.add(value)

    def begin(self) -> None:
        """The time of comparison begins: forget all but where a counter started."""
        self.total, self.ticks = 0.0, 0
        self.states.clear()

    @property
    def mean(self) -> float:
        return self.total / self.ticks

    @property
    def rise(self) -> float:
        """Per second, from the first read to the last one that found another value."""
        return (self.last - self.first) / self.span if self.last != self.first else 0.0

    @property
    def span(self) -> float:
        """Seconds from the first read to the last one that found another value."""
        return self.changed_at - self.since


@dataclass(slots=True)
class Side:
    """What one source has shown."""

    name: str
    gpus: dict[str, Gpu] = field(default_factory=dict)
    tracks: dict[Key, Track] = field(default_factory=dict)
    settled: bool = False

    def begin(self) -> None:
        """The time of comparison begins."""
        for track in self.tracks.values():
            track.begin()

    def seen(self, key: Key) -> Track | None:
        """A series that had a value in that time."""
        track = self.tracks.get(key)
        return track if track and track.ticks else None

    def add(self, snapshot: Snapshot, now: float) -> None:
        """One more snapshot: what was read, and the identities of GPUs that answer."""
        up = {status.gpu for status in snapshot.gpus if status.up}
        self.gpus |= {gpu.uuid: gpu for gpu in up}
        self.settled = all(status.reason not in ("unread", "stalled") for status in snapshot.gpus)
        for series, value in snapshot.samples:
            metric = series.metric
            if not compares(metric) or (series.gpu is not None and series.gpu not in up):
                continue
            key = (series.gpu.uuid if series.gpu else "", metric, tuple(sorted(series.labels)))
            track = self.tracks.get(key)
            if track is None:
                track = self.tracks[key] = Track(value, value, now, now)
            track.add(now, value)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one GPU. `how` says what was compared: mean, state, rise per second, level, or constant."""

    gpu: Gpu | None
    metric: Metric
    labels: Labels
    how: str
    a: float | None
    b: float | None
    tolerance: float | None
    verdict: Verdict

    @property
    def name(self) -> str:
        own = ",".join(f'{name}="{text}"' for name, text in self.metric.labels + self.labels)
        return f"{self.metric}{{{own}}}" if own else str(self.metric)

    @property
    def difference(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True, slots=True)
class Identity:
    """Something that two sources say differently of one GPU, or a GPU that one of them has not."""

    uuid: str
    what: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that came out."""

    a: str
    b: str
    seconds: float
    gpus: int
    identities: tuple[Identity, ...]
    rows: tuple[Row, ...]

    @property
    def differs(self) -> bool:
        """What only one of them can answer is no difference."""
        return bool(self.identities) or any(row.verdict is Verdict.DIFFERS for row in self.rows)

    def count(self, verdict: Verdict) -> int:
        """How many rows came to this."""
        return sum(row.verdict is verdict for row in self.rows)


def compared(a: Side, b: Side, seconds: float) -> Comparison:
    """What two sides have shown of the same time, by GPU and in the catalogue's order."""
    place = {metric: place for place, metric in enumerate(m.METRICS)}
    keys = {key for side in (a, b) for key, track in side.tracks.items() if track.ticks}
    gpus = {**b.gpus, **a.gpus}
    order = {uuid: gpu.index for uuid, gpu in gpus.items()}
    ordered = sorted(keys, key=lambda key: (order.get(key[0], -1), place.get(key[1], len(place)), key[1].key, key[2]))
    rows = [_row(gpus.get(key[0]), key, a.seen(key), b.seen(key)) for key in ordered if _both(key[0], a, b)]
    return Comparison(
        a.name, b.name, seconds, len(a.gpus.keys() & b.gpus.keys()), tuple(_identities(a, b)), tuple(rows)
    )


def _both(uuid: str, a: Side, b: Side) -> bool:
    """Of a GPU that one side has not, nothing else is to say."""
    return not uuid or (uuid in a.gpus and uuid in b.gpus)


def _row(gpu: Gpu | None, key: Key, a: Track | None, b: Track | None) -> Row:
    _, metric, labels = key
    how, value = _how(metric)
    if a is None:
        return Row(gpu, metric, labels, how, None, None if b is None else value(b), None, Verdict.ONLY_B)
    if b is None:
        return Row(gpu, metric, labels, how, value(a), None, None, Verdict.ONLY_A)
    allowed = EXACT if how in ("state", "constant") else TOLERANCES.get(metric.unit, EXACT)
    left, right = value(a), value(b)
    tolerance = allowed.around(left, right)
    if how == RISE:  # a source that is sampled by somebody else may show what is older by a whole period
        tolerance += max(abs(left), abs(right)) * metric.read.value / max(a.span, b.span, metric.read.value, 1.0)
    near = bool(a.states & b.states) if how == "state" else abs(right - left) <= tolerance
    return Row(gpu, metric, labels, how, left, right, tolerance, Verdict.SAME if near else Verdict.DIFFERS)


def _how(metric: Metric) -> tuple[str, Callable[[Track], float]]:
    """What is compared of a metric. A profiling gauge is itself the mean over the time, made of its integral."""
    if metric.kind is Kind.COUNTER:
        return (RISE, lambda track: track.rise) if metric.unit in FLOWS else ("level", _last)
    if metric.pace is Pace.STATIC or metric in SETTINGS:
        return "constant", _last
    if metric.unit in STATES:
        return "state", _last
    return "mean", _last if metric in INTEGRALS else lambda track: track.mean


def _last(track: Track) -> float:
    return track.last


def _identities(a: Side, b: Side) -> Iterable[Identity]:
    for uuid in sorted(a.gpus.keys() | b.gpus.keys()):
        left, right = a.gpus.get(uuid), b.gpus.get(uuid)
        if left is None or right is None:
            yield Identity(uuid, "is there", *("no" if gpu is None else "yes" for gpu in (left, right)))
            continue
        ours, theirs = dict(_identity(left)), dict(_identity(right))
        for what in ours.keys() & theirs.keys():
            if ours[what].lower() != theirs[what].lower():
                yield Identity(uuid, what, ours[what], theirs[what])


def _identity(gpu: Gpu) -> Labels:
    """What is known of it; what one side does not know is no difference."""
    own = (
        ("gpu", str(gpu.index)),
        ("pci_bus_id", gpu.pci_bus_id),
        ("device", gpu.device),
        ("modelName", gpu.model),
        ("driver", gpu.driver),
    )
    return tuple((what, text) for what, text in (*own, *gpu.info) if text)
