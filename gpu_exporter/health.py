"""A snapshot -> a verdict per GPU: may a job start on it, and if not, what repairs it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from gpu_exporter import metrics as m
from gpu_exporter.model import Gpu, GpuStatus, Metric, Snapshot
from gpu_exporter.xids import Action


class Health(Enum):
    """UNKNOWN: nothing bad was seen, but something that this GPU can tell could not be read."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that no healthy GPU has."""

    metric: Metric
    value: float
    words: str
    action: Action


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could not be read, and why. `harmless`: this hardware or driver does not have it at all."""

    what: str
    why: str
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to say of one GPU."""

    gpu: Gpu
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Unknown, ...] = ()

    @property
    def health(self) -> Health:
        if self.problems:
            return Health.UNHEALTHY
        return Health.HEALTHY if all(each.harmless for each in self.unknown) else Health.UNKNOWN

    @property
    def action(self) -> Action:
        """The heaviest of what its problems ask for."""
        order = list(Action)
        return max((problem.action for problem in self.problems), key=order.index, default=Action.NONE)


# The driver's own recovery actions (nvml.h). Any other number is newer than this table, and means something.
RECOVERY: Mapping[int, tuple[str, Action]] = {
    1: ("the driver asks for a reset of this GPU", Action.GPU_RESET),
    2: ("the driver asks for a reboot", Action.NODE_REBOOT),
    3: ("the driver asks to drain peer-to-peer traffic", Action.DRAIN),
    4: ("the driver asks to drain this GPU and reset it", Action.DRAIN),
    5: ("the driver asks to recover the IMEX domain", Action.DRAIN),
    6: ("the driver asks for a bus reset of this GPU", Action.GPU_RESET),
    7: ("the driver asks for a power cycle or reboot of the system", Action.NODE_REBOOT),
}
# Errors in the life of the board are no fault of today: they stay after the board was mended.
FAULTS: Mapping[Metric, tuple[str, Action]] = {
    m.ECC_DBE_VOL: ("uncorrectable ECC errors since the driver was loaded", Action.GPU_RESET),
    m.REMAP_PENDING: ("a memory row waits for a reset to be remapped", Action.GPU_RESET),
    m.REMAP_FAILURE: ("a memory row could not be remapped", Action.REPLACE),
    m.RETIRED_PENDING: ("memory pages wait for a reboot to be retired", Action.NODE_REBOOT),
}
# Of each topic one answer is enough, for newer GPUs remap where older ones retire.
TOPICS: Mapping[str, tuple[Metric, ...]] = {
    "uncorrectable ECC errors": (m.ECC_DBE_VOL,),
    "row remapping": (m.REMAP_PENDING, m.REMAP_FAILURE, m.RETIRED_PENDING),
    "recovery action": (m.RECOVERY,),
}
# What a verdict needs to be read: cheap calls, and no profiling. A GPU that answers nothing counts as lost, and one
# without ECC may answer nothing but its temperature.
ROWS: tuple[Metric, ...] = (m.GPU_TEMP, m.ECC_MODE, *(metric for metrics in TOPICS.values() for metric in metrics))
# A GPU that does not answer. Other reasons say more of the exporter than of the GPU.
DOWN: Mapping[str, tuple[str, Action]] = {
    "lost": ("it fell off the bus", Action.NODE_REBOOT),
    "reset_required": ("it answers only that it needs a reset", Action.GPU_RESET),
    "stalled": ("a call into the driver does not return", Action.NODE_REBOOT),
    "gone": ("the driver has it no more", Action.NODE_REBOOT),
    "unknown": ("it does not answer, and the driver does not say why", Action.DRAIN),
}


def verdict(snapshot: Snapshot) -> tuple[Verdict, ...]:
    """One for each GPU of the snapshot, in its order."""
    return tuple(_of_gpu(status, snapshot) for status in snapshot.gpus)


def missing(snapshot: Snapshot) -> int:
    """GPUs that ought to be there and have no verdict."""
    expected = next((int(value) for series, value in snapshot.samples if series.metric is m.EXPECTED), 0)
    return max(0, expected - len(snapshot.gpus))


def _of_gpu(status: GpuStatus, snapshot: Snapshot) -> Verdict:
    gpu = status.gpu
    if not status.up:
        if status.reason not in DOWN:
            return Verdict(gpu, unknown=(Unknown("everything", f"it does not answer ({status.reason})"),))
        words, action = DOWN[status.reason]
        return Verdict(gpu, (Problem(m.UP, 0, words, action),))
    own = [(series, value) for series, value in snapshot.samples if series.gpu == gpu]
    values = {series.metric: value for series, value in own if not series.labels}
    reasons = {
        dict(series.labels)["metric"]: dict(series.labels)["reason"]
        for series, _ in own
        if series.metric in (m.SUPPORTED, m.FIELD_FAILURES)
    }
    unknown = tuple(each for what, metrics in TOPICS.items() for each in _unknown(what, metrics, values, reasons))
    return Verdict(gpu, _problems(values), unknown)


def _problems(values: Mapping[Metric, float]) -> tuple[Problem, ...]:
    found = []
    for metric, (words, action) in FAULTS.items():
        value = values.get(metric, 0)
        if value > 0:
            said = f"{value:.0f} {words}" if metric.unit == "errors" else words
            found.append(Problem(metric, value, said, action))
    value = values.get(m.RECOVERY, 0)
    if value > 0:
        newer = f"the driver asks for recovery action {value:.0f}, which is newer than this exporter", Action.DRAIN
        found.append(Problem(m.RECOVERY, value, *RECOVERY.get(int(value), newer)))
    return tuple(found)


def _unknown(
    what: str, metrics: tuple[Metric, ...], values: Mapping[Metric, float], reasons: Mapping[str, str]
) -> tuple[Unknown, ...]:
    """What is not known of a topic: each row that ought to have answered, or the topic if no row can."""
    silent = {metric: reasons.get(metric.key, "not_read") for metric in metrics if metric not in values}
    failed = tuple(Unknown(f"{what} ({metric})", why) for metric, why in silent.items() if why != "not_supported")
    if failed or len(silent) < len(metrics):
        return failed
    why = "ECC is off" if metrics == (m.ECC_DBE_VOL,) and values.get(m.ECC_MODE) == 0 else "not_supported"
    return (Unknown(what, why, harmless=True),)
