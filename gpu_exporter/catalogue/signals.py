"""Canonical signals: quantities with one name, one unit and one set of labels, whichever exporter was scraped.

Each is the recording rule `gpu:<name>:<unit>`, made from the first of: our time integrals, classic names (ours or those
of dcgm-exporter <= 4.8), names of dcgm-exporter >= 4.9. Who scrapes two exporters gets each GPU once, by UUID.
The same definitions read a page or a snapshot in Python (`diagnosis/window.py`), so that both see the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import modern
from gpu_exporter.catalogue.distributions import Spread, Within
from gpu_exporter.catalogue.faults import BIT_ERROR_LIMIT
from gpu_exporter.catalogue.signal import Derived, Read, Signal
from gpu_exporter.catalogue.xids import XidKind, load
from gpu_exporter.model.metric import Metric


def _reads(metric: Metric, scale: float = 1.0, total: Metric | None = None, bit: int | None = None) -> tuple[Read, ...]:
    """The generations of a metric: our integral, the classic name, the new name. `scale` turns the classic unit."""
    found = [Read(total.name, rate=True)] if total else []
    found.append(Read(metric.name, scale, bit=bit, where=metric.labels))
    renamed = modern(metric)
    if renamed:
        found.append(Read(renamed[0], scale / renamed[1], bit=bit))
    return tuple(found)


def _activity(name: str, metric: Metric, total: Metric) -> Signal:
    return Signal(name, "ratio", metric.help.split(", mean")[0], _reads(metric, total=total), per_instance=True)


def _traffic(name: str, metric: Metric, total: Metric) -> Signal:
    return Signal(name, "bytes_per_second", metric.help.split(", bytes")[0], _reads(metric, total=total))


def _state(name: str, unit: str, metric: Metric, help: str = "") -> Signal:
    return Signal(name, unit, help or metric.help.rstrip("."), _reads(metric), owned=False)


GR_ACTIVE = _activity("gr_active", m.GR_ENGINE_ACTIVE, m.GR_ENGINE_SECONDS)
SM_ACTIVE = _activity("sm_active", m.SM_ACTIVE, m.SM_SECONDS)
SM_IDLE = Signal(
    "sm_idle",
    "ratio",
    "Share of time with at most 1 % of the SMs active, by tick (`--metrics full`)",
    (Read(m.SM_SHARES.name, shape=Within(m.SHARES[0])),),
    per_instance=True,
)
SM_OCCUPANCY = _activity("sm_occupancy", m.SM_OCCUPANCY, m.SM_OCC_SECONDS)
TENSOR_ACTIVE = _activity("tensor_active", m.TENSOR_ACTIVE, m.TENSOR_SECONDS)
DRAM_ACTIVE = _activity("dram_active", m.DRAM_ACTIVE, m.DRAM_SECONDS)
FP64_ACTIVE = _activity("fp64_active", m.FP64_ACTIVE, m.FP64_SECONDS)
FP32_ACTIVE = _activity("fp32_active", m.FP32_ACTIVE, m.FP32_SECONDS)
FP16_ACTIVE = _activity("fp16_active", m.FP16_ACTIVE, m.FP16_SECONDS)
INT_ACTIVE = _activity("int_active", m.INT_ACTIVE, m.INT_SECONDS)
UTIL = Signal("util", "ratio", "GPU utilisation as nvidia-smi shows it", _reads(m.GPU_UTIL, 1e-2))

PCIE_RX = _traffic("pcie_rx", m.PCIE_RX, m.PCIE_RX_TOTAL)
PCIE_TX = _traffic("pcie_tx", m.PCIE_TX, m.PCIE_TX_TOTAL)
NVLINK_RX = _traffic("nvlink_rx", m.NVLINK_RX, m.NVLINK_RX_TOTAL)
NVLINK_TX = _traffic("nvlink_tx", m.NVLINK_TX, m.NVLINK_TX_TOTAL)
NVLINK = Signal(
    "nvlink",
    "bytes_per_second",
    "NVLink traffic in both directions",
    (
        Derived(NVLINK_TX, "+", NVLINK_RX),
        Read("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 1e6),
        Read("DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"),
    ),
)
PCIE_GEN = Signal("pcie_gen", "generation", "PCIe generation of the link", _reads(m.PCIE_GEN))
PCIE_WIDTH = Signal("pcie_width", "lanes", "PCIe lanes of the link", _reads(m.PCIE_WIDTH))
# 128b/130b encoding; generations 1 and 2 are 1.5 % less, generation 6 is 4 % more.
PCIE_LINK = Signal(
    "pcie_link",
    "bytes_per_second",
    "What the PCIe link can carry in each direction",
    (Derived(Derived(PCIE_WIDTH, "*", 0.985e9), "*", Derived(2.0, "^", Derived(PCIE_GEN, "-", 3.0))),),
)
PCIE_REPLAY_LIMIT = Signal(
    "pcie_replay_limit",
    "per_15m",
    "PCIe replays within 15 minutes that a good link may have",
    (Derived(Derived(PCIE_WIDTH, "*", BIT_ERROR_LIMIT * 900), "*", Derived(2.0, "^", Derived(PCIE_GEN, "-", 3.0))),),
)
PCIE_RX_USE = Signal(
    "pcie_rx_use", "ratio", "PCIe traffic to the GPU over what the link can carry", (Derived(PCIE_RX, "/", PCIE_LINK),)
)
PCIE_TX_USE = Signal(
    "pcie_tx_use",
    "ratio",
    "PCIe traffic from the GPU over what the link can carry",
    (Derived(PCIE_TX, "/", PCIE_LINK),),
)

POWER = Signal("power", "watts", "Board power", _reads(m.POWER))
POWER_INSTANT = Signal("power_instant", "watts", "Board power of the moment", _reads(m.POWER_INSTANT))
POWER_LIMIT = Signal("power_limit", "watts", "Power limit in force", (*_reads(m.POWER_LIMIT), *_reads(m.POWER_SET)))
POWER_USE = Signal("power_use", "ratio", "Board power over its limit", (Derived(POWER, "/", POWER_LIMIT),))
POWER_INSTANT_USE = Signal(
    "power_instant_use",
    "ratio",
    "Board power of the moment over its limit",
    (Derived(POWER_INSTANT, "/", POWER_LIMIT),),
)
POWER_SWING = Signal(
    "power_swing",
    "watts",
    "How far board power swings up and down: half of what lies between the lowest and the highest tenth of the time "
    "(`--metrics full`)",
    (Read(m.POWER_SAMPLES.name, shape=Spread()),),
)
ENERGY = Signal(
    "energy",
    "joules_per_second",
    "Energy used, per second",
    (
        Read(m.ENERGY_JOULES.name, rate=True),
        Read(m.ENERGY.name, 1e-3, rate=True),
        Read("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", rate=True),
    ),
)
SM_CLOCK = Signal("sm_clock", "hertz", "SM clock", _reads(m.SM_CLOCK, 1e6))

FB_USED = Signal("fb_used", "bytes", "Device memory in use by programs", _reads(m.FB_USED, 2.0**20), per_instance=True)
FB_FREE = Signal("fb_free", "bytes", "Device memory that is free", _reads(m.FB_FREE, 2.0**20), per_instance=True)
FB_USE = Signal(
    "fb_use",
    "ratio",
    "Device memory in use over what programs can have",
    (Derived(FB_USED, "/", Derived(FB_USED, "+", FB_FREE)),),
    per_instance=True,
)

GPU_TEMP = _state("temp", "celsius", m.GPU_TEMP)
MEMORY_TEMP = _state("memory_temp", "celsius", m.MEMORY_TEMP)
SLOWDOWN_TEMP = _state("slowdown_temp", "celsius", m.SLOWDOWN_TEMP)
THERMAL_MARGIN = Signal(
    "thermal_margin", "celsius", "Degrees left until the GPU slows down", (*_reads(m.TEMP_MARGIN),), owned=False
)
# On boards whose driver gives no margin.
THERMAL_DISTANCE = Signal(
    "thermal_distance",
    "celsius",
    "Slowdown threshold less temperature",
    (Derived(SLOWDOWN_TEMP, "-", GPU_TEMP),),
    owned=False,
)


def _clock_event(name: str, reason: str, help: str, *more: Read) -> Signal:
    """A share of time; from a mask, 0 or 1."""
    (seconds,) = (row for row in m.CLOCK_EVENT_SECONDS if dict(row.labels)["reason"] == reason)
    (flag,) = (row for row in m.CLOCK_EVENT_ACTIVE if dict(row.labels)["reason"] == reason)
    masks = (m.CLOCK_EVENTS.name, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
    made = (Read(seconds.name, rate=True, where=seconds.labels), *more, *(Read(mask, bit=flag.bit) for mask in masks))
    return Signal(name, "ratio", help, made, owned=False)


HW_THERMAL = _clock_event(
    "hw_thermal_slowdown",
    "hw_thermal_slowdown",
    "Share of time in which heat made the hardware slow the GPU down",
    Read("DCGM_FI_DEV_THERMAL_VIOLATION", 1e-9, rate=True),
    Read("DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", rate=True),
)
SW_THERMAL = _clock_event(
    "sw_thermal_slowdown", "sw_thermal_slowdown", "Share of time in which heat made the driver slow the GPU down"
)
POWER_BRAKE = _clock_event(
    "hw_power_brake", "hw_power_brake", "Share of time in which the power supply made the hardware slow the GPU down"
)
POWER_CAP = _clock_event("sw_power_cap", "sw_power_cap", "Share of time at the power limit (normal at full load)")

UP = _state("up", "bool", m.UP)
RELEASED = Signal(
    "released",
    "bool",
    "1 while the exporter was asked to let the GPU go",
    (Read(m.DOWN.name, where=(("reason", "released"),)),),
    owned=False,
)
LAST_READ = _state("last_read", "timestamp", m.READ_AT)
ECC_DBE = _state("ecc_uncorrectable", "errors", m.ECC_DBE_VOL)
ECC_SBE = _state("ecc_correctable", "errors", m.ECC_SBE_VOL)
SRAM_EXCEEDED = _state("sram_exceeded", "bool", m.SRAM_EXCEEDED)
REMAP_PENDING = _state("row_remap_pending", "bool", m.REMAP_PENDING)
REMAP_FAILED = _state("row_remap_failed", "bool", m.REMAP_FAILURE)
BANKS_LOW = _state("banks_spare_low", "banks", m.REMAP_HISTOGRAM[3])
BANKS_NONE = _state("banks_spare_none", "banks", m.REMAP_HISTOGRAM[4])
REMAPPED = _state("remapped_uncorrectable", "rows", m.REMAP_UNCORRECTABLE)
RETIRED_PENDING = _state("retired_pages_pending", "bool", m.RETIRED_PENDING)
RECOVERY = _state("recovery_action", "action", m.RECOVERY)
INFOROM = _state("inforom_valid", "bool", m.INFOROM)
FABRIC = _state("fabric_status", "status", m.FABRIC)
PCIE_MAX_GEN = _state("pcie_max_gen", "generation", m.PCIE_MAX_GEN)
PCIE_MAX_WIDTH = _state("pcie_max_width", "lanes", m.PCIE_MAX_WIDTH)
PCIE_REPLAYS = _state("pcie_replays", "total", m.PCIE_REPLAY)
NVLINK_LINKS = _state("nvlink_links", "links", m.NVLINK_COUNT)
NVLINK_UP = _state("nvlink_links_up", "links", m.NVLINK_UP)
NVLINK_REPLAYS = _state("nvlink_replays", "total", m.NVLINK_REPLAY)
NVLINK_RECOVERIES = _state("nvlink_recoveries", "total", m.NVLINK_RECOVERY)
NVLINK_CRC = _state("nvlink_crc_errors", "total", m.NVLINK_CRC)

DRAIN_CODES = load().drain_codes


def _xid(name: str, help: str, *made: Read) -> Signal:
    return Signal(name, "timestamp", help, made, owned=False, extra=("xid",))


XID_FATAL = _xid(
    "xid_fatal",
    "When an Xid that warrants a drain was last seen",
    Read(m.XID_LAST.name, any_of=("xid", tuple(map(str, DRAIN_CODES)))),
    Read(m.XID_ERRORS.name, codes=DRAIN_CODES),
    Read("DCGM_FI_DEV_XID_ERROR", codes=DRAIN_CODES),
)
XID_APPLICATION = _xid(
    "xid_application",
    "When an Xid that is usually the application's was last seen",
    Read(m.XID_LAST.name, where=(("kind", XidKind.APPLICATION.value),)),
)
XID_UNKNOWN = _xid(
    "xid_unknown",
    "When an Xid that nobody documented was last seen",
    Read(m.XID_LAST.name, where=(("kind", XidKind.UNKNOWN.value),)),
)


def _signals() -> Iterator[Signal]:
    return (value for value in tuple(globals().values()) if isinstance(value, Signal))


# In the order in which they are recorded: what is derived comes after what it is derived from.
SIGNALS: tuple[Signal, ...] = tuple(_signals())
