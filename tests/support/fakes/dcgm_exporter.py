"""Serves pages in dcgm-exporter's format over HTTP: classic names (<= 4.8.2) or new ones (>= 4.9)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.dcgm_exporter.names import modern
from gpu_exporter.catalogue.failure_modes.mode import Values
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.conditions.signal import Read
from gpu_exporter.model.metric import Metric
from tests.support.answering import answering

# The rows of its default CSV that the catalogue has.
DEFAULT = (
    m.SM_CLOCK,
    m.MEM_CLOCK,
    m.MEMORY_TEMP,
    m.GPU_TEMP,
    m.POWER,
    m.ENERGY,
    m.PCIE_REPLAY,
    m.GPU_UTIL,
    m.MEM_UTIL,
    m.XID_ERRORS,
    m.FB_FREE,
    m.FB_USED,
    m.FB_RESERVED,
    m.REMAP_UNCORRECTABLE,
    m.REMAP_CORRECTABLE,
    m.REMAP_FAILURE,
    m.GR_ENGINE_ACTIVE,
    m.TENSOR_ACTIVE,
    m.DRAM_ACTIVE,
    m.PCIE_TX,
    m.PCIE_RX,
)
FULL = tuple(row for row in (*HEALTHY, m.XID_ERRORS, m.ENERGY) if row.name.startswith("DCGM_"))


@dataclass(frozen=True)
class FakeGpu:
    """A GPU with the values of a healthy one, except for those given. `instances` are its MIG instances."""

    node: str
    index: int
    values: Values = field(default_factory=dict)
    pod: str = ""
    instances: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        own = {"gpu": str(self.index), "UUID": f"GPU-{self.node}-{self.index}", "device": f"nvidia{self.index}"}
        pod = {"namespace": "research", "pod": self.pod, "container": "main"} if self.pod else {}
        return {**own, "modelName": "NVIDIA H200", **pod}


def page(gpus: Collection[FakeGpu], rows: Collection[Metric], *, new: bool) -> str:
    """Return the text of /metrics."""
    lines = []
    for gpu in gpus:
        values = {m.XID_ERRORS: 0.0, m.ENERGY: 1e9, **HEALTHY, **gpu.values}
        for row in rows:
            name, factor = (modern(row) if new else None) or (row.name, 1.0)
            value = values[row]
            assert isinstance(value, float | int), "a page of one moment has no ramps"
            labels = {**gpu.labels, ("hostname" if new else "Hostname"): gpu.node, **dict(row.labels)}
            parts = (
                [{"GPU_I_ID": each, "GPU_I_PROFILE": "1g.18gb"} for each in gpu.instances] if row.per_instance else []
            )
            for part in parts or [{}]:
                text = ",".join(f'{key}="{value}"' for key, value in {**labels, **part}.items())
                lines.append(f"{name}{{{text}}} {value * factor}")
        if rows is DEFAULT:
            name, value = _nvlink(new=new)
            text = ",".join(f'{key}="{value}"' for key, value in labels.items())
            lines.append(f"{name}{{{text}}} {value}")
    return "\n".join(lines) + "\n"


def _nvlink(*, new: bool) -> tuple[str, float]:
    """Return the default CSV's rows of NVLink, at 20 GB/s."""
    _, classic, modern_name = (way for way in s.NVLINK.definitions)
    way = modern_name if new else classic
    assert isinstance(way, Read)
    return way.name, 2e10 / way.scale


@contextmanager
def serving(pages: Mapping[str, str]) -> Iterator[int]:
    """Serve each page at /<name>; return the port."""
    with answering(lambda path: (200, pages[path.lstrip("/")].encode())) as url:
        yield urlsplit(url).port or 0
