"""Values of one GPU -> a verdict: is it fit, and if not, why and what repairs it. Pure, and cheap enough for each tick.

Only state counts, not history: what a value of now says. A rule that a healthy GPU could break by chance is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import BUSY, LOW_MARGIN
from gpu_exporter.model.gpu import Sample
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Action, Health, Problem, Unknown, Verdict


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to be ill: its stable name, what it makes of a GPU, what repairs it; `words` may use `{value}`."""

    reason: str
    health: Health
    action: Action
    words: str


DEGRADED, UNHEALTHY = Health.DEGRADED, Health.UNHEALTHY
# Clocks are up in these performance states; below, a link may save power although some kernel runs.
FASTEST = 2
# A driver call may take a second or two when a big job starts. `check` looks for longer than this.
STUCK_SECONDS = 4.0
GPU_IDLE = 1
FABRIC_DONE = 3

# Wrong as soon as they are not 0. Errors in the life of the board are no fault of today: they outlast its repair.
FAULTS: Mapping[Metric, Fault] = {
    m.ECC_DBE_VOL: Fault(
        "uncorrectable_ecc",
        UNHEALTHY,
        Action.GPU_RESET,
        "{value:.0f} uncorrectable ECC errors since the driver was loaded",
    ),
    m.SRAM_EXCEEDED: Fault(
        "sram_threshold", UNHEALTHY, Action.REPLACE, "SRAM had more uncorrectable errors than NVIDIA accepts"
    ),
    m.REMAP_FAILURE: Fault("row_remap_failure", UNHEALTHY, Action.REPLACE, "a memory row could not be remapped"),
    m.REMAP_PENDING: Fault(
        "row_remap_pending", DEGRADED, Action.GPU_RESET, "a memory row waits for a reset to be remapped"
    ),
    m.RETIRED_PENDING: Fault(
        "retired_pages_pending", DEGRADED, Action.NODE_REBOOT, "memory pages wait for a reboot to be retired"
    ),
}
INFOROM = Fault("inforom_corrupt", DEGRADED, Action.REPLACE, "its InfoROM is corrupt: flash it, or replace the board")
# Slowdown by hardware. Not the bit `hw_slowdown`, which NVML also sets while clocks just change.
CLOCK_EVENTS: Mapping[int, Fault] = {
    6: Fault("hw_thermal_slowdown", DEGRADED, Action.NONE, "hardware slows it down, for it is too hot: see to cooling"),
    7: Fault("hw_power_brake", DEGRADED, Action.NONE, "hardware slows it down for its power supply: see to that"),
}
MARGIN = Fault(
    "low_thermal_margin", DEGRADED, Action.NONE, "{value:.0f} degrees are left until it slows down: see to cooling"
)
PCIE = Fault(
    "pcie_link_degraded", DEGRADED, Action.NODE_REBOOT, "busy, with its PCIe link at {value:.0%} of its highest speed"
)
NVLINK = Fault("nvlink_down", DEGRADED, Action.GPU_RESET, "{value:.0f} of its NVLinks to the fabric are down")
FABRIC = Fault(
    "fabric_not_ready", DEGRADED, Action.NONE, "not part of the NVSwitch fabric: look at nvidia-fabricmanager"
)
# The driver's own recovery actions (nvml.h). Any other number is newer than this table, and means something.
RECOVERY: Mapping[int, Fault] = {
    number: Fault("recovery_action", UNHEALTHY, action, words)
    for number, action, words in (
        (1, Action.GPU_RESET, "the driver asks for a reset of this GPU"),
        (2, Action.NODE_REBOOT, "the driver asks for a reboot"),
        (3, Action.DRAIN, "the driver asks to drain peer-to-peer traffic"),
        (4, Action.DRAIN, "the driver asks to drain this GPU and reset it"),
        (5, Action.DRAIN, "the driver asks to recover the IMEX domain"),
        (6, Action.GPU_RESET, "the driver asks for a bus reset of this GPU"),
        (7, Action.NODE_REBOOT, "the driver asks for a power cycle or reboot of the system"),
    )
}
NEWER = Fault(
    "recovery_action",
    UNHEALTHY,
    Action.DRAIN,
    "the driver asks for recovery action {value:.0f}, which is newer than this exporter",
)
# A GPU that does not answer. Other reasons say more of the exporter than of the GPU.
DOWN: Mapping[str, Fault] = {
    "lost": Fault("lost", UNHEALTHY, Action.NODE_REBOOT, "it fell off the bus"),
    "reset_required": Fault("reset_required", UNHEALTHY, Action.GPU_RESET, "it answers only that it needs a reset"),
    "stalled": Fault("stalled", UNHEALTHY, Action.NODE_REBOOT, "a call into the driver does not return"),
    "gone": Fault("gone", UNHEALTHY, Action.NODE_REBOOT, "the driver has it no more"),
    "unknown": Fault("no_answer", UNHEALTHY, Action.DRAIN, "it does not answer, and the driver does not say why"),
}
ALL_FAULTS = (
    *(*DOWN.values(), *FAULTS.values(), *RECOVERY.values(), NEWER, INFOROM),
    *(*CLOCK_EVENTS.values(), MARGIN, PCIE, NVLINK, FABRIC),
)
# What a GPU that has it must tell before it is called healthy. Of each topic one answer is enough, for newer GPUs
# remap where older ones retire.
TOPICS: Mapping[str, tuple[Metric, ...]] = {
    "uncorrectable ECC errors": (m.ECC_DBE_VOL,),
    "row remapping": (m.REMAP_PENDING, m.REMAP_FAILURE, m.RETIRED_PENDING),
    "recovery action": (m.RECOVERY,),
}
# What a verdict is made of: cheap calls, and no profiling. A GPU that answers nothing counts as lost, and one without
# ECC may answer nothing but its temperature.
ROWS: tuple[Metric, ...] = (
    *(m.GPU_TEMP, m.TEMP_MARGIN, m.SLOWDOWN_TEMP, m.ECC_MODE, *FAULTS, m.RECOVERY, m.INFOROM, m.CLOCK_EVENTS),
    *(m.GPU_UTIL, m.PSTATE, m.PCIE_GEN, m.PCIE_WIDTH, m.PCIE_MAX_GEN, m.PCIE_MAX_WIDTH),
    *(m.FABRIC, m.NVLINK_COUNT, m.NVLINK_UP, m.MIG_MODE),
)

