"""Finds the processes that `gpu-exporter profile` profiles: asks the driver, and attribution if needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.config import Config, package_settings
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError, WrongUsage
from gpu_exporter.model.gpu import Gpu, Sample
from gpu_exporter.model.snapshot import GpuSamples, Row, Snapshot
from gpu_exporter.owners.cgroup import process_owner
from gpu_exporter.owners.choice import attributor
from gpu_exporter.owners.settings import OwnerSettings
from gpu_exporter.pipeline.monitor import observe
from gpu_exporter.profiling.processes import Process, look_up
from gpu_exporter.profiling.targets import Owned, Wanted, chosen, holders
from gpu_exporter.sources.choice import is_local, make_source

_OF_PROCESSES = (m.PROCESS_MEMORY, m.PROCESS_SM, m.PROCESSES, m.PROCESSES_UNRESOLVED)


@dataclass(frozen=True, slots=True)
class FoundProcesses:
    """The processes to profile, the errors of those that ended meanwhile, and whether no driver call is stuck."""

    processes: tuple[Process, ...]
    errors: tuple[GpuExporterError, ...] = ()
    clean: bool = True


def named(pids: Sequence[int], config: Config) -> FoundProcesses:
    """Return the processes with these PIDs, whether they hold a GPU or not. Raises GpuExporterError."""
    files = HostFiles(config.procfs, config.sysfs)
    return FoundProcesses(tuple(look_up(files, pid) for pid in dict.fromkeys(pids)))


def holding(wanted: Wanted, config: Config) -> FoundProcesses:
    """Return the processes that hold the GPUs that are wanted. Raises GpuExporterError if there are none."""
    if wanted.pod and not config.kubernetes:
        raise WrongUsage("--pod needs --kubernetes: kubelet says which pod has which GPU")
    source = make_source(config)
    if not is_local(config, source):
        raise WrongUsage(f"--source {source.name}: only processes on the GPUs of this machine can be profiled")
    owned = bool(wanted.pod or wanted.job)
    snapshot, clean = observe(source, selected(config.metrics, processes=True) if owned else _OF_PROCESSES)
    held = holders(snapshot)
    files = HostFiles(config.procfs, config.sysfs)
    owners = _owned(wanted, config, snapshot, files, held.gpus) if owned else Owned()
    processes, errors = [], []
    for pid, gpus in chosen(wanted, held, owners).items():
        try:
            processes.append(look_up(files, pid, gpus))
        except GpuExporterError as error:
            errors.append(error)
    return FoundProcesses(tuple(processes), tuple(errors), clean)


def _owned(wanted: Wanted, config: Config, snapshot: Snapshot, files: HostFiles, pids: Iterable[int]) -> Owned:
    """Return the owners of processes by their cgroups, and of GPUs as kubelet and job files say."""
    by_pid = {}
    for pid in pids:
        owner = process_owner(files.process(f"{pid}/cgroup").decode("utf-8", "replace"))
        if owner:
            by_pid[pid] = owner
    return Owned(by_pid, _rows(wanted, config, snapshot))


def _rows(wanted: Wanted, config: Config, snapshot: Snapshot) -> Sequence[Row]:
    """Return the rows of attribution. Raises GpuExporterError if kubelet is needed and does not answer."""
    attribution = attributor(package_settings(replace(config, processes=False), OwnerSettings))
    if attribution is None:
        return ()
    attribution.start()
    try:
        _, rows = attribution.attribute(_by_gpu(snapshot))
    finally:
        attribution.stop()
    silent = [dict(row.labels) for row in rows if row.metric is m.ATTRIBUTION_UP and not row.value]
    if wanted.pod and silent:
        names = ", ".join(sorted({name for labels in silent for name in labels.values()}))
        fix = "`gpu-exporter doctor` with the same settings says why"
        raise GpuExporterError(f"--pod {wanted.pod}: no answer from {names}", fix=fix)
    return rows


def _by_gpu(snapshot: Snapshot) -> list[GpuSamples]:
    samples: dict[Gpu, list[Sample]] = defaultdict(list)
    for sample in snapshot.samples:
        if sample.series.gpu is not None:
            samples[sample.series.gpu].append(sample)
    return [GpuSamples(status.gpu, status.read_at, samples[status.gpu], {}) for status in snapshot.gpus if status.up]
