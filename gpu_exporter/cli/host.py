"""Host evidence for commands that watch the GPUs of this machine for a short time."""

from __future__ import annotations

from gpu_exporter.attribution.host_owner import host_watch
from gpu_exporter.config import Config
from gpu_exporter.model.source import HostEvidence, Source
from gpu_exporter.sources.choice import is_remote


def host_of(source: Source, config: Config, period: float) -> HostEvidence | None:
    """Return what observes the processes on the GPUs every `period` seconds; None if these are not this machine's."""
    if not source.live or is_remote(config, source.name):
        return None
    return host_watch(config.procfs, config.sysfs, names=True, commands=True, period=period)
