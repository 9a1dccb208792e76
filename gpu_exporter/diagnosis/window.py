"""Scrapes, snapshots and recordings -> the values of every signal, as the recording rules compute them."""

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

# Unix times that samples can have.
PLAUSIBLE_TIMES = (0.0, 1e11)
# How the key of a GPU begins that was never identified; a UUID begins with `GPU-`.
UNIDENTIFIED = "GPU "
# A larger value is not a measurement, and sums and squares of it would overflow.
LARGEST = 1e30


class ScrapedSample(NamedTuple):
    """One sample of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


class Scrape(NamedTuple):
    """All samples at unix time `at`."""

    at: float
    samples: Sequence[ScrapedSample]


class DeviceKey(NamedTuple):
    """A GPU, or a GPU instance of it in MIG mode."""

    cluster: str
    uuid: str
    instance: str


Claims = set[tuple[str, str, str]]


@dataclass(slots=True)
class DeviceIdentity:
    """What identifies a device and its owner."""

    gpu: str = ""
    model: str = ""
    node: str = ""
    namespace: str = ""
    pod: str = ""
    workload: str = ""
    has_instances: bool = False
    # Why the GPU does not answer, as in `gpu_down_reason`; of the last scrape that says so.
    down: str = ""


@dataclass(slots=True)
class Window:
    """All signals of some scrapes. Implements `catalogue.evaluate.Window`. `devices` are in order of node and index."""

    now: float
    devices: Mapping[DeviceKey, DeviceIdentity]
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
            for key, identity in self.devices.items():
                jobs[key.cluster, identity.namespace, identity.workload, identity.model].append(key)
            self.memo["jobs"] = {
                key: jobs[key.cluster, identity.namespace, identity.workload, identity.model]
                if identity.workload
                else ()
                for key, identity in self.devices.items()
            }
        ranks: Sequence[Device] = self.memo["jobs"][device]
        return ranks


def as_scrape(snapshot: Snapshot) -> Scrape:
    """Return a snapshot as a scrape of it would look."""
    samples = []
    identity: Mapping[str, str]
    for series, value in snapshot.samples:
        metric, gpu, labels = series.metric, series.gpu, series.labels
        identity = {} if gpu is None else {"gpu": str(gpu.index), "UUID": gpu.uuid, "modelName": gpu.model}
        samples.append(ScrapedSample(series.name, {**identity, **dict(metric.labels), **dict(labels)}, value))
    return Scrape(snapshot.at, samples)


def seen(scrapes: Sequence[Scrape], limits: Limits, *, job: str = "") -> Window:
    """Compute all signals of scrapes (in order of time). With `job`, all devices are ranks of a job of that name."""
    by_name = [(scrape.at, _by_name(scrape.samples)) for scrape in scrapes]
    devices = _devices(scrapes)
    for identity in devices.values():
        identity.workload = job or identity.workload
    signals: dict[tuple[Device, Signal], Points] = {}
    for signal in SIGNALS:
        for way in signal.definitions:
            by_device = (
                _derived(way, devices, signals)
                if isinstance(way, Derived)
                else _shaped(way, by_name, per_instance=signal.per_instance)
                if way.shape
                else _read(way, by_name, per_instance=signal.per_instance)
            )
            for device, points in by_device.items():
                if points:
                    signals.setdefault((device, signal), points)
    return Window(scrapes[-1].at if scrapes else 0.0, devices, signals, limits)


def _by_name(samples: Iterable[ScrapedSample]) -> Mapping[str, list[ScrapedSample]]:
    by_name: dict[str, list[ScrapedSample]] = defaultdict(list)
    for sample in samples:
        by_name[sample.name].append(sample)
    return by_name


def _key(labels: Mapping[str, str], *, per_instance: bool) -> DeviceKey:
    return DeviceKey(labels.get("cluster", ""), labels["UUID"], labels.get("GPU_I_ID", "") if per_instance else "")


def _devices(scrapes: Sequence[Scrape]) -> dict[DeviceKey, DeviceIdentity]:
    """Return all devices with a UUID. The owner of a device comes from the last scrape that has
    `DCGM_*` or `gpu_pod_info` series of it; if that scrape has none or several, the device has no owner."""
    devices: dict[DeviceKey, DeviceIdentity] = {}
    owners: dict[DeviceKey, Claims] = {}
    for scrape in reversed(scrapes):
        from_classic: dict[DeviceKey, Claims] = defaultdict(set)
        from_pod_info: dict[DeviceKey, Claims] = defaultdict(set)
        for sample in scrape.samples:
            if not sample.labels.get("UUID"):
                continue
            key, whole = (_key(sample.labels, per_instance=per_instance) for per_instance in (True, False))
            for device in (key, whole):
                _identify(devices.setdefault(device, DeviceIdentity()), sample.labels)
            if key.instance:
                devices[whole].has_instances = True
            if sample.name == m.DOWN.name and sample.value == 1:
                devices[whole].down = devices[whole].down or sample.labels.get("reason", "")
            if sample.name.startswith("DCGM_") or sample.name == m.POD_INFO.name:
                claim = owner(sample.name, sample.labels)
                claims = from_pod_info if sample.name == m.POD_INFO.name else from_classic
                claims[key] |= {claim} if claim else set()
        owners = {**from_classic, **from_pod_info, **owners}
    for key, device_claims in owners.items():
        if len(device_claims) == 1:  # a GPU that several pods share has no single owner
            ((devices[key].namespace, devices[key].pod, devices[key].workload),) = device_claims
    return dict(sorted(devices.items(), key=lambda item: (item[1].node, _natural(item[1].gpu), item[0])))


def _identify(identity: DeviceIdentity, labels: Mapping[str, str]) -> None:
    """Fill in the fields of an identity that the labels of a sample have."""
    identity.gpu = identity.gpu or labels.get("gpu", "")
    identity.model = identity.model or labels.get("modelName", "") or labels.get("model", "")
    identity.node = identity.node or node_of(labels)


def node_of(labels: Mapping[str, str]) -> str:
    """Return the name of the node by the labels of a sample; empty if they have none."""
    return labels.get("Hostname") or labels.get("hostname") or labels.get("node", "")


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key by which numbers in texts sort by their value: a number is its length and its digits."""
    parts = (part.lstrip("0") if part.isdecimal() else part for part in re.findall(r"[0-9]+|[^0-9]+", text))
    return tuple((len(part), part) if part.isdecimal() or not part else (-1, part) for part in parts)


