"""What the analysis of traces finds: the dataclasses that `trace analyze --json` prints, field by field.

All times are seconds, all ratios and shares between 0 and 1. `to_json` is the only place that makes JSON of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from gpu_exporter.traces.memory import MemoryResult


class TraceClass(Enum):
    """What limits a job, according to its traces. `value` is the text in the JSON."""

    DATA_LOADING = "data-loading-bound"
    SYNC = "sync-bound"
    LAUNCH = "launch-bound"
    CHECKPOINT = "checkpoint-bound"
    COMMUNICATION = "communication-bound"
    COPY = "copy-bound"
    COMPUTE = "compute-bound"
    STRAGGLER = "straggler"
    MIXED = "mixed"


@dataclass(frozen=True)
class Kernels:
    """Kernels with one name, or of one class. `share` is of the time of all kernels (a sum: they may overlap)."""

    name: str
    kernel_class: str
    count: int
    seconds: float
    share: float


@dataclass(frozen=True)
class StepTime:
    """One step of one GPU. `self_seconds` is the step without exposed communication: what the rank did itself."""

    name: str
    start_seconds: float  # since the start of the trace
    seconds: float
    busy_ratio: float
    exposed_communication_seconds: float
    self_seconds: float
    host_seconds: float  # the step without the waits of the host for the GPU; 0 if the file has no launches
    gpu_seconds: float  # of what the step launched, perhaps after its end, without communication


@dataclass(frozen=True)
class IdleCause:
    """Idle time of a GPU with one cause. `share` is of the span. `frames` have the most costly first."""

    cause: str
    seconds: float
    share: float
    frames: tuple[str, ...]


@dataclass(frozen=True)
class CollectiveTime:
    """Collectives of one operation and process group."""

    operation: str
    group: str
    ranks: int
    count: int
    seconds: float
    bytes: int
    # Bytes per second per GPU, as nccl-tests define it, over the fastest rank of each collective; None if unknown.
    bus_bandwidth: float | None
    # The largest difference between the starts of one collective on two ranks; None with one file, and of messages.
    skew_seconds: float | None
    # Of `seconds`, what the rank that came last needed: the rest is waiting for it. None as above.
    transfer_seconds: float | None = None


@dataclass(frozen=True)
class WaitingFor:
    """How long a GPU waited in collectives, without computing, for the rank that came last.

    `cause` says what that rank did longer: a cause of its idle time, "compute" or "exposed_copies"; "" if that is not
    known.
    """

    rank: int | None  # None if it has no file or is unknown
    seconds: float
    share: float  # of the span
    cause: str
    frames: tuple[str, ...]  # of that rank


@dataclass(frozen=True)
class OperatorRate:
    """How fast an operator ran with inputs of these shapes. Rates are of the least work that it must do.

    `peak_ratio` is the time that it needs at the peak of the GPU, divided by its time; `bound` is what limits it then.
    Both are unknown (None and "") for GPUs and data types without a peak, as is `lost_seconds`, the rest of the time.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    count: int
    seconds: float
    flops_per_second: float  # 0 for operators that do little arithmetic
    bytes_per_second: float
    bound: Literal["compute", "memory", ""]
    peak_ratio: float | None
    lost_seconds: float | None


@dataclass(frozen=True)
class RankResult:
    """One GPU of one file."""

    rank: int
    device: int
    span_seconds: float
    busy_ratio: float
    idle_ratio: float
    compute_seconds: float
    communication_seconds: float
    exposed_communication_seconds: float
    copy_seconds: float
    kernels: int
    steps: tuple[StepTime, ...]
    idle_causes: tuple[IdleCause, ...]
    # Beyond the stable core:
    file: str = ""
    device_name: str = ""
    exposed_copy_seconds: float = 0.0
    copy_frames: tuple[str, ...] = ()  # what launched the copies, the most costly first
    compute_frames: tuple[str, ...] = ()
    communication_frames: tuple[str, ...] = ()
    self_seconds: float = 0.0  # the median step, or the span, without exposed communication
    kernel_classes: tuple[Kernels, ...] = ()
    top_kernels: tuple[Kernels, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    # The two parts of the exposed communication; None if no other file has the same collectives.
    exposed_transfer_seconds: float | None = None
    exposed_waiting_seconds: float | None = None
    waiting: tuple[WaitingFor, ...] = ()  # the longest first
    operators: tuple[OperatorRate, ...] = ()  # those that lost most first; empty without `record_shapes=True`
    memory: MemoryResult | None = None  # None without `profile_memory=True`


@dataclass(frozen=True)
class Advice:
    """What to change, and how many seconds of the span it saves at most, according to the trace."""

    kind: str
    text: str
    saving_seconds: float
    saving_ratio: float  # of the span
    frames: tuple[str, ...] = ()  # what the advice rests on: code, the most costly first
    kernels: tuple[str, ...] = ()  # or kernels and copies


@dataclass(frozen=True)
class TraceVerdict:
    """The class of a job, why, and what to do. `because` is one sentence with the numbers that it rests on."""

    trace_class: TraceClass
    because: str
    advice: tuple[Advice, ...]


@dataclass(frozen=True)
class Straggler:
    """The rank that makes the others wait, by how many seconds per step. `frames` are what it did longer."""

    rank: int
    kind: Literal["host", "gpu"]
    excess_seconds: float
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankTimeline:
    """What a GPU did, in equal parts of its span. Shares are between 0 and 1; time in several layers is the first's."""

    seconds: float  # the span
    layers: Mapping[str, tuple[float, ...]]  # the share of each part: compute, communication, copies
    steps: tuple[tuple[str, float], ...]  # the names and starts of steps, as shares of the span


@dataclass(frozen=True)
class GpuDetails:
    """What reports on a GPU draw. Stacks are folded, with seconds, whose sum may exceed the span: kernels overlap."""

    timeline: RankTimeline
    gpu_stacks: Mapping[str, float]


@dataclass(frozen=True)
class AnalysisResult:
    """Everything that `trace analyze` finds."""

    ranks: tuple[RankResult, ...]
    verdict: TraceVerdict
    straggler: Straggler | None
    dropped_events: int
    dropped_reasons: Mapping[str, int] = field(default_factory=dict)
    repaired_events: int = 0
    truncated: tuple[str, ...] = ()  # files that end in the middle of an event
    # Details, if they were asked for. Folded stacks by rank: `frame;frame;frame` from the outermost to the innermost ->
    # seconds of idle time.
    idle_stacks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    details: Mapping[tuple[int, int], GpuDetails] = field(default_factory=dict)  # by rank and device

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON: without what `--folded`, `--report` and `--pprof` write."""
        content = asdict(replace(self, idle_stacks={}, details={}))
        del content["idle_stacks"], content["details"]
        verdict = content["verdict"]
        content["verdict"] = {"class": self.verdict.trace_class.value} | {
            key: verdict[key] for key in ("because", "advice")
        }
        for rank in content["ranks"]:
            for kernels in (*rank["kernel_classes"], *rank["top_kernels"]):
                kernels["class"] = kernels.pop("kernel_class")
        return content
