"""Which GPU a sender uses: by its process, by its pod, or by its own statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.snapshot import GpuSamples

INSTANCE, PROFILE = "GPU_I_ID", "GPU_I_PROFILE"
_KINDS = ("GPU-", "MIG-")


class Place(NamedTuple):
    """A GPU by its UUID, and the labels of the MIG instance on it; none for the whole GPU."""

    uuid: str
    instance: Labels = ()


@dataclass(frozen=True, slots=True)
class Places:
    """The GPUs of this node by UUID, and the places by process, by UID of a pod, and by UUID of a GPU or MIG device."""

    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    by_pid: Mapping[int, frozenset[Place]] = field(default_factory=dict)
    by_pod: Mapping[str, frozenset[Place]] = field(default_factory=dict)
    by_uuid: Mapping[str, Place] = field(default_factory=dict)

    def of_processes(self, pids: Iterable[int], uuid: str) -> Place | None:
        """Return where the driver lists processes; None if it does not tell which GPU.

        If they are on several GPUs, the sender says which one it means.
        """
        return _one_of(frozenset().union(*(self.by_pid.get(pid, ()) for pid in pids)), self.declared(uuid))

    def of_statement(self, uuid: str, pod_uid: str) -> Place | None:
        """Return where a sender says that it is: the GPU that it declares, else the only one of its pod."""
        return self.declared(uuid) or _one_of(self.by_pod.get(pod_uid, frozenset()), None)

    def of_rank(self, rank: int) -> Place | None:
        """Return the GPU with the number of a rank on this node, where all nodes of a job have as many GPUs."""
        uuids = sorted(self.gpus, key=lambda uuid: self.gpus[uuid].index)
        return Place(uuids[rank % len(uuids)]) if uuids else None

    def declared(self, uuid: str) -> Place | None:
        """Return the place with this UUID. PyTorch gives that of a MIG device without its prefix."""
        return self.by_uuid.get(_bare(uuid))


def _one_of(places: frozenset[Place], declared: Place | None) -> Place | None:
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
    by_pid: dict[int, set[Place]] = {}
    by_uuid = {_bare(uuid): Place(uuid) for uuid in here}
    instances: dict[tuple[str, str], Place] = {}
    for seen in gpus:
        for labels, is_process in _of_interest(seen):
            place = Place(seen.gpu.uuid, _instance(labels))
            if is_process:
                by_pid.setdefault(int(labels["pid"]), set()).add(place)
            else:
                by_uuid[_bare(labels["mig_uuid"])] = place
                instances[place.uuid, labels[INSTANCE]] = place
    by_pod: dict[str, set[Place]] = {}
    for series in pods:
        labels = dict(series.labels)
        if series.gpu is not None and "pod_uid" in labels:
            number = labels.get(INSTANCE, "")
            used = instances.get((series.gpu.uuid, number)) if number else Place(series.gpu.uuid)
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


def _frozen(places: Mapping[Key, set[Place]]) -> Mapping[Key, frozenset[Place]]:
    return {key: frozenset(value) for key, value in places.items()}
