"""Simulated nodes whose GPUs train, with scripted faults. Every series is labelled as simulated.

Values are a function of seed, node, GPU and the time since the start, so the same seed gives the same fleet. Their
levels are those of the packaged recordings; a metric that no recording contains is not simulated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from gpu_exporter.model.gpu import Gpu, Owner
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.source import Device, Source
from gpu_exporter.model.source_kind import SIMULATED
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.device import SimulatedDevice, upcoming_xids
from gpu_exporter.sources.simulated.faults import SEEN_SECONDS, ScriptedFault
from gpu_exporter.sources.simulated.schedule import JobSchedule, SimulatedNode, blocks
from gpu_exporter.sources.simulated.workload import Workloads

# A shared node has several pods: of this many GPUs, one is free, and one belongs to a notebook that does not use it.
SHARED_GPUS = 8
# The GPUs of a training pod on a shared node.
POD_GPUS = 2


class PodPlace(NamedTuple):
    """The pods of a GPU, one or none, and whether they train on it."""

    owners: Sequence[Owner]
    trains: bool


FREE = PodPlace((), trains=False)


def whole_node(job: str, rank: int, gpus: int, seed: int) -> Sequence[PodPlace]:
    """Return the places of a node whose GPUs all belong to one pod, which is this rank of a job."""
    return [_training(job, rank, seed)] * gpus


def shared_node(job: str, notebook: str, gpus: int, seed: int) -> Sequence[PodPlace]:
    """Return the places of a node with all pods of a job, an idle notebook and free GPUs. A small node has one pod."""
    unused = gpus // SHARED_GPUS
    if not unused:
        return whole_node(job, 0, gpus, seed)
    training = [_training(job, index // POD_GPUS, seed) for index in range(gpus - 2 * unused)]
    idle = PodPlace((_pod(notebook, 0, "notebook", seed),), trains=False)
    return [*training, *[idle] * unused, *[FREE] * unused]


def injected_node(job: str, alone: Collection[int], gpus: int, seed: int) -> Sequence[PodPlace]:
    """Return the places of a node whose GPUs are one job, but for those that are `alone`."""
    return [_training(f"{job}-gpu-{gpu}" if gpu in alone else job, 0, seed) for gpu in range(gpus)]


def _training(job: str, rank: int, seed: int) -> PodPlace:
    return PodPlace((_pod(job, rank, "train", seed),), trains=True)


def _pod(workload: str, rank: int, container: str, seed: int) -> Owner:
    """Return a pod as the API server describes it: its name ends with its rank."""
    name = f"{workload}-{rank}"
    uid = UUID(bytes=sha256(f"{seed}/{name}".encode()).digest()[:16], version=4)
    return Owner("simulated", name, container, str(uid), workload, str(rank))


if TYPE_CHECKING:
    from gpu_exporter.sources.simulated.inject import NodeInjection


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The settings of a fleet, with the names of `Config`."""

    nodes: int = 1
    gpus: int = 8
    seed: int = 1
    faults: str = ""
    inject: str = ""


