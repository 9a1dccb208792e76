"""The type of a row of the metric catalogue."""

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
    """How often a field is read; the value is the period in seconds. FAST: at each collection."""

    STATIC = 3600.0
    FAST = 0.0
    STEADY = 5.0
    BUFFERED = 10.0  # samples that the driver keeps for 14 s: asking costs 2 ms
    SLOW = 15.0
    RARE = 60.0

    __hash__ = object.__hash__  # each read looks up paces, and Enum's own is a function of Python


class MetricSet(Enum):
    """Which `--metrics` choice exposes a metric; `full` includes `default`. NAMED is in neither: such a metric is only
    exposed if the fields file names it. Nor are HOST, JOB, PROFILE, CHECK and NCCL: they need `--host-evidence`,
    `--job-socket`, `--profile`, results of `check --active`, and `--nccl-inspector-dir`. NIC needs network cards, and
    `--no-nics` hides it."""

    DEFAULT = "default"
    FULL = "full"
    NAMED = "named"
    HOST = "host"
    JOB = "job"
    PROFILE = "profile"
    CHECK = "active check"
    NIC = "nic"
    NCCL = "nccl"


class Schema(Enum):
    """How DCGM's metrics are exposed: as dcgm-exporter up to 4.8.2 does, or in base units, as it does since 4.9."""

    CLASSIC = "classic"
    SI = "si"


class EntityKind(Enum):
    """What a field belongs to, after DCGM's entity groups. NODE is the exporter itself, INSTANCE a MIG instance.

    NVSWITCH, CPU and CPU_CORE (Grace) belong to no GPU, and only DCGM reads them.
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
    """An NVML getter: `PowerUsage` is `nvmlDeviceGetPowerUsage(handle, *args)`; `pick` is a member of its result."""

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

    `pace` is how often NVML is asked. The mean is exact over any time, so a slow pace loses nothing. A call with id 1
    costs 1.4 ms of CPU (H200, driver 580). Calls with other ids cost nearly nothing, but each value derived from them
    does.
    """

    id: int
    stride: int = 0
    pace: Pace = Pace.FAST


@dataclass(frozen=True, slots=True)
class Buffered:
    """A kind of samples (`NVML_*_SAMPLES`) that the driver takes at its own rate and keeps for a while.

    `pace` is how often the driver is asked for the samples since the last read. A histogram counts each of them, a
    counter is their integral over time.
    """

    id: int
    pace: Pace = Pace.FAST


@dataclass(frozen=True, slots=True)
class PerPeer:
    """An NVML getter for a pair of GPUs: `P2PStatus` is `nvmlDeviceGetP2PStatus(handle, other, *args)`."""

    name: str
    args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Details:
    """NVML getters whose answers are labels of a series that is always 1."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PerProcess:
    """What NVML reports about a process on a GPU: memory, sm (its share of SM time), or a number of processes."""

    what: str


# The greatest value of a row that has no bound of its own.
UNBOUNDED = float(2**63 - 1)
# By unit: the most that a counter of a driver can rise in a second, with room for GPUs to come. A GPU draws no 10 kW,
# a second of throttling takes a second, and counts of errors stay far below a 32-bit number between two reads.
FASTEST = {
    "joules": 1e4,
    "millijoules": 1e7,
    "seconds": 2.0,
    "nanoseconds": 2e9,
    "bytes": 1e13,
    "errors": 1e7,
    "replays": 1e7,
    "rows": 1e3,
    "pages": 1e3,
}
# By unit: the greatest value of a gauge.
GREATEST = {"MiB": 2.0**24, "bytes": 2.0**44, "banks": 1e6, "processes": 1e6}
# No counter has risen at its greatest rate for longer than ten years.
LIFE_SECONDS = 10 * 365.25 * 86400


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A row of the metric catalogue: one exposed family, or one labelled part of it.

    `low` and `high` bound the value, `rate` is the most that a counter can rise in a second, and `at_most` is the row
    whose value this one cannot exceed. A value that contradicts these was misread and is dropped. A row without a bound
    has that of its unit. A driver that answers with 0 although `low` is higher does not know the value.
    `scale` turns NVML's unit into the exposed one, `dcgm_scale` DCGM's. `bit` exposes that bit of a mask as 0 or 1.
    `integral_of` makes this row the time integral of another row, `histogram_of` its distribution, `sum_of` the sum of
    other rows times `scale`, `peak_of` the highest value of other rows in the last minute times `scale`; the collection
    loop computes all four. `edges` are the upper bounds of a histogram's buckets, without +Inf.
    `instead_of`: only GPUs that do not have this other row have this one, which is less exact, or costs more.
    `per_instance`: in MIG mode, the instances are read instead of the GPU, so that no sum counts the value twice.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    low: float = 0.0
    high: float = UNBOUNDED
    entity: EntityKind = EntityKind.GPU
    dcgm: int | None = None
    nvml: Call | FieldValue | LinkSum | Gpm | Buffered | PerPeer | Details | PerProcess | None = None
    scale: float = 1.0
    pace: Pace = Pace.FAST
    set: MetricSet = MetricSet.DEFAULT
    labels: Labels = ()
    bit: int | None = None
    integral_of: Metric | None = None
    histogram_of: Metric | None = None
    sum_of: tuple[Metric, ...] = ()
    peak_of: tuple[Metric, ...] = ()
    edges: tuple[float, ...] = ()
    per_instance: bool = False
    dcgm_scale: float = 1.0
    rate: float = 0.0
    at_most: Metric | None = None
    instead_of: Metric | None = None

    def __post_init__(self) -> None:
        if self.kind is Kind.COUNTER and not self.rate:
            object.__setattr__(self, "rate", FASTEST.get(self.unit, float("inf")))
        if self.high == UNBOUNDED:
            highest = self.rate * LIFE_SECONDS if self.kind is Kind.COUNTER else GREATEST.get(self.unit, UNBOUNDED)
            object.__setattr__(self, "high", UNBOUNDED if highest == float("inf") else highest)

    def __str__(self) -> str:
        return self.name

    @property
    def classic(self) -> bool:
        """Whether its name, type and labels are those of dcgm-exporter <= 4.8.2, because DCGM has a field for it."""
        return self.name.startswith("DCGM_")

    @property
    def nvml_pace(self) -> Pace:
        """How often NVML is asked for it, or for the row that it is the integral of."""
        asked = self.integral_of or self
        return asked.nvml.pace if isinstance(asked.nvml, Gpm | Buffered) else asked.pace

    @property
    def integrates_samples(self) -> bool:
        """Whether it is the integral of samples that the driver keeps."""
        return isinstance(self.nvml, Buffered) and self.kind is Kind.COUNTER

    def in_range(self, value: float) -> bool:
        """Return whether a value is within the bounds. NaN is not."""
        return self.low <= value <= self.high

    @property
    def key(self) -> str:
        """Name and labels of the row: unique in the catalogue, and the key of a value in a recording."""
        own = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.name}{{{own}}}" if own else self.name


def scaled(value: float, scale: float) -> float:
    """Return the product with the digits of a decimal fraction: 689199 * 0.001 is 689.199, not 689.1990000000001."""
    return value * scale if scale >= 1 else value / round(1 / scale)
