"""Simulated nodes that have run for an hour, made in seconds: the clock of Python is replaced while they run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Lock
from unittest.mock import patch

from gpu_exporter.app.node import Node, ProcessMetrics
from gpu_exporter.app.server import exporter_server
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.failure_modes.mode import Values
from gpu_exporter.catalogue.selection import everything
from gpu_exporter.config import Config
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.gpu import Owner, XidEvent
from gpu_exporter.model.metric import Gpm, Metric, MetricSet
from gpu_exporter.sources.choice import PACKAGED
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.faults import ScriptedFault
from gpu_exporter.sources.simulated.inject import InjectedDevice, healthy_gpu
from gpu_exporter.sources.simulated.schedule import JobSchedule, SimulatedNode
from gpu_exporter.sources.simulated.source import PodPlace, SimulatedSource
from gpu_exporter.sources.simulated.workload import workloads

SECONDS, INTERVAL = 3600, 10
# When the hour ends, in Unix seconds: always the same, so that pictures can be compared.
END = 1_767_614_400.0
MINUTE = 60.0
# How often the GPUs are judged: a finding begins at most this late.
JUDGED = 60
NOISE = 0.06
BY_NAME = {mode.name: mode for mode in MODES}


@dataclass(frozen=True, slots=True)
class Event:
    """A failure mode of one GPU from some moment on; the other GPUs get the values of its peers."""

    mode: str
    gpu: int
    begin: float


@dataclass(frozen=True, slots=True)
class Scene:
    """A node with one job of eight GPUs, and what happens to it."""

    node: str
    job: str
    events: Sequence[Event] = ()
    load: Values = field(default_factory=lambda: profiles.BALANCED)
    gpus: int = 8


FAILING = Scene(
    "gpu-node-3",
    "llm-pretrain",
    (
        Event("GpuThermalThrottling", 6, 20 * MINUTE),
        Event("GpuXidFatal", 3, 41 * MINUTE),
        Event("GpuLost", 3, 41 * MINUTE + INTERVAL),
        Event("GpuCollectiveStall", 3, 41 * MINUTE + INTERVAL),
    ),
)
STRAGGLER = Scene("gpu-node-7", "video-diffusion", (Event("GpuStragglerSlow", 5, 34 * MINUTE),))
SCENES: Mapping[str, Scene] = {"failing": FAILING, "straggler": STRAGGLER}


class _Device(InjectedDevice):
    """A GPU whose values change at the beginning of each stage, with noise; each stage has its XIDs once."""

    stages: Sequence[tuple[float, Values, tuple[int, ...]]] = ()
    random = Random(0)
    _codes: Sequence[int] = ()

    def events(self) -> Sequence[XidEvent]:
        now = self._node.clock()
        self._advance(now)
        codes, self._codes = self._codes, []
        return [XidEvent(time.time(), self.gpu.pci_bus_id, code) for code in codes]

    def _advance(self, now: float) -> None:
        while len(self.stages) > 1 and self.stages[1][0] <= now:
            self.stages = self.stages[1:]
            self._injected, self._codes = healthy_gpu(self.stages[0][1]), self.stages[0][2]

    def _value(self, origin: Metric, before: float | None, now: float) -> float | None:
        self._advance(now)
        value = super()._value(origin, before, now)
        if value is None or not (isinstance(origin.nvml, Gpm) or origin in (m.POWER, m.GPU_TEMP)):
            return value
        wave = math.sin(now / 300 + self.gpu.index) + self.random.gauss(0.0, 0.5)
        if origin.unit == "ratio":
            return min(1.0, max(0.0, value + NOISE * wave * 4 * value * (1 - value)))
        return max(0.0, value * (1 + 0.3 * NOISE * wave))


class _Source(SimulatedSource):
    """The GPUs of a scene."""

    scene: Scene

    def attach(self, index: int, metrics: Sequence[Metric]) -> _Device:
        identity = f"{self.node.name}/{index}"
        stages = list(_stages(self.scene, index))
        gpu = self._identify(index, identity)
        faults = [fault for fault in self._faults if fault.hits(self.node.name, index)]
        device = _Device(self.node, gpu, identity, healthy_gpu(stages[0][1]), faults, metrics)
        device.stages, device.random = stages, Random(identity)
        return device


def _stages(scene: Scene, gpu: int) -> Iterator[tuple[float, Values, tuple[int, ...]]]:
    values = {**profiles.HEALTHY, **scene.load}
    yield 0.0, values, ()
    for event in scene.events:
        inject = BY_NAME[event.mode].inject
        if changes := inject.values if event.gpu == gpu else inject.peers:
            values = {**values, **changes}
        if event.gpu == gpu:
            yield event.begin, values, (inject.xid,) if inject.xid is not None else ()
        elif changes:
            yield event.begin, values, ()


def _source(scene: Scene, clock: Callable[[], float]) -> _Source:
    recorded = workloads(sorted(Path(PACKAGED).glob("*.jsonl.gz")))
    schedule = JobSchedule(scene.node, recorded, nodes=1, gpus=scene.gpus)
    node = SimulatedNode(
        scene.node, scene.gpus, 1, recorded, schedule, schedule, schedule, (), clock, lambda seconds: None
    )
    places = [
        PodPlace((Owner("ml", f"{scene.job}-{gpu}", "train", f"uid-{gpu}", scene.job, str(gpu)),), trains=True)
        for gpu in range(scene.gpus)
    ]
    lost = [
        ScriptedFault(script.LOST, scene.node, str(event.gpu), event.begin, math.inf)
        for event in scene.events
        if BY_NAME[event.mode].inject.fault == script.LOST
    ]
    source = _Source(node, places, lost, Lock())
    source.scene = scene
    return source


@contextmanager
def served(scene: Scene) -> Iterator[int]:
    """Serve a node that has run for an hour, up to END; yield the port. Its clock then stands still."""
    # Where the machine has run for less than an hour, the clock would be negative, which it never is.
    passed, begin = [0.0], max(0.0, time.monotonic() - SECONDS)
    with patch.object(time, "time", lambda: END - SECONDS + passed[0]):
        yield from _served(scene, passed, begin)


def _served(scene: Scene, passed: list[float], begin: float) -> Iterator[int]:
    source = _source(scene, lambda: passed[0])
    with ExitStack() as stack:
        stack.enter_context(patch.object(time, "monotonic", lambda: begin + passed[0]))
        node = Node(
            scene.node,
            source,
            Config(source="simulated", interval=INTERVAL, live_page=True),
            ProcessMetrics(INTERVAL),
            everything(MetricSet.DEFAULT),
            lambda: (),
        )
        assert node.collector.connect()
        live = node.live
        assert live is not None
        for second in range(INTERVAL, SECONDS + 1, INTERVAL):
            passed[0] = float(second)
            node.collector.tick()
            snapshot = node.endpoint.health.snapshot
            assert snapshot is not None
            live.monitor.take(snapshot)
            live.monitor.watch(snapshot)
            if second % JUDGED == 0:
                live.monitor.judge(snapshot)
    node.endpoint.pages.made_at = math.inf  # however long the pictures take, its metrics are not old
    server = exporter_server(Address("127.0.0.1", 0), [node.endpoint])
    server.start()
    try:
        yield server.port
    finally:
        server.stop()
        node.collector.stop()
