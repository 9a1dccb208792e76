"""What a row of the metric catalogue is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Labels = tuple[tuple[str, str], ...]


class Kind(Enum):
    """How a value behaves over time."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Pace(Enum):
    """How often a field is read: the value is the period in seconds. What is static is looked at again each hour."""

    STATIC = 3600.0
    FAST = 0.0
    STEADY = 5.0
    SLOW = 15.0
    RARE = 60.0


class MetricSet(Enum):
    """Which `--metrics` choice exposes a metric; `full` includes `default`. NAMED is in neither: only a file of fields
    that names such a metric has it exposed."""

    DEFAULT = "default"
    FULL = "full"
    NAMED = "named"


class Schema(Enum):
    """How DCGM's metrics are exposed: as dcgm-exporter up to 4.8.2 does, or in base units, as it does from 4.9 on."""

    CLASSIC = "classic"
    SI = "si"


class EntityKind(Enum):
    """What a field belongs to, after DCGM's entity groups. NODE is this exporter itself, INSTANCE a MIG instance.

    NVSWITCH, CPU and CPU_CORE (Grace) are known to DCGM alone, and belong to no GPU.
    """

    NODE = "node"
    GPU = "gpu"
    INSTANCE = "instance"
    NVLINK = "nvlink"
    PROCESS = "process"
    NVSWITCH = "nvswitch"
    CPU = "cpu"
    CPU_CORE = "cpu_core"


@dataclass(frozen=True, slots=True)
class Call:
    """An NVML getter: `PowerUsage` is `nvmlDeviceGetPowerUsage(handle, *args)`; `pick` takes one member of it."""

    name: str
    args: tuple[int, ...] = ()
    pick: str | int | None = None


@dataclass(frozen=True, slots=True)
class FieldValue:
    """An NVML field id (`NVML_FI_*`), read with all others in one batch; on a link entity the scope is the link."""

    id: int


@dataclass(frozen=True, slots=True)
class LinkSum:
    """An NVML field id that exists per NVLink, summed over the links of the GPU."""

    id: int


@dataclass(frozen=True, slots=True)
class Gpm:
    """An NVML GPM metric id: the exact mean between two samples. On link `n` the id is `id + n * stride`.

    `pace` is how often NVML is asked: the mean is exact over any time, and a call with id 1 costs 1.4 ms of CPU (H200,
    driver 580). Calls with other ids cost nearly nothing, but every value that is derived from them does.
    """

    id: int
    stride: int = 0
    pace: Pace = Pace.FAST


@dataclass(frozen=True, slots=True)
class Buffered:
    """A kind of samples (`NVML_*_SAMPLES`) that the driver takes in its own time and keeps for a while."""

    id: int


@dataclass(frozen=True, slots=True)
class PerPeer:
    """What NVML reports of a GPU and each other one: `P2PStatus` is `nvmlDeviceGetP2PStatus(handle, other, *args)`."""

    name: str
    args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PerProcess:
    """What NVML reports about a process on a GPU: memory, sm (its share of SM time), or a number of processes."""

    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A row of the metric catalogue: one exposed family, or one labelled part of it.

    `low` and `high` bound the exposed value: what lies outside was misread and is rejected.
    `scale` turns NVML's unit into the exposed one, `dcgm_scale` DCGM's. `bit` exposes that bit of a mask as 0 or 1.
    `integral_of` makes this row the time integral of another one, computed by the collection loop, `histogram_of` a
    distribution of it. `edges` are the upper bounds of a histogram's buckets, without the last, which has none.
    `per_instance`: a GPU in MIG mode is not asked itself but each of its instances, so that no sum counts it twice.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    low: float = 0.0
    high: float = float(2**63 - 1)
    entity: EntityKind = EntityKind.GPU
    dcgm: int | None = None
    nvml: Call | FieldValue | LinkSum | Gpm | Buffered | PerPeer | PerProcess | None = None
    scale: float = 1.0
    pace: Pace = Pace.FAST
    set: MetricSet = MetricSet.DEFAULT
    labels: Labels = ()
    bit: int | None = None
    integral_of: Metric | None = None
    histogram_of: Metric | None = None
    edges: tuple[float, ...] = ()
    per_instance: bool = False
    dcgm_scale: float = 1.0

    def __str__(self) -> str:
        return self.name

    @property
    def classic(self) -> bool:
        """Named, typed and labelled as dcgm-exporter <= 4.8.2 does, because DCGM has a field for it."""
        return self.name.startswith("DCGM_")

    @property
    def read(self) -> Pace:
        """How often NVML is asked for it, or for what it is the integral of."""
        asked = self.integral_of or self
        return asked.nvml.pace if isinstance(asked.nvml, Gpm) else asked.pace

    @property
    def key(self) -> str:
        """Name and own labels: unique in the catalogue, and the key of a value in a recording."""
        own = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.name}{{{own}}}" if own else self.name


def scaled(value: float, scale: float) -> float:
    """The product, with the digits of a decimal fraction: 689199 at 0.001 is 689.199, not 689.1990000000001."""
    return value * scale if scale >= 1 else value / round(1 / scale)
