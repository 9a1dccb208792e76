"""Every fault that makes a GPU unfit for work: its verdict, repair, documentation, alert and XIDs, as one table.

`health/fitness.py` reads verdicts from it, and `docs/health.md` is rendered from it. Each fault names its failure mode
(`failure_modes/`), which defines alert, runbook and panel. The table also contains the driver's own recovery actions,
which the kernel log (XID 154) and NVML (field 230) report by number, and the thresholds that verdicts (on present
values) share with failure modes (on a window of time).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, gt, ne

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.source_kind import DCGM
from gpu_exporter.model.verdict import Action, Health
from gpu_exporter.reports.numbers import agreeing, percent

# A GPU that is this many degrees, or fewer, below its slowdown temperature is about to be throttled.
LOW_MARGIN = 3
# From this utilisation on (percent) a link that saves power when idle is expected at full speed.
BUSY = 50
# The slowest performance state with high clocks (P0 is the fastest). In slower ones a link may save power.
FASTEST = 2
# The fabric state of a GPU that is part of the NVSwitch fabric.
FABRIC_DONE = 3
# One bit in 10^12 of a lane may be wrong (PCI Express base specification), and each error causes at most one replay.
# A lane of generation g carries 8 * 2^(g - 3) Gbit/s.
BIT_ERROR_RATE, LANE_GBITS = 1e-12, 8
# Replays per second that a lane of generation 3 may have, as a number and for people.
BIT_ERROR_LIMIT = BIT_ERROR_RATE * LANE_GBITS * 1e9
BIT_ERROR_LIMIT_TEXT = f"{BIT_ERROR_RATE:g} * {LANE_GBITS}e9"

# Bytes per second and direction that a lane of PCIe generation 3 carries: 128b/130b encoding. Generations 1 and 2 carry
# 1.5 % less than the formula below says, generation 6 carries 4 % more.
LANE_BYTES = 0.985e9

# Where the words of a fault have its value.
SLOT = re.compile(r"\{(?:value|percent)[^}]*\}")

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {">": gt, "==": eq, "!=": ne}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A comparison of one metric with a number: the same for a verdict and in PromQL."""

    metric: Metric
    operator: str
    bound: int

    @property
    def promql(self) -> str:
        """Return the comparison as a PromQL filter."""
        return f"{self.metric} {self.operator} {self.bound}"

    def holds(self, value: float) -> bool:
        """Return whether the comparison is true for this value."""
        return _HOLDS[self.operator](value, self.bound)


