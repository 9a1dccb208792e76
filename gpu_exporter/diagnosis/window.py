"""Scrapes, snapshots and recordings -> the values of every signal, as the recording rules compute them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.signals import ALLOCATED, GR_ACTIVE, SIGNALS
from gpu_exporter.catalogue.workloads import owner
from gpu_exporter.conditions.evaluate import LOOKBACK_SECONDS, Device, Points, TermValues, latest
from gpu_exporter.conditions.signal import OWNERS_INFO, WINDOW_SECONDS, Derived, Read, Signal
from gpu_exporter.conditions.tree import Limits
from gpu_exporter.diagnosis import nvlinks, training_loops
from gpu_exporter.diagnosis.scrape import (
    LARGEST,
    ByName,
    Claim,
    DeviceKey,
    LabelReader,
    ReadColumn,
    ReadLabels,
    SampleColumn,
    Scrape,
    ScrapedSample,
    natural,
    node_of,
    samples_by_name,
)
from gpu_exporter.diagnosis.signal_reader import SignalReader, reader
from gpu_exporter.diagnosis.training_loops import LoopReader, RankNow
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.verdict import Action

# Of a point.
_TIME, _VALUE = itemgetter(0), itemgetter(1)

# How the key of a GPU begins that was never identified; a UUID begins with `GPU-`.
UNIDENTIFIED = "GPU "


def uuid_of(device: DeviceKey) -> str:
    """Return the UUID of a device; empty if it was never identified."""
    return "" if device.uuid.startswith(UNIDENTIFIED) else device.uuid


# The job of which all GPUs are ranks with --one-job. No job has this name, and nobody is shown it.
ONE_JOB = "\0"
# What identifies a process, in the order in which it is printed.
PROCESS_LABELS = ("pid", "process", "uid", "command", "pod_uid", "container_id", "hpc_job")

# Which network ports are nearest to a GPU, and which of them have a fault.
_PORTS = (m.NIC_INFO.name, m.NIC_FAULT.name)
_ACTIONS = {action.value: action for action in Action}
# Series of XIDs that an exporter has of a GPU without any.
_XIDS = (m.XID_EVENTS.name, m.XID_ERRORS.name, "DCGM_FI_DEV_XID_ERROR", m.EXP_XID_COUNT.name)

# All families that signals are made of, or that identify a GPU and its owner.
FAMILIES = tuple(
    dict.fromkeys(
        [read.series for signal in SIGNALS for read in signal.definitions if isinstance(read, Read)]
        + [m.INFO.name, m.POD_INFO.name, m.JOB_INFO.name, m.XID_EVENTS.name, m.DOWN.name, m.EXPECTED.name]
        + [m.MISSING.name, m.SOURCE_DOWN.name, m.HOST_PROCESS.name, m.INSTANCE_SLICES.name, *_PORTS]
        + [m.HEALTH_REASON.name, *nvlinks.FAMILIES]
        + [*training_loops.FAMILIES]
    )
)

# Series of gpu-exporter that no diagnosis reads. Any other one may be all that an exporter says of a GPU.
UNREAD = frozenset(
    f"{metric.name}{suffix}"
    for metric in m.METRICS
    for suffix in ("", "_bucket", "_sum", "_count")
    if metric.name.startswith("gpu_")
) - {*FAMILIES, m.RENDERED_AT.name, m.PROFILES.name, m.PROFILED_AT.name}

# Scrapes of so many seconds tell what is always so. Those that a Prometheus has of five minutes span an interval less.
LEAST_SECONDS = WINDOW_SECONDS * 2 / 3

# The engine activity by its names: a GPU without an owner is not allocated if it has one of these.
ENGINES = frozenset(way.name for way in ALLOCATED.definitions if isinstance(way, Read) and way.name != OWNERS_INFO)

Signals = Mapping[Signal, Mapping[Device, Points]]


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
    # Of an instance, its compute slices, and which share of its GPU it is; a GPU with instances counts by these.
    slices: float = 0.0
    share: float = 1.0
    # Why the GPU does not answer, as in `gpu_down_reason`; of the last scrape that says so.
    down: str = ""
    # The process that launches most work on the GPU: labels of `gpu_host_process_info`.
    process: Mapping[str, str] = field(default_factory=dict)
    # The network ports nearest to the GPU, by their fault; all of them by "".
    ports: dict[str, list[str]] = field(default_factory=dict)
    # The NVLinks that a failure mode is about, if they are known, by its name.
    nvlinks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # What repairs each fault that the verdict on the GPU names, by its reason.
    repairs: dict[str, Action] = field(default_factory=dict)
    # Other processes that use its CPUs, in words.
    neighbours: tuple[str, ...] = ()
    # Whether its exporter reports XIDs, also while there are none.
    xids_shown: bool = False

    @property
    def job(self) -> str:
        """The workload with its namespace; empty if it is unknown, and `all GPUs` if they are said to be one job."""
        if self.workload == ONE_JOB:
            return "all GPUs"
        return "/".join(filter(None, (self.namespace, self.workload))) if self.workload else ""

    @property
    def job_name(self) -> str:
        """The workload if it has a name; empty if it is unknown, or only said to be one job."""
        return "" if self.workload == ONE_JOB else self.workload

    @property
    def owner(self) -> str:
        """The pod with its namespace; the workload of a GPU without a pod."""
        pod = self.pod or self.job_name
        return f"{self.namespace}/{pod}" if self.namespace and pod else pod

    def over(self, earlier: DeviceIdentity, down: str, slices: float) -> DeviceIdentity:
        """Return this identity, with what is missing taken from an earlier one, but without an owner.

        `down` is why the GPU does not answer, `slices` how many compute slices an instance has; both are values.
        """
        return DeviceIdentity(
            gpu=self.gpu or earlier.gpu,
            model=self.model or earlier.model,
            node=self.node or earlier.node,
            has_instances=self.has_instances or earlier.has_instances,
            slices=slices or earlier.slices,
            down=down or earlier.down,
            ports=self.ports or earlier.ports,
            repairs=self.repairs,
            process=self.process or earlier.process,
            xids_shown=self.xids_shown or earlier.xids_shown,
        )


@dataclass(slots=True)
class Window:
    """All signals of some scrapes, as a `SignalWindow`. `devices` are in order of node and index."""

    now: float
    devices: Mapping[DeviceKey, DeviceIdentity]
    signals: Signals
    limits: Limits = field(default_factory=dict)
    presence: ClassVar[Signal] = GR_ACTIVE
    # What else training loops say about a failure mode of a device, by its name.
    of_loops: Mapping[tuple[DeviceKey, str], TermValues] = field(default_factory=dict)
    # Ranks of jobs that have not run for the whole window: a difference may only be that one has begun before another.
    begins: frozenset[Device] = frozenset()
    # The ranks of training loops that are there.
    ranks_now: Sequence[RankNow] = ()
    # Whether it is too short to say that a rank is always the last one: in a launch-bound job, one is at any time.
    is_brief: bool = False
    memo: dict[Hashable, Any] = field(default_factory=dict)

    def by_device(self, signal: Signal) -> Mapping[Device, Points]:
        """The points of a signal, in order of time, of each device that has it."""
        return self.signals.get(signal, {})

    def points(self, device: Device, signal: Signal) -> Points:
        """The points of a signal of a device, in order of time; empty if it does not have it."""
        return self.by_device(signal).get(device, ())

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

    def alike(self, device: Device) -> Hashable:
        """The cluster, the node and the model of a device."""
        assert isinstance(device, DeviceKey)
        identity = self.devices[device]
        return device.cluster, identity.node, identity.model


class Scrapes:
    """Makes scrapes of snapshots as they come. Labels and unchanged samples are the same objects in all of them."""

    def __init__(self) -> None:
        self.taken: list[Scrape] = []
        self._latest: dict[Series, ScrapedSample] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Add a snapshot as a scrape of it would look."""
        self.taken.append(self.of(snapshot))

    def of(self, snapshot: Snapshot, only: Collection[str] = ()) -> Scrape:
        """Return a snapshot as a scrape of it would look, only with series of these names, without keeping it."""
        latest = {
            series: self._sample(series, value) for series, value in snapshot.samples if not only or series.name in only
        }
        self._latest = latest
        return Scrape(snapshot.at, tuple(latest.values()))

    def _sample(self, series: Series, value: float) -> ScrapedSample:
        before = self._latest.get(series)
        if before is None:
            gpu = series.gpu
            identity = {} if gpu is None else {"gpu": str(gpu.index), "UUID": gpu.uuid, "modelName": gpu.model}
            return ScrapedSample(series.name, {**identity, **dict(series.metric.labels), **dict(series.labels)}, value)
        return before if before.value == value else before._replace(value=value)


