"""The catalogue of failure modes: one file per domain, one entry per mode, in triage order."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from gpu_exporter.catalogue.failure_modes import bottleneck, cost, distributed, health, host, loops
from gpu_exporter.catalogue.failure_modes.check import check
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode

MODES: tuple[FailureMode, ...] = (
    *health.MODES,
    *loops.OF_JOBS,
    *distributed.MODES,
    *host.MODES,
    *bottleneck.MODES,
    *cost.MODES,
    *loops.OF_COST,
)
# The file with the entries of each domain.
FILES: Mapping[Domain, ModuleType] = {
    Domain.HEALTH: health,
    Domain.DISTRIBUTED: distributed,
    Domain.BOTTLENECK: bottleneck,
    Domain.COST: cost,
}


def file_of(mode: FailureMode) -> ModuleType:
    """Return the file with the entry of a mode: causes on the host and training loops have files of their own."""
    return next((file for file in (host, loops) if mode in file.MODES), FILES[mode.domain])


check(MODES)