@dataclass(frozen=True, slots=True)
class FaultState:
    """A state of a GPU, its links or its driver: one row of docs/health.md.

    `promql` selects the GPUs (or exporters) that are in this state, `hardware` says which hardware reports it.
    """

    name: str
    meaning: str
    promql: str
    hardware: str

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the catalogue rows of the metrics in `promql`, in order; of a family the first row."""
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
NVLINK_GPUS = "GPUs with NVLink, Ampere and newer"

# fmt: off
STATES = (
    FaultState("GPU lost", "the driver, or a list of GPUs that answers, says that it is down; the reason is in `gpu_down_reason`", f'{m.DOWN}{{reason=~"lost|reset_required|stalled|gone|unknown"}} == 1', ALL),
    FaultState("GPU missing", "it is on the PCI bus, or was seen before, and does not answer; `gpu_device_missing` has its address if the driver does not list it", f"{m.EXPECTED} - {m.VISIBLE} > 0", ALL),
    FaultState("Recovery action", "the driver requests a reset, a reboot or a drain", RECOVERY_REQUESTED.promql, "newer drivers"),
    FaultState("Uncorrectable ECC errors", "errors since the driver was loaded; the lifetime counter never decreases, so it is not used", UNCORRECTABLE_ECC.promql, "all with ECC"),
    FaultState("Corrected ECC errors, rate", "more than 10 an hour: watch the trend; the alert fires at more than 100", f"increase({m.ECC_SBE_VOL}[1h]) > 10", "all with ECC"),
    FaultState("SRAM threshold", "more uncorrectable SRAM errors than NVIDIA accepts", SRAM_EXCEEDED.promql, AMPERE),
    FaultState("Row remap pending", "a bad memory row is no longer used, and the next reset replaces it with a spare one", REMAP_PENDING.promql, AMPERE),
    FaultState("Row remap failed", "a bad memory row could not be replaced with a spare one", REMAP_FAILED.promql, AMPERE),
    FaultState("Spare rows low", "memory banks with few spare rows left, or none", f"{m.REMAP_HISTOGRAM[3]} + {m.REMAP_HISTOGRAM[4]} > 0", AMPERE),
    FaultState("Retired pages pending", "the next reboot retires bad memory pages", RETIREMENT_PENDING.promql, "before Ampere, with ECC"),
    FaultState("Repair pending", "the next reset repairs a memory channel or a processing cluster (TPC)", f"{m.CHANNEL_REPAIR} + {m.TPC_REPAIR} > 0", "Hopper and newer"),
    FaultState("InfoROM corrupt", "the GPU's stored settings and error records have wrong checksums", INFOROM_INVALID.promql, "GPUs with an InfoROM"),
    FaultState("PCIe link slow", "slower than it was before, than the port above the GPU allows, or, if that is unknown, than other GPUs of this model on the node have, while the GPU is busy (an idle link saves power); a slot with fewer lanes than the GPU is no fault", f"{m.PCIE_WIDTH} * {LANE_BYTES:.15g} * 2 ^ ({m.PCIE_GEN} - 3) < {m.PCIE_EXPECTED} and {m.GPU_UTIL} >= {BUSY} and {m.PSTATE} <= {FASTEST}", ALL),
    FaultState("PCIe replays", f"more than a bit error rate of 10^-12 explains (`{BIT_ERROR_LIMIT_TEXT} * 2 ^ (generation - 3) * lanes` per second: one in two seconds at generation 5 with 16 lanes)", f"rate({m.PCIE_REPLAY}[15m]) > {BIT_ERROR_LIMIT_TEXT} * 2 ^ (max_over_time({m.PCIE_GEN}[15m]) - 3) * max_over_time({m.PCIE_WIDTH}[15m])", ALL),
    FaultState("NVLink down", "some links that should be active are not: any of an SXM board or in an NVSwitch fabric, on other boards those that were active before, also on other GPUs of this model on the node", f"{m.NVLINK_EXPECTED} - {m.NVLINK_UP} > 0 and {m.NVLINK_UP} > 0", NVLINK_GPUS),
    FaultState("NVLink errors", "replays, recoveries or CRC errors within ten minutes; the alert looks at the last hour", f"increase({m.NVLINK_REPLAY}[10m]) + increase({m.NVLINK_RECOVERY}[10m]) + increase({m.NVLINK_CRC}[10m]) > 0", "Hopper and newer"),
    FaultState("NVLink slow", "the total capacity of all links is below its maximum of the last day", f"{m.NVLINK_SPEED} < max_over_time({m.NVLINK_SPEED}[1d])", NVLINK_GPUS),
    FaultState("Fabric not ready", "the fabric manager has not added the GPU to the NVSwitch fabric: CUDA does not start", FABRIC_NOT_READY.promql, "Hopper and newer with NVSwitch"),
    FaultState("Fabric fault", "the fabric reports lost bandwidth or a broken route for the GPU", f"{m.FABRIC_FAULTS[0]} == 1", "Hopper and newer with NVSwitch"),
    FaultState("Thermal margin", f"{LOW_MARGIN} degrees or fewer until the GPU is throttled: the margin that the driver reports, otherwise slowdown temperature minus temperature", f"({m.TEMP_MARGIN} or ({m.SLOWDOWN_TEMP} - {m.GPU_TEMP})) <= {LOW_MARGIN}", "driver's margin: Hopper and newer; threshold: all"),
    FaultState("Throttled by hardware", "the hardware lowered the clock because of heat or of the power supply", f'rate({m.CLOCK_EVENT_SECONDS[0]}{{reason=~"hw_.+"}}[5m]) > 0', "Ampere and newer"),
    FaultState("Power limit", "at its limit, which is normal at full load; compare the GPUs of one job", f"{m.POWER} / {m.POWER_LIMIT} > 0.98", ALL),
    FaultState("Persistence mode off", "the driver unloads when nothing uses the GPU, and each start takes seconds", f"{m.PERSISTENCE} == 0", ALL),
    FaultState("Driver reload needed", "driver library and kernel module have different versions, as after an upgrade without a reboot: new programs fail", f"{m.RELOAD_NEEDED} == 1", ALL),
    FaultState("GPU not read", "what it is read through does not answer, or has not read it yet; this says nothing about the GPU", f'{m.DOWN}{{reason=~"source_lost|unread|no_permission|not_supported|internal_error"}} == 1', ALL),
    FaultState("Health not known", "a value that the verdict needs could not be read", f"sum without (state) ({m.HEALTH_STATE[0]}) == 0", ALL),
)
# fmt: on
_STATE = {state.name: state for state in STATES}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that makes a GPU unfit for work.

    `reason` is its name, a label value that never changes; `describe` says it in words for a value. `action` repairs
    it. `state` is the row of docs/health.md that describes it, `mode` the name of the failure mode that alerts on it.
    The driver reports the begin of the fault with one of the codes `xids`. If the action of the mode differs,
    `why_other_action` says why.
    """

    reason: str
    health: Health
    action: Action
    words: str
    state: FaultState
    mode: str
    xids: tuple[int, ...] = ()
    why_other_action: str = ""
    below_zero: str = ""

    def describe(self, value: float) -> str:
        """Return the words for a value. Where a sign would be hard to read, those below zero have words of their own."""
        if self.below_zero and value < 0:
            return self.below_zero.format(value=-value)
        return agreeing(self.words.format(value=value, percent=percent(value)))

    def template(self, subject: str) -> str:
        """Return what `describe` says of a subject instead of "it", as a template for the value of an alert."""
        number = '{{ $value | printf "%.0f" | reReplaceAll "-" "" }}'
        below, words = (
            SLOT.sub(number, text.removeprefix("it ")) for text in (self.below_zero or self.words, self.words)
        )
        return f"{subject} {{{{ if lt $value 0.0 }}}}{below}{{{{ else }}}}{words}{{{{ end }}}}"


