"""The words of the project as types: field, entity, metric, sample, snapshot, source, and the two errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from threading import Lock

    from gpu_exporter.health import Verdict

Labels = tuple[tuple[str, str], ...]

# What a source that shows no GPUs of this machine says of itself, wherever people look.
NOT_YOURS = {"replay": "a recording of real GPUs, played over", "simulated": "simulated GPUs that exist nowhere"}


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
    driver 580); of any others it costs nearly nothing, but each value does that we make of it.
    """

    id: int
    stride: int = 0
    pace: Pace = Pace.FAST


@dataclass(frozen=True, slots=True)
class Buffered:
    """A kind of samples (`NVML_*_SAMPLES`) that the driver takes in its own time and keeps for a while."""

    id: int


@dataclass(frozen=True, slots=True)
class OfPeer:
    """What NVML tells of a GPU and each other one: `P2PStatus` is `nvmlDeviceGetP2PStatus(handle, other, *args)`."""

    name: str
    args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OfProcess:
    """What NVML tells of a process on a GPU: memory, sm (its share of SM time), or a number of processes."""

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
    nvml: Call | FieldValue | LinkSum | Gpm | Buffered | OfPeer | OfProcess | None = None
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


@dataclass(frozen=True, slots=True)
class Gpu:
    """The identity of a GPU. `info` holds what never changes while the driver is loaded."""

    index: int
    uuid: str = ""
    pci_bus_id: str = ""
    model: str = ""
    device: str = ""
    driver: str = ""
    info: Labels = ()


class Owner(NamedTuple):
    """Who has a GPU, or with `instance` that GPU instance of it. `workload` is the job whose ranks are compared."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    workload: str = ""
    instance: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A metric of an entity: the identity under which values are kept from tick to tick (compared by identity).

    Of a histogram, `part` is which series this is: `_bucket` (with the label `le`), `_sum` or `_count`.
    """

    metric: Metric
    gpu: Gpu | None = None
    labels: Labels = ()
    part: str = ""

    @property
    def name(self) -> str:
        """The name that its samples have in the catalogue's words."""
        return self.metric.name + self.part


class Sample(NamedTuple):
    """A value that was read. What could not be read has no sample: no NaN, no -1, no blank."""

    series: Series
    value: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read of one GPU gave.

    `values` has the series of the paces that were due. Profiling values are means over the `span` seconds
    before `at` (monotonic seconds), or over those that `spans` has for the series. `failed` names series that
    should have answered and did not, with one of the five outcomes; `unsupported` those that this device can't
    answer; `ended` those of MIG instances and processes that are no more. `buffered` has samples that were taken
    since about the read before, each with a stamp that rises from sample to sample; some may have been told before.
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
    """An Xid as the driver told it, heard of at unix time `at`; `instance` is the MIG instance it was on."""

    at: float
    pci_bus_id: str
    code: int
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """Whether a GPU answers. `read_at` is when it was last read well (monotonic seconds), `stalled` how long a driver
    call has been stuck."""

    gpu: Gpu
    up: bool
    reason: str = ""
    read_at: float | None = None
    stalled: float = 0.0


class Seen(NamedTuple):
    """A GPU with its latest samples, when they were read (monotonic seconds) if they still hold, and what it can't
    answer."""

    gpu: Gpu
    read_at: float | None
    samples: Sequence[Sample]
    unsupported: Mapping[Metric, str]


class Row(NamedTuple):
    """A sample of the exporter's own, before it has its series."""

    metric: Metric
    gpu: Gpu | None
    value: float
    labels: Labels