def seen(scrapes: Iterable[Scrape], limits: Limits, *, job: str = "") -> Window:
    """Compute all signals of scrapes (in order of time). With `job`, all devices are ranks of a job of that name.

    Scrapes are taken one by one and not kept: a recording need not fit into memory.
    """
    signals, first, last = SignalReaders(), 0.0, 0.0
    for scrape in scrapes:
        first, last = first or scrape.at, scrape.at
        signals.take(scrape)
    window = signals.window(limits, job=job)
    window.is_brief = last - first < LEAST_SECONDS
    return window


class SignalReaders:
    """Computes all signals from scrapes as they come (in order of time), and what identifies the devices.

    Histograms count for so many seconds.
    """

    def __init__(self, seconds: float = WINDOW_SECONDS) -> None:
        self._readers = {
            (signal, way): reader(way, per_instance=signal.per_instance, seconds=seconds)
            for signal in SIGNALS
            for way in signal.definitions
            if isinstance(way, Read)
        }
        self._by_name: dict[str, list[SignalReader]] = defaultdict(list)
        for (_, way), of_way in self._readers.items():
            self._by_name[way.series].append(of_way)
        self._identities, self._loops, self._now = Identities(), LoopReader(), 0.0
        self._labels = LabelReader()

    def take(self, scrape: Scrape) -> None:
        """Add a scrape."""
        by_name = samples_by_name(scrape.samples)
        self._read(scrape.at, by_name, by_name)

    def _read(self, at: float, by_name: ByName, identifying: ByName) -> None:
        """Add the samples of a scrape, of which these identify all devices and owners."""
        self._now = max(self._now, at)
        self._labels.begin()
        self._identities.take(at, identifying, self._labels)
        self._loops.take(at, by_name)
        by_name = {**by_name, OWNERS_INFO: self._identities.allocated}
        for name in by_name:
            for of_way in self._by_name.get(name, ()):
                of_way.take(at, by_name, self._labels)

    def forget(self, before: float) -> None:
        """Drop all points of before this unix time."""
        for of_way in self._readers.values():
            of_way.forget(before)

    def window(self, limits: Limits, *, job: str = "") -> Window:
        """Return the signals so far. With `job`, all devices are ranks of a job of that name."""
        devices = self._identities.devices()
        for identity in devices.values():
            identity.workload = job or identity.workload
        signals: dict[Signal, dict[Device, Points]] = {signal: {} for signal in SIGNALS}
        for signal in SIGNALS:
            for way in signal.definitions:
                by_device = (
                    self._derived(way, devices, signals)
                    if isinstance(way, Derived)
                    else self._readers[signal, way].points
                )
                of_signal = signals[signal]
                if not of_signal:
                    signals[signal] = {device: points for device, points in by_device.items() if points}
                    continue
                for device, points in by_device.items():
                    if points:
                        of_signal.setdefault(device, points)
        loops = self._loops.signals(self._now, partial(_job_of, devices))
        every = {**signals, **loops.signals}
        return Window(self._now, devices, every, limits, of_loops=loops.evidence, ranks_now=loops.ranks)

    def _derived(
        self, way: Derived, devices: Mapping[DeviceKey, DeviceIdentity], signals: Signals
    ) -> Mapping[DeviceKey, Points]:
        """Return the points of a signal that is computed from others, by device."""
        return _derived(way, devices, signals)


