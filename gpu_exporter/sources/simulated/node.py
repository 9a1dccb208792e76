"""What the GPUs of a simulated node share: workloads, schedule and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.faults import ScriptedFault
from gpu_exporter.sources.simulated.schedule import JobSchedule
from gpu_exporter.sources.simulated.workload import Workloads


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node. `clock` returns the seconds since the start of the fleet. Nodes with the same jobs share `schedule`.

    `idle` is the schedule of GPUs that a pod does not use, `free` that of GPUs without a pod. `reloads` are the
    scripted faults that reload the driver of this node.
    """

    name: str
    gpus: int
    seed: int
    workloads: Workloads
    schedule: JobSchedule
    idle: JobSchedule
    free: JobSchedule
    reloads: tuple[ScriptedFault, ...]
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def now(self) -> float:
        """Return the seconds since the start. Raises SourceLost while the driver is reloaded."""
        now = self.clock()
        if script.last_end(self.reloads, script.RELOAD, now) > now:
            raise SourceLost(f"{self.name}: the driver is being reloaded, as --faults says", "reloaded")
        return now

    def loaded_at(self, now: float) -> float:
        """Return when the driver was last loaded."""
        return max((fault.end for fault in self.reloads if fault.end <= now), default=0.0)
