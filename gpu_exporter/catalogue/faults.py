"""Every way in which a GPU is unfit for work: its verdict, repair, documentation, alert and Xids, as one table.

`health/judge.py` reads verdicts from it, `docs/health.md` is rendered from it, and each fault names its failure mode
(`failure_modes/`), which is where alert, runbook and panel come from. It also has the driver's own recovery actions,
which the kernel log (Xid 154) and NVML (field 230) report by number, and the numbers that a verdict of the moment and
the failure modes, which see a window of time, share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, gt, ne

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Action, Health

# At this many degrees, or fewer, below the temperature at which it slows down, a GPU is about to slow down.
LOW_MARGIN = 3
# From this utilisation on (percent) a link that saves power when idle is expected at full speed.
BUSY = 50
# Clocks are up in these performance states; below, a link may save power although some kernel runs.
FASTEST = 2
# The fabric state of a GPU that is part of the NVSwitch fabric.
FABRIC_DONE = 3
# A lane may get one bit in 10^12 wrong (PCI Express base specification), and each such error causes at most one replay.
# A lane of generation g carries 8 * 2^(g - 3) Gbit/s.
BIT_ERROR_RATE, LANE_GBITS = 1e-12, 8
# Replays per second that a lane of generation 3 may have, as a number and as people read it.
BIT_ERROR_LIMIT = BIT_ERROR_RATE * LANE_GBITS * 1e9
BIT_ERROR_LIMIT_TEXT = f"{BIT_ERROR_RATE:g} * {LANE_GBITS}e9"

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {">": gt, "==": eq, "!=": ne}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A comparison of one metric with a number: the same for a verdict and in PromQL."""

    metric: Metric
    operator: str
    bound: int

    @property
    def promql(self) -> str:
        """The comparison as a PromQL filter."""
        return f"{self.metric} {self.operator} {self.bound}"

    def holds(self, value: float) -> bool:
        """Whether the comparison is true for this value."""
        return _HOLDS[self.operator](value, self.bound)


