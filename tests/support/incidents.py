"""Which failure modes may come together: those of one incident; and diagnoses of which incidents are made."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.catalogue.bottlenecks import BY_NAME as CLASSES
from gpu_exporter.catalogue.causes import SHARES, Cause
from gpu_exporter.catalogue.failure_modes import EFFECTS, MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.diagnosis.diagnose import Diagnosis, Match
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import DeviceIdentity

BY_NAME = {mode.name: mode for mode in MODES}

# What a mode injects is a fault that another mode finds, too, and of which that one says more.
CAUSED_BY = {"GpuTelemetryStale": "GpuLost", "GpuMemoryHoarded": "GpuAllocatedIdle"}


def in_incident_of(mode: FailureMode) -> frozenset[str]:
    """Return the names of the modes that may fire for what a mode injects: all of one incident."""
    cause = CAUSED_BY.get(mode.name, mode.name)
    return frozenset({mode.name, cause, *EFFECTS[cause]})


def diagnosed_gpu(
    number: int,
    *modes: str,
    job: str = "train",
    class_name: str = "compute-bound",
    shares: Mapping[Cause, float] | None = None,
    is_down: bool = False,
    cluster: str = "",
) -> Diagnosis:
    """Return the diagnosis of a GPU of a node with two of them, with these findings and shares of its time.

    The rest of its time is useful; one that does not answer has neither shares nor class.
    """
    lost = {} if is_down else dict.fromkeys(SHARES, 0.0) | dict(shares or {})
    if lost:
        lost[Cause.USEFUL] = 1.0 - sum(lost.values())
    return Diagnosis(
        DeviceKey(cluster, f"GPU-{number}", ""),
        DeviceIdentity(node=f"n{number // 2}", gpu=str(number % 2), namespace="ml" if job else "", workload=job),
        None if is_down else CLASSES[class_name],
        tuple(Match(BY_NAME[mode], {}) for mode in modes),
        {},
        {},
        is_down=is_down,
        shares=lost,
    )
