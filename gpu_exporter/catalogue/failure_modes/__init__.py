"""The catalogue of failure modes: one entry per mode, in triage order.

A file has the modes of one kind of evidence. The alerts of a mode are in the file of its domain: those of `host.py` in
`alerts/bottleneck.yaml`, those of `loops.py` in `alerts/distributed.yaml` and `alerts/cost.yaml`.
"""

from __future__ import annotations

from types import ModuleType

from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import (
    bottleneck,
    cost,
    distributed,
    fleet,
    health,
    host,
    loops,
    network,
    remediation,
)
from gpu_exporter.catalogue.failure_modes.check import check
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Place, Scope, Severity
from gpu_exporter.catalogue.failure_modes.relation import effects

MODES: tuple[FailureMode, ...] = (
    *fleet.MODES,
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
FILES: tuple[ModuleType, ...] = (fleet, health, distributed, network, host, loops, bottleneck, cost, remediation)


def file_of(mode: FailureMode) -> ModuleType:
    """Return the file with the entry of a mode, also of one whose severity a diagnosis has lowered."""
    return next(file for file in FILES if any(each.name == mode.name for each in file.MODES))


check(MODES)
# What each mode explains, and where.
EFFECTS = effects(MODES)
# What is found on the ranks of a job that wait, and on those of one that stands still.
_WAITS, STALLS = "GpuCommunicationBound", (distributed.COLLECTIVE_STALL, loops.STALLED)
_EXPLAIN_WAITS = [
    mode for mode in MODES if any(Place.JOB in EFFECTS[mode.name].get(name, ()) for name in (_WAITS, *STALLS))
]
# Modes for which ranks of the same job wait. Those of links, for which the rank with the link waits, too.
HOLD_UP = frozenset(mode.name for mode in MODES if mode in _EXPLAIN_WAITS or mode.cause is Cause.PEERS)
LINKS = frozenset(
    mode.name
    for mode in _EXPLAIN_WAITS
    if mode.domain is Domain.NETWORK or (mode.cause is Cause.FAULT and _WAITS in EFFECTS[mode.name])
)
# Those that stop a job, instead of making it slow: ranks wait for them only if it stands still.
STOPS = frozenset(
    mode.name for mode in _EXPLAIN_WAITS if mode.cause is not Cause.PEERS and _WAITS not in EFFECTS[mode.name]
)
# What GpuFleetFault counts: the faults of single nodes that page.
FLEET_CAUSES = tuple(mode.name for mode in MODES if mode.severity is Severity.CRITICAL and mode.scope is Scope.DEVICE)