def _degraded(
    reason: str,
    action: Action,
    words: str,
    state: str,
    mode: str,
    xids: tuple[int, ...] = (),
    below_zero: str = "",
) -> Fault:
    return Fault(reason, Health.DEGRADED, action, words, _STATE[state], mode, xids, below_zero=below_zero)


def _unhealthy(
    reason: str, action: Action, words: str, state: str, mode: str, xids: tuple[int, ...] = (), why: str = ""
) -> Fault:
    return Fault(reason, Health.UNHEALTHY, action, words, _STATE[state], mode, xids, why)


# The mode that alerts on every GPU that does not answer.
LOST = "GpuLost"
# Faults of a GPU that does not answer, by reason. Other reasons are about the exporter rather than the GPU.
DOWN: Mapping[str, Fault] = {
    "lost": _unhealthy("lost", Action.NODE_REBOOT, "it fell off the bus", "GPU lost", LOST, (79,)),
    "reset_required": _unhealthy(
        "reset_required",
        Action.GPU_RESET,
        "it refuses every call until it is reset",
        "GPU lost",
        LOST,
        why="the alert covers every reason for which a GPU does not answer, and most of them need a reboot",
    ),
    "stalled": _unhealthy("stalled", Action.NODE_REBOOT, "a driver call does not return", "GPU lost", LOST, (119, 120)),
    "gone": _unhealthy("gone", Action.NODE_REBOOT, "the driver no longer lists it", "GPU lost", LOST),
    "unknown": _unhealthy(
        "no_answer",
        Action.DRAIN,
        "it does not answer, and the driver does not say why",
        "GPU lost",
        LOST,
        why="the runbook of the alert drains the node first; the reboot follows when the reason is clear",
    ),
}


