"""Canonical signals: quantities with one name, one unit and one set of labels, whichever exporter was scraped.

Each is the recording rule `gpu:<name>:<unit>`, read from the first of these that exists: gpu-exporter's time integrals,
classic names (of gpu-exporter or dcgm-exporter <= 4.8), names of dcgm-exporter >= 4.9. If two exporters are scraped,
each GPU has one series, by UUID. `diagnosis/window.py` evaluates the same definitions in Python, with the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpu_exporter.catalogue import host_signals, job_signals, nic_signals
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import modern
from gpu_exporter.catalogue.faults import BIT_ERROR_LIMIT, LANE_BYTES, TELEMETRY
from gpu_exporter.catalogue.xids import XidKind, load
from gpu_exporter.conditions.signal import OWNERS_INFO, PRESENCE, STOPPED_INFO, Derived, Read, Signal, Spread, Within
from gpu_exporter.model.metric import Metric


def _reads(metric: Metric, scale: float = 1.0, total: Metric | None = None) -> tuple[Read, ...]:
    """Return the ways to read a metric: its integral, its classic name, its new name.

    `scale` is the signal's unit per unit of the classic name.
    """
    reads = [Read(total.name, rate=True)] if total else []
    reads.append(Read(metric.name, scale, where=metric.labels))
    renamed = modern(metric)
    if renamed:
        reads.append(Read(renamed[0], scale / renamed[1]))
    return tuple(reads)


def _activity(name: str, metric: Metric, total: Metric, plain: str, *approximate: Read) -> Signal:
    help = metric.help.split(", mean")[0]
    reads = tuple(replace(read, most=1.0) for read in _reads(metric, total=total))
    return Signal(name, "ratio", help, (*reads, *approximate), per_instance=True, plain=plain)


def _traffic(name: str, metric: Metric, total: Metric, plain: str, *approximate: Read) -> Signal:
    reads = (*_reads(metric, total=total), *approximate)
    return Signal(name, "bytes_per_second", metric.help.split(", bytes")[0], reads, plain=plain)


def _state(name: str, unit: str, metric: Metric, plain: str) -> Signal:
    return Signal(name, unit, metric.help.rstrip("."), _reads(metric), has_owner=False, plain=plain)


_UTIL = tuple(replace(read, most=1.0) for read in _reads(m.GPU_UTIL, 1e-2, m.GPU_UTIL_SECONDS))
_MEMORY_UTIL = tuple(replace(read, most=1.0) for read in _reads(m.MEM_UTIL, 1e-2, m.MEM_UTIL_SECONDS))
GR_ACTIVE = _activity(PRESENCE, m.GR_ENGINE_ACTIVE, m.GR_ENGINE_SECONDS, "GPU busy {} of the time", *_UTIL)
SM_ACTIVE = _activity("sm_active", m.SM_ACTIVE, m.SM_SECONDS, "{} of the SMs busy on average")
SM_IDLE = Signal(
    "sm_idle",
    "ratio",
    "Share of time with at most 1 % of the SMs active (`--metrics full`)",
    (Read(m.SM_SHARES.name, shape=Within(m.SHARES[0])),),
    per_instance=True,
    plain="at most 1 % of the SMs active {} of the time",
)
SM_OCCUPANCY = _activity("sm_occupancy", m.SM_OCCUPANCY, m.SM_OCC_SECONDS, "SM occupancy {}")
TENSOR_ACTIVE = _activity("tensor_active", m.TENSOR_ACTIVE, m.TENSOR_SECONDS, "tensor cores busy {} of the time")
DRAM_ACTIVE = _activity("dram_active", m.DRAM_ACTIVE, m.DRAM_SECONDS, "memory bandwidth {} used", *_MEMORY_UTIL)
FP64_ACTIVE = _activity("fp64_active", m.FP64_ACTIVE, m.FP64_SECONDS, "FP64 units busy {} of the time")
FP32_ACTIVE = _activity("fp32_active", m.FP32_ACTIVE, m.FP32_SECONDS, "FP32 units busy {} of the time")
FP16_ACTIVE = _activity("fp16_active", m.FP16_ACTIVE, m.FP16_SECONDS, "FP16 units busy {} of the time")
INT_ACTIVE = _activity("int_active", m.INT_ACTIVE, m.INT_SECONDS, "integer units busy {} of the time")
# Where the driver's samples are not counted, as through DCGM, the engine is: it misses copies, but no load.
UTIL = Signal(
    "util",
    "ratio",
    "GPU utilisation as nvidia-smi defines it, averaged; if only engine activity is counted, that",
    (_UTIL[0], Read(m.GR_ENGINE_SECONDS.name, rate=True, where=(("GPU_I_ID", ""),), most=1.0), *_UTIL[1:]),
    plain="utilisation {}",
)
# What the driver says of a GPU without profiling counters stands in for them: utilisation for engine activity, memory
# utilisation, an upper bound, for DRAM activity, and samples of PCIe traffic for its mean.
APPROXIMATE = Signal(
    "approximate",
    "bool",
    "1 where the engine activity is the utilisation that the driver reports, because there are no profiling counters",
    (
        Read(m.GR_ENGINE_SECONDS.name, 0.0),
        *_reads(m.GR_ENGINE_ACTIVE, 0.0),
        Derived(Derived(UTIL, "*", 0.0), "+", 1.0),
    ),
    per_instance=True,
    plain="approximate: {}",
)
PROFILING_STOPPED = Signal(
    "profiling_stopped",
    "bool",
    "1 while DCGM's profiling counters have stopped or another tool uses them, so that their values are left "
    "out; absent otherwise",
    (Read(STOPPED_INFO), Read(m.PROFILING_PAUSED.name)),
    plain="profiling counters stopped: {}",
)

# A GPU without an owner needs a 0, because its series continues when a second pod or job shares it.
ALLOCATED = Signal(
    "allocated",
    "bool",
    "1 while a pod or job has the GPU, whether it uses it or not",
    (Read(OWNERS_INFO), *_reads(m.GR_ENGINE_ACTIVE, 0.0), *_reads(m.GPU_UTIL, 0.0)),
    per_instance=True,
    plain="allocated to a pod or job: {}",
)

PCIE_RX = _traffic("pcie_rx", m.PCIE_RX, m.PCIE_RX_TOTAL, "PCIe traffic to the GPU {}", *_reads(m.PCIE_RX_SAMPLED))
PCIE_TX = _traffic("pcie_tx", m.PCIE_TX, m.PCIE_TX_TOTAL, "PCIe traffic from the GPU {}", *_reads(m.PCIE_TX_SAMPLED))
NVLINK_RX, NVLINK_TX = (
    _traffic(name, metric, total, plain, Read(counted.name, rate=True))
    for name, metric, total, plain, counted in (
        ("nvlink_rx", m.NVLINK_RX, m.NVLINK_RX_TOTAL, "NVLink traffic received {}", m.NVLINK_RX_COUNTED),
        ("nvlink_tx", m.NVLINK_TX, m.NVLINK_TX_TOTAL, "NVLink traffic sent {}", m.NVLINK_TX_COUNTED),
    )
)
NVLINK = Signal(
    "nvlink",
    "bytes_per_second",
    "NVLink traffic in both directions",
    (
        Derived(NVLINK_TX, "+", NVLINK_RX),
        Read("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 1e6),
        Read("DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"),
    ),
    plain="NVLink traffic {}",
)
NVLINK_FABRIC = Signal(
    "nvlink_fabric",
    "code",
    "Code of the NVLink fabric, made of its cluster and its clique: ranks with different ones do not reach each other "
    "over NVLink",
    (Read(m.FABRIC_CODE.name),),
    plain="code of the NVLink fabric {}",
)
PCIE_GEN = Signal(
    "pcie_gen", "generation", "PCIe generation of the link", _reads(m.PCIE_GEN), plain="PCIe generation {}"
)
PCIE_WIDTH = Signal("pcie_width", "lanes", "PCIe lanes of the link", _reads(m.PCIE_WIDTH), plain="{} PCIe lanes")
PCIE_LINK = Signal(
    "pcie_link",
    "bytes_per_second",
    "Capacity of the PCIe link in each direction",
    (Derived(Derived(PCIE_WIDTH, "*", LANE_BYTES), "*", Derived(2.0, "^", Derived(PCIE_GEN, "-", 3.0))),),
    plain="PCIe link capacity {}",
)
PCIE_REPLAY_LIMIT = Signal(
    "pcie_replay_limit",
    "per_15m",
    "Highest number of PCIe replays in 15 minutes on a good link; if its lanes and generation are unknown, on one with "
    "16 lanes of generation 6",
    (
        Derived(Derived(PCIE_WIDTH, "*", BIT_ERROR_LIMIT * 900), "*", Derived(2.0, "^", Derived(PCIE_GEN, "-", 3.0))),
        Derived(Derived(UTIL, "*", 0.0), "+", 16 * BIT_ERROR_LIMIT * 900 * 2**3),
    ),
    plain="a good link has {} PCIe replays",
)
PCIE_RX_USE = Signal(
    "pcie_rx_use",
    "ratio",
    "PCIe traffic to the GPU, as a share of the capacity of the link",
    (Derived(PCIE_RX, "/", PCIE_LINK),),
    plain="PCIe link to the GPU {} used",
)
PCIE_TX_USE = Signal(
    "pcie_tx_use",
    "ratio",
    "PCIe traffic from the GPU, as a share of the capacity of the link",
    (Derived(PCIE_TX, "/", PCIE_LINK),),
    plain="PCIe link from the GPU {} used",
)

_ENERGY = (
    Read(m.ENERGY_JOULES.name, rate=True),
    Read(m.ENERGY.name, 1e-3, rate=True),
    Read("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", rate=True),
    Read(m.ENERGY_SAMPLED.name, rate=True),
)
POWER = Signal(
    "power", "watts", "Power draw, averaged by the energy counter", (*_ENERGY, *_reads(m.POWER)), plain="power {}"
)
POWER_NOW = Signal(
    "power_now",
    "watts",
    "Power draw as the driver shows it: the mean of the last second, before Ampere of a moment",
    _reads(m.POWER),
    plain="power now {}",
)
POWER_INSTANT = Signal(
    "power_instant", "watts", "Instantaneous power", _reads(m.POWER_INSTANT), plain="instantaneous power {}"
)
POWER_LIMIT = Signal(
    "power_limit",
    "watts",
    "Power limit in force",
    (*_reads(m.POWER_LIMIT), *_reads(m.POWER_SET)),
    plain="power limit {}",
)
POWER_USE = Signal(
    "power_use",
    "ratio",
    "Power draw as a share of the power limit",
    (Derived(POWER, "/", POWER_LIMIT),),
    plain="power at {} of its limit",
)
POWER_NOW_USE = Signal(
    "power_now_use",
    "ratio",
    "Power draw as the driver shows it, as a share of the power limit",
    (Derived(POWER_NOW, "/", POWER_LIMIT),),
    plain="power now at {} of its limit",
)
POWER_INSTANT_USE = Signal(
    "power_instant_use",
    "ratio",
    "Instantaneous power, as a share of its limit",
    (Derived(POWER_INSTANT, "/", POWER_LIMIT),),
    plain="instantaneous power at {} of its limit",
)
POWER_SWING = Signal(
    "power_swing",
    "watts",
    "How far power swings up and down: half the distance between its 10th and its 90th percentile (`--metrics full`)",
    (Read(m.POWER_SAMPLES.name, shape=Spread()),),
    plain="power swings by ±{}",
)
ENERGY = Signal(
    "energy",
    "joules_per_second",
    "Energy used, per second",
    _ENERGY,
    plain="energy use {}",
)
ENERGY_APPROXIMATE = Signal(
    "energy_approximate",
    "bool",
    "1 where the energy is the integral of the driver's power samples, because the GPU has no energy counter",
    (*(Read(way.name, 0.0) for way in _ENERGY[:-1]), Derived(Derived(ENERGY, "*", 0.0), "+", 1.0)),
    plain="energy approximate: {}",
)
SM_CLOCK = Signal("sm_clock", "hertz", "SM clock", _reads(m.SM_CLOCK, 1e6), plain="SM clock {}")

FB_USED = Signal(
    "fb_used",
    "bytes",
    "Device memory in use by programs",
    _reads(m.FB_USED, m.MIB),
    per_instance=True,
    plain="device memory used {}",
)
FB_FREE = Signal(
    "fb_free",
    "bytes",
    "Device memory that is free",
    _reads(m.FB_FREE, m.MIB),
    per_instance=True,
    plain="free device memory {}",
)
_FB_USABLE = Derived(FB_USED, "+", FB_FREE)
FB_USE = Signal(
    "fb_use",
    "ratio",
    "Device memory in use, as a share of the memory available to programs",
    (Derived(FB_USED, "/", _FB_USABLE),),
    per_instance=True,
    plain="device memory {} in use",
)
FB_PEAK = Signal(
    "fb_peak",
    "bytes",
    "Most device memory that programs used within the last minute, also between scrapes",
    (Read(m.FB_USED_PEAK.name),),
    per_instance=True,
    plain="highest device memory used in a minute {}",
)
FB_PEAK_USE = Signal(
    "fb_peak_use",
    "ratio",
    "Most device memory in use within the last minute, as a share of the memory available to programs; without peaks, "
    "as of the scrape",
    (Derived(FB_PEAK, "/", _FB_USABLE), Derived(FB_USED, "/", _FB_USABLE)),
    per_instance=True,
    plain="device memory at most {} in use",
)
FB_PEAK_FREE = Signal(
    "fb_peak_free",
    "bytes",
    "Device memory that was free at the peak of the last minute; without peaks, as of the scrape",
    (Derived(_FB_USABLE, "-", FB_PEAK), *_reads(m.FB_FREE, m.MIB)),
    per_instance=True,
    plain="lowest free device memory in a minute {}",
)

GPU_TEMP = _state("temp", "celsius", m.GPU_TEMP, "GPU temperature {}")
MEMORY_TEMP = _state("memory_temp", "celsius", m.MEMORY_TEMP, "memory temperature {}")
SLOWDOWN_TEMP = _state("slowdown_temp", "celsius", m.SLOWDOWN_TEMP, "slowdown temperature {}")
THERMAL_MARGIN = Signal(
    "thermal_margin",
    "celsius",
    "Degrees left until the GPU slows down, negative beyond that: the driver's margin, or where it reports none, the "
    "slowdown threshold minus the temperature",
    (*_reads(m.TEMP_MARGIN), Derived(SLOWDOWN_TEMP, "-", GPU_TEMP)),
    has_owner=False,
    plain="thermal margin {}",
)


def _clock_event(reason: str, help: str, plain: str, *more: Read) -> Signal:
    """Return a share of time; if it is read from a mask, 0 or 1."""
    (seconds,) = (row for row in m.CLOCK_EVENT_SECONDS if dict(row.labels)["reason"] == reason)
    (flag,) = (row for row in m.CLOCK_EVENT_ACTIVE if dict(row.labels)["reason"] == reason)
    masks = (m.CLOCK_EVENTS.name, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
    made = (Read(seconds.name, rate=True, where=seconds.labels), *more, *(Read(mask, bit=flag.bit) for mask in masks))
    return Signal(reason, "ratio", help, made, has_owner=False, plain=plain)


HW_THERMAL = _clock_event(
    "hw_thermal_slowdown",
    "Share of time in which the hardware throttled the GPU because of heat",
    "throttled by the hardware because of heat {} of the time",
    Read("DCGM_FI_DEV_THERMAL_VIOLATION", 1e-9, rate=True),
    Read("DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", rate=True),
)
SW_THERMAL = _clock_event(
    "sw_thermal_slowdown",
    "Share of time in which the driver throttled the GPU because of heat",
    "throttled by the driver because of heat {} of the time",
)
POWER_BRAKE = _clock_event(
    "hw_power_brake",
    "Share of time in which the hardware throttled the GPU because of the power supply",
    "throttled because of the power supply {} of the time",
)
POWER_CAP = _clock_event(
    "sw_power_cap",
    "Share of time at the power limit (normal at full load)",
    "at the power limit {} of the time",
)

UP = _state("up", "bool", m.UP, "GPU reachable: {}")
UNOBSERVED = Signal(
    "unobserved",
    "bool",
    "1 while nothing is known about the GPU: its source does not answer, or the driver is released",
    (Read(m.DOWN.name, any_of=("reason", (*TELEMETRY, "released"))),),
    has_owner=False,
    plain="not observed by the exporter: {}",
)


def _verdict(state: str) -> Signal:
    read = Read(m.HEALTH_STATE[0].name, where=(("state", state),))
    help = f"1 while the verdict on the GPU is {state}; all verdicts are 0 while it is unknown"
    return Signal(state, "bool", help, (read,), has_owner=False, plain=f"verdict {state}: {{}}")


HEALTHY, DEGRADED, UNHEALTHY = (_verdict(state) for state in ("healthy", "degraded", "unhealthy"))
READ_AGE = _state("read_age", "seconds", m.READ_AGE, "last successful read {} ago")
ECC_DBE = _state("ecc_uncorrectable", "errors", m.ECC_DBE_VOL, "{} uncorrectable ECC errors")
ECC_SBE = _state("ecc_correctable", "errors", m.ECC_SBE_VOL, "{} corrected ECC errors")
SRAM_EXCEEDED = _state("sram_exceeded", "bool", m.SRAM_EXCEEDED, "SRAM threshold exceeded: {}")
REMAP_PENDING = _state("row_remap_pending", "bool", m.REMAP_PENDING, "row remap pending: {}")
REMAP_FAILED = _state("row_remap_failed", "bool", m.REMAP_FAILURE, "row remap failed: {}")
BANKS_LOW = _state("banks_spare_low", "banks", m.REMAP_HISTOGRAM[3], "{} memory banks with few spare rows")
BANKS_NONE = _state("banks_spare_none", "banks", m.REMAP_HISTOGRAM[4], "{} memory banks without spare rows")
REMAPPED = _state(
    "remapped_uncorrectable", "rows", m.REMAP_UNCORRECTABLE, "{} rows remapped after uncorrectable errors"
)
RETIRED_PENDING = _state("retired_pages_pending", "bool", m.RETIRED_PENDING, "retired pages pending: {}")
PSTATE = _state("pstate", "status", m.PSTATE, "performance state {}")
RECOVERY = _state("recovery_action", "action", m.RECOVERY, "recovery action: {}")
INFOROM = _state("inforom_valid", "bool", m.INFOROM, "InfoROM valid: {}")
FABRIC = _state("fabric_status", "status", m.FABRIC, "NVSwitch fabric state: {}")
PCIE_MAX_GEN = _state("pcie_max_gen", "generation", m.PCIE_MAX_GEN, "maximum PCIe generation {}")
PCIE_MAX_WIDTH = _state("pcie_max_width", "lanes", m.PCIE_MAX_WIDTH, "maximum PCIe width {} lanes")
PCIE_EXPECTED = _state("pcie_expected", "bytes_per_second", m.PCIE_EXPECTED, "expected PCIe link capacity {}")
PCIE_REPLAYS = _state("pcie_replays", "total", m.PCIE_REPLAY, "{} PCIe replays")
NVLINK_LINKS = _state("nvlink_links", "links", m.NVLINK_COUNT, "{} NVLinks")
NVLINK_UP = _state("nvlink_links_up", "links", m.NVLINK_UP, "{} NVLinks active")
NVLINK_EXPECTED = _state("nvlink_links_expected", "links", m.NVLINK_EXPECTED, "{} NVLinks expected")
NVLINK_REPLAYS = _state("nvlink_replays", "total", m.NVLINK_REPLAY, "{} NVLink replays")
NVLINK_RECOVERIES = _state("nvlink_recoveries", "total", m.NVLINK_RECOVERY, "{} NVLink recoveries")
NVLINK_CRC = _state("nvlink_crc_errors", "total", m.NVLINK_CRC, "{} NVLink CRC errors")

# The exporter publishes the results of `check --active` while it finds them in `--state-dir`.
CHECKED_MEMORY = Signal(
    "checked_memory",
    "bytes_per_second",
    "Memory bandwidth of the GPU in its last active check",
    (Read("gpu_probe_bytes_per_second", where=(("quantity", "memory_copy"),)),),
    has_owner=False,
    plain="memory bandwidth in the last active check {}",
)

DRAIN_CODES = load().drain_codes
# The window of dcgm-exporter's count of recent XIDs, unless it was configured.
_COUNT_SECONDS = 300.0


def _xid(name: str, unit: str, help: str, plain: str, *made: Read) -> Signal:
    return Signal(name, unit, help, made, has_owner=False, extra_labels=("xid",), plain=plain)


def _age_of(kind: XidKind) -> Read:
    """Return the age of XIDs of a kind. Both times are from the clock of the node, which may be wrong."""
    return Read(m.XID_LAST.name, where=(("kind", kind.value),), age_by=m.RENDERED_AT.name)


def _recent(codes: Iterable[int], counted: float, keep: str = "") -> Read:
    """Return a number while dcgm-exporter counts recent XIDs with one of these codes."""
    texts = tuple(map(str, codes))
    return Read(m.EXP_XID_COUNT.name, any_of=("xid", texts), counted=counted, keep=keep, unless=m.XID_EVENTS.name)


XID_FATAL = _xid(
    "xid_fatal",
    "bool",
    "1 for an XID that requires a drain, until the GPU is healthy again or its node has rebooted; with dcgm-exporter "
    "alone, for a day, or until its gauge of the last code shows another one",
    "XID that requires a drain: {}",
    Read(m.HEALTH_REASON.name, any_of=("reason", tuple(f"xid_{code}" for code in DRAIN_CODES)), extract="xid_(.+)"),
    Read(m.XID_ERRORS.name, codes=DRAIN_CODES, unless=m.XID_EVENTS.name),
    Read("DCGM_FI_DEV_XID_ERROR", codes=DRAIN_CODES, unless=m.XID_EVENTS.name),
    _recent(DRAIN_CODES, 1.0, "1d"),
)
XID_APPLICATION = _xid(
    "xid_application_age",
    "seconds",
    "Seconds since the last XID that an application usually causes; with dcgm-exporter alone, its window of 5 minutes",
    "last XID of an application {} ago",
    _age_of(XidKind.APPLICATION),
    _recent((each.code for each in load() if each.kind is XidKind.APPLICATION), _COUNT_SECONDS),
)
XID_UNKNOWN = _xid(
    "xid_unknown_age",
    "seconds",
    "Seconds since the last XID that is not documented",
    "last undocumented XID {} ago",
    _age_of(XidKind.UNKNOWN),
)

# What has another source without profiling counters, or is derived from that.
APPROXIMATED = frozenset({GR_ACTIVE, DRAM_ACTIVE, PCIE_RX, PCIE_TX, PCIE_RX_USE, PCIE_TX_USE})


def _signals() -> Iterator[Signal]:
    return (value for value in tuple(globals().values()) if isinstance(value, Signal))


# In the order in which they are recorded: what is derived comes after what it is derived from.
SIGNALS: tuple[Signal, ...] = (*_signals(), *host_signals.SIGNALS, *nic_signals.SIGNALS, *job_signals.SIGNALS)