Values = Mapping[Metric, float]


def judge(
    status: GpuStatus, samples: Iterable[Sample], why: Callable[[Metric], str], told: Iterable[Problem] = ()
) -> Verdict:
    """The verdict on one GPU by its samples. `why` says of a metric without a value why that is; `told` is what others
    know against the GPU."""
    gpu = status.gpu
    if status.up:
        values = {series.metric: value for series, value in samples if not series.labels}
        unknown = tuple(each for what, metrics in TOPICS.items() for each in _unknown(what, metrics, values, why))
        return Verdict(gpu, (*_problems(values), *told), unknown)
    if status.reason in DOWN and not 0 < status.stalled < STUCK_SECONDS:
        return Verdict(gpu, (_problem(DOWN[status.reason], m.UP, 0), *told))
    return Verdict(gpu, tuple(told), (Unknown("everything", f"it does not answer ({status.reason})"),))


def missing(snapshot: Snapshot) -> int:
    """GPUs that ought to be there and have no verdict."""
    expected = next((int(value) for series, value in snapshot.samples if series.metric is m.EXPECTED), 0)
    return max(0, expected - len(snapshot.gpus))


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """For JSON."""
    return {
        "gpu": verdict.gpu.index,
        "UUID": verdict.gpu.uuid,
        "modelName": verdict.gpu.model,
        "health": verdict.health.value,
        "action": verdict.action.value,
        "problems": [
            {
                "reason": each.reason,
                "health": each.health.value,
                "action": each.action.value,
                "what": each.words,
                "metric": each.metric.key,
                "value": each.value,
            }
            for each in verdict.problems
        ],
        "unknown": [{"what": each.what, "why": each.why, "harmless": each.harmless} for each in verdict.unknown],
    }


