"""What observes the processes on the GPUs and the network cards of this machine, with what the processes belong to."""

from __future__ import annotations

from pathlib import Path

from gpu_exporter.config import Config
from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.threads import JoinedEvidence
from gpu_exporter.host.watch import PERIOD_SECONDS, HostWatch
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.source import HostEvidence, Source
from gpu_exporter.owners.cgroup import process_owner
from gpu_exporter.sources.choice import is_local


def host_evidence(source: Source, config: Config, period: float) -> HostEvidence | None:
    """Return what observes the processes on the GPUs and the network cards every `period` seconds, for a command that
    watches for a short time; None if these are not this machine's GPUs."""
    if not is_local(config, source):
        return None
    processes = host_watch(config.procfs, config.sysfs, names=True, commands=True, period=period)
    if not config.nics:
        return JoinedEvidence([processes])
    from gpu_exporter.host.fabric.watch import FabricWatch

    return JoinedEvidence([processes, FabricWatch(HostFiles(config.procfs, config.sysfs), period=period)])


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
