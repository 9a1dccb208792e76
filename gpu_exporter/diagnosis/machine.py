"""Host evidence and network cards for commands that watch the GPUs of this machine for a short time."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_exporter.config import Config
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.host.fabric.watch import FabricWatch
from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.neighbours import neighbours
from gpu_exporter.host.threads import JoinedEvidence
from gpu_exporter.model.source import HostEvidence, Source
from gpu_exporter.owners.host_owner import host_watch
from gpu_exporter.sources.choice import is_remote

STARVED = "GpuHostCpuStarved"
# How often the host evidence of a recording is read.
RECORD_SECONDS = 1.0


def host_of(source: Source, config: Config, period: float) -> HostEvidence | None:
    """Return what observes the processes on the GPUs and the network cards every `period` seconds; None if these are
    not this machine's."""
    if not source.live or is_remote(config, source.name):
        return None
    processes = host_watch(config.procfs, config.sysfs, names=True, commands=True, period=period)
    nics = FabricWatch(HostFiles(config.procfs, config.sysfs), period=period) if config.nics else None
    return JoinedEvidence([processes, nics] if nics else [processes])


def recorded_host(source: Source, config: Config) -> HostEvidence | None:
    """Return what observes the processes for a recording; None if the settings do not ask for it."""
    return host_of(source, config, RECORD_SECONDS) if config.host_evidence else None


def name_neighbours(diagnoses: Iterable[Diagnosis], config: Config) -> None:
    """Add what else uses the CPUs of a process on a GPU of this machine that gets too little CPU time."""
    for diagnosis in diagnoses:
        process = diagnosis.identity.process
        if STARVED in (match.mode.name for match in diagnosis.matches) and process.get("pid", "").isdecimal():
            found = neighbours(HostFiles(config.procfs, config.sysfs), int(process["pid"]))
            diagnosis.identity.neighbours = tuple(
                f"process {other.pid} ({other.name}, {other.cpus:.2g} CPUs)" for other in found
            )
