"""The measurements of each GPU from a snapshot, without the window of signals: the live page needs them each second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.measurements import MEASUREMENTS, SHARE
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import Snapshot

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """The metrics whose sum, times `scale`, is a measurement; `limit` are those with its maximum, the best first."""

    metrics: tuple[Metric, ...]
    scale: float = 1.0
    limit: tuple[Metric, ...] = ()


SOURCES: Mapping[str, Source] = {
    "engine_active": Source((m.GR_ENGINE_ACTIVE,)),
    "sm_active": Source((m.SM_ACTIVE,)),
    "tensor_active": Source((m.TENSOR_ACTIVE,)),
    "dram_active": Source((m.DRAM_ACTIVE,)),
    "nvlink": Source((m.NVLINK_TX, m.NVLINK_RX)),
    "pcie": Source((m.PCIE_TX, m.PCIE_RX)),
    "power": Source((m.POWER,), limit=(m.POWER_LIMIT, m.POWER_SET)),
    "temperature": Source((m.GPU_TEMP,), limit=(m.SLOWDOWN_TEMP,)),
    "memory_used": Source((m.FB_USED,), MIB, limit=(m.FB_TOTAL,)),
}
NAMES = tuple(each.name for each in MEASUREMENTS)
PROCESS_METRICS = (m.PROCESS_MEMORY, m.PROCESS_SM, m.HOST_PROCESS)
_READ = frozenset(metric for each in SOURCES.values() for metric in (*each.metrics, *each.limit))


def described() -> list[dict[str, Any]]:
    """Return the measurements for JSON."""
    return [
        {
            "name": each.name,
            "words": f"{each.words[:1].upper()}{each.words[1:]}",
            "unit": each.unit,
            "max": 1.0 if each.unit == SHARE else None,
        }
        for each in MEASUREMENTS
    ]


@dataclass(slots=True)
class Numbers:
    """The numbers of one GPU or MIG instance at one moment, with their limits, its processes and gaps."""

    raw: dict[Metric, float] = field(default_factory=dict)
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, float]:
        """Return the measurements that were read, by name."""
        found = {}
        for name, source in SOURCES.items():
            parts = [self.raw[metric] for metric in source.metrics if metric in self.raw]
            if len(parts) == len(source.metrics):
                found[name] = sum(parts) * source.scale
        return found

    def limits(self) -> dict[str, float]:
        """Return the known limits of measurements, by name."""
        found = {}
        for name, source in SOURCES.items():
            known = [self.raw[metric] for metric in source.limit if metric in self.raw]
            if known:
                found[name] = known[0] * source.scale
        return found


def numbers(snapshot: Snapshot, *, all_details: bool = True) -> Mapping[tuple[str, str], Numbers]:
    """Return the numbers of a snapshot by UUID and MIG instance ("": the whole GPU).

    Without `all_details`, processes and unsupported metrics are left out.
    """
    found: dict[tuple[str, str], Numbers] = {}
    for series, value in snapshot.samples:
        gpu, metric = series.gpu, series.metric
        if gpu is None:
            continue
        if metric in _READ:
            instance = dict(series.labels).get("GPU_I_ID", "") if metric.per_instance else ""
            found.setdefault((gpu.uuid, instance), Numbers()).raw[metric] = value
        elif all_details and metric in PROCESS_METRICS:
            labels = dict(series.labels)
            of_gpu = found.setdefault((gpu.uuid, ""), Numbers())
            process = of_gpu.processes.setdefault(labels.get("pid", ""), {})
            process.update({name: text for name, text in labels.items() if text})
            if metric is m.PROCESS_MEMORY:
                process["memory"] = value
            elif metric is m.PROCESS_SM:
                process["sm"] = value
        elif all_details and metric is m.SUPPORTED:
            labels = dict(series.labels)
            found.setdefault((gpu.uuid, ""), Numbers()).unsupported[labels["metric"]] = labels.get("reason", "")
    return found