# Reasons for which a GPU cannot be read that say nothing about it: each is a fault of telemetry, and no repair of the GPU or
# the node helps.
TELEMETRY: Mapping[str, str] = {
    "source_lost": "what it is read through does not answer, which says nothing about the GPU",
    "unread": "attaching: it has not been read yet",
    "no_permission": "the exporter may not read it: check the modes of /dev/nvidia*",
    "not_supported": "the driver's library does not support it",
    "internal_error": "an error of gpu-exporter, which its log describes: please report it",
}

# What it says about a node if all its GPUs fail at the same moment for this reason: nothing about any GPU. A lost GPU, and
# one that needs a reset, is named by the driver itself, but not by a host engine.
OF_NODE: Mapping[str, str] = {
    "unknown": "no GPU answers, and the driver does not say why: a container that has lost its devices (restart it), or a "
    "fault of the driver (`nvidia-smi` on the node)",
    "stalled": "calls of the driver hang for all GPUs: a fault of the driver (`dmesg | grep -i nvrm` on the node)",
}


def silent(source: str, reason: str) -> str:
    """Return what to say about the GPUs of a source that is down, from the labels of
    `gpu_exporter_source_down_reason`."""
    cause = reason.replace("_", " ")
    if source == DCGM.name:
        return (
            f"the DCGM host engine has no values ({cause}), which says nothing about the GPUs: see the log of "
            "nv-hostengine and restart it, or gpu-exporter if the host engine is embedded"
        )
    return OF_NODE.get(
        reason,
        f"the driver's library cannot be used ({cause}), which says nothing about the GPUs: `gpu-exporter doctor` says "
        "what to do",
    )


def pcie_capacity(generation: float, lanes: float) -> float:
    """Return the capacity of a PCIe link in bytes per second and direction, as the signal `pcie_link` computes it."""
    return float(lanes * LANE_BYTES * 2.0 ** (generation - 3.0))


def lists_nothing(labels: Mapping[str, str]) -> bool:
    """Return whether a source that is down has no list of GPUs, from the labels of `gpu_exporter_source_down_reason`.

    The driver's empty list is one. A host engine's is none: it is empty if it was started before the driver.
    """
    return labels.get("reason") != "no_gpu" or labels.get("source") == DCGM.name


def missing(expected: int, listed: int) -> int:
    """Return how many of the expected GPUs the driver does not list."""
    return max(0, expected - listed)


def missing_gpu(labels: Mapping[str, str]) -> str:
    """Return which GPU is missing and what its kernel driver is, from the labels of `gpu_device_missing`."""
    driver = labels.get("driver", "")
    return f"{labels.get('pci_bus_id', '')}, {f'bound to {driver}' if driver else 'not bound to a driver'}"


