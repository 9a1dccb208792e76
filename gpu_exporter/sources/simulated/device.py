"""One simulated GPU -> readings: its schedule, its temper and the faults of its script, as values of now."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum
from math import exp
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent
from gpu_exporter.model.metric import Buffered, Gpm, Kind, Metric, Pace
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.faults import Fault
from gpu_exporter.sources.simulated.schedule import Part, Temper
from gpu_exporter.sources.simulated.workload import Activity

if TYPE_CHECKING:
    from gpu_exporter.sources.simulated.source import SimulatedSource

# More than some systems can sleep at a time.
LONGEST_SLEEP = 3600.0
NOT_SIMULATED = "not_simulated"
# How slowly a temperature follows, and after how many times that long the past is forgotten.
THERMAL_SECONDS, THERMAL_MEMORY = 10.0, 8.0
# A slow read takes longer than two ticks of the default interval, so that it is seen to be stuck.
SLOW_SECONDS, SLOW_SHARE = 2.5, 0.3

# What NVML resolves: more digits would be noise.
DIGITS = {"watts": 3}


class How(Enum):
    """Over which time a value is taken."""

    SPAN = "the mean since the read before"
    SECOND = "the mean of the last second"
    NOW = "this instant"
    THERMAL = "what heat has come to lately"
    JOULES = "the integral of power since the driver was loaded"


class Share(NamedTuple):
    """A part of what a value is the mean of: its weight, what went on, and where in its swing the GPU was."""

    weight: float
    activity: Activity
    swing: float


class Row(NamedTuple):
    """A series and how its value is made."""

    series: Series
    row: int
    digits: int
    scale: float
    bit: int | None


class SimulatedDevice:
    """One GPU of a node."""

    def __init__(
        self, source: SimulatedSource, gpu: Gpu, identity: str, faults: Sequence[Fault], metrics: Sequence[Metric]
    ) -> None:
        self.gpu = gpu
        self.xids_since: float | None = None
        self._source = source
        self._identity = identity
        self._faults = faults
        self._temper = Temper(identity)
        self._last: float | None = None
        self._unsupported: dict[Metric, str] = {}
        self._rows: dict[Pace, dict[How, list[Row]]] = defaultdict(lambda: defaultdict(list))
        meet_faults(source, gpu, identity, faults)
        known = source.workloads
        by_field = {metric.nvml: metric for metric in metrics if metric.key in known.rows and metric.bit is None}
        for metric in metrics:
            origin = metric if metric.key in known.rows else by_field.get(metric.nvml)
            if metric is m.POWER_SAMPLES and m.POWER_INSTANT.key in known.rows:
                origin = m.POWER_INSTANT
            how = None if origin is None else _how(origin)
            if metric.entity in m.NON_GPU_ENTITIES:
                continue
            if origin is None or how is None:
                self._unsupported[metric] = NOT_SIMULATED
                continue
            digits = 0 if origin.key in known.whole else DIGITS.get(origin.unit, 6)
            row = Row(Series(metric, gpu), known.rows[origin.key], digits, metric.scale / origin.scale, metric.bit)
            self._rows[metric.pace][how].append(row)

    def events(self) -> Sequence[XidEvent]:
        """Nothing is simulated that a kernel would log."""
        return ()

    def read(self, paces: frozenset[Pace]) -> Reading:
        """Values of these paces; profiling ones from the second read on."""
        source = self._source
        now = meet_faults(source, self.gpu, self._identity, self._faults)
        before, self._last = self._last, now
        values: dict[Series, float] = {}
        shares: dict[How, list[Share]] = {}
        for pace in paces:
            for how, rows in self._rows.get(pace, {}).items():
                if how is How.JOULES:
                    joules = self._joules(now)
                    values.update((row.series, round(joules / m.MILLI) * row.scale) for row in rows)
                    continue
                if how not in shares:
                    shares[how] = self._shares(how, before, now)
                values.update(_values(rows, shares[how]))
        span = None if before is None else now - before
        buffered = as_buffered(values, now)
        return Reading(time.monotonic(), values, span, unsupported=self._unsupported, buffered=buffered)

    def _joules(self, now: float) -> float:
        schedule, loaded = self._source.schedule, self._source.loaded(now)
        return schedule.joules(now, self._temper) - schedule.joules(loaded, self._temper)

    def _shares(self, how: How, before: float | None, now: float) -> list[Share]:
        schedule = self._source.schedule
        if how is How.NOW:
            return [self._share(1.0, schedule.at(now))]
        if how is How.THERMAL:
            return self._heat(now)
        begin = now - 1.0 if how is How.SECOND else before
        if begin is None or begin >= now:
            return []
        return [self._share((part.end - part.begin) / (now - begin), part) for part in schedule.between(begin, now)]

    def _share(self, weight: float, part: Part) -> Share:
        return Share(weight, part.segment.activity, self._temper.swing(part))

    def _heat(self, now: float) -> list[Share]:
        """A first-order lag: each part counts by how much of its heat is left."""
        left = THERMAL_SECONDS * THERMAL_MEMORY
        all_heat, heat, shares = 1 - exp(-THERMAL_MEMORY), exp(-THERMAL_MEMORY), []
        for part in self._source.schedule.between(now - left, now):
            left = max(0.0, left - (part.end - part.begin))
            before, heat = heat, exp(-left / THERMAL_SECONDS)
            shares.append(Share((heat - before) / all_heat, part.segment.activity, self._temper.bias))
        return shares

    def close(self) -> None:
        """Nothing to give back."""


def as_buffered(values: dict[Series, float], now: float) -> dict[Series, list[tuple[float, float]]]:
    """Take out of `values` what the driver would buffer: here one sample a read, of this instant."""
    found = [series for series in values if isinstance(series.metric.nvml, Buffered)]
    return {series: [(now, values.pop(series))] for series in found}


def meet_faults(source: SimulatedSource, gpu: Gpu, identity: str, faults: Sequence[Fault]) -> float:
    """Go through what the script has for now; return what time it is then. Raises GpuLost or SourceLost."""
    now = source.now()
    while (end := script.last_end(faults, script.WEDGED, now)) > now:
        source.sleep(min(end - now, LONGEST_SLEEP))
        now = source.now()
    if script.last_end(faults, script.LOST, now) > now:
        raise GpuLost(f"GPU {gpu.index} of {source.node} is lost, as --faults or --inject says")
    if script.last_end(faults, script.SLOW, now) > now:
        if Random(f"{identity}/{int(now)}").random() < SLOW_SHARE:
            source.sleep(SLOW_SECONDS)
        now = source.now()
    return now


def _how(metric: Metric) -> How | None:
    """How the value of a recorded metric is made; None for counters that a recording tells no level of."""
    if metric is m.ENERGY:
        return How.JOULES
    if metric.kind is Kind.COUNTER:
        return None
    if isinstance(metric.nvml, Gpm) or metric.unit == "percent":
        return How.SPAN
    if metric.unit == "celsius":
        return How.THERMAL
    return How.SECOND if metric is m.POWER else How.NOW


def _values(rows: Sequence[Row], shares: Sequence[Share]) -> Iterable[tuple[Series, float]]:
    for series, row, digits, scale, bit in rows if shares else ():
        value = sum(weight * (activity.mid[row] + activity.swing[row] * swing) for weight, activity, swing in shares)
        value = round(value, digits)
        if bit is not None:
            value = float((int(value) >> bit) & 1)
        yield series, value if scale == 1.0 else value * scale
