"""Reads two sources over the same time, and reports on which metrics of which GPU they agree, and how far they
differ."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError, SourceLost
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Kind, Labels, Metric, Pace
from gpu_exporter.model.snapshot import UNREAD, Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.pipeline.accumulator import INTEGRALS
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.renderer import number
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.reports.numbers import counted


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two values may be apart: a share of the larger, but at least `least` in the metric's unit."""

    share: float
    least: float
    why: str

    def around(self, a: float, b: float) -> float:
        """Return the difference that is allowed between these two."""
        return max(self.share * max(abs(a), abs(b)), self.least)


EXACT = Tolerance(1e-9, 0.0, "both read the same number")
# By unit. Counters of units in FLOWS are compared by their rise per second.
TOLERANCES: Mapping[str, Tolerance] = {
    "ratio": Tolerance(0.05, 0.02, "the two windows begin and end up to one collection apart"),
    "bytes per second": Tolerance(0.10, 1e7, "as ratios, and traffic comes in bursts"),
    "bytes": Tolerance(0.10, 1e7, "as bytes per second"),
    "MB/s": Tolerance(0.10, 10.0, "as bytes per second"),
    "KB/s": Tolerance(0.10, 1e4, "as bytes per second"),
    "percent": Tolerance(0.0, 5.0, "the driver averages over up to a second; sampled at different times"),
    "MHz": Tolerance(0.03, 30.0, "clocks change in steps of 15 MHz between collections"),
    "watts": Tolerance(0.05, 10.0, "instantaneous power changes between collections"),
    "millijoules": Tolerance(0.05, 1e4, "as watts; the counter is read at different times"),
    "joules": Tolerance(0.05, 10.0, "as millijoules"),
    "celsius": Tolerance(0.0, 2.0, "whole degrees, read at different times"),
    "MiB": Tolerance(0.01, 64.0, "programs allocate memory meanwhile"),
    "seconds": Tolerance(0.05, 0.05, "the driver counts in steps; read at different times"),
    "nanoseconds": Tolerance(0.05, 5e7, "as seconds"),
}
# Counters of these units are compared by their rise per second, all others by their last value.
FLOWS = frozenset({"bytes", "millijoules", "joules", "seconds", "nanoseconds"})
# Settings and properties of the GPU: they are read repeatedly, and must be equal.
SETTINGS = frozenset({m.POWER_LIMIT, m.POWER_SET, m.FB_TOTAL, m.BAR1_TOTAL})


class Agreement(Enum):
    """The result for one metric."""

    SAME = "same"
    ONLY_A = "only a"
    ONLY_B = "only b"
    DIFFERS = "differs"


Key = tuple[str, Metric, Labels]
RISE = "rise per second"
# The `what` of a GPU that only one source has, in JSON.
PRESENCE = "is there"


def compares(metric: Metric) -> bool:
    """Whether a metric is compared: sources read it, and it is no identity, integral or histogram of another metric."""
    return (
        metric.integral_of is None
        and metric.unit != "info"
        and metric.kind is not Kind.HISTOGRAM
        and (metric.nvml is not None or metric.dcgm is not None)
    )


@dataclass(slots=True)
class ComparedTrack:
    """The values of one series. `changed_at` is when its last value was first read (monotonic seconds)."""

    first: float
    last: float
    since: float
    changed_at: float
    total: float = 0.0
    count: int = 0
    states: set[float] = field(default_factory=set)

    def add(self, at: float, value: float) -> None:
        """Add the value of one collection."""
        if value != self.last:
            self.last, self.changed_at = value, at
        self.total += value
        self.count += 1
        self.states.add(value)

    def begin(self) -> None:
        """Begin the comparison: forget all but the first value, from which counters rise."""
        self.total, self.count = 0.0, 0
        self.states.clear()

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def rise(self) -> float:
        """The rise per second, from the first read to the last change."""
        return (self.last - self.first) / self.span if self.last != self.first else 0.0

    @property
    def span(self) -> float:
        """Seconds from the first read to the last change."""
        return self.changed_at - self.since


