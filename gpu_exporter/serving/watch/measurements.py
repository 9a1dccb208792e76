"""What the live page and the terminal view show of each GPU as numbers, in this order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import Snapshot

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number of a GPU or MIG instance: the sum of `metrics` times `scale`, in `unit`.

    `limit` is the metric with its maximum; `most` is a fixed maximum.
    """

    name: str
    words: str
    unit: str
    metrics: tuple[Metric, ...]
    scale: float = 1.0
    limit: tuple[Metric, ...] = ()
    most: float | None = None


# fmt: off
MEASUREMENTS: Sequence[Measurement] = (
    Measurement("engine_active", "Engine activity",      "share",   (m.GR_ENGINE_ACTIVE,), most=1.0),
    Measurement("sm_active",     "SM activity",          "share",   (m.SM_ACTIVE,), most=1.0),
    Measurement("tensor_active", "Tensor core activity", "share",   (m.TENSOR_ACTIVE,), most=1.0),
    Measurement("dram_active",   "DRAM activity",        "share",   (m.DRAM_ACTIVE,), most=1.0),
    Measurement("nvlink",        "NVLink traffic",       "bytes/s", (m.NVLINK_TX, m.NVLINK_RX)),
    Measurement("pcie",          "PCIe traffic",         "bytes/s", (m.PCIE_TX, m.PCIE_RX)),
    Measurement("power",         "Power",                "W",       (m.POWER,), limit=(m.POWER_LIMIT, m.POWER_SET)),
    Measurement("temperature",   "Temperature",          "celsius", (m.GPU_TEMP,), limit=(m.SLOWDOWN_TEMP,)),
    Measurement("memory_used",   "Memory in use",        "bytes",   (m.FB_USED,), MIB, limit=(m.FB_TOTAL,)),
)
# fmt: on
NAMES = tuple(each.name for each in MEASUREMENTS)
PROCESS_METRICS = (m.PROCESS_MEMORY, m.PROCESS_SM, m.HOST_PROCESS)
_READ = frozenset(metric for each in MEASUREMENTS for metric in (*each.metrics, *each.limit))


def described() -> list[dict[str, Any]]:
    """Return the measurements for JSON."""
    return [{"name": each.name, "words": each.words, "unit": each.unit, "max": each.most} for each in MEASUREMENTS]


@dataclass(slots=True)
class Numbers:
    """The numbers of one GPU or MIG instance at one moment, with their limits, its processes and gaps."""

    raw: dict[Metric, float] = field(default_factory=dict)
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, float]:
        """Return the measurements that were read, by name."""
        found = {}
        for each in MEASUREMENTS:
            parts = [self.raw[metric] for metric in each.metrics if metric in self.raw]
            if len(parts) == len(each.metrics):
                found[each.name] = sum(parts) * each.scale
        return found

    def limits(self) -> dict[str, float]:
        """Return the known limits of measurements, by name."""
        found = {}
        for each in MEASUREMENTS:
            known = [self.raw[metric] for metric in each.limit if metric in self.raw]
            if known:
                found[each.name] = known[0] * each.scale
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
