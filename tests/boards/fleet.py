"""The simulated fleet of `plan`, in virtual time: its pages are made as fast as the machine can, with noise."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Lock
from unittest.mock import patch
from uuid import NAMESPACE_DNS, uuid5

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.failure_modes.mode import Values
from gpu_exporter.catalogue.selection import everything
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.model.gpu import Gpu, Owner, Sample, Series
from gpu_exporter.model.metric import Gpm, Kind, Metric, MetricSet
from gpu_exporter.model.snapshot import GpuSamples, Snapshot
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import Context
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer, source_labels
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.sources.choice import PACKAGED
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.faults import ScriptedFault
from gpu_exporter.sources.simulated.inject import InjectedDevice, healthy_gpu, mean, value_at
from gpu_exporter.sources.simulated.schedule import JobSchedule, SimulatedNode
from gpu_exporter.sources.simulated.source import PodPlace, SimulatedSource
from gpu_exporter.sources.simulated.workload import Workloads, workloads
from tests.boards.loops import NodeLoops
from tests.boards.pages import kube_page, server_page
from tests.boards.plan import FAULTS, GPUS, LENGTH, LOOPS, MINUTE, PROFILES, START, Job, Profiled, placed

BY_NAME = {mode.name: mode for mode in MODES}
NOISE, LEVEL_NOISE = 0.3, 0.01


@dataclass(frozen=True, slots=True)
class Stage:
    """What a GPU does from `begin` on, in seconds since the start."""

    begin: float
    values: Values


class StagedDevice(InjectedDevice):
    """A GPU whose values change at the beginning of each stage. Counters and energy grow on."""

    _stages: Sequence[Stage] = ()
    _stage = 0
    _random = Random(0)
    _noise = 0.0

    def follow(self, stages: Sequence[Stage], seed: str) -> None:
        """Set the stages."""
        self._stages, self._random = stages, Random(seed)
        self._offsets: dict[Metric, float] = {}

    def _value(self, origin: Metric, before: float | None, now: float) -> float | None:
        self._advance(now)
        stage = self._stages[self._stage]
        if origin is m.ENERGY or (origin.kind is Kind.COUNTER and origin in stage.values):
            return float(int(self._total(origin, stage, now)))
        value = super()._value(origin, before, now)
        if value is None or not (isinstance(origin.nvml, Gpm) or origin in (m.POWER, m.POWER_INSTANT, m.GPU_TEMP)):
            return value
        noise = self._random.gauss(0.0, 1.0)
        if origin.unit == "ratio":
            return min(1.0, max(0.0, value + NOISE * noise * value * (1 - value) * 0.2))
        return max(0.0, value * (1 + LEVEL_NOISE * noise))

    def _advance(self, now: float) -> None:
        while self._stage + 1 < len(self._stages) and self._stages[self._stage + 1].begin <= now:
            ended, begun = self._stages[self._stage : self._stage + 2]
            for metric in (*ended.values, m.ENERGY):
                if metric.kind is Kind.COUNTER:
                    self._offsets[metric] = self._total(metric, ended, begun.begin)
            self._stage += 1
            self._injected = healthy_gpu(begun.values)

    def _total(self, metric: Metric, stage: Stage, now: float) -> float:
        offset = self._offsets.get(metric, 0.0)
        if metric is m.ENERGY:
            power = mean(stage.values[m.POWER], stage.begin, now) if now > stage.begin else 0.0
            return offset + power * (now - stage.begin) / m.MILLI
        return offset + value_at(stage.values[metric], now) - value_at(stage.values[metric], stage.begin)


class StagedSource(SimulatedSource):
    """A node whose GPUs follow stages."""

    stages: Sequence[Sequence[Stage]] = ()

    def attach(self, index: int, metrics: Sequence[Metric]) -> StagedDevice:
        """Return a GPU at the beginning of its first stage."""
        identity = f"{self.node.name}/{index}"
        gpu: Gpu = self._identify(index, identity)
        faults = [fault for fault in self._faults if fault.hits(self.node.name, index)]
        stages = self.stages[index]
        device = StagedDevice(self.node, gpu, identity, healthy_gpu(stages[0].values), faults, metrics)
        device.follow(stages, identity)
        return device


class Node:
    """One node, its collection loop without a clock thread, and its latest page."""

    def __init__(self, source: StagedSource, interval: float) -> None:
        self.name, self.page = source.node.name, b""
        selection = everything(MetricSet.FULL, host=True)
        self._renderer = Renderer(self.name, source_labels(source), selection)
        settings = CollectionSettings(interval=interval, expected_gpus=GPUS)
        self._collector = Collector(
            source,
            selection.read_rows,
            self._publish,
            settings,
            context=Context(EventLog(load(None), lambda pci: None), telemetry=_telemetry(source)),
        )

    def connect(self) -> None:
        """Open the source; the caller calls `tick`."""
        assert self._collector.connect(), "the source was not opened"

    def tick(self) -> None:
        """Collect once."""
        self._collector.tick()

    def run(self) -> None:
        """Collect at each interval, on a thread."""
        self._collector.start()

    def stop(self) -> None:
        """End the threads."""
        self._collector.stop()

    def _publish(self, snapshot: Snapshot) -> None:
        self.page = self._renderer.render(snapshot).body(Variant(openmetrics=False, gzip=False))


class NodePorts:
    """The faults of the network ports of a node, which its GPUs name. `slow` has since when those of GPUs are slow."""

    def __init__(self, slow: Mapping[int, float], since_start: Callable[[], float]) -> None:
        self._slow, self._since_start = slow, since_start
        self._series: dict[str, Series] = {}

    def start(self) -> None:
        """Do nothing: faults need no thread."""

    def stop(self) -> None:
        """Do nothing."""

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series]) -> Sequence[Sample]:
        """Return the fault of the port of each GPU that has one by now."""
        for gpu in (each.gpu for each in gpus):
            if self._slow.get(gpu.index, math.inf) <= self._since_start():
                labels = (("device", f"mlx5_{gpu.index}"), ("port", "1"), ("fault", "slow"))
                self._series.setdefault(gpu.uuid, Series(m.NIC_FAULT, gpu, labels))
        return tuple(Sample(series, 1.0) for series in self._series.values())


class NodeProfiles:
    """What profiles and traces of the processes of a node show, which are the same on all of its GPUs, but for the
    lines of those that wait for their host."""

    def __init__(self, profiled: Profiled, rank: int, since_start: Callable[[], float]) -> None:
        self._profiled, self._since_start = profiled, since_start
        self._waiting = {each.gpu: each for each in profiled.waiting if each.rank == rank}
        self._series: dict[tuple[Metric, str, str], Series] = {}

    def start(self) -> None:
        """Do nothing: a profile is always there."""

    def stop(self) -> None:
        """Do nothing."""

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series]) -> Sequence[Sample]:
        """Return the shares of causes, and the time of kernels, of which a second a minute is traced."""
        traced = self._since_start() / MINUTE
        found = {each.gpu.uuid: each.gpu for each in gpus}.values()
        return tuple(
            Sample(self._of(metric, gpu, label, name), value * factor)
            for gpu in found
            for metric, label, values, factor in (
                (m.IDLE_CAUSE, "cause", self._profiled.causes, 1.0),
                (m.KERNEL_CLASS, "class", self._profiled.kernels, traced),
            )
            for name, value in values.items()
        ) + tuple(
            Sample(self._of(m.WAITING_LINE, gpu, "line", waits.line, ("cause", waits.cause)), waits.share)
            for gpu in found
            if (waits := self._waiting.get(gpu.index)) and waits.begin <= self._since_start()
        )

    def _of(self, metric: Metric, gpu: Gpu, label: str, name: str, *more: tuple[str, str]) -> Series:
        return self._series.setdefault((metric, gpu.uuid, name), Series(metric, gpu, ((label, name), *more)))


def _telemetry(source: StagedSource) -> Sequence[NodeLoops | NodePorts | NodeProfiles]:
    job, rank = placed()[source.node.name]
    clock = source.node.clock
    loop, profiled = LOOPS.get(job.name), PROFILES.get(job.name)
    loops = [NodeLoops(job.name, loop, rank * GPUS, clock)] if loop else []
    profiles = [NodeProfiles(profiled, rank, clock)] if profiled else []
    slow = {
        fault.gpu: fault.begin
        for fault in FAULTS
        if fault.mode == "GpuNicSlowLink" and (fault.job, fault.rank) == (job.name, rank) and fault.gpu is not None
    }
    return (*loops, *profiles, NodePorts(slow, clock))


class Clock:
    """The time since the start of the fleet, replacing that of Python."""

    def __init__(self) -> None:
        self.now = 0.0
        self._begin = time.monotonic()

    def monotonic(self) -> float:
        """Return seconds, as `time.monotonic`."""
        return self._begin + self.now

    def unix(self) -> float:
        """Return seconds since 1970, as `time.time`."""
        return START + self.now

    def since_start(self) -> float:
        """Return seconds since the start of the fleet."""
        return self.now


@contextmanager
def started(clock: Clock, interval: float) -> Iterator[Sequence[Node]]:
    """Start the nodes; until the end, Python's time is that of `clock`."""
    recorded = workloads(sorted(PACKAGED.glob("*.jsonl.gz")))
    with patch.object(time, "time", clock.unix), patch.object(time, "monotonic", clock.monotonic):
        nodes = [Node(source, interval) for source in _sources(recorded, clock.since_start)]
        try:
            for node in nodes:
                node.connect()
            yield nodes
        finally:
            for node in nodes:
                node.stop()


