"""Which failure modes may come together: those of one incident."""

from __future__ import annotations

from gpu_exporter.catalogue.failure_modes import EFFECTS
from gpu_exporter.catalogue.failure_modes.mode import FailureMode

# What a mode injects is a fault that another mode finds, too, and of which that one says more.
CAUSED_BY = {"GpuTelemetryStale": "GpuLost", "GpuMemoryHoarded": "GpuAllocatedIdle"}


def in_incident_of(mode: FailureMode) -> frozenset[str]:
    """Return the names of the modes that may fire for what a mode injects: all of one incident."""
    cause = CAUSED_BY.get(mode.name, mode.name)
    return frozenset({mode.name, cause, *EFFECTS[cause]})
