"""Simulated GPUs -> readings: a fleet that trains, with faults by script. Every series says that it is simulated.

Values are a function of seed, node, GPU and the time since the start, so the same seed is the same fleet. They have the
levels of the packaged recordings; what no recording has is not simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING
from uuid import UUID

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.gpu import Gpu, Owner, Sample
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.source import Device
from gpu_exporter.model.source_kind import SIMULATED
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.device import SimulatedDevice
from gpu_exporter.sources.simulated.faults import SEEN_SECONDS, Fault
from gpu_exporter.sources.simulated.schedule import Schedule, blocks
from gpu_exporter.sources.simulated.workload import Workloads

if TYPE_CHECKING:
    from gpu_exporter.sources.simulated.inject import Injected


def fleet(
    nodes: int,
    gpus: int,
    seed: int,
    faults: str,
    known: Workloads,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    inject: str = "",
) -> Mapping[str, SimulatedSource]:
    """The nodes by name, `node-000` first. Their time and that of the fault script begin now.

    Raises GpuExporterError for a bad script.
    """
    width = max(3, len(str(nodes - 1)))
    names = [f"node-{number:0{width}}" for number in range(nodes)]
    broken = script.parse(faults, names, gpus)
    begin, of_node = clock(), blocks(nodes, seed)

    def now() -> float:
        return clock() - begin

    turn = Lock()
    schedules = {
        block: Schedule(f"{seed}/{block}", known, nodes=of_node.count(block), gpus=gpus) for block in set(of_node)
    }
    sources = {
        name: SimulatedSource(
            name,
            gpus,
            seed,
            broken,
            known,
            schedules[block],
            now,
            sleep,
            _owner(block, of_node[:number].count(block)),
            turn,
        )
        for number, (name, block) in enumerate(zip(names, of_node, strict=True))
    }
    if inject:
        from gpu_exporter.sources.simulated.inject import plan

        found = plan(inject, names, gpus)
        for name, injected in found.gpus.items():
            sources[name].inject(injected, found.faults, dead=name in found.dead)
    return sources


def _owner(job: int | str, rank: int) -> Owner:
    """A pod on each node of a job, which has all of its GPUs."""
    workload = job if isinstance(job, str) else f"train-{job:03}"
    return Owner("simulated", f"{workload}-{rank}", "train", workload)


class SimulatedSource:
    """One node. `clock` gives the seconds since the start, `schedule` is shared by the nodes that run the same jobs.

    `turn` is shared by all nodes.
    """

    name, description, live = SIMULATED

    def __init__(
        self,
        node: str,
        gpus: int,
        seed: int,
        faults: Sequence[Fault],
        workloads: Workloads,
        schedule: Schedule,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        owner: Owner,
        turn: Lock,
    ) -> None:
        self.node = node
        self.gil_lock = turn
        self.workloads = workloads
        self.schedule = schedule
        self.sleep = sleep
        self._gpus = gpus
        self._seed = seed
        self._faults = faults
        self.clock = clock
        self._owner = owner
        self._injected: Mapping[int, Injected] = {}
        self._dead = False
        self._reloads = [fault for fault in faults if fault.kind == script.RELOAD and fault.node in (script.ANY, node)]

    def inject(self, injected: Mapping[int, Injected], faults: Sequence[Fault], *, dead: bool) -> None:
        """From now on the GPUs of this node are a job of their own, with failure modes instead of a schedule."""
        self._injected, self._dead = injected, dead
        self._faults = (*self._faults, *faults)
        self._owner = _owner(f"injected-{self.node}", 0)

    def reports_xids(self) -> bool:
        """Whether Xids come from it."""
        return bool(self._injected)

    def dead(self) -> bool:
        """Whether the exporter of this node does not answer any more."""
        return self._dead and self.clock() > SEEN_SECONDS

    def instant(self, index: int) -> bool:
        """Whether no fault ever makes a read of this GPU wait."""
        waits = (script.WEDGED, script.SLOW)
        return not any(fault.kind in waits and fault.hits(self.node, index) for fault in self._faults)

    def open(self) -> None:
        self.now()

    def count(self) -> int:
        self.now()
        return self._gpus

    def expected(self) -> int | None:
        return self._gpus

    def reload_needed(self) -> bool | None:
        return None

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        return (self._owner,)

    def non_gpu_samples(self) -> Sequence[Sample]:
        """GPUs alone are simulated."""
        return ()

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        identity = f"{self._seed}/{self.node}/{index}"
        faults = [fault for fault in self._faults if fault.hits(self.node, index)]
        gpu = self._identify(index, identity)
        if index in self._injected:
            from gpu_exporter.sources.simulated.injected import InjectedDevice

            return InjectedDevice(self, gpu, identity, self._injected[index], faults, metrics)
        return SimulatedDevice(self, gpu, identity, faults, metrics)

    def now(self) -> float:
        """Seconds since the start. Raises SourceLost while the driver is reloaded."""
        now = self.clock()
        if script.last_end(self._reloads, script.RELOAD, now) > now:
            raise SourceLost(f"{self.node}: the driver is being reloaded, as --faults says", "reloaded")
        return now

    def loaded(self, now: float) -> float:
        """When the driver was loaded last."""
        return max((fault.end for fault in self._reloads if fault.end <= now), default=0.0)

    def _identify(self, index: int, identity: str) -> Gpu:
        model = self.workloads.gpu
        return Gpu(
            index,
            uuid=f"GPU-{UUID(bytes=sha256(identity.encode()).digest()[:16])}",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            model=model.model,
            device=f"nvidia{index}",
            driver=model.driver,
            info=model.info,
        )

    def close(self) -> None:
        """Nothing to give back."""