def _job_of(devices: Mapping[DeviceKey, DeviceIdentity], device: DeviceKey) -> tuple[str, ...]:
    """Return what the devices of a job have in common."""
    identity = devices.get(device, DeviceIdentity())
    return device.cluster, identity.namespace, identity.workload


class Identities:
    """All devices with a UUID. What the last scrape says of a device counts.

    Its owner comes from the last scrape that has `DCGM_*`, `gpu_job_info` or `gpu_pod_info` series of it, of which the
    last counts; if that scrape has none or several, the device has no owner. A snapshot has jobs only in
    `gpu_job_info`: the label `hpc_job` of other series is added when a page is rendered.
    """

    def __init__(self) -> None:
        self._devices: dict[DeviceKey, DeviceIdentity] = {}
        # When each device was last seen, in unix seconds.
        self.seen_at: dict[DeviceKey, float] = {}
        self._owners: dict[DeviceKey, set[Claim]] = {}
        self._nvlinks = nvlinks.NvlinkReader()
        # Of the last scrape: what labels say, by the names of their samples, and which devices these are of.
        self._columns: list[tuple[str, ReadColumn]] = []
        self._listed: Mapping[DeviceKey, DeviceIdentity] = {}
        # Whether a device of the last scrape has an owner, as samples: 1, or 0 if its engine is measured, as in PromQL.
        self.allocated = SampleColumn(OWNERS_INFO, (), ())

    def take(self, at: float, by_name: ByName, read: LabelReader) -> None:
        """Add the samples of a scrape at unix time `at`."""
        read_columns = [(name, read.column(column)) for name, column in by_name.items()]
        columns = [(name, column) for name, column in read_columns if any(column.read)]
        if columns != self._columns:  # else all labels are the same objects as before
            self._columns = columns
            self._listed, owners, self.allocated = _identified(dict(columns))
            self._owners.update(owners)
        down: dict[DeviceKey, str] = {}
        for sample in by_name.get(m.DOWN.name, ()):
            if sample.value == 1 and (of_labels := read(sample.labels)):
                down[of_labels.gpu] = down.get(of_labels.gpu) or sample.labels.get("reason", "")
        slices = {
            of_labels.device: sample.value
            for sample in by_name.get(m.INSTANCE_SLICES.name, ())
            if (of_labels := read(sample.labels))
        }
        of_links = self._nvlinks.take(at, by_name)
        for device, identity in self._listed.items():
            earlier = self._devices.get(device, DeviceIdentity())
            self._devices[device] = identity.over(earlier, down.get(device, ""), slices.get(device, 0.0))
            self._devices[device].nvlinks = of_links.get(device, {})
            self.seen_at[device] = at

    def devices(self) -> Mapping[DeviceKey, DeviceIdentity]:
        """Return the devices in order of node and index."""
        devices = self._devices
        for key, claims in self._owners.items():
            if len(claims) == 1:  # a GPU that several pods share has no single owner
                ((devices[key].namespace, devices[key].pod, devices[key].workload),) = claims
        _set_shares(devices, self.seen_at)
        return dict(sorted(devices.items(), key=lambda item: (item[1].node, natural(item[1].gpu), item[0])))