@dataclass(frozen=True, slots=True)
class State:
    """A state of a GPU, its links or its driver: one row of docs/health.md.

    `promql` selects the GPUs (or exporters) that are in this state, `hardware` says which hardware reports it.
    """

    name: str
    meaning: str
    promql: str
    hardware: str

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The catalogue rows of the metrics in `promql`, in order; of a family the first row."""
        first = {row.name: row for row in reversed(m.METRICS)}
        return tuple(first[name] for name in dict.fromkeys(METRIC_NAME.findall(self.promql)))


METRIC_NAME = re.compile(r"\b(?:DCGM_|gpu_)\w+")

UNCORRECTABLE_ECC = Threshold(m.ECC_DBE_VOL, ">", 0)
SRAM_EXCEEDED = Threshold(m.SRAM_EXCEEDED, "==", 1)
REMAP_PENDING = Threshold(m.REMAP_PENDING, "==", 1)
REMAP_FAILED = Threshold(m.REMAP_FAILURE, "==", 1)
RETIREMENT_PENDING = Threshold(m.RETIRED_PENDING, "==", 1)
RECOVERY_REQUESTED = Threshold(m.RECOVERY, "!=", 0)
INFOROM_INVALID = Threshold(m.INFOROM, "==", 0)
FABRIC_NOT_READY = Threshold(m.FABRIC, "!=", FABRIC_DONE)

ALL = "all"
AMPERE = "Ampere and newer with ECC"
NVLINK_BOARDS = "boards with NVLink, from Ampere on"

# fmt: off
STATES = (
    State("GPU lost", "it does not answer; the reason is in `gpu_down_reason`", f"{m.UP} == 0", ALL),
    State("GPU missing", "it is bound to the driver, or was there before, and does not answer", f"{m.EXPECTED} - {m.VISIBLE} > 0", ALL),
    State("Recovery action", "the driver asks for a reset, a reboot or a drain", RECOVERY_REQUESTED.promql, "newer drivers"),
    State("Uncorrectable ECC errors", "errors since the driver was loaded; the lifetime counter never decreases, so it is not used", UNCORRECTABLE_ECC.promql, "all with ECC"),
    State("Corrected ECC errors, rate", "more than 10 an hour: watch the trend; the alert fires at more than 100", f"increase({m.ECC_SBE_VOL}[1h]) > 10", "all with ECC"),
    State("SRAM threshold", "more uncorrectable SRAM errors than NVIDIA accepts of a board", SRAM_EXCEEDED.promql, AMPERE),
    State("Row remap pending", "a bad row is fenced off and will be replaced at the next reset", REMAP_PENDING.promql, AMPERE),
    State("Row remap failed", "a bad row could not be replaced", REMAP_FAILED.promql, AMPERE),
    State("Spare rows low", "memory banks with few spare rows left, or none", f"{m.REMAP_HISTOGRAM[3]} + {m.REMAP_HISTOGRAM[4]} > 0", AMPERE),
    State("Retired pages pending", "bad pages will be retired at the next reboot", RETIREMENT_PENDING.promql, "before Ampere, with ECC"),
    State("Repair pending", "a memory channel or a processing cluster will be repaired at the next reset", f"{m.CHANNEL_REPAIR} + {m.TPC_REPAIR} > 0", "Hopper and newer"),
    State("InfoROM corrupt", "checksums of the board's own settings and error records are wrong", INFOROM_INVALID.promql, "boards with an InfoROM"),
    State("PCIe link slow", "below the most that GPU and slot can do while the GPU is busy; an idle link saves power", f"({m.PCIE_GEN} < {m.PCIE_MAX_GEN} or {m.PCIE_WIDTH} < {m.PCIE_MAX_WIDTH}) and {m.GPU_UTIL} >= {BUSY} and {m.PSTATE} <= {FASTEST}", ALL),
    State("PCIe replays", f"more than a link may have whose lanes get one bit in 10^12 wrong (`{BIT_ERROR_LIMIT_TEXT} * 2 ^ (generation - 3) * lanes` a second: one in two seconds at generation 5 with 16 lanes)", f"rate({m.PCIE_REPLAY}[15m]) > {BIT_ERROR_LIMIT_TEXT} * 2 ^ (max_over_time({m.PCIE_GEN}[15m]) - 3) * max_over_time({m.PCIE_WIDTH}[15m])", ALL),
    State("NVLink down", "some links are up and others not; boards with bridges may have links that lead nowhere", f"{m.NVLINK_COUNT} - {m.NVLINK_UP} > 0 and {m.NVLINK_UP} > 0", NVLINK_BOARDS),
    State("NVLink errors", "replays, recoveries or CRC errors within ten minutes", f"increase({m.NVLINK_REPLAY}[10m]) + increase({m.NVLINK_RECOVERY}[10m]) + increase({m.NVLINK_CRC}[10m]) > 0", "Hopper and newer"),
    State("NVLink slow", "all links together carry less than they did within a day", f"{m.NVLINK_SPEED} < max_over_time({m.NVLINK_SPEED}[1d])", NVLINK_BOARDS),
    State("Fabric not ready", "the fabric manager has not made the GPU part of the NVSwitch fabric: CUDA does not start", FABRIC_NOT_READY.promql, "Hopper and newer with NVSwitch"),
    State("Fabric fault", "the fabric reports lost bandwidth or a broken route for the GPU", f"{m.FABRIC_FAULTS[0]} == 1", "Hopper and newer with NVSwitch"),
    State("Thermal margin", f"{LOW_MARGIN} degrees or fewer until it slows down: the driver's own margin, else threshold less temperature", f"({m.TEMP_MARGIN} or ({m.SLOWDOWN_TEMP} - {m.GPU_TEMP})) <= {LOW_MARGIN}", "driver's margin: Hopper and newer; threshold: all"),
    State("Slowed down by hardware", "heat, or the power supply, held the clock down", f'rate({m.CLOCK_EVENT_SECONDS[0]}{{reason=~"hw_.+"}}[5m]) > 0', "Ampere and newer"),
    State("Power limit", "at its limit, which is normal at full load; compare GPUs of one job", f"{m.POWER} / {m.POWER_LIMIT} > 0.98", ALL),
    State("Persistence mode off", "the driver unloads when nothing uses the GPU, and each start takes seconds", f"{m.PERSISTENCE} == 0", ALL),
    State("Driver reload needed", "library and kernel driver differ, as after an upgrade without a reboot: programs that start now fail", f"{m.RELOAD_NEEDED} == 1", ALL),
    State("Health not known", "a value that the GPU has could not be read", f"sum without (state) ({m.HEALTH_STATE[0]}) == 0", ALL),
)
# fmt: on
_STATE = {state.name: state for state in STATES}


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a GPU is unfit.

    `reason` is its name, a label value that never changes; `words` describe it and may use `{value}`. `action` repairs
    it. `state` is the row of docs/health.md that describes it, `mode` the name of the failure mode that alerts on it.
    `xids` are the codes with which the driver reports that it began. If the action of the mode is a different one,
    `why_other_action` says why.
    """

    reason: str
    health: Health
    action: Action
    words: str
    state: State
    mode: str
    xids: tuple[int, ...] = ()
    why_other_action: str = ""


