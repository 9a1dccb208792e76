"""Profiles of the processes on the GPUs of a node: what the diagnosis finds decides when `profiling` takes one.

Imported only with `--profile`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpu_exporter.config import Config
from gpu_exporter.diagnosis.current import STRAGGLERS, Current, RankState
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.profile_reason import Reason
from gpu_exporter.model.source import Source
from gpu_exporter.profiling.sampler import RemoteSampler, local_sampler
from gpu_exporter.profiling.store import Bounds, ProfileStore
from gpu_exporter.profiling.triggers import Rules
from gpu_exporter.profiling.watch import GpuFindings, ProfileWatch
from gpu_exporter.serving.watch.monitor import Monitor
from gpu_exporter.sources.choice import is_remote

HOST_BOUND_CLASSES = frozenset({"host-bound", "data-loading-bound"})
# The failure modes that are reasons. A straggler that computes more slowly is one, too: its stacks tell more work from
# a slower chip.
REASON_OF: Mapping[str, Reason] = {
    "GpuCollectiveStall": Reason.STALL,
    **dict.fromkeys(STRAGGLERS, Reason.STRAGGLER),
    "GpuLaunchBound": Reason.HOST_BOUND,
}


def profile_watch(source: Source, config: Config, monitor: Monitor | None, *, alone: bool) -> ProfileWatch:
    """Return the thread that profiles. Raises GpuExporterError if that is not possible here."""
    if not alone or not source.live or is_remote(config, source.name):
        raise GpuExporterError("--profile: only processes on the GPUs of this machine can be profiled", fix="remove it")
    if monitor is None:
        raise GpuExporterError("--profile needs the diagnosis of the live page", fix="remove --live-page false")
    files = HostFiles(config.procfs, config.sysfs)
    sampler = (
        RemoteSampler(config.profile_socket) if config.profile_socket else local_sampler(files, config.profile_dir)
    )
    store = ProfileStore(config.profile_dir, Bounds(config.profile_keep))
    rules = Rules(config.profile, config.profile_after)
    watch = ProfileWatch(rules, lambda: findings(monitor.current), sampler, store, files)
    monitor.newest_profile = watch.views.newest
    return watch


def findings(current: Current) -> Mapping[str, GpuFindings]:
    """Return what is a reason to profile a GPU now, by UUID. MIG instances count as their GPU."""
    jobs = {rank.device.uuid: (name, rank.state) for name, ranks in current.jobs.items() for rank in ranks}
    found: defaultdict[str, dict[Reason, str]] = defaultdict(dict)
    for device, diagnosis in current.diagnoses.items():
        reasons = found[device.uuid]
        if diagnosis.bottleneck and diagnosis.bottleneck.name in HOST_BOUND_CLASSES:
            reasons[Reason.HOST_BOUND] = diagnosis.bottleneck.name
        for match in diagnosis.matches:
            if match.mode.name in REASON_OF:
                reasons[REASON_OF[match.mode.name]] = match.mode.name
    return {uuid: _about(reasons, *jobs.get(uuid, ("", RankState.UNKNOWN))) for uuid, reasons in found.items()}


def _about(reasons: Mapping[Reason, str], job: str, state: RankState) -> GpuFindings:
    return GpuFindings(job, reasons, state is RankState.WAITED_FOR)
