"""Which processes to profile: those that hold a GPU, narrowed to one GPU, PID, pod or job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.snapshot import Row, Snapshot
from gpu_exporter.owners.cgroup import ProcessOwner, uid

# Of more processes, the user must choose.
MOST_PROCESSES = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for; everything that holds a GPU if nothing is set. `pod` is namespace/name."""

    gpu: int | None = None
    pod: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True)
class Holders:
    """The processes that hold GPUs, by PID, with the indices of these GPUs.

    `unresolved` counts those whose PID is of another PID namespace.
    """

    gpus: Mapping[int, tuple[int, ...]]
    all_gpus: frozenset[int] = frozenset()
    unresolved: int = 0


@dataclass(frozen=True, slots=True)
class Owned:
    """What attribution knows: the owner of each process by its cgroup, and rows about the owners of GPUs."""

    by_pid: Mapping[int, ProcessOwner] = field(default_factory=dict)
    rows: Sequence[Row] = ()


def holders(snapshot: Snapshot) -> Holders:
    """Return the processes that hold GPUs according to a snapshot."""
    found: dict[int, set[int]] = {}
    unresolved = 0.0
    for sample in snapshot.samples:
        series = sample.series
        if series.gpu is None:
            continue
        if series.metric in (m.PROCESS_MEMORY, m.PROCESS_SM):
            found.setdefault(int(dict(series.labels)["pid"]), set()).add(series.gpu.index)
        elif series.metric is m.PROCESSES_UNRESOLVED:
            unresolved += sample.value
    indices = frozenset(status.gpu.index for status in snapshot.gpus)
    return Holders({pid: tuple(sorted(gpus)) for pid, gpus in sorted(found.items())}, indices, round(unresolved))


def chosen(wanted: Wanted, held: Holders, owned: Owned) -> Mapping[int, tuple[int, ...]]:
    """Return the PIDs to profile with their GPUs. Raises GpuExporterError if there are none, or too many."""
    if wanted.gpu is not None and wanted.gpu not in held.all_gpus:
        known = ", ".join(map(str, sorted(held.all_gpus))) or "none"
        raise GpuExporterError(f"--gpu {wanted.gpu}: there is no such GPU; this node has: {known}")
    found = {pid: gpus for pid, gpus in held.gpus.items() if wanted.gpu is None or wanted.gpu in gpus}
    if wanted.pod:
        found = _of_pod(wanted.pod, found, owned)
    if wanted.job:
        on_job = _gpus_of(owned.rows, m.JOB_INFO, {"job_id": wanted.job})
        found = {pid: gpus for pid, gpus in found.items() if _is_of_job(wanted.job, pid, gpus, owned, on_job)}
    if not found:
        raise GpuExporterError(*_nothing(wanted, held))
    if len(found) > MOST_PROCESSES:
        raise GpuExporterError(f"{len(found)} processes hold these GPUs, more than {MOST_PROCESSES}: choose with --pid")
    return found


def _nothing(wanted: Wanted, held: Holders) -> tuple[str]:
    what = [f"GPU {wanted.gpu}" if wanted.gpu is not None else "a GPU"]
    what += [f"in pod {wanted.pod}"] if wanted.pod else []
    what += [f"of job {wanted.job}"] if wanted.job else []
    message = f"no process holds {' '.join(what)}"
    if held.unresolved:
        return (
            f"{message}, but {held.unresolved} processes have PIDs of another PID namespace: share the host's PIDs"
            " (hostPID: true in a pod) or mount its /proc and set --procfs",
        )
    if wanted.pod or wanted.job:
        return (f"{message}: name the GPU with --gpu or the process with --pid",)
    return (f"{message} now",)


def _is_of_job(job: str, pid: int, gpus: Iterable[int], owned: Owned, on_job: frozenset[int]) -> bool:
    """Return whether a process is of a job: by its cgroup, otherwise by the job files of its GPUs."""
    owner = owned.by_pid.get(pid)
    return owner.job == job if owner and owner.job else bool(on_job.intersection(gpus))


def _of_pod(pod: str, held: Mapping[int, tuple[int, ...]], owned: Owned) -> dict[int, tuple[int, ...]]:
    """Return the processes on the GPUs that kubelet gave to a pod, by its UID if the API server has returned it.

    Raises GpuExporterError if a GPU is shared and the UID is unknown.
    """
    namespace, _, name = pod.partition("/")
    rows = [row for row in owned.rows if row.metric is m.POD_INFO and row.gpu is not None]
    named = [row for row in rows if _has(row, {"namespace": namespace, "pod": name})]
    uids = {uid(text) for row in named if (text := dict(row.labels).get("pod_uid", ""))}
    gpus = {row.gpu.index for row in named if row.gpu}
    if uids:
        return {pid: of for pid, of in held.items() if (owner := owned.by_pid.get(pid)) and owner.pod in uids}
    others = {row.gpu.index for row in rows if row.gpu and row not in named}
    if shared := gpus & others:
        text = f"GPU {min(shared)} is shared by pods: add --kubernetes-pods to tell their processes apart"
        raise GpuExporterError(f"--pod {pod}: {text}")
    return {pid: of for pid, of in held.items() if gpus.intersection(of)}


def _gpus_of(rows: Iterable[Row], metric: object, labels: Mapping[str, str]) -> frozenset[int]:
    return frozenset(row.gpu.index for row in rows if row.metric is metric and row.gpu and _has(row, labels))


def _has(row: Row, labels: Mapping[str, str]) -> bool:
    return labels.items() <= dict(row.labels).items()