def _degraded(reason: str, action: Action, words: str, state: str, mode: str, xids: tuple[int, ...] = ()) -> Fault:
    return Fault(reason, Health.DEGRADED, action, words, _STATE[state], mode, xids)


def _unhealthy(
    reason: str, action: Action, words: str, state: str, mode: str, xids: tuple[int, ...] = (), why: str = ""
) -> Fault:
    return Fault(reason, Health.UNHEALTHY, action, words, _STATE[state], mode, xids, why)


# A GPU that does not answer, by the reason. Other reasons say more about the exporter than about the GPU.
DOWN: Mapping[str, Fault] = {
    "lost": _unhealthy("lost", Action.NODE_REBOOT, "it fell off the bus", "GPU lost", "GpuLost", (79,)),
    "reset_required": _unhealthy(
        "reset_required",
        Action.GPU_RESET,
        "it answers only that it needs a reset",
        "GPU lost",
        "GpuLost",
        why="the alert covers every reason for which a GPU does not answer, and most of them take a reboot",
    ),
    "stalled": _unhealthy(
        "stalled", Action.NODE_REBOOT, "a call into the driver does not return", "GPU lost", "GpuLost", (119, 120)
    ),
    "gone": _unhealthy("gone", Action.NODE_REBOOT, "the driver no longer lists it", "GPU lost", "GpuLost"),
    "unknown": _unhealthy(
        "no_answer",
        Action.DRAIN,
        "it does not answer, and the driver does not say why",
        "GPU lost",
        "GpuLost",
        why="the runbook of the alert drains the node first; the reboot follows when the reason is clear",
    ),
}
# Faults that one value shows at once. Errors in the life of the board are no fault of today: they outlast its repair.
MEMORY: Mapping[Threshold, Fault] = {
    UNCORRECTABLE_ECC: _unhealthy(
        "uncorrectable_ecc",
        Action.GPU_RESET,
        "{value:.0f} uncorrectable ECC errors since the driver was loaded",
        "Uncorrectable ECC errors",
        "GpuEccUncorrectable",
        (48, 94, 95, 140, 171, 172),
    ),
    SRAM_EXCEEDED: _unhealthy(
        "sram_threshold",
        Action.REPLACE,
        "SRAM had more uncorrectable errors than NVIDIA accepts",
        "SRAM threshold",
        "GpuEccUncorrectable",
        why="the alert begins with the reset that every uncorrectable error takes; its runbook then replaces the board",
    ),
    REMAP_FAILED: _unhealthy(
        "row_remap_failure",
        Action.REPLACE,
        "a memory row could not be remapped",
        "Row remap failed",
        "GpuRowRemapFailed",
        (64,),
    ),
    REMAP_PENDING: _degraded(
        "row_remap_pending",
        Action.GPU_RESET,
        "a memory row waits for a reset to be remapped",
        "Row remap pending",
        "GpuRowRemapPending",
        (63,),
    ),
    RETIREMENT_PENDING: _degraded(
        "retired_pages_pending",
        Action.NODE_REBOOT,
        "memory pages wait for a reboot to be retired",
        "Retired pages pending",
        "GpuRetiredPagesPending",
        (63,),
    ),
}
INFOROM = _degraded(
    "inforom_corrupt",
    Action.REPLACE,
    "its InfoROM is corrupt: flash it, or replace the board",
    "InfoROM corrupt",
    "GpuInforomCorrupt",
    (125,),
)
# Slowdown by hardware, by the bit of the clock events. Not the bit `hw_slowdown`, which NVML also sets while clocks
# just change.
CLOCK_EVENTS: Mapping[int, Fault] = {
    6: _degraded(
        "hw_thermal_slowdown",
        Action.NONE,
        "hardware slows it down, for it is too hot: see to cooling",
        "Slowed down by hardware",
        "GpuThermalThrottling",
    ),
    7: _degraded(
        "hw_power_brake",
        Action.NONE,
        "hardware slows it down for its power supply: see to that",
        "Slowed down by hardware",
        "GpuPowerBrake",
    ),
}
MARGIN = _degraded(
    "low_thermal_margin",
    Action.NONE,
    "{value:.0f} degrees are left until it slows down: see to cooling",
    "Thermal margin",
    "GpuThermalMarginLow",
)
PCIE = _degraded(
    "pcie_link_degraded",
    Action.NODE_REBOOT,
    "busy, with its PCIe link at {value:.0%} of its highest speed",
    "PCIe link slow",
    "GpuPcieLinkDegraded",
)
NVLINK = _degraded(
    "nvlink_down",
    Action.GPU_RESET,
    "{value:.0f} of its NVLinks to the fabric are down",
    "NVLink down",
    "GpuNvlinkDown",
    (74, 136, 149, 150),
)
FABRIC = _degraded(
    "fabric_not_ready",
    Action.NONE,
    "not part of the NVSwitch fabric: look at nvidia-fabricmanager",
    "Fabric not ready",
    "GpuFabricNotReady",
)

