"""The signals of the last seconds of scrapes that keep coming, for a view that is diagnosed again and again.

At its end, the result is that of `seen` for the scrapes of these seconds. Each scrape is read once. A running exporter
diagnoses its own snapshots so, as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from math import inf
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.bottlenecks import HANGS, IDLE_ENGINE, SPINS
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import distributed as d
from gpu_exporter.catalogue.signals import GR_ACTIVE, SIGNALS
from gpu_exporter.conditions.evaluate import Device, Points, holds, latest
from gpu_exporter.conditions.signal import WINDOW_SECONDS as OF_CLASSES
from gpu_exporter.conditions.signal import Derived, Signal
from gpu_exporter.diagnosis.diagnose import COUNTED, Diagnosis, diagnose
from gpu_exporter.diagnosis.incident_words import as_dicts, total_cost
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.masking import DiagnosisNames
from gpu_exporter.diagnosis.scrape import ByName, DeviceKey, samples_by_name
from gpu_exporter.diagnosis.window import (
    FAMILIES,
    DeviceIdentity,
    Scrapes,
    SignalReaders,
    Signals,
    Window,
    calculated,
)
from gpu_exporter.model.snapshot import Snapshot

# Families of gpu-exporter by which all its devices are known.
_OF_GPUS = (m.UP, m.INFO, m.DOWN, m.GR_ENGINE_ACTIVE, m.SM_ACTIVE, m.FB_USED)
_OF_LINKS = (m.NIC_INFO, m.NIC_FAULT, m.LINK_UP, m.LINK_ERRORS[0], m.NVLINK_EXPECTED, m.NVLINK_COUNT)
_IDENTIFYING = (*_OF_GPUS, *_OF_LINKS, m.INSTANCE_SLICES, m.HOST_PROCESS, m.POD_INFO, m.JOB_INFO, m.HEALTH_REASON)
IDENTIFY = tuple(row.name for row in _IDENTIFYING)


class RollingWindow(SignalReaders):
    """Keeps the points of the last `seconds`. With `job`, all devices are ranks of a job of that name."""

    def __init__(self, seconds: float, *, job: str = "") -> None:
        super().__init__(seconds)
        self._seconds, self._job = seconds, job
        ways = (way for signal in SIGNALS for way in signal.definitions if isinstance(way, Derived))
        self._formulas = {id(way): _Formula(way) for way in ways}
        self._starts: dict[frozenset[Device], _Start] = {}

    def add(self, at: float, by_name: ByName) -> None:
        """Add the samples of a scrape, which is newer than those before, and drop what is too old."""
        # Of a page with thousands of samples, a few families identify all devices and owners.
        names = IDENTIFY if m.UP.name in by_name else by_name.keys()
        self._read(at, by_name, {name: by_name[name] for name in names if name in by_name})
        self.forget(at - self._seconds)

    def seen_at(self, device: DeviceKey) -> float:
        """Return when a device was last seen (unix seconds)."""
        return self._identities.seen_at[device]

    def recent(self) -> Window:
        """Return the signals of the devices that were seen within these seconds."""
        window = self.window({}, job=self._job)
        since = self._now - self._seconds
        window.devices = {key: identity for key, identity in window.devices.items() if self.seen_at(key) > since}
        jobs = {frozenset(window.ranks(key)) for key in window.devices}
        self._starts = {ranks: self._starts.get(ranks) or _Start() for ranks in jobs if len(ranks) > 1}
        begins = (ranks for ranks, start in self._starts.items() if start.at(window, ranks) > since)
        window.begins, window.is_brief = frozenset(chain.from_iterable(begins)), self._seconds < OF_CLASSES
        return window

    def _derived(
        self, way: Derived, devices: Mapping[DeviceKey, DeviceIdentity], signals: Signals
    ) -> Mapping[DeviceKey, Points]:
        return self._formulas[id(way)].points(devices, signals, self._now - self._seconds)


class _Start:
    """Since when all ranks of a job have worked. A job begins when one of its GPUs works after none has.

    Ranks whose GPUs do not answer do not count.
    """

    def __init__(self) -> None:
        self._idle_at, self._at = -inf, inf

    def at(self, window: Window, ranks: Iterable[Device]) -> float:
        """Return the unix time, also if a rank has paused since; infinite while a rank has not worked yet."""
        engines = [points for rank in ranks if (points := window.points(rank, GR_ACTIVE))]
        if all(points[-1][1] < IDLE_ENGINE.value for points in engines):
            self._idle_at, self._at = window.now, inf
        if self._at == inf:
            began = (min((t for t, value in points if self._works(t, value)), default=inf) for points in engines)
            self._at = max(began, default=inf)
        return self._at

    def _works(self, t: float, value: float) -> bool:
        return t > self._idle_at and value >= IDLE_ENGINE.value


class _Formula:
    """A signal that is computed from others: at each time once."""

    def __init__(self, way: Derived) -> None:
        self._way, self._inputs = way, tuple(dict.fromkeys(way.signals()))
        self._points: dict[DeviceKey, list[tuple[float, float]]] = {}

    def points(
        self, devices: Mapping[DeviceKey, DeviceIdentity], signals: Signals, since: float
    ) -> Mapping[DeviceKey, Points]:
        """Return its points since a time, and add those for which its inputs have new ones."""
        times: dict[DeviceKey, list[float]] = {}
        values: dict[Signal, list[float | None]] = {signal: [] for signal in self._inputs}
        columns = [signals.get(signal, {}) for signal in self._inputs]
        for key in devices:
            inputs = [column.get(key, ()) for column in columns]
            before = self._points.pop(key, [])
            if not all(inputs):
                continue
            kept = [point for point in before if point[0] >= since]
            self._points[key] = kept or before[-1:]
            last = before[-1][0] if before else -1.0
            new = {t for points in inputs for t in _later(points, last)}
            if new:
                times[key] = sorted(new)
                for column, points in zip(values.values(), inputs, strict=True):
                    column += (latest(points, t) for t in times[key])
        for key, of_key in calculated(self._way, times, values).items() if times else ():
            points = self._points[key]
            self._points[key] = [*(point for point in points if point[0] >= since), *of_key] or points
        return {key: self._points[key] for key in devices if key in self._points}


def _later(points: Points, than: float) -> Iterator[float]:
    """Yield the times of the points after a time, the last one first."""
    for t, _ in reversed(points):
        if t <= than:
            return
        yield t


# As long as `gpu-exporter diagnose` watches by default.
WINDOW_SECONDS = 20.0
# Of counts that conditions watch for longer, one point is kept in so much time.
COUNT_SECONDS = 60.0
READ = frozenset(FAMILIES)


class RankState(Enum):
    """What a rank does while its job runs. A rank that is limited neither works nor waits: its class says why."""

    WORKING = "working"
    WAITING = "waiting"
    WAITED_FOR = "waited_for"
    LIMITED = "limited"
    UNKNOWN = "unknown"


# As the page, reports and boards say it.
RANK_WORDS = {RankState.WAITED_FOR: "holds up the job", RankState.WAITING: "waits"}


@dataclass(frozen=True, slots=True)
class Rank:
    """A GPU of a job."""

    device: DeviceKey
    state: RankState


@dataclass(frozen=True, slots=True)
class Current:
    """The diagnoses of one moment. `since` is when a class or finding (by its name; the class's is "") has begun, in
    Unix seconds."""

    at: float = 0.0
    diagnoses: Mapping[DeviceKey, Diagnosis] = field(default_factory=dict)
    since: Mapping[tuple[DeviceKey, str], float] = field(default_factory=dict)
    jobs: Mapping[str, Sequence[Rank]] = field(default_factory=dict)
    # Both as in JSON.
    incidents: Sequence[Mapping[str, Any]] = ()
    cost: Mapping[str, float] = field(default_factory=lambda: total_cost(()))

    def masked(self, names: DiagnosisNames) -> Current:
        """Return the same with other names of owners and processes."""
        diagnoses = {device: names.owner(diagnosis) for device, diagnosis in self.diagnoses.items()}
        jobs = {diagnoses[ranks[0].device].identity.job: ranks for ranks in self.jobs.values()}
        incidents = as_dicts(of_diagnoses(diagnoses.values(), self.since))
        return replace(self, diagnoses=diagnoses, jobs=jobs, incidents=incidents)


class _Counts:
    """Keeps the counts of errors whose increase in up to an hour decides a failure mode: a point per minute."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Signal, Device], Sequence[tuple[float, float]]] = {}

    def joined(self, window: Window) -> Window:
        """Return a window with the older points of these counts, and keep a new one of each."""
        before, self._kept = self._kept, {}
        signals = dict(window.signals)
        for signal, seconds in COUNTED.items():
            signals[signal] = columns = {}
            for device, points in window.by_device(signal).items():
                since = window.now - seconds - 2 * COUNT_SECONDS
                kept = [point for point in before.get((signal, device), ()) if since < point[0] < points[-1][0]]
                columns[device] = [*(point for point in kept if point[0] < points[0][0]), *points]
                is_due = not kept or points[-1][0] - kept[-1][0] >= COUNT_SECONDS
                self._kept[signal, device] = [*kept, points[-1]] if is_due else kept
        return replace(window, signals=signals)


class Watch:
    """Keeps the signals of the last WINDOW_SECONDS, counts of errors for longer, and the diagnosis that was made of
    them last.

    Not safe for several threads, but `current` can be read from any: it is replaced as a whole.
    """

    def __init__(self) -> None:
        self.current = Current()
        self._counts = _Counts()
        self._signals, self._scrapes, self._at = RollingWindow(WINDOW_SECONDS), Scrapes(), 0.0
        self._began: dict[tuple[DeviceKey, str], tuple[str, float]] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Add a snapshot. After the clock was set back, the window begins again."""
        if snapshot.at <= self._at:
            self._signals = RollingWindow(WINDOW_SECONDS)
        self._at = snapshot.at
        self._signals.add(snapshot.at, samples_by_name(self._scrapes.of(snapshot, READ).samples))

    def judge(self, snapshot: Snapshot) -> None:
        """Make a new diagnosis of the GPUs of a snapshot."""
        listed = {status.gpu.uuid for status in snapshot.gpus}
        window = self._counts.joined(self._signals.recent())
        diagnoses = {each.device: each for each in diagnose(window) if each.device.uuid in listed}
        since = self._since(snapshot.at, diagnoses)
        found = of_diagnoses(diagnoses.values(), since)
        incidents, jobs = as_dicts(found), _jobs(window, diagnoses)
        self.current = Current(snapshot.at, diagnoses, since, jobs, incidents, total_cost(found))

    def _since(self, at: float, diagnoses: Mapping[DeviceKey, Diagnosis]) -> Mapping[tuple[DeviceKey, str], float]:
        began: dict[tuple[DeviceKey, str], tuple[str, float]] = {}
        for device, diagnosis in diagnoses.items():
            name = diagnosis.class_name
            for key, value in (("", name), *((match.mode.name, "") for match in diagnosis.matches)):
                before = self._began.get((device, key))
                began[device, key] = before if before and before[0] == value else (value, at)
        self._began = began
        return {key: since for key, (_, since) in began.items()}


def _jobs(window: Window, diagnoses: Mapping[DeviceKey, Diagnosis]) -> Mapping[str, Sequence[Rank]]:
    """Return the ranks of the jobs with several GPUs on this node, by the name of the job."""
    jobs: dict[str, list[Rank]] = {}
    for device, diagnosis in diagnoses.items():
        identity = diagnosis.identity
        if identity.workload and not (identity.has_instances and not device.instance):
            jobs.setdefault(identity.job, []).append(Rank(device, rank_state(window, diagnosis)))
    return {name: ranks for name, ranks in jobs.items() if len(ranks) > 1}


def rank_state(window: Window, diagnosis: Diagnosis) -> RankState:
    """Return the state of a rank, by its class and the shares of its time.

    The others wait for a straggler, and in a hang for those that never entered the collective.
    """
    device = diagnosis.device
    if diagnosis.is_down or any(match.mode.name in d.STRAGGLERS for match in diagnosis.matches):
        return RankState.WAITED_FOR
    if holds(HANGS, window, device):
        return RankState.WAITING if holds(SPINS.condition, window, device) else RankState.WAITED_FOR
    if diagnosis.cause is None or not diagnosis.shares:
        return RankState.UNKNOWN
    if diagnosis.waits:
        return RankState.WAITING
    return RankState.WORKING if diagnosis.cause is Cause.USEFUL else RankState.LIMITED
