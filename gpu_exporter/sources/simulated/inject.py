"""`--inject GpuMemoryBound:node-001/3`: values that the GPUs of a node have instead of those of a schedule.

They are the values of the failure mode's entry in the catalogue, with counters and energy to match; all other values
are those of a healthy GPU.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_exporter.catalogue import faults as known_faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Ramp, Scope, Values, Wave
from gpu_exporter.catalogue.failure_modes.network import OF_FAULTS
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.io.user_text import nearest
from gpu_exporter.model.errors import WrongUsage
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent
from gpu_exporter.model.metric import Gpm, Kind, Metric, MetricSet, Pace
from gpu_exporter.model.source import Device
from gpu_exporter.sources.integrals import integrate
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.device import apply_faults, as_buffered
from gpu_exporter.sources.simulated.faults import ScriptedFault
from gpu_exporter.sources.simulated.schedule import SimulatedNode
from gpu_exporter.sources.simulated.workload import Workloads

DOWN = "down"
# Because of the golden ratio, no sampling period is in step with a wave.
GOLDEN = (1 + math.sqrt(5)) / 2

Value = float | Ramp | Wave


@dataclass(frozen=True, slots=True)
class Injected:
    """The values of one GPU by metric, the metrics that it does not support, and its repeated XIDs."""

    values: Values
    absent: tuple[Metric, ...] = ()
    xids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def restart(self) -> float:
        """Seconds after which a growing gauge starts again, because it would leave its range."""
        return min((_until_bound(metric, value) for metric, value in self.values.items()), default=math.inf)


class NodeInjection(NamedTuple):
    """The GPUs of one node by index, those with their own job, faults, and whether the exporter stops answering."""

    gpus: Mapping[int, Injected]
    alone: Collection[int]
    faults: tuple[ScriptedFault, ...]
    dead: bool


def injections(text: str, nodes: Sequence[str], gpus: int) -> Mapping[str, NodeInjection]:
    """Return what `--inject` changes, by node. Raises GpuExporterError, with the faulty part and the fix."""
    by_name = {mode.name: mode for mode in MODES}
    wanted: dict[str, list[tuple[int, FailureMode]]] = defaultdict(list)
    for part in re.split(r"[\s,;]+", text):
        if part:
            try:
                mode, node, gpu = _place(part, by_name, nodes, gpus)
            except ValueError as error:
                raise WrongUsage(f"--inject {part}: {error}") from error
            wanted[node].append((gpu, mode))
    return {node: _injection(node, of_node, gpus) for node, of_node in wanted.items()}


def _injection(node: str, wanted: Collection[tuple[int, FailureMode]], gpus: int) -> NodeInjection:
    faults = tuple(
        ScriptedFault(mode.inject.fault, node, str(gpu), script.SEEN_SECONDS, math.inf)
        for gpu, mode in wanted
        if mode.inject.fault in script.KINDS
    )
    alone = {gpu for gpu, mode in wanted if mode.inject.alone}
    return NodeInjection(_gpus(wanted, gpus), alone, faults, any(mode.inject.fault == DOWN for _, mode in wanted))


def _place(
    part: str, by_name: Mapping[str, FailureMode], nodes: Sequence[str], gpus: int
) -> tuple[FailureMode, str, int]:
    name, _, where = part.partition(":")
    if name not in by_name:
        raise ValueError(
            f"there is no failure mode {name!r}{nearest(name, by_name) or '; docs/failure-modes.md lists them'}"
        )
    if by_name[name].requires:
        raise ValueError(f"it needs metrics of {by_name[name].requires}, which are not simulated")
    node, slash, gpu = where.rpartition("/")
    if not slash and not where.isdecimal():
        node, gpu = where, ""
    node, gpu = node or nodes[0], gpu or "0"
    script.check(node, gpu, nodes, gpus)
    if by_name[name].scope is Scope.JOB and gpus == 1:
        raise ValueError("it needs a job of several ranks; use --gpus 2 or more")
    return by_name[name], node, int(gpu)


def _gpus(wanted: Collection[tuple[int, FailureMode]], gpus: int) -> Mapping[int, Injected]:
    """Return all GPUs of a node. Those without a mode are the peers of the first mode that has peers."""
    peers = next((mode.inject.peers for _, mode in wanted if mode.inject.peers), {})
    by_index = dict.fromkeys(range(gpus), healthy_gpu(peers))
    for gpu in dict(wanted):
        modes = [mode for index, mode in wanted if index == gpu]
        values: dict[Metric, Value] = {}
        for mode in modes:
            values.update(mode.inject.values)
        by_index[gpu] = replace(
            healthy_gpu(values),
            absent=tuple(metric for mode in modes for metric in mode.inject.absent),
            xids=tuple(mode.inject.xid for mode in modes if mode.inject.xid is not None),
            names=tuple(mode.name for mode in modes),
        )
    return by_index


def healthy_gpu(changes: Values) -> Injected:
    """Return a GPU without a failure mode, with these changes to its values."""
    return Injected(_with_consistent_memory({**HEALTHY, **changes}))


def _with_consistent_memory(values: Mapping[Metric, Value]) -> Values:
    """Return the values with free memory and the memory ratio derived from used memory."""
    usable = value_at(values[m.FB_TOTAL], 0) - value_at(values[m.FB_RESERVED], 0)
    used = values[m.FB_USED]
    return {**values, m.FB_FREE: _line(used, -1, usable), m.FB_USED_RATIO: _line(used, 1 / usable, 0)}


def _line(value: Value, factor: float, offset: float) -> Value:
    match value:
        case Ramp(start, per_second):
            return Ramp(start * factor + offset, per_second * factor)
        case Wave(low, high, seconds):
            return Wave(low * factor + offset, high * factor + offset, seconds)
    return value * factor + offset


def _until_bound(metric: Metric, value: Value) -> float:
    if not isinstance(value, Ramp) or metric.kind is Kind.COUNTER or not value.per_second:
        return math.inf
    bound = metric.high if value.per_second > 0 else metric.low
    return (bound - value.start) / value.per_second


def value_at(value: Value, t: float) -> float:
    """Return the value `t` seconds after the start."""
    match value:
        case Ramp(start, per_second):
            return start + per_second * t
        case Wave(low, high, seconds):
            return high if int(t * GOLDEN / seconds) % 2 else low
    return value


def mean(value: Value, begin: float, end: float) -> float:
    """Return the mean value from `begin` to `end`, which is later."""
    match value:
        case Ramp():
            return value_at(value, (begin + end) / 2)
        case Wave(low, high):  # a difference of areas is off by a rounding error
            low, high = sorted((low, high))
            return min(max((_area(value, end) - _area(value, begin)) / (end - begin), low), high)
    return value


def _area(wave: Wave, t: float) -> float:
    half = wave.seconds / GOLDEN
    periods, rest = divmod(t, 2 * half)
    return periods * half * (wave.low + wave.high) + wave.low * min(rest, half) + wave.high * max(0.0, rest - half)


def rows(injected: Injected, metrics: Sequence[Metric]) -> Iterator[tuple[Metric, Metric]]:
    """Yield each metric that the GPU has, and the metric that it is computed from: another unit of it, or a bit."""
    fields = (metric for metric in (*injected.values, m.ENERGY) if metric.nvml and metric.bit is None)
    by_field: dict[object, Metric] = {metric.nvml: metric for metric in fields}
    for metric in metrics:
        origin = metric if metric in injected.values else by_field.get(metric.nvml)
        if origin is not None and metric not in injected.absent:
            yield metric, origin


log = logging.getLogger(__name__)

XID_SECONDS = 60.0
HEALTHY_LINK = known_faults.pcie_capacity(5, 16)
DIGITS = 6


class InjectedDevice(Device):
    """One GPU. A value that its failure mode does not set is that of a healthy GPU, or of the recorded idle GPU."""

    def __init__(
        self,
        node: SimulatedNode,
        gpu: Gpu,
        identity: str,
        injected: Injected,
        faults: Sequence[ScriptedFault],
        metrics: Sequence[Metric],
    ) -> None:
        self.gpu = gpu
        self.xids_since = time.time()
        self.pcie_port = HEALTHY_LINK
        self._node = node
        self._identity = identity
        self._faults = faults
        self._injected = injected
        self._restart = injected.restart
        self._last: float | None = None
        self._totals: dict[Series, float] = {}
        self._xids_at = -XID_SECONDS
        apply_faults(node, gpu, identity, faults)
        self._idle = _idle(node.workloads, metrics)
        self._rows: dict[Pace, list[tuple[Series, Metric]]] = defaultdict(list)
        # As on a node with network cards, which are read whatever metrics are selected.
        further = (row for row in injected.values if row.peak_of or row.set is MetricSet.NIC)
        metrics = tuple(dict.fromkeys((*metrics, *further)))
        answered = dict(rows(injected, metrics))
        for metric in metrics:
            read = m.GAUGES_OF_SAMPLES.get(metric, metric)
            origin = answered.get(read, read if read in self._idle else None)
            if origin is not None and not {metric, read} & set(injected.absent):
                pace = m.POWER.pace if origin is m.ENERGY else metric.pace
                self._rows[pace].append((Series(metric, gpu), origin))
        present = {series.metric for rows_of_pace in self._rows.values() for series, _ in rows_of_pace}
        self._ports = dict.fromkeys(_ports(gpu, injected), 1.0)
        # As if the hardware lacked all other metrics.
        self._unsupported = dict.fromkeys((metric for metric in metrics if metric not in present), "not_supported")
        _warn(injected, metrics)

    def events(self) -> Sequence[XidEvent]:
        """Return the injected XIDs, once a minute."""
        now = self._node.clock()
        if not self._injected.xids or now - self._xids_at < XID_SECONDS:
            return ()
        self._xids_at = now
        return [XidEvent(time.time(), self.gpu.pci_bus_id, code) for code in self._injected.xids]

    def read(self, paces: frozenset[Pace]) -> Reading:
        """Return the values of these paces. Profiling values begin with the second read."""
        now = apply_faults(self._node, self.gpu, self._identity, self._faults)
        before, self._last = self._last, now
        values: dict[Series, float] = {}
        for pace in paces:
            for series, origin in self._rows.get(pace, ()):
                if series.metric.integrates_samples:
                    value = self._mean(origin, before, now)
                else:
                    value = self._value(origin, before, now)
                if value is not None:
                    values[series] = _converted(series.metric, origin, value)
        span = None if before is None else now - before
        if m.NIC_INFO.pace in paces:
            values |= self._ports
        integrate(values, self._totals, span)
        buffered = as_buffered(values, now)
        return Reading(time.monotonic(), values, span, unsupported=self._unsupported, buffered=buffered)

    def _value(self, origin: Metric, before: float | None, now: float) -> float | None:
        if origin is m.ENERGY:
            power, loaded = self._injected.values[m.POWER], self._node.loaded_at(now)
            return round(mean(power, loaded, now) * (now - loaded) / m.MILLI) if now > loaded else 0.0
        if isinstance(origin.nvml, Gpm):
            return self._mean(origin, before, now)
        value = self._level(origin)
        if origin is m.POWER:
            return mean(value, now - 1.0, now)
        if origin.kind is Kind.COUNTER:
            return value_at(value, now) if origin.unit == "seconds" else float(int(value_at(value, now)))
        return value_at(value, now % self._restart)

    def _mean(self, origin: Metric, before: float | None, now: float) -> float | None:
        return mean(self._level(origin), before, now) if before is not None and before < now else None

    def _level(self, origin: Metric) -> Value:
        return self._injected.values[origin] if origin in self._injected.values else self._idle[origin]


def _converted(metric: Metric, origin: Metric, value: float) -> float:
    if metric.bit is not None and origin.bit is None:
        return float((int(value) >> metric.bit) & 1)
    return round(value * metric.scale / origin.scale, DIGITS)


def _ports(gpu: Gpu, injected: Injected) -> Iterator[Series]:
    """Yield what names the network port of a GPU if a mode is about it, and its fault."""
    if not any(row.set is MetricSet.NIC for row in injected.values):
        return
    port = (("device", f"mlx5_{gpu.index}"), ("port", "1"))
    # The only distance that is injected is the largest one.
    yield Series(m.NIC_INFO, gpu, (*port, ("distance", "SYS" if m.NIC_DISTANCE in injected.values else "PIX")))
    for fault, name in OF_FAULTS.items():
        if name in injected.names:
            yield Series(m.NIC_FAULT, gpu, (*port, ("fault", fault)))


def _idle(workloads: Workloads, metrics: Sequence[Metric]) -> dict[Metric, float]:
    """Return the recorded values of an idle GPU: above all limits, modes and totals. A counter has no such value."""
    rows, values = workloads.rows, workloads.idle.mid
    return {
        metric: round(values[rows[metric.key]], 0 if metric.key in workloads.whole else DIGITS)
        for metric in metrics
        if metric.key in rows and metric.kind is not Kind.COUNTER
    }


def _warn(injected: Injected, metrics: Sequence[Metric]) -> None:
    """Warn of modes that none of these metrics shows, with the option that they need."""
    before = healthy_gpu({}).values
    changed = {metric for metric, value in injected.values.items() if before.get(metric) != value}
    if injected.names and changed and not changed & set(metrics):
        options = {"--host-evidence" if row.set is MetricSet.HOST else "--metrics full" for row in changed}
        log.warning("--inject %s: its values need %s", ", ".join(injected.names), " and ".join(sorted(options)))
