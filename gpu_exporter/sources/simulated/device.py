"""One simulated GPU: its present values by its schedule, its variation and its scripted faults."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import count
from math import exp
from random import Random
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent
from gpu_exporter.model.metric import Gpm, Kind, Metric, Pace
from gpu_exporter.model.source import Device
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.faults import ScriptedFault
from gpu_exporter.sources.simulated.schedule import GpuVariation, JobSchedule, SegmentPart, SimulatedNode
from gpu_exporter.sources.simulated.workload import SimulatedActivity

# Each GPU has one XID in each of these periods, at a random time. Those of real GPUs are rarer.
PERIOD_SECONDS = 12 * 3600.0
# Not within the time that `diagnose` watches by default.
FIRST_SECONDS = 30.0
# Illegal memory accesses are more frequent than other exceptions in kernels.
CODES = (31, 31, 31, 13)


class SimulatedXid(NamedTuple):
    """An XID, `at` seconds after the start."""

    at: float
    code: int


def upcoming_xids(identity: str, schedule: JobSchedule, after: float, *, early: bool) -> Iterator[SimulatedXid]:
    """Yield the XIDs of a GPU later than `after`, in order. They occur while a job runs; without jobs, the first is
    infinitely far away. With `early`, the first is soon after the start.
    """
    for period in count(int(after // PERIOD_SECONDS)):
        rng = Random(f"{identity}/xid/{period}")
        begin = FIRST_SECONDS if early and not period else (period + rng.random()) * PERIOD_SECONDS
        at = schedule.running_from(begin)
        if at > after:
            yield SimulatedXid(at, rng.choice(CODES))


# Some systems cannot sleep much longer at a time.
LONGEST_SLEEP = 3600.0
NOT_SIMULATED = "not_simulated"
# The time constant of a temperature, and the number of time constants after which the past has no effect.
THERMAL_SECONDS, THERMAL_MEMORY = 10.0, 8.0
# A slow read takes longer than two default intervals, so that it shows as stuck.
SLOW_SECONDS, SLOW_SHARE = 2.5, 0.3

# The resolution of NVML.
DIGITS = {"watts": 3}


class Averaging(Enum):
    """The period that a value covers."""

    SPAN = "the mean since the last read"
    SECOND = "the mean of the last second"
    NOW = "this instant"
    THERMAL = "the temperature that the recent activity leads to"
    INTEGRAL = "the integral since the driver was loaded"
    JOULES = "the integral of power since the driver was loaded"


class Contribution(NamedTuple):
    """One part of a weighted mean: its weight, the activity, and the position of the GPU in its swing."""

    weight: float
    activity: SimulatedActivity
    swing: float


class Recipe(NamedTuple):
    """A series, and how its value is computed from a row of the workloads."""

    series: Series
    row: int
    digits: int
    scale: float
    bit: int | None


class SimulatedDevice(Device):
    """One GPU of a node, with its jobs and its XIDs, in order."""

    def __init__(
        self,
        node: SimulatedNode,
        gpu: Gpu,
        identity: str,
        faults: Sequence[ScriptedFault],
        metrics: Sequence[Metric],
        schedule: JobSchedule,
        xids: Iterator[SimulatedXid],
    ) -> None:
        self.gpu = gpu
        self.xids_since = time.time()
        self._node = node
        self._identity = identity
        self._faults = faults
        self._schedule = schedule
        self._xids, self._next_xid = xids, next(xids)
        self._variation = GpuVariation(identity)
        self._last: float | None = None
        self._unsupported: dict[Metric, str] = {}
        self._recipes: dict[Pace, dict[Averaging, list[Recipe]]] = defaultdict(lambda: defaultdict(list))
        apply_faults(node, gpu, identity, faults)
        workloads = node.workloads
        fields = (metric for metric in metrics if metric.nvml and metric.bit is None)
        by_field: dict[object, Metric] = {metric.nvml: metric for metric in fields if metric.key in workloads.rows}
        for metric in metrics:
            origin = metric if metric.key in workloads.rows else by_field.get(metric.nvml)
            gauge = m.GAUGES_OF_SAMPLES.get(metric)
            if gauge is not None and gauge.key in workloads.rows:
                origin = gauge
            how = Averaging.INTEGRAL if metric.integrates_samples else None if origin is None else _averaging(origin)
            if metric.entity in m.NON_GPU_ENTITIES:
                continue
            if origin is None or how is None:
                self._unsupported[metric] = NOT_SIMULATED
                continue
            digits = 0 if origin.key in workloads.whole else DIGITS.get(origin.unit, 6)
            recipe = Recipe(
                Series(metric, gpu), workloads.rows[origin.key], digits, metric.scale / origin.scale, metric.bit
            )
            # A real driver's energy rises with the power between its reads, which cost much; these cost nothing.
            pace = m.POWER.pace if how is Averaging.JOULES else metric.pace
            self._recipes[pace][how].append(recipe)

    def events(self) -> Sequence[XidEvent]:
        """Return the XIDs since the last call."""
        now, events = self._node.clock(), list[XidEvent]()
        while self._next_xid.at <= now:
            events.append(XidEvent(time.time(), self.gpu.pci_bus_id, self._next_xid.code))
            self._next_xid = next(self._xids)
        return events

    def read(self, paces: frozenset[Pace]) -> Reading:
        """Return the values of these paces. Profiling values begin with the second read."""
        now = apply_faults(self._node, self.gpu, self._identity, self._faults)
        before, self._last = self._last, now
        values: dict[Series, float] = {}
        contributions: dict[Averaging, list[Contribution]] = {}
        for pace in paces:
            for how, recipes in self._recipes.get(pace, {}).items():
                if how is Averaging.INTEGRAL:
                    totals = ((each, self._integral(each.row, now) * each.scale) for each in recipes)
                    values.update((each.series, round(total, 6)) for each, total in totals)
                    continue
                if how is Averaging.JOULES:
                    joules = self._integral(self._node.workloads.rows[m.POWER.key], now)
                    values.update((recipe.series, round(joules / m.MILLI) * recipe.scale) for recipe in recipes)
                    continue
                if how not in contributions:
                    contributions[how] = self._contributions(how, before, now)
                values.update(_values(recipes, contributions[how]))
        span = None if before is None else now - before
        buffered = as_buffered(values, now)
        return Reading(time.monotonic(), values, span, unsupported=self._unsupported, buffered=buffered)

    def _integral(self, row: int, now: float) -> float:
        """Return the integral of a row since the driver was loaded."""
        schedule, loaded = self._schedule, self._node.loaded_at(now)
        return schedule.integral(row, now, self._variation) - schedule.integral(row, loaded, self._variation)

    def _contributions(self, how: Averaging, before: float | None, now: float) -> list[Contribution]:
        schedule = self._schedule
        if how is Averaging.NOW:
            return [self._contribution(1.0, schedule.part_at(now))]
        if how is Averaging.THERMAL:
            return self._heat(now)
        begin = now - 1.0 if how is Averaging.SECOND else before
        if begin is None or begin >= now:
            return []
        span = now - begin
        return [self._contribution((part.end - part.begin) / span, part) for part in schedule.parts(begin, now)]

    def _contribution(self, weight: float, part: SegmentPart) -> Contribution:
        return Contribution(weight, part.segment.activity, self._variation.swing(part))

    def _heat(self, now: float) -> list[Contribution]:
        """Return the parts of a first-order lag: the weight of each is the share of its heat that is left."""
        left = THERMAL_SECONDS * THERMAL_MEMORY
        all_heat, heat, contributions = 1 - exp(-THERMAL_MEMORY), exp(-THERMAL_MEMORY), list[Contribution]()
        for part in self._schedule.parts(now - left, now):
            left = max(0.0, left - (part.end - part.begin))
            before, heat = heat, exp(-left / THERMAL_SECONDS)
            weight = (heat - before) / all_heat
            contributions.append(Contribution(weight, part.segment.activity, self._variation.bias))
        return contributions


def as_buffered(values: dict[Series, float], now: float) -> dict[Series, list[tuple[float, float]]]:
    """Move the histograms of what a driver buffers out of `values`: here each read has one sample, of this instant."""
    buffered = [series for series in values if series.metric.kind is Kind.HISTOGRAM]
    return {series: [(now, values.pop(series))] for series in buffered}


def apply_faults(node: SimulatedNode, gpu: Gpu, identity: str, faults: Sequence[ScriptedFault]) -> float:
    """Wait or fail as the present faults require; return the time after that. Raises GpuLost or SourceLost."""
    now = node.now()
    while (end := script.last_end(faults, script.WEDGED, now)) > now:
        node.sleep(min(end - now, LONGEST_SLEEP))
        now = node.now()
    if script.last_end(faults, script.LOST, now) > now:
        raise GpuLost(f"GPU {gpu.index} of {node.name} is lost, as --faults or --inject says")
    if script.last_end(faults, script.SLOW, now) > now:
        if Random(f"{identity}/{int(now)}").random() < SLOW_SHARE:
            node.sleep(SLOW_SECONDS)
        now = node.now()
    return now


def _averaging(metric: Metric) -> Averaging | None:
    """Return the period that the value of a recorded metric covers; None for counters, which have no level."""
    if metric is m.ENERGY:
        return Averaging.JOULES
    if metric.kind is Kind.COUNTER:
        return None
    if isinstance(metric.nvml, Gpm) or metric.unit == "percent":
        return Averaging.SPAN
    if metric.unit == "celsius":
        return Averaging.THERMAL
    return Averaging.SECOND if metric is m.POWER else Averaging.NOW


def _values(recipes: Sequence[Recipe], contributions: Sequence[Contribution]) -> Iterable[tuple[Series, float]]:
    for series, row, digits, scale, bit in recipes if contributions else ():
        value = sum(
            weight * (activity.mid[row] + activity.swing[row] * swing) for weight, activity, swing in contributions
        )
        value = round(value, digits)
        if bit is not None:
            value = float((int(value) >> bit) & 1)
        yield series, value if scale == 1.0 else value * scale
