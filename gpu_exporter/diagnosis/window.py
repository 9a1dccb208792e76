"""Pages, snapshots and recordings -> the points of every signal, as the recording rules would make them."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.conditions import Limits
from gpu_exporter.catalogue.distributions import WINDOW_SECONDS
from gpu_exporter.catalogue.evaluate import LOOKBACK_SECONDS, Device, Points, latest
from gpu_exporter.catalogue.signal import Derived, Read, Signal
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.catalogue.workloads import owner
from gpu_exporter.model.snapshot import Snapshot


class Row(NamedTuple):
    """One series of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


class Page(NamedTuple):
    """All series at unix time `at`."""

    at: float
    rows: Sequence[Row]


class Part(NamedTuple):
    """A GPU, or a GPU instance of one in MIG mode."""

    cluster: str
    uuid: str
    instance: str


Claims = set[tuple[str, str, str]]


@dataclass(slots=True)
class Identity:
    """What is known of a device beside its signals."""

    gpu: str = ""
    model: str = ""
    node: str = ""
    namespace: str = ""
    pod: str = ""
    workload: str = ""
    has_instances: bool = False


@dataclass(slots=True)
class Window:
    """What conditions are evaluated over (`catalogue/evaluate.py`). `devices` are in order of node and index."""

    now: float
    devices: Mapping[Part, Identity]
    signals: Mapping[tuple[Device, Signal], Points]
    limits: Limits = field(default_factory=dict)
    memo: dict[Hashable, Any] = field(default_factory=dict)

    def points(self, device: Device, signal: Signal) -> Points:
        """The points of a signal, in order of time."""
        return self.signals.get((device, signal), ())

    def ranks(self, device: Device) -> Sequence[Device]:
        """The devices of the same job and model."""
        if "jobs" not in self.memo:
            jobs: dict[tuple[str, ...], list[Device]] = defaultdict(list)
            for part, known in self.devices.items():
                jobs[part.cluster, known.namespace, known.workload, known.model].append(part)
            self.memo["jobs"] = {
                part: jobs[part.cluster, known.namespace, known.workload, known.model] if known.workload else ()
                for part, known in self.devices.items()
            }
        found: Sequence[Device] = self.memo["jobs"][device]
        return found


def rows(snapshot: Snapshot) -> Page:
    """A snapshot as a page."""
    found = []
    identity: Mapping[str, str]
    for series, value in snapshot.samples:
        metric, gpu, own = series.metric, series.gpu, series.labels
        identity = {} if gpu is None else {"gpu": str(gpu.index), "UUID": gpu.uuid, "modelName": gpu.model}
        found.append(Row(series.name, {**identity, **dict(metric.labels), **dict(own)}, value))
    return Page(snapshot.at, found)


def seen(pages: Sequence[Page], limits: Limits, *, job: str = "") -> Window:
    """All that some pages (in order of time) say. With `job`, all devices are ranks of a job of that name."""
    by_name = [(page.at, _by_name(page.rows)) for page in pages]
    devices = _devices(pages)
    for known in devices.values():
        known.workload = job or known.workload
    signals: dict[tuple[Device, Signal], Points] = {}
    for signal in SIGNALS:
        for way in signal.made:
            found = (
                _derived(way, devices, signals)
                if isinstance(way, Derived)
                else _shaped(way, by_name, per_instance=signal.per_instance)
                if way.shape
                else _read(way, by_name, per_instance=signal.per_instance)
            )
            for part, points in found.items():
                if points:
                    signals.setdefault((part, signal), points)
    return Window(pages[-1].at if pages else 0.0, devices, signals, limits)


def _by_name(rows: Iterable[Row]) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.name].append(row)
    return found


def _part(labels: Mapping[str, str], *, per_instance: bool) -> Part:
    return Part(labels.get("cluster", ""), labels["UUID"], labels.get("GPU_I_ID", "") if per_instance else "")


def _devices(pages: Sequence[Page]) -> dict[Part, Identity]:
    """Everything that a page names by UUID. Whose it is, the last page tells that says anything of it."""
    found: dict[Part, Identity] = {}
    owners: dict[Part, Claims] = {}
    for page in reversed(pages):
        told: dict[Part, Claims] = defaultdict(set)
        ours: dict[Part, Claims] = defaultdict(set)
        for row in page.rows:
            if not row.labels.get("UUID"):
                continue
            part = _part(row.labels, per_instance=True)
            for each in (part, _part(row.labels, per_instance=False)):
                _identify(found.setdefault(each, Identity()), row.labels)
            if part.instance:
                found[part._replace(instance="")].has_instances = True
            if row.name.startswith("DCGM_") or row.name == m.POD_INFO.name:
                whose = owner(row.name, row.labels)
                (ours if row.name == m.POD_INFO.name else told)[part] |= {whose} if whose else set()
        owners = {**told, **ours, **owners}
    for part, claims in owners.items():
        if len(claims) == 1:  # of a GPU that several share, no one is the owner
            ((found[part].namespace, found[part].pod, found[part].workload),) = claims
    return dict(sorted(found.items(), key=lambda item: (item[1].node, _natural(item[1].gpu), item[0])))


