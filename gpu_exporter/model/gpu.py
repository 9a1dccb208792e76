"""GPUs, their owners, and the series and samples that belong to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.model.metric import Labels, Metric


@dataclass(frozen=True, slots=True)
class Chip:
    """What the driver says about the chip of a GPU: compute capability, cores, the highest clocks of the SMs and of the
    memory in MHz, and the width of the memory bus in bits. 0 is unknown."""

    capability: tuple[int, int] = (0, 0)
    cores: int = 0
    sm_mhz: float = 0.0
    memory_mhz: float = 0.0
    bus_bits: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """The identity of a GPU. `info` has further labels that do not change while the driver is loaded."""

    index: int
    uuid: str = ""
    pci_bus_id: str = ""
    model: str = ""
    device: str = ""
    driver: str = ""
    info: Labels = ()
    chip: Chip | None = None

    def __hash__(self) -> int:
        return hash(self.uuid) + self.index


def detail(text: str) -> str:
    """Return a detail of a GPU, or an empty text if it has only zeros: so drivers answer for what they do not know."""
    return text if re.search(r"[^\W0_]", text) else ""


def by_device_file(gpus: Iterable[Gpu]) -> Mapping[str, Gpu]:
    """Return GPUs by the name of their device file, `nvidia<minor number>`.

    Where the driver reports no minor number of any GPU, as in WSL, the index is taken for it.
    """
    gpus = list(gpus)
    named = {gpu.device: gpu for gpu in gpus if gpu.device}
    return named or {f"nvidia{gpu.index}": gpu for gpu in gpus}


class Owner(NamedTuple):
    """The owner of a GPU, or with `instance` of that GPU instance. `workload` is the job whose ranks are compared."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    workload: str = ""
    rank: str = ""
    instance: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A metric of an entity. Values are stored under it from one collection to the next; it is compared by identity.

    For a histogram, `part` is `_bucket` (with the label `le`), `_sum` or `_count`.
    """

    metric: Metric
    gpu: Gpu | None = None
    labels: Labels = ()
    part: str = ""

    @property
    def name(self) -> str:
        """The name of its samples, by the catalogue."""
        return self.metric.name + self.part


class Sample(NamedTuple):
    """A value that was read. What could not be read has no sample: never NaN, -1 or a blank."""

    series: Series
    value: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one read of one GPU.

    `values` has the series whose pace was due. Profiling values are means over the `span` seconds before `at`
    (monotonic seconds), or over the seconds that `spans` has for the series. `failed` has series that should have
    answered and did not, with the value of the label `outcome`. `unsupported` has metrics that this device does not
    support, with the reason. `ended` has series of MIG instances and processes that have ended. `buffered` has samples
    that the driver took since about the previous read, each with a timestamp that rises (from NVML: microseconds of the
    system clock, which may be set); some may be repeated.
    """

    at: float
    values: Mapping[Series, float]
    span: float | None = None
    failed: Mapping[Series, str] = field(default_factory=dict)
    unsupported: Mapping[Metric, str] = field(default_factory=dict)
    spans: Mapping[Series, float] = field(default_factory=dict)
    ended: Set[Series] = frozenset()
    buffered: Mapping[Series, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An XID that the driver reported, received at unix time `at`. `instance` is the MIG instance where it occurred."""

    at: float
    pci_bus_id: str
    code: int
    instance: int | None = None