NamedScrapes = Sequence[tuple[float, Mapping[str, list[ScrapedSample]]]]


def _read(way: Read, scrapes: NamedScrapes, *, per_instance: bool) -> Mapping[DeviceKey, Points]:
    """Return a signal that is read from samples, by device; of several samples of a device the highest."""
    points: dict[DeviceKey, list[tuple[float, float]]] = defaultdict(list)
    before: dict[Hashable, Count] = {}
    for at, by_name in scrapes:
        highest: dict[DeviceKey, float] = {}
        # gpu-exporter counts XIDs, so the gauge of the last code, which dcgm-exporter has, is not needed
        counted = {sample.labels.get("UUID") for sample in by_name.get(m.XID_EVENTS.name, ())} if way.codes else set()
        for sample in by_name.get(way.name, ()):
            uuid = sample.labels.get("UUID")
            if not uuid or uuid in counted or not _matches(way, sample.labels):
                continue
            if not plausible(sample.value):  # some exporters write NaN for a missing value
                continue
            value = _value(way, sample, at, before)
            if value is not None and plausible(value):
                key = _key(sample.labels, per_instance=per_instance)
                highest[key] = max(highest.get(key, value), value)
        for key, value in highest.items():
            points[key].append((at, value))
    return points


def _matches(way: Read, labels: Mapping[str, str]) -> bool:
    if any(labels.get(name, "") != value for name, value in way.where):
        return False
    return way.any_of is None or labels.get(way.any_of[0]) in way.any_of[1]


class Count(NamedTuple):
    """A counter, and since when it has this value. `fresh`: the value changed at `since`, so it was
    really read at that time."""

    since: float
    value: float
    fresh: bool


# How often metrics are read; scrapes in between repeat the last value.
PERIODS = {metric.name: metric.nvml_pace.value for metric in m.METRICS}


