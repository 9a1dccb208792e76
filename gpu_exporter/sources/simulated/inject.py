"""`--inject GpuMemoryBound:node-001/3` -> what the GPUs of a node have instead of a schedule, for ever.

The values are those of the failure mode's own entry, on top of a healthy GPU, so that a simulated GPU has what the
catalogue says a sick one has.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Ramp, Scope, Values, Wave
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.inputs import nearest
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Kind, Metric
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.faults import Fault

DOWN = "down"
# Ticks are not in step with what swings: by the golden ratio, no sampling period falls into step with it.
GOLDEN = (1 + math.sqrt(5)) / 2

Value = float | Ramp | Wave


@dataclass(frozen=True, slots=True)
class Injected:
    """What one GPU has: values by metric, rows that it can't answer, Xids that come again and again."""

    values: Values
    absent: tuple[Metric, ...] = ()
    xids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def restart(self) -> float:
        """Seconds after which what grows begins again: a job ends whose gauge leaves what is possible."""
        return min((_until_bound(metric, value) for metric, value in self.values.items()), default=math.inf)


class Plan(NamedTuple):
    """By node its GPUs by index, what goes wrong that no value shows, and the nodes whose exporter dies."""

    gpus: Mapping[str, Mapping[int, Injected]]
    faults: tuple[Fault, ...]
    dead: frozenset[str]


def plan(text: str, nodes: Sequence[str], gpus: int, modes: Sequence[FailureMode] = MODES) -> Plan:
    """What `--inject` asks of these nodes. Raises GpuExporterError naming the bad part and the cure."""
    known = {mode.name: mode for mode in modes}
    asked: dict[str, list[tuple[int, FailureMode]]] = defaultdict(list)
    for part in re.split(r"[\s,;]+", text):
        if part:
            try:
                mode, node, gpu = _place(part, known, nodes, gpus)
            except ValueError as error:
                raise GpuExporterError(f"--inject {part}: {error}") from error
            asked[node].append((gpu, mode))
    faults = tuple(
        Fault(mode.inject.fault, node, str(gpu), script.SEEN_SECONDS, math.inf)
        for node, wanted in asked.items()
        for gpu, mode in wanted
        if mode.inject.fault in script.KINDS
    )
    dead = frozenset(node for node, wanted in asked.items() if any(mode.inject.fault == DOWN for _, mode in wanted))
    return Plan({node: _node(wanted, gpus) for node, wanted in asked.items()}, faults, dead)


def _place(
    part: str, known: Mapping[str, FailureMode], nodes: Sequence[str], gpus: int
) -> tuple[FailureMode, str, int]:
    name, _, where = part.partition(":")
    if name not in known:
        raise ValueError(
            f"there is no failure mode {name!r}{nearest(name, known) or '; docs/failure-modes.md has all'}"
        )
    if known[name].requires:
        raise ValueError(f"it shows in what {known[name].requires} says of a cluster, which is not simulated")
    node, slash, gpu = where.rpartition("/")
    if not slash and not where.isdecimal():
        node, gpu = where, ""
    node, gpu = node or nodes[0], gpu or "0"
    script.check(node, gpu, nodes, gpus)
    if known[name].scope is Scope.JOB and gpus == 1:
        raise ValueError("it takes ranks that work together; use --gpus 2 or more")
    return known[name], node, int(gpu)


def _node(wanted: Collection[tuple[int, FailureMode]], gpus: int) -> Mapping[int, Injected]:
    """All GPUs of a node: those that were asked for, the others as the peers of the first mode that has some."""
    peers = next((mode.inject.peers for _, mode in wanted if mode.inject.peers), {})
    found = dict.fromkeys(range(gpus), healthy(peers))
    for gpu in dict(wanted):
        mine = [mode for index, mode in wanted if index == gpu]
        values: dict[Metric, Value] = {}
        for mode in mine:
            values.update(mode.inject.values)
        found[gpu] = replace(
            healthy(values),
            absent=tuple(metric for mode in mine for metric in mode.inject.absent),
            xids=tuple(mode.inject.xid for mode in mine if mode.inject.xid is not None),
            names=tuple(mode.name for mode in mine),
        )
    return found


def healthy(more: Values) -> Injected:
    """A GPU without a failure mode, whose values are these."""
    return Injected(_whole({**HEALTHY, **more}))


def _whole(values: Mapping[Metric, Value]) -> Values:
    """With memory that adds up."""
    usable = at(values[m.FB_TOTAL], 0) - at(values[m.FB_RESERVED], 0)
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


def at(value: Value, t: float) -> float:
    """The value `t` seconds after the start."""
    match value:
        case Ramp(start, per_second):
            return start + per_second * t
        case Wave(low, high, seconds):
            return high if int(t * GOLDEN / seconds) % 2 else low
    return value


def mean(value: Value, begin: float, end: float) -> float:
    """The mean value from `begin` to `end`, which is later."""
    match value:
        case Ramp():
            return at(value, (begin + end) / 2)
        case Wave():
            return (_area(value, end) - _area(value, begin)) / (end - begin)
    return value


def _area(wave: Wave, t: float) -> float:
    half = wave.seconds / GOLDEN
    turns, rest = divmod(t, 2 * half)
    return turns * half * (wave.low + wave.high) + wave.low * min(rest, half) + wave.high * max(0.0, rest - half)


def rows(injected: Injected, metrics: Sequence[Metric]) -> Iterator[tuple[Metric, Metric]]:
    """Each metric that the GPU answers, and the one whose value it is made of: in another unit, or a bit of it."""
    by_field = {metric.nvml: metric for metric in (*injected.values, m.ENERGY) if metric.bit is None}
    for metric in metrics:
        origin = metric if metric in injected.values else by_field.get(metric.nvml)
        if origin is not None and metric not in injected.absent:
            yield metric, origin
