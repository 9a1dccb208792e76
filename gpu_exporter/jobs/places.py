"""Which GPU a sender uses: by its process, by its pod, or by its own statement.

A training loop may send from another process than the one on the GPU: a parent or a child of it counts, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host import procfs
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.snapshot import GpuSamples

INIT = 1
# Launchers, wrappers and loader workers are not further away from the process on the GPU.
MOST_GENERATIONS = 8
# PIDs are used again, but not so soon.
REMEMBER_SECONDS = 10.0
MOST_REMEMBERED = 4096


class ProcessFamily:
    """Finds the relatives of a process in /proc. Its answers are remembered for some seconds."""

    def __init__(self, files: HostFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._clock = files, clock
        self._parents: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._since = clock()

    def relatives(self, pid: int, uid: int, listed: Collection[int]) -> Collection[int]:
        """Return the nearest parent of a process among `listed`, else its children there, if they are of this user.

        Launchers and loader workers are not on a GPU themselves. PID 0, which is not visible from here, has none.
        """
        if not pid:
            return []
        now = self._clock()
        if now - self._since > REMEMBER_SECONDS or len(self._parents) > MOST_REMEMBERED:
            self._parents, self._users, self._since = {}, {}, now
        above = next((parent for parent in self._ancestors(pid) if parent in listed), None)
        near = [above] if above is not None else [other for other in listed if pid in self._ancestors(other)]
        return [other for other in near if self._user(other) == uid]

    def _ancestors(self, pid: int) -> list[int]:
        """Return the parents of a process, nearest first, without init, which is everyone's parent."""
        found: list[int] = []
        while len(found) < MOST_GENERATIONS and (pid := self._parent(pid)) > INIT:
            found.append(pid)
        return found

    def _parent(self, pid: int) -> int:
        if pid not in self._parents:
            stat = procfs.stat(self._read(f"{pid}/stat"))
            self._parents[pid] = stat.parent if stat else 0
        return self._parents[pid]

    def _user(self, pid: int) -> int:
        if pid not in self._users:
            status = procfs.status(self._read(f"{pid}/status"))
            self._users[pid] = status.uid if status else -1
        return self._users[pid]

    def _read(self, path: str) -> bytes:
        try:
            return self._files.process(path)
        except PermissionError:
            return b""


INSTANCE, PROFILE = "GPU_I_ID", "GPU_I_PROFILE"
_KINDS = ("GPU-", "MIG-")


class SenderPlace(NamedTuple):
    """A GPU by its UUID, and the labels of the MIG instance on it; none for the whole GPU."""

    uuid: str
    instance: Labels = ()


@dataclass(frozen=True, slots=True)
class Places:
    """The GPUs of this node by UUID, and the places by process, by UID of a pod, and by UUID of a GPU or MIG device."""

    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    by_pid: Mapping[int, frozenset[SenderPlace]] = field(default_factory=dict)
    by_pod: Mapping[str, frozenset[SenderPlace]] = field(default_factory=dict)
    by_uuid: Mapping[str, SenderPlace] = field(default_factory=dict)

    def of_processes(self, pids: Iterable[int], uuid: str) -> SenderPlace | None:
        """Return where the driver lists processes; None if it does not tell which GPU.

        If they are on several GPUs, the sender says which one it means.
        """
        return _one_of(frozenset().union(*(self.by_pid.get(pid, ()) for pid in pids)), self.declared(uuid))

    def of_statement(self, uuid: str, pod_uid: str) -> SenderPlace | None:
        """Return where a sender says that it is: the GPU that it declares, else the only one of its pod."""
        return self.declared(uuid) or _one_of(self.by_pod.get(pod_uid, frozenset()), None)

    def of_rank(self, rank: int) -> SenderPlace | None:
        """Return the GPU with the number of a rank on this node, where all nodes of a job have as many GPUs."""
        uuids = sorted(self.gpus, key=lambda uuid: self.gpus[uuid].index)
        return SenderPlace(uuids[rank % len(uuids)]) if uuids else None

    def declared(self, uuid: str) -> SenderPlace | None:
        """Return the place with this UUID. PyTorch gives that of a MIG device without its prefix."""
        return self.by_uuid.get(_bare(uuid))


def _one_of(places: frozenset[SenderPlace], declared: SenderPlace | None) -> SenderPlace | None:
    """Return the declared place if it is one of these, else the only one."""
    if declared in places:
        return declared
    return min(places) if len(places) == 1 else None


def _bare(uuid: str) -> str:
    return uuid[4:] if uuid.startswith(_KINDS) else uuid


def places(gpus: Sequence[GpuSamples], pods: Iterable[Series] = ()) -> Places:
    """Return the places of a node. `pods` are the series of `gpu_pod_info`.

    A GPU that cannot be read now keeps the processes of its last read.
    """
    here = {seen.gpu.uuid: seen.gpu for seen in gpus if seen.gpu.uuid}
    by_pid: dict[int, set[SenderPlace]] = {}
    by_uuid = {_bare(uuid): SenderPlace(uuid) for uuid in here}
    instances: dict[tuple[str, str], SenderPlace] = {}
    for seen in gpus:
        for labels, is_process in _of_interest(seen):
            place = SenderPlace(seen.gpu.uuid, _instance(labels))
            if is_process:
                by_pid.setdefault(int(labels["pid"]), set()).add(place)
            else:
                by_uuid[_bare(labels["mig_uuid"])] = place
                instances[place.uuid, labels[INSTANCE]] = place
    by_pod: dict[str, set[SenderPlace]] = {}
    for series in pods:
        labels = dict(series.labels)
        if series.gpu is not None and "pod_uid" in labels:
            number = labels.get(INSTANCE, "")
            used = instances.get((series.gpu.uuid, number)) if number else SenderPlace(series.gpu.uuid)
            by_pod.setdefault(labels["pod_uid"], set()).update([used] if used else [])
    return Places(here, _frozen(by_pid), _frozen(by_pod), by_uuid)


def _of_interest(seen: GpuSamples) -> Iterator[tuple[Mapping[str, str], bool]]:
    """Yield the labels of processes, and those of MIG devices."""
    for series, _ in seen.samples:
        if series.metric is m.PROCESS_MEMORY or series.metric is m.PROCESS_SM:
            yield dict(series.labels), True
        elif series.metric is m.MIG_DEVICE:
            yield dict(series.labels), False


def _instance(labels: Mapping[str, str]) -> Labels:
    return tuple((name, labels[name]) for name in (INSTANCE, PROFILE) if name in labels)


Key = TypeVar("Key")


def _frozen(places: Mapping[Key, set[SenderPlace]]) -> Mapping[Key, frozenset[SenderPlace]]:
    return {key: frozenset(value) for key, value in places.items()}