def _identified(
    columns: Mapping[str, ReadColumn],
) -> tuple[Mapping[DeviceKey, DeviceIdentity], Mapping[DeviceKey, set[Claim]], SampleColumn]:
    """Return the devices that labels name, by the names of the samples; the owners, and which devices are allocated."""
    devices: dict[DeviceKey, DeviceIdentity] = {}
    from_classic: dict[DeviceKey, set[Claim]] = defaultdict(set)
    from_job_info: dict[DeviceKey, set[Claim]] = defaultdict(set)
    from_pod_info: dict[DeviceKey, set[Claim]] = defaultdict(set)
    measured: set[DeviceKey | None] = set()
    # Many columns have the same labels. Those of `DCGM_*` series may name an owner.
    identified: set[ReadLabels] = set()
    classic: dict[ReadLabels, None] = {}
    taken: set[tuple[ReadColumn, bool]] = set()
    for name, column in columns.items():
        is_classic = name.startswith("DCGM_")
        if (column, is_classic) not in taken:
            taken.add((column, is_classic))
            for of_labels in column.of_devices():
                if of_labels not in identified:
                    identified.add(of_labels)
                    _identify(devices, of_labels)
                if is_classic:
                    classic[of_labels] = None
        if is_classic and name in ENGINES:
            measured.update(column.devices(per_instance=True))
    for of_labels in classic:
        claim = of_labels.owner()
        from_classic[of_labels.device] |= {claim} if claim else set()
    for of_labels in _read(columns, m.POD_INFO.name):
        claim = owner(m.POD_INFO.name, of_labels.labels)
        from_pod_info[of_labels.device] |= {claim} if claim else set()
    for of_labels in _read(columns, m.JOB_INFO.name):  # one for each step of a job
        from_job_info[of_labels.device].add(("", "", of_labels.labels.get("job_id", "")))
    for of_labels in _read(columns, m.HOST_PROCESS.name):
        process = {label: of_labels.labels[label] for label in PROCESS_LABELS if of_labels.labels.get(label)}
        devices[of_labels.gpu].process = process
    for name in _PORTS:
        for of_labels in _read(columns, name):
            labels = of_labels.labels
            words = f"{labels.get('device', '')} port {labels.get('port', '')}"
            devices[of_labels.gpu].ports.setdefault(labels.get("fault", ""), []).append(words)
    for name in _XIDS:
        for of_labels in _read(columns, name):
            devices[of_labels.gpu].xids_shown = True
    for of_labels in _read(columns, m.HEALTH_REASON.name):
        action = _ACTIONS.get(of_labels.labels.get("action", ""))
        if action:
            devices[of_labels.gpu].repairs[of_labels.labels.get("reason", "")] = action
    owners = {**from_classic, **from_job_info, **from_pod_info}
    allocated = {key: float(bool(claims)) for key, claims in owners.items() if claims or key in measured}
    labels_of = [{"cluster": key.cluster, "UUID": key.uuid, "GPU_I_ID": key.instance} for key in allocated]
    return devices, owners, SampleColumn(OWNERS_INFO, labels_of, list(allocated.values()))