@contextmanager
def serving(interval: float) -> Iterator[int]:
    """Serve the fleet in real time from shortly before its last fault; yield the port.

    The paths are `/node-000` and so on, `/kube` for kube-state-metrics, and `/server` for the inference server.
    """
    recorded, begin, unix = workloads(sorted(PACKAGED.glob("*.jsonl.gz"))), time.monotonic(), time.time()
    first = max(fault.begin for fault in FAULTS) - script.SEEN_SECONDS / 2
    sources = _sources(recorded, lambda: first + time.monotonic() - begin)
    nodes = {source.node.name: Node(source, interval) for source in sources}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if node := nodes.get(self.path[1:]):
                body = node.page
            elif self.path == "/server":
                body = server_page(LENGTH + time.monotonic() - begin).encode()
            else:
                body = kube_page(LENGTH, unix - LENGTH).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for node in nodes.values():
                node.run()
            yield server.server_port
        finally:
            server.shutdown()
            for node in nodes.values():
                node.stop()


def _sources(recorded: Workloads, since_start: Callable[[], float]) -> Iterator[StagedSource]:
    lock = Lock()
    for name, (job, rank) in placed().items():
        schedule = JobSchedule(name, recorded, nodes=1, gpus=GPUS)
        node = SimulatedNode(
            name, GPUS, 1, recorded, schedule, schedule, schedule, (), since_start, lambda seconds: None
        )
        place = PodPlace((_pod(job, rank),), trains=True)
        source = StagedSource(node, [place] * GPUS, list(_lost(name, job, rank)), lock)
        source.stages = [_stages(job, rank, gpu) for gpu in range(GPUS)]
        yield source


def _pod(job: Job, rank: int) -> Owner:
    pod = f"{job.name}-{rank}"
    return Owner(job.team, pod, "main", str(uuid5(NAMESPACE_DNS, pod)), job.name, str(rank))


def _lost(name: str, job: Job, rank: int) -> Iterator[ScriptedFault]:
    for fault in FAULTS:
        if fault.job == job.name and fault.rank == rank and BY_NAME[fault.mode].inject.fault == script.LOST:
            yield ScriptedFault(script.LOST, name, str(fault.gpu), fault.begin, math.inf)


def _stages(job: Job, rank: int, gpu: int) -> Sequence[Stage]:
    stages = [Stage(0.0, {**profiles.HEALTHY, **job.load})]
    for fault in FAULTS:
        if fault.job == job.name:
            inject = BY_NAME[fault.mode].inject
            hit = fault.gpu is None or (fault.rank, fault.gpu) == (rank, gpu)
            changes = {**inject.values, **fault.causes} if hit else inject.peers
            if changes:
                stages.append(Stage(fault.begin, {**stages[-1].values, **changes}))
    return stages
