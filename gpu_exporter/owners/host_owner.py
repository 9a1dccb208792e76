"""Host evidence with the names of the pods, containers and jobs that processes belong to."""

from __future__ import annotations

from pathlib import Path

from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.watch import PERIOD_SECONDS, HostWatch
from gpu_exporter.model.metric import Labels
from gpu_exporter.owners.cgroup import process_owner


def host_watch(
    procfs: Path, sysfs: Path, *, names: bool = False, commands: bool = False, period: float = PERIOD_SECONDS
) -> HostWatch:
    """Return the thread that observes the processes on the GPUs of this machine."""
    files = HostFiles(procfs, sysfs)
    return HostWatch(files, names=names, commands=commands, owner_of=owner_labels, period=period)


def owner_labels(cgroups: bytes) -> Labels:
    """Return what a process belongs to, from its /proc/<pid>/cgroup: the UID of its pod, its container, its job."""
    owner = process_owner(cgroups.decode("utf-8", "replace"))
    if owner is None:
        return ()
    labels = (("pod_uid", owner.pod), ("container_id", owner.container[:12]), ("hpc_job", owner.job))
    return tuple((name, value) for name, value in labels if value)