def _problem(fault: Fault, metric: Metric, value: float) -> Problem:
    return Problem(metric, value, fault.words.format(value=value), fault.action, fault.reason, fault.health)


def _problems(values: Values) -> Iterator[Problem]:
    for metric, fault in FAULTS.items():
        value = values.get(metric, 0)
        if value > 0:
            yield _problem(fault, metric, value)
    recovery = values.get(m.RECOVERY, 0)
    if recovery > 0:
        yield _problem(RECOVERY.get(int(recovery), NEWER), m.RECOVERY, recovery)
    if values.get(m.INFOROM, 1) == 0:
        yield _problem(INFOROM, m.INFOROM, 0)
    events = int(values.get(m.CLOCK_EVENTS, 0))
    for bit, fault in CLOCK_EVENTS.items():
        if events >> bit & 1:
            yield _problem(fault, m.CLOCK_EVENTS, events)
    yield from _heat(values)
    yield from _links(values)


def _heat(values: Values) -> Iterator[Problem]:
    margin, metric = values.get(m.TEMP_MARGIN), m.TEMP_MARGIN
    if margin is None and m.SLOWDOWN_TEMP in values and m.GPU_TEMP in values:  # before Ada and Hopper
        margin, metric = values[m.SLOWDOWN_TEMP] - values[m.GPU_TEMP], m.GPU_TEMP
    if margin is not None and margin <= LOW_MARGIN:
        yield _problem(MARGIN, metric, margin)


def _links(values: Values) -> Iterator[Problem]:
    idle = int(values.get(m.CLOCK_EVENTS, 0)) & GPU_IDLE
    if values.get(m.GPU_UTIL, 0) >= BUSY and values.get(m.PSTATE, 0) <= FASTEST and not idle:
        # A generation doubles the speed, by and large; where one of the four is not known, its link counts as full.
        lost = max(0.0, values.get(m.PCIE_MAX_GEN, 0) - values.get(m.PCIE_GEN, 99))
        narrow = values.get(m.PCIE_WIDTH, 99) / values.get(m.PCIE_MAX_WIDTH, 1)
        speed = min(1.0, narrow) / 2**lost
        if speed < 1:
            yield _problem(PCIE, m.PCIE_WIDTH if narrow < 1 else m.PCIE_GEN, speed)
    fabric = values.get(m.FABRIC, FABRIC_DONE)
    if fabric != FABRIC_DONE:
        yield _problem(FABRIC, m.FABRIC, fabric)
    elif m.FABRIC in values:  # links of bridged boards may lead nowhere; those into a fabric may not
        links_up = values.get(m.NVLINK_UP, 0)
        down = values.get(m.NVLINK_COUNT, 0) - links_up
        if down > 0 and links_up > 0 and not values.get(m.MIG_MODE):  # all of them are off on purpose
            yield _problem(NVLINK, m.NVLINK_UP, down)


def _unknown(
    what: str, metrics: tuple[Metric, ...], values: Values, why: Callable[[Metric], str]
) -> tuple[Unknown, ...]:
    """What is not known of a topic: each row that ought to have answered, or the topic if no row can."""
    silent = [metric for metric in metrics if metric not in values]
    if not silent:
        return ()
    reasons = {metric: why(metric) for metric in silent}
    failed = tuple(Unknown(f"{what} ({metric})", why) for metric, why in reasons.items() if why != "not_supported")
    if failed or len(silent) < len(metrics):
        return failed
    off = metrics == (m.ECC_DBE_VOL,) and values.get(m.ECC_MODE) == 0
    return (Unknown(what, "ECC is off" if off else "not_supported", harmless=True),)
