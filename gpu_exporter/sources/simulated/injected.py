"""A GPU of a node with an injected failure mode: the injected values, with counters and energy to match."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent
from gpu_exporter.model.metric import Gpm, Kind, Metric, Pace
from gpu_exporter.model.source import Device
from gpu_exporter.sources.simulated.device import apply_faults, as_buffered
from gpu_exporter.sources.simulated.faults import ScriptedFault
from gpu_exporter.sources.simulated.inject import Injected, Value, healthy_gpu, mean, rows, value_at
from gpu_exporter.sources.simulated.node import SimulatedNode
from gpu_exporter.sources.simulated.workload import Workloads

log = logging.getLogger(__name__)

# The reason for all other metrics, as if the hardware lacked them.
NOT_SUPPORTED = "not_supported"
XID_SECONDS = 60.0
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
        self._node = node
        self._identity = identity
        self._faults = faults
        self._injected = injected
        self._restart = injected.restart
        self._last: float | None = None
        self._xids_at = -XID_SECONDS
        apply_faults(node, gpu, identity, faults)
        self._idle = _idle(node.workloads, metrics)
        self._rows: dict[Pace, list[tuple[Series, Metric]]] = defaultdict(list)
        answered = dict(rows(injected, metrics))
        for metric in metrics:
            read = m.POWER_INSTANT if metric is m.POWER_SAMPLES else metric
            origin = answered.get(read, read if read in self._idle else None)
            if origin is not None and metric not in injected.absent:
                self._rows[metric.pace].append((Series(metric, gpu), origin))
        present = {series.metric for rows_of_pace in self._rows.values() for series, _ in rows_of_pace}
        self._unsupported = dict.fromkeys((metric for metric in metrics if metric not in present), NOT_SUPPORTED)
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
                value = self._value(origin, before, now)
                if value is not None:
                    values[series] = _converted(series.metric, origin, value)
        span = None if before is None else now - before
        buffered = as_buffered(values, now)
        return Reading(time.monotonic(), values, span, unsupported=self._unsupported, buffered=buffered)

    def _value(self, origin: Metric, before: float | None, now: float) -> float | None:
        if origin is m.ENERGY:
            power, loaded = self._injected.values[m.POWER], self._node.loaded_at(now)
            return round(mean(power, loaded, now) * (now - loaded) / m.MILLI) if now > loaded else 0.0
        value: Value = self._injected.values[origin] if origin in self._injected.values else self._idle[origin]
        if isinstance(origin.nvml, Gpm):
            return mean(value, before, now) if before is not None and before < now else None
        if origin is m.POWER:
            return mean(value, now - 1.0, now)
        if origin.kind is Kind.COUNTER:
            return value_at(value, now) if origin.unit == "seconds" else float(int(value_at(value, now)))
        return value_at(value, now % self._restart)


def _converted(metric: Metric, origin: Metric, value: float) -> float:
    if metric.bit is not None and origin.bit is None:
        return float((int(value) >> metric.bit) & 1)
    return round(value * metric.scale / origin.scale, DIGITS)


def _idle(workloads: Workloads, metrics: Sequence[Metric]) -> dict[Metric, float]:
    """Return the recorded values of an idle GPU: above all limits, modes and totals. A counter has no such value."""
    rows, values = workloads.rows, workloads.idle.mid
    return {
        metric: round(values[rows[metric.key]], 0 if metric.key in workloads.whole else DIGITS)
        for metric in metrics
        if metric.key in rows and metric.kind is not Kind.COUNTER
    }


def _warn(injected: Injected, metrics: Sequence[Metric]) -> None:
    """Warn of modes that none of these metrics shows: some need metrics outside the default set."""
    before = healthy_gpu({}).values
    changed = {metric for metric, value in injected.values.items() if before.get(metric) != value}
    if injected.names and changed and not changed & set(metrics):
        log.warning("--inject %s: these values are only in --metrics full", ", ".join(injected.names))