def fleet(
    settings: FleetSettings,
    workloads: Workloads,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Mapping[str, SimulatedSource]:
    """Return the nodes by name, `node-000` first. Their time and that of the fault script begin now.

    Raises GpuExporterError for a faulty script.
    """
    count, gpus, seed = settings.nodes, settings.gpus, settings.seed
    width = max(3, len(str(count - 1)))
    names = [f"node-{number:0{width}}" for number in range(count)]
    faults = script.parse(settings.faults, names, gpus)
    begin, block_of = clock(), blocks(count, seed)

    def since_begin() -> float:
        return clock() - begin

    size = Counter(block_of)
    schedules = {
        block: JobSchedule(f"{seed}/{block}", workloads, nodes=nodes, gpus=gpus) for block, nodes in size.items()
    }
    idle, free = (
        JobSchedule(f"{seed}/{only.name}", workloads, nodes=1, gpus=gpus, only=only)
        for only in (workloads.idle, workloads.free)
    )
    injections = _injections(settings.inject, names, gpus)
    gil_lock = Lock()
    sources = {}
    for number, (name, block) in enumerate(zip(names, block_of, strict=True)):
        injection = injections.get(name)
        of_node = (*faults, *injection.faults) if injection else faults
        reloads = tuple(fault for fault in of_node if fault.kind == script.RELOAD and fault.node in (script.ANY, name))
        node = SimulatedNode(name, gpus, seed, workloads, schedules[block], idle, free, reloads, since_begin, sleep)
        if injection:
            places = injected_node(f"injected-{name}", injection.alone, gpus, seed)
        elif size[block] > 1:
            places = whole_node(f"train-{block:03}", block_of[:number].count(block), gpus, seed)
        else:
            places = shared_node(f"train-{block:03}", f"notebook-{block:03}", gpus, seed)
        sources[name] = SimulatedSource(node, places, of_node, gil_lock, injection, early_xid=not number)
    return sources


def _injections(inject: str, names: Sequence[str], gpus: int) -> Mapping[str, NodeInjection]:
    """Return the injected failure modes by node. The module is imported only if it is needed."""
    if not inject:
        return {}
    from gpu_exporter.sources.simulated.inject import injections

    return injections(inject, names, gpus)


class SimulatedSource(Source):
    """The GPUs of one node, each at its place. All nodes of a fleet share `gil_lock`.

    With `early_xid`, the first GPU has an XID soon after the start.
    """

    name, description, live = SIMULATED

    def __init__(
        self,
        node: SimulatedNode,
        places: Sequence[PodPlace],
        faults: Sequence[ScriptedFault],
        gil_lock: Lock,
        injection: NodeInjection | None = None,
        *,
        early_xid: bool = False,
    ) -> None:
        self.gil_lock = gil_lock
        self.node = node
        self._places = places
        self._early_xid = early_xid
        self._faults = faults
        self._injection = injection
        self._asked_at: float | None = None

    def reports_xids(self) -> bool:
        """Return True: programs fail now and then."""
        return True

    def dead(self) -> bool:
        """Return whether the exporter of this node has stopped answering.

        It stops some time after the first call, so that Prometheus knows the node, whenever it first scrapes.
        """
        if not (self._injection and self._injection.dead):
            return False
        if self._asked_at is None:
            self._asked_at = self.node.clock()
        return self.node.clock() - self._asked_at > SEEN_SECONDS

    def instant(self, index: int) -> bool:
        """Return whether no fault ever delays a read of this GPU."""
        waits = (script.WEDGED, script.SLOW)
        return not any(fault.kind in waits and fault.hits(self.node.name, index) for fault in self._faults)

    def open(self) -> None:
        self.node.now()

    def count(self) -> int:
        self.node.now()
        return self.node.gpus

    def expected(self) -> int | None:
        return self.node.gpus

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        return self._places[gpu.index].owners

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        identity = f"{self.node.seed}/{self.node.name}/{index}"
        faults = [fault for fault in self._faults if fault.hits(self.node.name, index)]
        gpu = self._identify(index, identity)
        if self._injection and index in self._injection.gpus:
            from gpu_exporter.sources.simulated.inject import InjectedDevice

            return InjectedDevice(self.node, gpu, identity, self._injection.gpus[index], faults, metrics)
        node, place, early = self.node, self._places[index], self._early_xid and not index
        schedule = node.schedule if place.trains else node.idle if place.owners else node.free
        xids = upcoming_xids(identity, schedule, node.clock(), early=early)
        return SimulatedDevice(node, gpu, identity, faults, metrics, schedule, xids)

    def _identify(self, index: int, identity: str) -> Gpu:
        model = self.node.workloads.gpu
        return Gpu(
            index,
            uuid=f"GPU-{UUID(bytes=sha256(identity.encode()).digest()[:16])}",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            model=model.model,
            device=f"nvidia{index}",
            driver=model.driver,
            info=model.info,
        )
