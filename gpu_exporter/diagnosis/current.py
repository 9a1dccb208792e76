"""The diagnosis of the GPUs of a running exporter, from its snapshots as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpu_exporter.catalogue.failure_modes import distributed as d
from gpu_exporter.conditions.evaluate import holds
from gpu_exporter.diagnosis.judge import Diagnosis, diagnose
from gpu_exporter.diagnosis.rolling import RollingWindow
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import FAMILIES, Scrapes, Window, samples_by_name
from gpu_exporter.model.snapshot import Snapshot

# As long as `gpu-exporter diagnose` watches by default.
WINDOW_SECONDS = 20.0
READ = frozenset(FAMILIES)
STRAGGLERS = ("GpuStragglerStarved", "GpuStragglerSlow", "GpuStragglerLaunchBound")


class RankState(Enum):
    """What a rank does while its job runs."""

    WORKING = "working"
    WAITING = "waiting"
    WAITED_FOR = "waited_for"
    UNKNOWN = "unknown"


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


class Watch:
    """Keeps the signals of the last WINDOW_SECONDS, and the diagnosis that was made of them last.

    Not safe for several threads, but `current` can be read from any: it is replaced as a whole.
    """

    def __init__(self) -> None:
        self.current = Current()
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
        window = self._signals.recent()
        diagnoses = {each.device: each for each in diagnose(window) if each.device.uuid in listed}
        self.current = Current(snapshot.at, diagnoses, self._since(snapshot.at, diagnoses), _jobs(window, diagnoses))

    def _since(self, at: float, diagnoses: Mapping[DeviceKey, Diagnosis]) -> Mapping[tuple[DeviceKey, str], float]:
        began: dict[tuple[DeviceKey, str], tuple[str, float]] = {}
        for device, diagnosis in diagnoses.items():
            name = diagnosis.bottleneck.name if diagnosis.bottleneck else ""
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
            name = f"{identity.namespace}/{identity.workload}" if identity.namespace else identity.workload
            jobs.setdefault(name, []).append(Rank(device, _state(window, diagnosis)))
    return {name: ranks for name, ranks in jobs.items() if len(ranks) > 1}


def _state(window: Window, diagnosis: Diagnosis) -> RankState:
    """Return whether others wait for a rank; in a hang they wait for those that never entered the collective."""
    device = diagnosis.device
    if diagnosis.is_down or any(match.mode.name in STRAGGLERS for match in diagnosis.matches):
        return RankState.WAITED_FOR
    if holds(d.HANGS, window, device):
        return RankState.WAITING if holds(d.SPINS.condition, window, device) else RankState.WAITED_FOR
    waits = holds(d.WAITS.condition, window, device)
    return RankState.UNKNOWN if waits is None else RankState.WAITING if waits else RankState.WORKING