@dataclass(slots=True)
class Side:
    """What one source has read. `settled`: each GPU was read or is down."""

    name: str
    gpus: dict[str, Gpu] = field(default_factory=dict)
    tracks: dict[Key, ComparedTrack] = field(default_factory=dict)
    settled: bool = False

    def begin(self) -> None:
        """Begin the comparison."""
        for track in self.tracks.values():
            track.begin()

    def seen(self, key: Key) -> ComparedTrack | None:
        """Return a series that had a value since `begin`."""
        track = self.tracks.get(key)
        return track if track and track.count else None

    def add(self, snapshot: Snapshot, now: float) -> None:
        """Add a snapshot: its samples, and the identities of GPUs that answer."""
        up = {status.gpu for status in snapshot.gpus if status.up}
        self.gpus |= {gpu.uuid: gpu for gpu in up}
        self.settled = all(status.reason not in (UNREAD, "stalled") for status in snapshot.gpus)
        for series, value in snapshot.samples:
            metric = series.metric
            if not compares(metric) or (series.gpu is not None and series.gpu not in up):
                continue
            key = (series.gpu.uuid if series.gpu else "", metric, tuple(sorted(series.labels)))
            track = self.tracks.get(key)
            if track is None:
                track = self.tracks[key] = ComparedTrack(value, value, now, now)
            track.add(now, value)


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """One metric of one GPU. `how` is what was compared: mean, state, rise per second, level, or constant."""

    gpu: Gpu | None
    metric: Metric
    labels: Labels
    how: str
    a: float | None
    b: float | None
    tolerance: float | None
    agreement: Agreement

    @property
    def name(self) -> str:
        labels = ",".join(f'{name}="{text}"' for name, text in self.metric.labels + self.labels)
        return f"{self.metric}{{{labels}}}" if labels else str(self.metric)

    @property
    def difference(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


@dataclass(frozen=True, slots=True)
class IdentityDifference:
    """An attribute of a GPU on which two sources disagree, or PRESENCE with yes and no if one of them lacks the GPU."""

    uuid: str
    what: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for all metrics of all GPUs."""

    a: str
    b: str
    seconds: float
    gpus: int
    identities: tuple[IdentityDifference, ...]
    metrics: tuple[ComparedMetric, ...]

    @property
    def differs(self) -> bool:
        """Whether anything differs. A metric that only one source has is not a difference."""
        return bool(self.identities) or any(row.agreement is Agreement.DIFFERS for row in self.metrics)

    def count(self, agreement: Agreement) -> int:
        """Return the number of metrics with this result."""
        return sum(row.agreement is agreement for row in self.metrics)


def compared(a: Side, b: Side, seconds: float) -> Comparison:
    """Compare what two sources have read in the same time, by GPU and in the order of the catalogue."""
    place = {metric: place for place, metric in enumerate(m.METRICS)}
    keys = {key for side in (a, b) for key, track in side.tracks.items() if track.count}
    gpus = {**b.gpus, **a.gpus}
    order = {uuid: gpu.index for uuid, gpu in gpus.items()}
    ordered = sorted(keys, key=lambda key: (order.get(key[0], -1), place.get(key[1], len(place)), key[1].key, key[2]))
    metrics = [_compared(gpus.get(key[0]), key, a.seen(key), b.seen(key)) for key in ordered if _both(key[0], a, b)]
    return Comparison(
        a.name, b.name, seconds, len(a.gpus.keys() & b.gpus.keys()), tuple(_identities(a, b)), tuple(metrics)
    )


def _both(uuid: str, a: Side, b: Side) -> bool:
    """Whether both sides have this GPU; if not, its metrics are not compared."""
    return not uuid or (uuid in a.gpus and uuid in b.gpus)


def _compared(gpu: Gpu | None, key: Key, a: ComparedTrack | None, b: ComparedTrack | None) -> ComparedMetric:
    _, metric, labels = key
    how, value = _how(metric)
    if a is None:
        return ComparedMetric(gpu, metric, labels, how, None, None if b is None else value(b), None, Agreement.ONLY_B)
    if b is None:
        return ComparedMetric(gpu, metric, labels, how, value(a), None, None, Agreement.ONLY_A)
    allowed = EXACT if how in ("state", "constant") else TOLERANCES.get(metric.unit, EXACT)
    left, right = value(a), value(b)
    tolerance = allowed.around(left, right)
    if how == RISE:  # values of a source that another program samples may be older by a whole period
        tolerance += (
            max(abs(left), abs(right)) * metric.nvml_pace.value / max(a.span, b.span, metric.nvml_pace.value, 1.0)
        )
    near = bool(a.states & b.states) if how == "state" else abs(right - left) <= tolerance
    return ComparedMetric(
        gpu, metric, labels, how, left, right, tolerance, Agreement.SAME if near else Agreement.DIFFERS
    )


def _how(metric: Metric) -> tuple[str, Callable[[ComparedTrack], float]]:
    """Return what is compared of a metric. A profiling gauge is itself a mean over the whole time."""
    if metric.kind is Kind.COUNTER:
        return (RISE, lambda track: track.rise) if metric.unit in FLOWS else ("level", _last)
    if metric.pace is Pace.STATIC or metric in SETTINGS:
        return "constant", _last
    if metric.unit in m.STATE_UNITS:  # they agree if both sources saw one state in common
        return "state", _last
    return "mean", _last if metric in INTEGRALS else lambda track: track.mean


def _last(track: ComparedTrack) -> float:
    return track.last


def _identities(a: Side, b: Side) -> Iterable[IdentityDifference]:
    for uuid in sorted(a.gpus.keys() | b.gpus.keys()):
        left, right = a.gpus.get(uuid), b.gpus.get(uuid)
        if left is None or right is None:
            yield IdentityDifference(uuid, PRESENCE, *("no" if gpu is None else "yes" for gpu in (left, right)))
            continue
        of_a, of_b = dict(_identity(left)), dict(_identity(right))
        for what in of_a.keys() & of_b.keys():
            if of_a[what].lower() != of_b[what].lower():
                yield IdentityDifference(uuid, what, of_a[what], of_b[what])


def _identity(gpu: Gpu) -> Labels:
    """Return the attributes that are not empty, because one that a side lacks does not differ."""
    attributes = (
        ("gpu", str(gpu.index)),
        ("pci_bus_id", gpu.pci_bus_id),
        ("device", gpu.device),
        ("modelName", gpu.model),
        ("driver", gpu.driver),
    )
    return tuple((what, text) for what, text in (*attributes, *gpu.info) if text)


INTERVAL_SECONDS = 1.0
# How long a source may take until it has read each GPU.
PATIENCE_SECONDS = 15.0
EXIT_DIFFERS = 3


def compare_sources(
    a: tuple[str, Source], b: tuple[str, Source], metrics: Sequence[Metric], seconds: float
) -> tuple[Comparison, bool]:
    """Read both sources for `seconds`. Returns the comparison, and False if a driver call is stuck.

    Raises GpuExporterError if one has no GPU.
    """
    sides, lock = (Side(a[0]), Side(b[0])), threading.Lock()
    loops = [
        Collector(source, metrics, _taking(side, lock), CollectionSettings(INTERVAL_SECONDS, gauge_window=seconds))
        for (_, source), side in zip((a, b), sides, strict=True)
    ]
    try:
        for loop, side in zip(loops, sides, strict=True):
            loop.start()
            _await(side)
        with lock:
            for side in sides:
                side.begin()
        time.sleep(seconds)
        with lock:
            result = compared(*sides, seconds)
    except GpuExporterError:
        for loop in loops:
            loop.stop()
        raise
    return result, all([loop.stop() for loop in loops])


def _taking(side: Side, lock: threading.Lock) -> Callable[[Snapshot], None]:
    def take(snapshot: Snapshot) -> None:
        with lock:
            side.add(snapshot, time.monotonic())

    return take


def _await(side: Side) -> None:
    """Wait until each GPU was read or is down. Raises SourceLost if none answers in time."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (side.gpus and (side.settled or time.monotonic() > end)):
        if time.monotonic() > end:
            message = f"{side.name}: no GPU answered within {PATIENCE_SECONDS:g} s"
            raise SourceLost(message, fix="`gpu-exporter doctor` says why")
        time.sleep(0.05)


def as_dict(result: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON."""
    return {
        "a": result.a,
        "b": result.b,
        "seconds": result.seconds,
        "gpus": result.gpus,
        "same": not result.differs,
        "identities": [{"UUID": item.uuid, "what": item.what, "a": item.a, "b": item.b} for item in result.identities],
        "metrics": [
            {
                "gpu": row.gpu.index if row.gpu else None,
                "UUID": row.gpu.uuid if row.gpu else None,
                "metric": row.name,
                "unit": row.metric.unit,
                "compared": row.how,
                "a": row.a,
                "b": row.b,
                "difference": row.difference,
                "tolerance": row.tolerance,
                "verdict": row.agreement.value,
            }
            for row in result.metrics
        ],
    }


def lines(result: Comparison) -> Iterable[str]:
    """Yield a table: first what is the same, then what only one source has, last what differs."""
    yield f"a: {result.a}, b: {result.b}; {counted(result.gpus, 'GPU')} in both, {result.seconds:g} s"
    table: list[tuple[str, ...]] = [("GPU", "METRIC", "COMPARED", "A", "B", "DIFFERENCE", "TOLERANCE", "VERDICT")]
    for agreement in Agreement:
        table += [_cells(row) for row in result.metrics if row.agreement is agreement]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for cells in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    for item in result.identities:
        yield f"differs: {_difference(item)}"
    yield ", ".join(
        f"{result.count(agreement)} {words}"
        for agreement, words in (
            (Agreement.SAME, "the same"),
            (Agreement.ONLY_A, "only in a"),
            (Agreement.ONLY_B, "only in b"),
            (Agreement.DIFFERS, "differ"),
        )
    )


def _difference(item: IdentityDifference) -> str:
    what, uuid, a, b = (printable(text, 100) for text in (item.what, item.uuid, item.a, item.b))
    if item.what == PRESENCE:
        return f"{uuid} exists only in {'a' if item.a == 'yes' else 'b'}"
    return f"{what} of {uuid} is {a} in a and {b} in b"


def _cells(row: ComparedMetric) -> tuple[str, ...]:
    values = (row.a, row.b, row.difference, row.tolerance)
    shown = ("-" if value is None else number(float(f"{value:.6g}")) for value in values)
    return ("-" if row.gpu is None else str(row.gpu.index), row.name, row.how, *shown, row.agreement.value)
