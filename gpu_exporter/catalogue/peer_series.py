"""Which series of other exporters have the same value as a row of the catalogue. The data is `peer_series.csv`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_exporter.catalogue.metrics import BY_KEY, INFO, METRICS, MIB
from gpu_exporter.model.metric import EntityKind, Metric

PACKAGED = Path(__file__).with_name("peer_series.csv")
# How much of a base unit each unit is. A unit that is missing is compared by its name.
_BASE: Mapping[str, tuple[str, float]] = {
    "percent": ("ratio", 0.01),
    "MHz": ("Hz", 1e6),
    "MiB": ("bytes", MIB),
    "MiB per second": ("bytes per second", MIB),
}


@dataclass(frozen=True, slots=True)
class PeerExporter:
    """Another exporter: the labels that identify a GPU on its series, and its labels by the names that they have here.

    `prefixes` has, by label, what gpu-exporter has in front of the same value. All series, and only they, begin with
    `start`, if it is not empty.
    """

    name: str
    identity: tuple[str, ...]
    labels: Mapping[str, str]
    prefixes: Mapping[str, str] = field(default_factory=dict)
    start: str = ""

    def has(self, name: str) -> bool:
        """Whether a series of this name can only be one of this exporter."""
        return bool(self.start) and name.startswith(self.start) and ":" not in name  # else a rule records it


NVIDIA_GPU_EXPORTER = PeerExporter(
    "nvidia_gpu_exporter",
    ("uuid",),
    {
        "uuid": "UUID",
        "index": "gpu",
        "name": "model",
        "compute_cap": "compute_capability",
        "gpu_instance_id": "GPU_I_ID",
        "profile": "GPU_I_PROFILE",
        "process_name": "process",
    },
    {"uuid": "GPU-", "mig_uuid": "MIG-"},
    "nvidia_smi_",
)
NVITOP_EXPORTER = PeerExporter(
    "nvitop-exporter",
    ("hostname", "index", "devicename", "uuid"),
    {"hostname": "Hostname", "index": "gpu", "devicename": "modelName", "uuid": "UUID", "link": "nvlink"},
)
PEERS = (NVIDIA_GPU_EXPORTER, NVITOP_EXPORTER)
# Labels of other exporters that no series of gpu-exporter has.
WITHOUT = frozenset(
    {
        "cuda_version",
        "driver_model_current",
        "driver_model_pending",
        "pci_sub_device_id",
        "username",
        "command",
        "status",
    }
)


@dataclass(frozen=True, slots=True)
class PeerSeries:
    """A series of another exporter. `metric` is None, and `reason` says what to use instead, if nothing replaces it.

    `labels` are those besides the ones that identify the GPU. `of_gpu` is False for series of the exporter itself.
    """

    peer: PeerExporter
    name: str
    unit: str
    labels: tuple[str, ...]
    of_gpu: bool
    metric: Metric | None
    reason: str

    @property
    def factor(self) -> float:
        """By how much the value of `metric` must be multiplied to have the unit of this series."""
        assert self.metric is not None
        (unit, mine), (base, theirs) = (_BASE.get(each, (each, 1.0)) for each in (self.metric.unit, self.unit))
        if unit != base:
            raise ValueError(f"peer_series.csv: {self.name} is in {self.unit}, {self.metric} in {self.metric.unit}")
        return mine / theirs

    @property
    def of_instance(self) -> bool:
        """Whether each MIG instance has such a series."""
        return (
            "gpu_instance_id" in self.labels
            and self.metric is not None
            and self.metric.entity is not EntityKind.PROCESS
        )

    def lacks(self, label: str) -> bool:
        """Return whether the row that replaces this series has no such label of the other exporter."""
        if label in WITHOUT:
            return True
        assert self.metric is not None
        return (
            not self.metric.classic
            and self.metric is not INFO
            and self.peer.labels.get(label) in ("Hostname", "modelName")
        )


def load() -> Mapping[str, PeerSeries]:
    """Read `peer_series.csv`: the series by name."""
    by_key = {**{row.name: row for row in reversed(METRICS)}, **BY_KEY}
    peers = {peer.name: peer for peer in PEERS}
    with PACKAGED.open(encoding="utf-8", newline="") as file:
        return {
            row["series"]: PeerSeries(
                peers[row["exporter"]],
                row["series"],
                row["unit"],
                tuple(label for label in row["labels"].split() if label != "-"),
                "-" not in row["labels"].split(),
                by_key[row["metric"]] if row["metric"] else None,
                row["note"],
            )
            for row in csv.DictReader(line for line in file if not line.startswith("#"))
        }