_AS_THE_DRIVER_SAYS = "the alert stands for every action that the driver may ask for; its value is the number"


def _recovery(action: Action, words: str) -> Fault:
    """A recovery action that the driver asks for. The failure mode names the first and most frequent one, a reset."""
    why = "" if action is Action.GPU_RESET else _AS_THE_DRIVER_SAYS
    state, mode = "Recovery action", "GpuRecoveryActionRequired"
    return _unhealthy("recovery_action", action, f"the driver asks {words}", state, mode, (154,), why)


# The driver's own recovery actions, by their numbers in nvml.h; 0 is none.
RECOVERY: Mapping[int, Fault] = {
    1: _recovery(Action.GPU_RESET, "for a reset of this GPU"),
    2: _recovery(Action.NODE_REBOOT, "for a reboot"),
    3: _recovery(Action.DRAIN, "to drain peer-to-peer traffic"),
    4: _recovery(Action.DRAIN, "to drain this GPU and reset it"),
    5: _recovery(Action.DRAIN, "to recover the IMEX domain"),
    6: _recovery(Action.GPU_RESET, "for a bus reset of this GPU"),
    7: _recovery(Action.NODE_REBOOT, "for a power cycle or reboot of the system"),
}
# Any other number is newer than this table, and a driver that asks for something must not be ignored.
NEWER = _recovery(Action.DRAIN, "for recovery action {value:.0f}, which is newer than this exporter")

FAULTS = (
    *(*DOWN.values(), *MEMORY.values(), *RECOVERY.values(), NEWER, INFOROM),
    *(*CLOCK_EVENTS.values(), MARGIN, PCIE, NVLINK, FABRIC),
)


def recovery_action(number: int) -> Action:
    """The action that the driver asks for by this number of nvml.h."""
    return RECOVERY.get(number, NEWER).action if number else Action.NONE