@dataclass(frozen=True, slots=True)
class Owned:
    """The owner's labels on the classic families: by UUID and GPU instance ("": the whole GPU), else those of nobody.

    They are written also where they are empty: Prometheus with `honor_labels` then does not put in its own.
    """

    free: Labels = ()
    taken: Mapping[tuple[str, str], Labels] = field(default_factory=dict)

    def labels(self, series: Series) -> Labels:
        """Those of a series: none if it is not of a classic family of a GPU."""
        if series.gpu is None or not series.metric.classic:
            return ()
        return self.taken.get((series.gpu.uuid, dict(series.labels).get("GPU_I_ID", "")), self.free)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All samples of one collection, made at unix time `at`, plus what was lost and why, and a verdict on each GPU."""

    at: float
    source: str
    samples: tuple[Sample, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()
    live: bool = True
    verdicts: tuple[Verdict, ...] = ()
    owned: Owned = Owned()

    @property
    def read_at(self) -> float | None:
        """When any GPU was last read well (monotonic seconds); None if none was yet."""
        return max((status.read_at for status in self.gpus if status.read_at is not None), default=None)


class Attribution(Protocol):
    """Who has the GPUs, as something beside the source tells."""

    def attribute(self, gpus: Sequence[Seen]) -> tuple[Owned, Sequence[Row]]:
        """The owners of these GPUs. Asks nobody, never raises."""


class GpuExporterError(Exception):
    """An error that is the user's to mend: the message is one line that names the thing and the cure."""


class GpuLost(GpuExporterError):
    """A GPU stopped answering: costs that GPU. `reason` is one of lost, reset_required, unknown, gone."""

    def __init__(self, message: str, reason: str = "lost") -> None:
        super().__init__(message)
        self.reason = reason


class SourceLost(GpuExporterError):
    """The library stopped answering: costs the source, which reconnects. `reason` is a word for a label."""

    def __init__(self, message: str, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason


class Device(Protocol):
    """One attached GPU. Used by one thread at a time."""

    gpu: Gpu

    @property
    def told_since(self) -> float | None:
        """When the driver was asked to tell of Xids (unix time); None if it does not."""

    def events(self) -> Sequence[XidEvent]:
        """Xids that the driver told since the last call. Never raises."""

    def read(self, paces: frozenset[Pace]) -> Reading:
        """Read the fields of these paces. Raises GpuLost or SourceLost."""

    def close(self) -> None:
        """Give back what the device holds. Never raises."""


@runtime_checkable
class Glancing(Protocol):
    """What a device is, too, that can be read between two ticks for what is shorter than one."""

    def glance(self) -> Reading | None:
        """Alone what histograms are made of means of; None if there is nothing. Raises GpuLost or SourceLost."""


@runtime_checkable
class Staged(Protocol):
    """What a source is, too, that plays what can go wrong: some of that is not in its readings."""

    def tells(self) -> bool:
        """Whether Xids come from it, although it is not live."""

    def dead(self) -> bool:
        """Whether the exporter does not answer any more."""


@runtime_checkable
class Sampled(Protocol):
    """What a source is, too, whose fields somebody else samples in his own time."""

    @property
    def reads_until_profiled(self) -> int:
        """How often a GPU is read until its profiling values are there."""

    def sample_every(self, seconds: float) -> None:
        """What is read most often is to be sampled so often. Before `open`."""


@runtime_checkable
class Instant(Protocol):
    """What a source is, too, whose reads are arithmetic: a thread for each GPU would only be in the way.

    `turn` is held by whoever reads and renders: of thousands of threads that compute, one at a time gets on.
    """

    turn: Lock

    def instant(self, index: int) -> bool:
        """Whether no read of this GPU ever waits."""


class Source(Protocol):
    """A way to read fields: nvml, dcgm, replay, simulated. Every method but `close` may block in a driver."""

    name: str
    live: bool

    def open(self) -> None:
        """Connect, also again after SourceLost. Raises SourceLost."""

    def count(self) -> int:
        """The number of GPUs that answer to an index now. Raises SourceLost."""

    def expected(self) -> int | None:
        """The number of GPUs that ought to be there, if that can be known without the driver."""

    def reload_needed(self) -> bool | None:
        """Whether library and kernel driver differ in version, if that can be known without the driver."""

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        """Identify one GPU and probe which of `metrics` it answers. Raises GpuLost or SourceLost."""

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        """Who has this GPU, as far as the source itself knows. Asks no driver, never raises."""

    def beside(self) -> Sequence[Sample]:
        """The latest samples of what is no GPU (NVSwitches, CPUs). Asks no driver, never raises."""

    def close(self) -> None:
        """Give the library back. Never raises."""