def _value(way: Read, sample: ScrapedSample, at: float, before: dict[Hashable, Count]) -> float | None:
    if way.codes:
        return at if sample.value in way.codes else None
    if way.bit is not None:
        return float((int(sample.value) >> way.bit) & 1)
    if not way.rate:
        return sample.value * way.scale
    key = frozenset(sample.labels.items())
    last = before.setdefault(key, Count(at, sample.value, False))
    elapsed, period = at - last.since, PERIODS.get(way.name, 0.0)
    same = sample.value == last.value
    if same and elapsed < period:
        return None
    before[key] = Count(at - period, sample.value, last.fresh) if same else Count(at, sample.value, True)
    if not 0 < elapsed <= LOOKBACK_SECONDS or (elapsed < period and not last.fresh):
        return None
    increase = sample.value - last.value if sample.value >= last.value else sample.value
    value = increase / elapsed * way.scale
    return value if way.most is None else min(value, way.most)


@dataclass(slots=True)
class Grown:
    """The buckets of a histogram: their last values, and their growth up to each scrape of the window.

    A reset counts as growth from 0, as in Prometheus.
    """

    last: Mapping[float, float] = field(default_factory=dict)
    until: deque[tuple[float, Mapping[float, float]]] = field(default_factory=deque)

    def take(self, at: float, now: Mapping[float, float]) -> Mapping[float, float]:
        """Add the buckets of a scrape; return their growth within the window, in order of their edges."""
        grown = self.until[-1][1] if self.until else {}
        sums = {
            edge: grown.get(edge, 0.0) + now[edge] - (last if (last := self.last.get(edge, 0.0)) <= now[edge] else 0.0)
            for edge in sorted(now)
        }
        self.last = now
        self.until.append((at, sums))
        while self.until[0][0] < at - WINDOW_SECONDS:
            self.until.popleft()
        first = self.until[0][1]
        return {edge: total - first.get(edge, total) for edge, total in sums.items()}


def _shaped(way: Read, scrapes: NamedScrapes, *, per_instance: bool) -> Mapping[DeviceKey, Points]:
    """Return a signal that is computed from histograms, by device; of several histograms the highest."""
    points: dict[DeviceKey, list[tuple[float, float]]] = defaultdict(list)
    growth: dict[Hashable, Grown] = defaultdict(Grown)
    for at, by_name in scrapes:
        now: dict[Hashable, dict[float, float]] = defaultdict(dict)
        devices: dict[Hashable, DeviceKey] = {}
        for sample in by_name.get(way.series, ()):
            edge = _edge(sample.labels.get("le", ""))
            if sample.labels.get("UUID") and edge is not None and 0 <= sample.value <= LARGEST:
                series: Hashable = frozenset(pair for pair in sample.labels.items() if pair[0] != "le")
                now[series][edge] = sample.value
                devices[series] = _key(sample.labels, per_instance=per_instance)
        highest: dict[DeviceKey, float] = {}
        for series, buckets in now.items():
            value = way.shape.value(growth[series].take(at, buckets)) if way.shape else None
            if value is not None:
                highest[devices[series]] = max(highest.get(devices[series], value), value)
        for key, value in highest.items():
            points[key].append((at, value))
    return points


def plausible(value: float) -> bool:
    """Whether a value can be a measurement: not NaN, not infinite, and small enough to calculate with."""
    return -LARGEST <= value <= LARGEST


def _edge(text: str) -> float | None:
    try:
        edge = float(text)
    except ValueError:
        return None
    return None if math.isnan(edge) else edge


def _derived(
    way: Derived, devices: Iterable[DeviceKey], signals: Mapping[tuple[Device, Signal], Points]
) -> Mapping[DeviceKey, Points]:
    """Return a signal that is computed from others, by device, at all times when one of these has a point."""
    by_device = {}
    for key in devices:
        inputs = [signals.get((key, signal), ()) for signal in way.signals()]
        times = sorted({t for points in inputs for t, _ in points}) if all(inputs) else ()
        values = ((t, way.value(partial(_latest, signals, key, t))) for t in times)
        by_device[key] = [(t, value) for t, value in values if value is not None and plausible(value)]
    return by_device


def _latest(signals: Mapping[tuple[Device, Signal], Points], key: DeviceKey, t: float, signal: Signal) -> float | None:
    return latest(signals.get((key, signal), ()), t)