def _identify(known: Identity, labels: Mapping[str, str]) -> None:
    known.gpu = known.gpu or labels.get("gpu", "")
    known.model = known.model or labels.get("modelName", "") or labels.get("model", "")
    known.node = known.node or labels.get("Hostname", "") or labels.get("hostname", "") or labels.get("node", "")


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", text))


Pages = Sequence[tuple[float, Mapping[str, list[Row]]]]


def _read(way: Read, pages: Pages, *, per_instance: bool) -> Mapping[Part, Points]:
    found: dict[Part, list[tuple[float, float]]] = defaultdict(list)
    before: dict[Hashable, Count] = {}
    for at, by_name in pages:
        best: dict[Part, float] = {}
        ours = {row.labels.get("UUID") for row in by_name.get(m.XID_EVENTS.name, ())} if way.codes else set()
        for row in by_name.get(way.name, ()):
            if not row.labels.get("UUID") or row.labels["UUID"] in ours or not _matches(way, row.labels):
                continue
            if not math.isfinite(row.value):  # how some exporters and exports say that there is no value
                continue
            value = _value(way, row, at, before)
            if value is not None:
                part = _part(row.labels, per_instance=per_instance)
                best[part] = max(best.get(part, value), value)
        for part, value in best.items():
            found[part].append((at, value))
    return found


def _matches(way: Read, labels: Mapping[str, str]) -> bool:
    if any(labels.get(name, "") != value for name, value in way.where):
        return False
    return way.any_of is None or labels.get(way.any_of[0]) in way.any_of[1]


class Count(NamedTuple):
    """A counter and since when it has that value. `fresh`: it was seen to change then, so it was read then."""

    since: float
    value: float
    fresh: bool


# Of what is not read at each tick, pages in between repeat the last value.
PERIODS = {metric.name: metric.read.value for metric in m.METRICS}


def _value(way: Read, row: Row, at: float, before: dict[Hashable, Count]) -> float | None:
    if way.codes:
        return at if row.value in way.codes else None
    if way.bit is not None:
        return float((int(row.value) >> way.bit) & 1)
    if not way.rate:
        return row.value * way.scale
    key = frozenset(row.labels.items())
    then = before.setdefault(key, Count(at, row.value, False))
    gone, period = at - then.since, PERIODS.get(way.name, 0.0)
    same = row.value == then.value
    if same and gone < period:
        return None
    before[key] = Count(at - period, row.value, then.fresh) if same else Count(at, row.value, True)
    if not 0 < gone <= LOOKBACK_SECONDS or (gone < period and not then.fresh):
        return None
    return (row.value - then.value if row.value >= then.value else row.value) / gone * way.scale


@dataclass(slots=True)
class Grown:
    """The buckets of a histogram: their last values, and by how much they grew until each page of the window.

    A histogram that began anew is no loss of it, as in Prometheus.
    """

    last: Mapping[float, float] = field(default_factory=dict)
    until: deque[tuple[float, Mapping[float, float]]] = field(default_factory=deque)

    def take(self, at: float, now: Mapping[float, float]) -> Mapping[float, float]:
        """Take the buckets of a page; return by how much they grew within the window, in order of their edges."""
        grown = self.until[-1][1] if self.until else {}
        sums = {
            edge: grown.get(edge, 0.0) + now[edge] - (then if (then := self.last.get(edge, 0.0)) <= now[edge] else 0.0)
            for edge in sorted(now)
        }
        self.last = now
        self.until.append((at, sums))
        while self.until[0][0] < at - WINDOW_SECONDS:
            self.until.popleft()
        first = self.until[0][1]
        return {edge: total - first.get(edge, total) for edge, total in sums.items()}


def _shaped(way: Read, pages: Pages, *, per_instance: bool) -> Mapping[Part, Points]:
    """What histograms say; of two of the same device the higher, as of all reads."""
    found: dict[Part, list[tuple[float, float]]] = defaultdict(list)
    known: dict[Hashable, Grown] = defaultdict(Grown)
    for at, by_name in pages:
        now: dict[Hashable, dict[float, float]] = defaultdict(dict)
        parts: dict[Hashable, Part] = {}
        for row in by_name.get(way.series, ()):
            edge = _edge(row.labels.get("le", ""))
            if row.labels.get("UUID") and edge is not None and math.isfinite(row.value):
                key: Hashable = frozenset(pair for pair in row.labels.items() if pair[0] != "le")
                now[key][edge] = row.value
                parts[key] = _part(row.labels, per_instance=per_instance)
        best: dict[Part, float] = {}
        for key, buckets in now.items():
            value = way.shape.value(known[key].take(at, buckets)) if way.shape else None
            if value is not None:
                best[parts[key]] = max(best.get(parts[key], value), value)
        for part, value in best.items():
            found[part].append((at, value))
    return found


def _edge(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _derived(
    way: Derived, devices: Iterable[Part], signals: Mapping[tuple[Device, Signal], Points]
) -> Mapping[Part, Points]:
    found = {}
    for part in devices:
        known = [signals.get((part, each), ()) for each in way.signals()]
        times = sorted({t for points in known for t, _ in points}) if all(known) else ()
        values = ((t, way.value(partial(_known, signals, part, t))) for t in times)
        found[part] = [(t, value) for t, value in values if value is not None]
    return found


def _known(signals: Mapping[tuple[Device, Signal], Points], part: Part, t: float, signal: Signal) -> float | None:
    return latest(signals.get((part, signal), ()), t)