def _read(columns: Mapping[str, ReadColumn], name: str) -> Iterable[ReadLabels]:
    return columns[name].of_devices() if name in columns else ()


def _identify(devices: dict[DeviceKey, DeviceIdentity], read: ReadLabels) -> None:
    """Fill in what labels say of a device and, if it is an instance, of its GPU."""
    labels = read.labels
    for device in (read.device, read.gpu) if read.device.instance else (read.device,):
        identity = devices.get(device)
        if identity is None:
            identity = devices[device] = DeviceIdentity()
        identity.gpu = identity.gpu or labels.get("gpu", "")
        identity.model = identity.model or labels.get("modelName", "") or labels.get("model", "")
        identity.node = identity.node or node_of(labels)
        identity.has_instances = identity.has_instances or device is not read.device


def _set_shares(devices: Mapping[DeviceKey, DeviceIdentity], seen_at: Mapping[DeviceKey, float]) -> None:
    """Set which share of its GPU each instance is, as `gpu:share:ratio`: by compute slices, if they are known."""
    instances: dict[DeviceKey, list[DeviceIdentity]] = defaultdict(list)
    for key, identity in devices.items():
        gpu = key._replace(instance="")
        if key.instance and seen_at[key] > seen_at[gpu] - LOOKBACK_SECONDS:
            instances[gpu].append(identity)
    for gpu, parts in instances.items():
        devices[gpu].share = 0.0
        slices = sum(part.slices for part in parts)
        for part in parts:
            part.share = part.slices / slices if part.slices else 1 / len(parts)


def _derived(way: Derived, devices: Iterable[DeviceKey], signals: Signals) -> Mapping[DeviceKey, Points]:
    """Return a signal that is computed from others, by device, at all times when one of these has a point."""
    columns = {signal: signals.get(signal, {}) for signal in way.signals()}
    times: dict[DeviceKey, list[float]] = {}
    inputs: dict[Signal, list[float | None]] = {signal: [] for signal in columns}
    for key in devices if all(columns.values()) else ():
        of_device = [column.get(key, ()) for column in columns.values()]
        if all(of_device):
            of_signals = [[*map(_TIME, points)] for points in of_device]
            times[key] = of_times = of_signals[0]
            if of_signals.count(of_times) < len(of_signals):
                times[key] = of_times = sorted({t for each in of_signals for t in each})
            for column, each, points in zip(inputs.values(), of_signals, of_device, strict=True):
                column += map(_VALUE, points) if each == of_times else [latest(points, t) for t in of_times]
    return calculated(way, times, inputs)


def calculated(
    way: Derived, times: Mapping[DeviceKey, list[float]], inputs: Mapping[Signal, Sequence[float | None]]
) -> Mapping[DeviceKey, list[tuple[float, float]]]:
    """Return a signal that is computed from others, by device, from their values at all these times, in this order."""
    values = iter(way.values(inputs))
    return {
        key: [
            (t, value)
            for t, value in zip(of_key, values, strict=False)
            if value is not None and -LARGEST <= value <= LARGEST
        ]
        for key, of_key in times.items()
    }
