"""The states that tell a sick GPU, its driver or its links: one row each, as one PromQL expression."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import BUSY, LOW_MARGIN
from gpu_exporter.health.judge import FABRIC_DONE, FASTEST
from gpu_exporter.model.metric import Metric


@dataclass(frozen=True, slots=True)
class State:
    """`promql` finds the GPUs (or exporters) that are in this state. `where`: which hardware can tell."""

    name: str
    means: str
    promql: str
    where: str


ALL = "all"
AMPERE = "Ampere and newer with ECC"
NVLINK = "boards with NVLink, from Ampere on"
# A lane may get one bit in 10^12 wrong (PCI Express base specification), and each such error is at most one replay. A
# lane of generation g carries 8e9 * 2^(g - 3) bits a second.
BIT_ERROR_LIMIT = "1e-12 * 8e9"

# fmt: off
STATES = (
    State("GPU lost", "it does not answer; the reason is in `gpu_down_reason`", f"{m.UP} == 0", ALL),
    State("GPU missing", "it is bound to the driver, or was there before, and does not answer", f"{m.EXPECTED} - {m.VISIBLE} > 0", ALL),
    State("Recovery action", "the driver asks for a reset, a reboot or a drain; outranks every other row", f"{m.RECOVERY} != 0", "newer drivers"),
    State("Uncorrectable ECC errors", "errors since the driver was loaded; the life-long counter stays up for ever, so it is no state", f"{m.ECC_DBE_VOL} > 0", "all with ECC"),
    State("Corrected ECC errors, rate", "more than ten in an hour: no fault, but worth a look when it goes on", f"increase({m.ECC_SBE_VOL}[1h]) > 10", "all with ECC"),
    State("SRAM threshold", "more uncorrectable SRAM errors than NVIDIA accepts of a board", f"{m.SRAM_EXCEEDED} == 1", AMPERE),
    State("Row remap pending", "a bad row is fenced off and will be replaced at the next reset", f"{m.REMAP_PENDING} == 1", AMPERE),
    State("Row remap failed", "a bad row could not be replaced", f"{m.REMAP_FAILURE} == 1", AMPERE),
    State("Spare rows low", "memory banks with few spare rows left, or none", f"{m.REMAP_HISTOGRAM[3]} + {m.REMAP_HISTOGRAM[4]} > 0", AMPERE),
    State("Retired pages pending", "bad pages will be retired at the next reboot", f"{m.RETIRED_PENDING} == 1", "before Ampere, with ECC"),
    State("Repair pending", "a memory channel or a processing cluster will be repaired at the next reset", f"{m.CHANNEL_REPAIR} + {m.TPC_REPAIR} > 0", "Hopper and newer"),
    State("InfoROM corrupt", "checksums of the board's own settings and error records are wrong", f"{m.INFOROM} == 0", "boards with an InfoROM"),
    State("PCIe link slow", "below the most that GPU and slot can do while the GPU is busy; an idle link saves power", f"({m.PCIE_GEN} < {m.PCIE_MAX_GEN} or {m.PCIE_WIDTH} < {m.PCIE_MAX_WIDTH}) and {m.GPU_UTIL} >= {BUSY} and {m.PSTATE} <= {FASTEST}", ALL),
    State("PCIe replays", f"more than a link may have whose lanes get one bit in 10^12 wrong (`{BIT_ERROR_LIMIT} * 2 ^ (generation - 3) * lanes` a second: one in two seconds at generation 5 with 16 lanes)", f"rate({m.PCIE_REPLAY}[15m]) > {BIT_ERROR_LIMIT} * 2 ^ (max_over_time({m.PCIE_GEN}[15m]) - 3) * max_over_time({m.PCIE_WIDTH}[15m])", ALL),
    State("NVLink down", "some links are up and others not; boards with bridges may have links that lead nowhere", f"{m.NVLINK_COUNT} - {m.NVLINK_UP} > 0 and {m.NVLINK_UP} > 0", NVLINK),
    State("NVLink errors", "replays, recoveries or CRC errors within ten minutes", f"increase({m.NVLINK_REPLAY}[10m]) + increase({m.NVLINK_RECOVERY}[10m]) + increase({m.NVLINK_CRC}[10m]) > 0", "Hopper and newer"),
    State("NVLink slow", "all links together carry less than they did within a day", f"{m.NVLINK_SPEED} < max_over_time({m.NVLINK_SPEED}[1d])", NVLINK),
    State("Fabric not ready", "the fabric manager has not made the GPU part of the NVSwitch fabric: CUDA does not start", f"{m.FABRIC} != {FABRIC_DONE}", "Hopper and newer with NVSwitch"),
    State("Fabric fault", "the fabric reports lost bandwidth or a broken route for the GPU", f"{m.FABRIC_FAULTS[0]} == 1", "Hopper and newer with NVSwitch"),
    State("Thermal margin", f"{LOW_MARGIN} degrees or fewer until it slows down: the driver's own margin, else threshold less temperature", f"({m.TEMP_MARGIN} or ({m.SLOWDOWN_TEMP} - {m.GPU_TEMP})) <= {LOW_MARGIN}", "driver's margin: Hopper and newer; threshold: all"),
    State("Slowed down by hardware", "heat, or the power supply, held the clock down", f'rate({m.CLOCK_EVENT_SECONDS[0]}{{reason=~"hw_.+"}}[5m]) > 0', "Ampere and newer"),
    State("Power limit", "at its limit, which is normal at full load; compare GPUs of one job", f"{m.POWER} / {m.POWER_LIMIT} > 0.98", ALL),
    State("Persistence mode off", "the driver unloads when nothing uses the GPU, and each start takes seconds", f"{m.PERSISTENCE} == 0", ALL),
    State("Driver reload needed", "library and kernel driver differ, as after an upgrade without a reboot: programs that start now fail", f"{m.RELOAD_NEEDED} == 1", ALL),
    State("Health not known", "something that the GPU can tell could not be read", f"sum without (state) ({m.HEALTH_STATE[0]}) == 0", ALL),
)
# fmt: on

NAMES = re.compile(r"\b(?:DCGM_|gpu_)\w+")


def rows_of(state: State) -> tuple[Metric, ...]:
    """The catalogue rows whose families the expression names, in its order; the first row of each family."""
    first = {row.name: row for row in reversed(m.METRICS)}
    return tuple(first[name] for name in dict.fromkeys(NAMES.findall(state.promql)))