# Faults of the memory, each shown by one value. Lifetime error counts are not used: a repair does not reset them.
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
        "SRAM has more uncorrectable errors than NVIDIA accepts",
        "SRAM threshold",
        "GpuEccUncorrectable",
        why="the alert starts with the reset that every uncorrectable error needs; its runbook then replaces the GPU",
    ),
    REMAP_FAILED: _unhealthy(
        "row_remap_failure",
        Action.REPLACE,
        "a bad memory row could not be replaced",
        "Row remap failed",
        "GpuRowRemapFailed",
        (64,),
    ),
    REMAP_PENDING: _degraded(
        "row_remap_pending",
        Action.GPU_RESET,
        "a bad memory row will be replaced at the next reset",
        "Row remap pending",
        "GpuRowRemapPending",
        (63,),
    ),
    RETIREMENT_PENDING: _degraded(
        "retired_pages_pending",
        Action.NODE_REBOOT,
        "bad memory pages will be retired at the next reboot",
        "Retired pages pending",
        "GpuRetiredPagesPending",
        (63,),
    ),
}
INFOROM = _degraded(
    "inforom_corrupt",
    Action.REPLACE,
    "its InfoROM is corrupt: flash it, or replace the GPU",
    "InfoROM corrupt",
    "GpuInforomCorrupt",
    (125,),
)
# Throttling by hardware, by bit of the clock events. The bit `hw_slowdown` is not used: NVML also sets it during
# ordinary clock changes.
CLOCK_EVENTS: Mapping[int, Fault] = {
    6: _degraded(
        "hw_thermal_slowdown",
        Action.NONE,
        "throttled by hardware because it is too hot: check the cooling",
        "Throttled by hardware",
        "GpuThermalThrottling",
    ),
    7: _degraded(
        "hw_power_brake",
        Action.NONE,
        "throttled by hardware because of the power supply (power brake): check the power supply",
        "Throttled by hardware",
        "GpuPowerBrake",
    ),
}
MARGIN = _degraded(
    "low_thermal_margin",
    Action.NONE,
    "it is {value:.0f} °C below its temperature limit",
    "Thermal margin",
    "GpuThermalMarginLow",
    below_zero="it is {value:.0f} °C above its temperature limit",
)
PCIE = _degraded(
    "pcie_link_degraded",
    Action.NODE_REBOOT,
    "its PCIe link runs at {percent} of the capacity that it had before, or that its slot or its peers have",
    "PCIe link slow",
    "GpuPcieLinkDegraded",
)
NVLINK = _degraded(
    "nvlink_down",
    Action.GPU_RESET,
    "{value:.0f} of its NVLinks are down",
    "NVLink down",
    "GpuNvlinkDown",
    (74, 136, 149),
)
FABRIC = _degraded(
    "fabric_not_ready",
    Action.NONE,
    "not part of the NVSwitch fabric: check nvidia-fabricmanager",
    "Fabric not ready",
    "GpuFabricNotReady",
)

_AS_THE_DRIVER_SAYS = "the alert covers every recovery action; its value is the number of the action"


def _recovery(action: Action, words: str, number: str = "") -> Fault:
    """Return the fault of a recovery action. The failure mode names the most frequent action, a reset."""
    words = f"the driver requests {words}" + (f" (recovery action {number})" if number else "")
    why = "" if action is Action.GPU_RESET else _AS_THE_DRIVER_SAYS
    state, mode = "Recovery action", "GpuRecoveryActionRequired"
    return _unhealthy("recovery_action", action, words, state, mode, (154,), why)


# The driver's own recovery actions, by their numbers in nvml.h; 0 is none.
RECOVERY: Mapping[int, Fault] = {
    1: _recovery(Action.GPU_RESET, "a reset of this GPU", "1"),
    2: _recovery(Action.NODE_REBOOT, "a reboot", "2"),
    3: _recovery(Action.DRAIN, "a drain of peer-to-peer traffic", "3"),
    4: _recovery(Action.DRAIN, "a drain and a reset of this GPU", "4"),
    5: _recovery(Action.DRAIN, "a recovery of the IMEX domain", "5"),
    6: _recovery(Action.GPU_RESET, "a bus reset of this GPU", "6"),
    7: _recovery(Action.NODE_REBOOT, "a power cycle or reboot of the node", "7"),
}
# Any other number is newer than this table. It must not be ignored.
NEWER = _recovery(Action.DRAIN, "recovery action {value:.0f}, which this version of gpu-exporter does not know")

# The mode that alerts on XIDs that require a drain; the verdict names each code as a reason.
FATAL_XID = "GpuXidFatal"
FAULTS = (
    *(*DOWN.values(), *MEMORY.values(), *RECOVERY.values(), NEWER, INFOROM),
    *(*CLOCK_EVENTS.values(), MARGIN, PCIE, NVLINK, FABRIC),
)


_MODES = {fault.reason: fault.mode for fault in FAULTS}


def mode_of(reason: str) -> str:
    """Return the name of the failure mode that alerts on a fault, by its reason; empty for one that is not known."""
    return FATAL_XID if reason.startswith("xid_") else _MODES.get(reason, "")


def recovery_action(number: int) -> Action:
    """Return the action that the driver requests with this number of nvml.h."""
    return RECOVERY.get(number, NEWER).action if number else Action.NONE
