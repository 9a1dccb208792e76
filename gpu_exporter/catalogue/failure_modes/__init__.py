"""The catalogue of failure modes: one entry per mode, in triage order.

A file has the modes of one kind of evidence. The alerts of a mode are in the file of its domain: those of `host.py` in
`alerts/bottleneck.yaml`, those of `loops.py` in `alerts/distributed.yaml` and `alerts/cost.yaml`.
"""

from __future__ import annotations

from types import ModuleType

from gpu_exporter.catalogue.failure_modes import (
    bottleneck,
    cost,
    distributed,
    health,
    host,
    loops,
    network,
    remediation,
)
from gpu_exporter.catalogue.failure_modes.check import check
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.catalogue.failure_modes.relation import effects

MODES: tuple[FailureMode, ...] = (
    *health.MODES,
    *loops.OF_JOBS,
    *distributed.MODES,
    *network.MODES,
    *host.MODES,
    *bottleneck.MODES,
    *cost.MODES,
    *loops.OF_COST,
    *remediation.MODES,
)
FILES: tuple[ModuleType, ...] = (health, distributed, network, host, loops, bottleneck, cost, remediation)


def file_of(mode: FailureMode) -> ModuleType:
    """Return the file with the entry of a mode."""
    return next(file for file in FILES if mode in file.MODES)


check(MODES)
# What each mode explains, and where.
EFFECTS = effects(MODES)
