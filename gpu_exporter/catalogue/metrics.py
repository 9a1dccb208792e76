"""The metric catalogue: one row per metric. Everything that is exposed, documented or recorded is a row of this file.

Classic rows (`DCGM_*`) have the names, types and units of dcgm-exporter <= 4.8.2, even where later versions renamed
them; `dcgm` is the numeric field id, which never changes. The exporter's own rows (`gpu_*`) follow Prometheus'
conventions: base units, ratios from 0 to 1, `_total`.
Sources of the field numbers: DCGM's `dcgm_fields.h` (4.6.0), NVIDIA's `nvml.h` (driver 580).
HELP of a row that `--schema si` converts names no unit, because the same text is used for both units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_exporter.model import job_message
from gpu_exporter.model.job_message import ACTIVITIES, KEYS, STEP_BUCKETS
from gpu_exporter.model.metric import (
    UNBOUNDED,
    Buffered,
    Call,
    Details,
    EntityKind,
    FieldValue,
    Gpm,
    Kind,
    Labels,
    LinkSum,
    Metric,
    MetricSet,
    Pace,
    PerPeer,
    PerProcess,
)

GAUGE, COUNTER, HISTOGRAM = Kind
STATIC, FAST, STEADY, BUFFERED, SLOW, RARE = Pace.STATIC, Pace.FAST, Pace.STEADY, Pace.BUFFERED, Pace.SLOW, Pace.RARE
NODE, GPU, INSTANCE, NVLINK, PROCESS, NVSWITCH, CPU, CPU_CORE = EntityKind
FULL, NAMED, HOST, JOB = MetricSet.FULL, MetricSet.NAMED, MetricSet.HOST, MetricSet.JOB
PROFILE, CHECK, NIC, NCCL = MetricSet.PROFILE, MetricSet.CHECK, MetricSet.NIC, MetricSet.NCCL
# Entities that only DCGM reports and that belong to no GPU.
NON_GPU_ENTITIES = frozenset({NVSWITCH, CPU, CPU_CORE})
MIB = 2.0**20
# How often means are read from NVML. They are equally exact over any interval, so those of `full` are read less often.
PACE_OF_MEANS = {MetricSet.DEFAULT: FAST, FULL: SLOW}
# The lowest value of a row that cannot be 0.
ABOVE_0 = 1e-6
PERCENT, MILLI, NANO = 1e-2, 1e-3, 1e-9
SHARES = (0.01, *(n / 10 for n in range(1, 11)))
# Every power limit of at least 250 W that NVIDIA sells is an edge, so that time above the limit can be queried.
WATTS = (*(float(n) for n in range(50, 1001, 50)), 1200.0, 1400.0)
# Gaps last whole collection intervals, of 1 s or 100 ms. Edges lie between two multiples, so that jitter never moves a
# gap to another bucket.
GAPS = (0.15, 0.35, 0.75, 1.5, 3.5, 7.5, 15.5, 30.5, 60.5, 300.5, 1800.5)


# fmt: off
def _activity(name: str, dcgm: int | None, gpm: int, total: str, what: str, *, engine: str = "", set: MetricSet = MetricSet.DEFAULT, pace: Pace | None = None) -> tuple[Metric, Metric]:
    """Return the gauge of a share of time (GPM percent -> 0-1) and the counter of its integral in seconds."""
    labels = (("engine", engine),) if engine else ()
    own = () if name.startswith("DCGM_") else labels
    mean = Metric(name, GAUGE, "ratio", f"{what}, mean over the gauge window.", 0, 1.001, GPU, dcgm, Gpm(gpm, pace=pace or PACE_OF_MEANS[set]), PERCENT, FAST, set, own, per_instance=True)
    return mean, Metric(total, COUNTER, "seconds", f"{what}, integrated over time, in seconds.", labels=labels, set=set, integral_of=mean, per_instance=True)


def _traffic(name: str, dcgm: int | None, gpm: int, total: str, what: str, *, stride: int = 0, set: MetricSet = MetricSet.DEFAULT) -> tuple[Metric, Metric]:
    """Return the gauge of a rate (GPM MiB/s -> bytes/s) and the counter of its bytes; with a stride, for every NVLink."""
    entity = NVLINK if stride else GPU
    mean = Metric(name, GAUGE, "bytes per second", f"{what}, bytes per second, mean over the gauge window.", 0, 1e13, entity, dcgm, Gpm(gpm, stride, PACE_OF_MEANS[set]), MIB, FAST, set)
    return mean, Metric(total, COUNTER, "bytes", f"{what}, in bytes.", entity=entity, set=set, integral_of=mean)


def _shares(name: str, gauge: Metric, what: str) -> Metric:
    """Return the histogram of a share. Each observation counts for one millisecond, whatever the interval."""
    help = f"Distribution of the share of {what}: the mean of each collection interval, counted once per millisecond."
    return Metric(name, HISTOGRAM, "ratio", help, 0, 1.001, set=FULL, histogram_of=gauge, edges=SHARES, per_instance=True)


# --- profiling: NVML GPM on Hopper and newer; means between collections, and their integrals ------------------------------------------------
GR_ENGINE_ACTIVE, GR_ENGINE_SECONDS = _activity("DCGM_FI_PROF_GR_ENGINE_ACTIVE",        1001,  1, "gpu_gr_engine_active_seconds_total",   "Share of time in which the graphics or compute engine was busy", pace=STEADY)
SM_ACTIVE,        SM_SECONDS        = _activity("DCGM_FI_PROF_SM_ACTIVE",               1002,  2, "gpu_sm_active_seconds_total",          "Share of SMs with at least one resident warp")
SM_OCCUPANCY,     SM_OCC_SECONDS    = _activity("DCGM_FI_PROF_SM_OCCUPANCY",            1003,  3, "gpu_sm_occupancy_seconds_total",       "Resident warps as a share of the maximum that the SMs can hold")
TENSOR_ACTIVE,    TENSOR_SECONDS    = _activity("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",      1004,  5, "gpu_tensor_active_seconds_total",      "Share of cycles in which any tensor pipe was active")
DRAM_ACTIVE,      DRAM_SECONDS      = _activity("DCGM_FI_PROF_DRAM_ACTIVE",             1005, 10, "gpu_dram_active_seconds_total",        "Share of the peak memory bandwidth in use")
FP64_ACTIVE,      FP64_SECONDS      = _activity("DCGM_FI_PROF_PIPE_FP64_ACTIVE",        1006, 11, "gpu_fp64_active_seconds_total",        "Share of cycles in which the FP64 pipe was active")
FP32_ACTIVE,      FP32_SECONDS      = _activity("DCGM_FI_PROF_PIPE_FP32_ACTIVE",        1007, 12, "gpu_fp32_active_seconds_total",        "Share of cycles in which the FP32 pipe was active")
FP16_ACTIVE,      FP16_SECONDS      = _activity("DCGM_FI_PROF_PIPE_FP16_ACTIVE",        1008, 13, "gpu_fp16_active_seconds_total",        "Share of cycles in which the FP16 pipe (without tensor cores) was active")
IMMA_ACTIVE,      IMMA_SECONDS      = _activity("DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", 1013,  9, "gpu_tensor_imma_active_seconds_total", "Share of cycles in which the integer tensor pipe was active")
HMMA_ACTIVE,      HMMA_SECONDS      = _activity("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", 1014,  7, "gpu_tensor_hmma_active_seconds_total", "Share of cycles in which the half-precision (FP16, BF16, FP8) tensor pipe was active")
DFMA_ACTIVE,      DFMA_SECONDS      = _activity("DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", 1015,  6, "gpu_tensor_dfma_active_seconds_total", "Share of cycles in which the FP64 tensor pipe was active")
INT_ACTIVE,       INT_SECONDS       = _activity("DCGM_FI_PROF_PIPE_INT_ACTIVE",         1016,  4, "gpu_int_active_seconds_total",         "Share of cycles in which the integer pipe was active")
PCIE_TX,          PCIE_TX_TOTAL     = _traffic("DCGM_FI_PROF_PCIE_TX_BYTES",            1009, 20, "gpu_pcie_tx_bytes_total",              "PCIe traffic from the GPU to the host (including headers)")
PCIE_RX,          PCIE_RX_TOTAL     = _traffic("DCGM_FI_PROF_PCIE_RX_BYTES",            1010, 21, "gpu_pcie_rx_bytes_total",              "PCIe traffic from the host to the GPU (including headers)")
NVLINK_TX,        NVLINK_TX_TOTAL   = _traffic("DCGM_FI_PROF_NVLINK_TX_BYTES",          1011, 61, "gpu_nvlink_tx_bytes_total",            "NVLink traffic sent over all links (without headers)")
NVLINK_RX,        NVLINK_RX_TOTAL   = _traffic("DCGM_FI_PROF_NVLINK_RX_BYTES",          1012, 60, "gpu_nvlink_rx_bytes_total",            "NVLink traffic received over all links (without headers)")
# What the driver has of GPUs without GPM. Its call for PCIe throughput measures for 20 ms, in which it keeps a CPU busy.
PCIE_TX_SAMPLED   = Metric("gpu_pcie_tx_sampled_bytes_per_second", GAUGE,   "bytes per second", "PCIe traffic from the GPU to the host in bytes per second, measured for 20 ms every 15 s; only of GPUs without profiling counters.", 0, 1e13, nvml=Call("PcieThroughput", (0,)), scale=1e3, pace=SLOW, instead_of=PCIE_TX)
PCIE_RX_SAMPLED   = Metric("gpu_pcie_rx_sampled_bytes_per_second", GAUGE,   "bytes per second", "PCIe traffic from the host to the GPU in bytes per second, measured for 20 ms every 15 s; only of GPUs without profiling counters.", 0, 1e13, nvml=Call("PcieThroughput", (1,)), scale=1e3, pace=SLOW, instead_of=PCIE_RX)
NVLINK_TX_COUNTED = Metric("gpu_nvlink_counted_tx_bytes_total",    COUNTER, "bytes",            "NVLink traffic sent over all links in bytes, by the counters of the links (Volta and Ampere); only of GPUs without profiling counters.", 0, 9e18, nvml=LinkSum(138), scale=1024.0, pace=SLOW, rate=2e12, instead_of=NVLINK_TX)
NVLINK_RX_COUNTED = Metric("gpu_nvlink_counted_rx_bytes_total",    COUNTER, "bytes",            "NVLink traffic received over all links in bytes, by the counters of the links (Volta and Ampere); only of GPUs without profiling counters.", 0, 9e18, nvml=LinkSum(139), scale=1024.0, pace=SLOW, rate=2e12, instead_of=NVLINK_RX)
# The same traffic under the names of other fields.
NVLINK_BOTH       = Metric("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", GAUGE, "MB/s", "NVLink traffic in both directions over all links, mean over the gauge window.",                                  0, 2e7, dcgm=449, scale=1e-6, sum_of=(NVLINK_TX, NVLINK_RX))
PCIE_TX_KB        = Metric("DCGM_FI_DEV_PCIE_TX_THROUGHPUT",     GAUGE, "KB/s", "PCIe traffic from the GPU to the host in KB/s (including headers), mean over the gauge window.", 0, 1e10, dcgm=200, scale=1e-3, sum_of=(PCIE_TX,), set=FULL)
PCIE_RX_KB        = Metric("DCGM_FI_DEV_PCIE_RX_THROUGHPUT",     GAUGE, "KB/s", "PCIe traffic from the host to the GPU in KB/s (including headers), mean over the gauge window.", 0, 1e10, dcgm=201, scale=1e-3, sum_of=(PCIE_RX,), set=FULL)
LINK_RX,          LINK_RX_TOTAL     = _traffic("gpu_nvlink_link_rx_bytes_per_second",   1533, 62, "gpu_nvlink_link_rx_bytes_total",       "NVLink traffic received over one link", stride=2, set=FULL)
LINK_TX,          LINK_TX_TOTAL     = _traffic("gpu_nvlink_link_tx_bytes_per_second",   1532, 63, "gpu_nvlink_link_tx_bytes_total",       "NVLink traffic sent over one link", stride=2, set=FULL)

SM_SHARES         = _shares("gpu_sm_active_ratio", SM_ACTIVE, "active SMs")
TENSOR_SHARES     = _shares("gpu_tensor_active_ratio", TENSOR_ACTIVE, "active tensor pipes")
DRAM_SHARES       = _shares("gpu_dram_active_ratio", DRAM_ACTIVE, "used memory bandwidth")
IDLE_GAPS         = Metric("gpu_idle_gap_seconds", HISTOGRAM, "seconds", "Distribution of the length in seconds of periods without SM activity, in whole collection intervals; a period is observed when it ends.", 0, set=FULL, histogram_of=SM_ACTIVE, edges=GAPS, per_instance=True)

NVDEC = tuple(row for n in range(8) for row in _activity(f"DCGM_FI_PROF_NVDEC{n}_ACTIVE", 1017 + n, 30 + n, "gpu_nvdec_active_seconds_total", "Share of time in which this video decoder was busy", engine=str(n), set=FULL))
NVJPG = tuple(row for n in range(8) for row in _activity(f"DCGM_FI_PROF_NVJPG{n}_ACTIVE", 1025 + n, 40 + n, "gpu_nvjpg_active_seconds_total", "Share of time in which this JPEG decoder was busy", engine=str(n), set=FULL))
NVOFA = tuple(row for n in range(2) for row in _activity(f"DCGM_FI_PROF_NVOFA{n}_ACTIVE", 1033 + n, 50 + n, "gpu_nvofa_active_seconds_total", "Share of time in which this optical flow accelerator was busy", engine=str(n), set=FULL))
NVENC = tuple(row for n in range(4) for row in _activity("gpu_nvenc_active_ratio", None, 166 + n, "gpu_nvenc_active_seconds_total", "Share of time in which this video encoder was busy", engine=str(n), set=FULL))

# --- utilisation as nvidia-smi shows it: any kernel or copy running, however small ----------------------------------------------------
GPU_UTIL     = Metric("DCGM_FI_DEV_GPU_UTIL",      GAUGE, "percent", "Share of time during which any kernel or copy ran; a single thread is enough.", 0, 100, dcgm=203, nvml=Call("UtilizationRates", pick="gpu"))
MEM_UTIL     = Metric("DCGM_FI_DEV_MEM_COPY_UTIL", GAUGE, "percent", "Share of time during which device memory was read or written.",                 0, 100, dcgm=204, nvml=Call("UtilizationRates", pick="memory"))
GPU_UTIL_SECONDS = Metric("gpu_util_seconds_total",        COUNTER, "seconds", "Share of time during which any kernel or copy ran, integrated over time, in seconds, from every sample of the driver's buffer (about 5 per second).", nvml=Buffered(1, BUFFERED), scale=PERCENT, rate=1.001)
MEM_UTIL_SECONDS = Metric("gpu_memory_util_seconds_total", COUNTER, "seconds", "Share of time during which device memory was read or written, integrated over time, in seconds, from every sample of the driver's buffer (about 5 per second).", nvml=Buffered(2, BUFFERED), scale=PERCENT, rate=1.001)
ENC_UTIL     = Metric("DCGM_FI_DEV_ENC_UTIL",      GAUGE, "percent", "Video encoder utilisation.",                                                    0, 100, dcgm=206, nvml=Call("EncoderUtilization", pick=0), pace=SLOW)
DEC_UTIL     = Metric("DCGM_FI_DEV_DEC_UTIL",      GAUGE, "percent", "Video decoder utilisation.",                                                    0, 100, dcgm=207, nvml=Call("DecoderUtilization", pick=0), pace=SLOW)
# Where GPM has no counter of the engine: all of its kind together.
ENC_UTIL_SECONDS, DEC_UTIL_SECONDS, JPG_UTIL_SECONDS, OFA_UTIL_SECONDS = (
    Metric(f"gpu_{name}_util_seconds_total", COUNTER, "seconds", f"Utilisation of the {what}, integrated over time, in seconds, from every sample of the driver's buffer (about 5 per second); only of GPUs without profiling counters of them.", nvml=Buffered(kind, BUFFERED), scale=PERCENT, set=FULL, rate=1.001, instead_of=engines[0])
    for name, what, kind, engines in (("encoder", "video encoders", 3, NVENC), ("decoder", "video decoders", 4, NVDEC), ("jpeg", "JPEG decoders", 8, NVJPG), ("ofa", "optical flow accelerators", 9, NVOFA)))

# --- clocks, power, temperature -------------------------------------------------------------------------------------------------------
SM_CLOCK      = Metric("DCGM_FI_DEV_SM_CLOCK",        GAUGE, "MHz", "SM clock.",                   0, 10_000, dcgm=100, nvml=Call("ClockInfo", (1,)))
MEM_CLOCK     = Metric("DCGM_FI_DEV_MEM_CLOCK",       GAUGE, "MHz", "Memory clock.",               0, 50_000, dcgm=101, nvml=Call("ClockInfo", (2,)))
VIDEO_CLOCK   = Metric("DCGM_FI_DEV_VIDEO_CLOCK",     GAUGE, "MHz", "Video engine clock.",         0, 10_000, dcgm=102, nvml=Call("ClockInfo", (3,)), pace=SLOW, set=FULL)
MAX_SM_CLOCK  = Metric("DCGM_FI_DEV_MAX_SM_CLOCK",    GAUGE, "MHz", "Maximum SM clock.",     ABOVE_0, 10_000, dcgm=113, nvml=Call("MaxClockInfo", (1,)), pace=STATIC)
MAX_MEM_CLOCK = Metric("DCGM_FI_DEV_MAX_MEM_CLOCK",   GAUGE, "MHz", "Maximum memory clock.", ABOVE_0, 50_000, dcgm=114, nvml=Call("MaxClockInfo", (2,)), pace=STATIC)
MAX_VID_CLOCK = Metric("DCGM_FI_DEV_MAX_VIDEO_CLOCK", GAUGE, "MHz", "Maximum video engine clock.", ABOVE_0, 10_000, dcgm=115, nvml=Call("MaxClockInfo", (3,)), pace=STATIC, set=FULL)

POWER         = Metric("DCGM_FI_DEV_POWER_USAGE",          GAUGE, "watts", "GPU power draw in watts, averaged by the driver over the last second (hides faster swings).",    0, 5_000, dcgm=155, nvml=Call("PowerUsage"), scale=MILLI)
POWER_INSTANT = Metric("DCGM_FI_DEV_POWER_USAGE_INSTANT",  GAUGE, "watts", "GPU power draw in watts, latest sample.",                                                        0, 5_000, dcgm=157, nvml=FieldValue(186), scale=MILLI)
POWER_LIMIT   = Metric("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", GAUGE, "watts", "Power limit in force in watts, the lowest of all limits.",                                 ABOVE_0, 5_000, dcgm=164, nvml=Call("EnforcedPowerLimit"), scale=MILLI, pace=SLOW)
POWER_SET     = Metric("DCGM_FI_DEV_POWER_MGMT_LIMIT",     GAUGE, "watts", "Power limit in watts that was set.",                                                       ABOVE_0, 5_000, dcgm=160, nvml=Call("PowerManagementLimit"), scale=MILLI, pace=RARE)
POWER_MIN     = Metric("DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", GAUGE, "watts", "Lowest power limit in watts that can be set.",                                             ABOVE_0, 5_000, dcgm=161, nvml=Call("PowerManagementLimitConstraints", pick=0), scale=MILLI, pace=STATIC, set=FULL)
POWER_MAX     = Metric("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", GAUGE, "watts", "Highest power limit in watts that can be set.",                                            ABOVE_0, 5_000, dcgm=162, nvml=Call("PowerManagementLimitConstraints", pick=1), scale=MILLI, pace=STATIC)
POWER_DEFAULT = Metric("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", GAUGE, "watts", "Default power limit in watts.",                                                            ABOVE_0, 5_000, dcgm=163, nvml=Call("PowerManagementDefaultLimit"), scale=MILLI, pace=STATIC, set=FULL)
POWER_SAMPLES = Metric("gpu_board_power_watts", HISTOGRAM, "watts", "Distribution of the GPU power draw in watts, from every sample of the driver's buffer (about 50 per second).", 0, 5_000, nvml=Buffered(0), scale=MILLI, set=FULL, edges=WATTS)
POWER_PEAK    = Metric("gpu_power_peak_watts", GAUGE, "watts", "Highest GPU power draw in watts that was read in the last minute: of every sample of the driver's buffer with --metrics full, else of each collection.", 0, 5_000, peak_of=(POWER_INSTANT, POWER))
ENERGY        = Metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", COUNTER, "millijoules", "Energy used since the driver was loaded.",                                                     dcgm=156, nvml=FieldValue(83), pace=SLOW)
ENERGY_JOULES = Metric("gpu_energy_joules_total",              COUNTER, "joules",      "Energy used in joules; continues to count across driver reloads. It is read every 15 s, and rises with the power in between.", dcgm=156, nvml=FieldValue(83), scale=MILLI, pace=SLOW, dcgm_scale=MILLI)
ENERGY_SAMPLED = Metric("gpu_energy_sampled_joules_total", COUNTER, "joules", "Energy used in joules, integrated from every power sample of the driver's buffer (about 50 per second) since the exporter started; only of GPUs without an energy counter.", nvml=Buffered(0), scale=MILLI, rate=5_000, instead_of=ENERGY_JOULES)

GPU_TEMP      = Metric("DCGM_FI_DEV_GPU_TEMP",       GAUGE, "celsius", "GPU temperature in degrees Celsius.",                       ABOVE_0, 150, dcgm=150, nvml=Call("Temperature", (0,)))
TEMP_PEAK     = Metric("gpu_temperature_peak_celsius", GAUGE, "celsius", "Highest GPU temperature in degrees Celsius of all collections in the last minute.", ABOVE_0, 150, peak_of=(GPU_TEMP,))
MEMORY_TEMP   = Metric("DCGM_FI_DEV_MEMORY_TEMP",    GAUGE, "celsius", "Memory temperature in degrees Celsius.",                    ABOVE_0, 150, dcgm=140, nvml=FieldValue(82))
TEMP_MARGIN   = Metric("DCGM_FI_DEV_GPU_TEMP_LIMIT", GAUGE, "celsius", "Thermal margin: degrees Celsius left until the GPU throttles.", -50, 150, dcgm=153, nvml=Call("MarginTemperature"), pace=SLOW)
SLOWDOWN_TEMP = Metric("DCGM_FI_DEV_SLOWDOWN_TEMP",  GAUGE, "celsius", "Temperature in degrees Celsius at which the GPU throttles.",      1, 200, dcgm=158, nvml=Call("TemperatureThreshold", (1,)), pace=STATIC)
SHUTDOWN_TEMP = Metric("DCGM_FI_DEV_SHUTDOWN_TEMP",  GAUGE, "celsius", "Temperature in degrees Celsius at which the GPU shuts down.",     ABOVE_0, 200, dcgm=159, nvml=Call("TemperatureThreshold", (0,)), pace=STATIC)
MAX_OP_TEMP   = Metric("DCGM_FI_DEV_GPU_MAX_OP_TEMP", GAUGE, "celsius", "Maximum operating temperature of the GPU in degrees Celsius.",  1, 200, dcgm=152, nvml=Call("TemperatureThreshold", (3,)), pace=STATIC, set=FULL)

# --- clock events: what holds the clock down (SW power cap is normal at full load) ----------------------------------------------------
CLOCK_EVENTS       = Metric("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", GAUGE, "bitmask", "Reasons that hold the clock down, as NVML's bit mask.", 0, 2**32 - 1, dcgm=112, nvml=Call("CurrentClocksEventReasons"))
CLOCK_EVENT_ACTIVE = tuple(
    Metric("gpu_clock_event_active", GAUGE, "bool", "1 while this reason holds the clock down.", 0, 1, dcgm=112, nvml=Call("CurrentClocksEventReasons"), set=FULL, labels=(("reason", reason),), bit=bit)
    for bit, reason in enumerate(("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake", "display_clock")))
CLOCK_EVENT_SECONDS = tuple(
    Metric("gpu_clock_event_seconds_total", COUNTER, "seconds", "Seconds during which this reason held the clock down.", dcgm=dcgm, nvml=FieldValue(nvml), scale=NANO, pace=SLOW, set=metric_set, labels=(("reason", reason),), dcgm_scale=NANO)
    for reason, dcgm, nvml, metric_set in (
        ("sw_power_cap",        1420,  74, MetricSet.DEFAULT), ("sync_boost",          1421,  76, FULL), ("sw_thermal_slowdown", 1422, 269, MetricSet.DEFAULT),
        ("hw_thermal_slowdown", 1423, 270, MetricSet.DEFAULT), ("hw_power_brake",      1424, 271, MetricSet.DEFAULT), ("board_limit",          243,  77, FULL),
        ("low_utilization",      244,  78, FULL),              ("reliability",          245,  79, FULL)))
VIOLATIONS          = tuple(
    Metric(f"DCGM_FI_DEV_{name}_VIOLATION", COUNTER, "nanoseconds", f"Nanoseconds during which {what} held the clock down.", dcgm=240 + n, nvml=FieldValue(74 + n), pace=SLOW, set=FULL)
    for n, (name, what) in enumerate((("POWER", "the power limit"), ("THERMAL", "the thermal limit"), ("SYNC_BOOST", "sync boost"), ("BOARD_LIMIT", "the board limit"), ("LOW_UTIL", "low utilisation"), ("RELIABILITY", "the reliability voltage limit"))))

# --- memory ---------------------------------------------------------------------------------------------------------------------------
FB_TOTAL      = Metric("DCGM_FI_DEV_FB_TOTAL",        GAUGE, "MiB",   "Total device memory.",                                       low=ABOVE_0, dcgm=250, nvml=Call("MemoryInfo", pick="total"), scale=1 / MIB, per_instance=True)
FB_FREE       = Metric("DCGM_FI_DEV_FB_FREE",         GAUGE, "MiB",   "Free device memory.",                                       dcgm=251, nvml=Call("MemoryInfo", pick="free"), scale=1 / MIB, per_instance=True, at_most=FB_TOTAL)
FB_USED       = Metric("DCGM_FI_DEV_FB_USED",         GAUGE, "MiB",   "Device memory used by programs.",                                 dcgm=252, nvml=Call("MemoryInfo", pick="used"), scale=1 / MIB, per_instance=True, at_most=FB_TOTAL)
FB_USED_PEAK  = Metric("gpu_memory_used_peak_bytes", GAUGE, "bytes", "Most device memory in bytes that programs used, of all collections in the last minute.", peak_of=(FB_USED,), scale=MIB, per_instance=True)
FB_RESERVED   = Metric("DCGM_FI_DEV_FB_RESERVED",     GAUGE, "MiB",   "Device memory reserved by the driver and the firmware.",                    dcgm=253, nvml=Call("MemoryInfo", pick="reserved"), scale=1 / MIB, per_instance=True, at_most=FB_TOTAL)
CC_PROTECTED  = Metric("gpu_confidential_memory_protected_bytes",   GAUGE, "bytes", "Device memory in bytes that confidential computing protects.",       nvml=Call("ConfComputeMemSizeInfo", pick="protectedMemSizeKib"), scale=1024, pace=RARE, set=FULL)
CC_SHARED     = Metric("gpu_confidential_memory_unprotected_bytes", GAUGE, "bytes", "Device memory in bytes that confidential computing does not protect.", nvml=Call("ConfComputeMemSizeInfo", pick="unprotectedMemSizeKib"), scale=1024, pace=RARE, set=FULL)
FB_USED_RATIO = Metric("DCGM_FI_DEV_FB_USED_PERCENT", GAUGE, "ratio", "Share of the usable device memory in use, 0 to 1: used / (total - reserved).",                             0, 1, dcgm=254, nvml=Call("MemoryInfo", pick="used_ratio"), per_instance=True)
BAR1_TOTAL    = Metric("DCGM_FI_DEV_BAR1_TOTAL",      GAUGE, "MiB",   "Size of the BAR1 window.",                                         low=ABOVE_0, dcgm=90,  nvml=Call("BAR1MemoryInfo", pick="bar1Total"), scale=1 / MIB, pace=RARE, set=FULL)
BAR1_USED     = Metric("DCGM_FI_DEV_BAR1_USED",       GAUGE, "MiB",   "Used part of the BAR1 window.",                                               dcgm=92,  nvml=Call("BAR1MemoryInfo", pick="bar1Used"), scale=1 / MIB, pace=RARE, set=FULL, at_most=BAR1_TOTAL)
BAR1_FREE     = Metric("DCGM_FI_DEV_BAR1_FREE",       GAUGE, "MiB",   "Free part of the BAR1 window.",                                         dcgm=93,  nvml=Call("BAR1MemoryInfo", pick="bar1Free"), scale=1 / MIB, pace=RARE, set=FULL, at_most=BAR1_TOTAL)

# --- ECC, row remapping (Ampere and newer), retired pages (older) ---------------------------------------------------------------------
ECC_MODE      = Metric("DCGM_FI_DEV_ECC_CURRENT",       GAUGE,   "bool",   "1 if ECC is enabled.",                             0, 1, dcgm=300, nvml=Call("EccMode", pick=0), pace=RARE)
ECC_PENDING   = Metric("DCGM_FI_DEV_ECC_PENDING",       GAUGE,   "bool",   "1 if ECC will be enabled after the next reboot.",  0, 1, dcgm=301, nvml=Call("EccMode", pick=1), pace=RARE, set=FULL)
ECC_SBE_VOL   = Metric("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", COUNTER, "errors", "Corrected ECC errors since the driver was loaded.",      dcgm=310, nvml=Call("TotalEccErrors", (0, 0)), pace=SLOW)
ECC_DBE_VOL   = Metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", COUNTER, "errors", "Uncorrectable ECC errors since the driver was loaded.",  dcgm=311, nvml=Call("TotalEccErrors", (1, 0)), pace=SLOW)
ECC_SBE_AGG   = Metric("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", COUNTER, "errors", "Corrected ECC errors over the lifetime of the GPU.",     dcgm=312, nvml=Call("TotalEccErrors", (0, 1)), pace=SLOW)
ECC_DBE_AGG   = Metric("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", COUNTER, "errors", "Uncorrectable ECC errors over the lifetime of the GPU.", dcgm=313, nvml=Call("TotalEccErrors", (1, 1)), pace=SLOW)
ECC_LOCATIONS = tuple(
    Metric(f"DCGM_FI_DEV_ECC_{error}_{count}_{place}", COUNTER, "errors", f"{what} ECC errors in {where}, {when}.", dcgm=base + dcgm, nvml=Call("MemoryErrorCounter", (error_type, counter_type, location)), pace=RARE, set=FULL,
           per_instance=(error_type, counter_type) == (1, 0) and place != "DEV")  # nvml.h documents no others per instance
    for counter_type, count, when, bases in ((0, "VOL", "since the driver was loaded", (314, 334, 342)), (1, "AGG", "over the lifetime of the GPU", (324, 338, 344)))
    for base, dcgm0, place, location, where in (
        (bases[0], 0, "L1", 0, "the L1 cache"), (bases[0], 2, "L2", 1, "the L2 cache"), (bases[0], 4, "DEV", 2, "device memory"), (bases[0], 6, "REG", 3, "the register file"), (bases[0], 8, "TEX", 4, "texture memory"),
        (bases[1], 0, "SHM", 5, "shared memory"), (bases[1], 2, "CBU", 6, "the convergence barrier unit"), (bases[2], 0, "SRM", 7, "SRAM"))
    for error_type, error, what, dcgm in ((0, "SBE", "Corrected", dcgm0), (1, "DBE", "Uncorrectable", dcgm0 + 1)))
REMAP_UNCORRECTABLE = Metric("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", COUNTER, "rows",  "Memory rows remapped after uncorrectable errors.",                dcgm=393, nvml=Call("RemappedRows", pick=1), pace=SLOW)
REMAP_CORRECTABLE   = Metric("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",   COUNTER, "rows",  "Memory rows remapped after corrected errors.",                    dcgm=394, nvml=Call("RemappedRows", pick=0), pace=SLOW)
REMAP_FAILURE       = Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE",           GAUGE,   "bool",  "1 if a memory row could not be remapped: replace the GPU.", 0, 1, dcgm=395, nvml=Call("RemappedRows", pick=3), pace=SLOW)
REMAP_PENDING       = Metric("DCGM_FI_DEV_ROW_REMAP_PENDING",           GAUGE,   "bool",  "1 if a memory row will be remapped at the next GPU reset.", 0, 1, dcgm=396, nvml=Call("RemappedRows", pick=2), pace=SLOW)
REMAP_HISTOGRAM     = tuple(
    Metric(f"DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_{level}", GAUGE, "banks", f"Memory banks with {what} spare rows left.", dcgm=385 + n, nvml=Call("RowRemapperHistogram", pick=level.lower()), pace=RARE, set=FULL)
    for n, (level, what) in enumerate((("MAX", "all"), ("HIGH", "many"), ("PARTIAL", "some"), ("LOW", "few"), ("NONE", "no"))))
RETIRED_SBE     = Metric("DCGM_FI_DEV_RETIRED_SBE",     COUNTER, "pages", "Memory pages retired after repeated corrected errors.",               dcgm=390, nvml=Call("RetiredPages", (0,)), pace=RARE)
RETIRED_DBE     = Metric("DCGM_FI_DEV_RETIRED_DBE",     COUNTER, "pages", "Memory pages retired after uncorrectable errors.",                    dcgm=391, nvml=Call("RetiredPages", (1,)), pace=RARE)
RETIRED_PENDING = Metric("DCGM_FI_DEV_RETIRED_PENDING", GAUGE,   "bool",  "1 if memory pages will be retired at the next reboot.",         0, 1, dcgm=392, nvml=Call("RetiredPagesPendingStatus"), pace=RARE)
SRAM_EXCEEDED   = Metric("DCGM_FI_DEV_THRESHOLD_SRM",   GAUGE,   "bool",  "1 if SRAM has exceeded the threshold of uncorrectable errors: replace the GPU.", 0, 1, dcgm=346, nvml=Call("SramEccErrorStatus", pick="bThresholdExceeded"), pace=SLOW)
CHANNEL_REPAIR  = Metric("gpu_memory_channel_repair_pending", GAUGE, "bool", "1 if a memory channel will be repaired at the next GPU reset.",       0, 1, nvml=Call("RepairStatus", pick=0), pace=RARE, set=FULL)
TPC_REPAIR      = Metric("gpu_tpc_repair_pending",       GAUGE,   "bool",  "1 if a processing cluster (TPC) will be repaired at the next GPU reset.",      0, 1, nvml=Call("RepairStatus", pick=1), pace=RARE, set=FULL)

# --- PCIe and NVLink as links ---------------------------------------------------------------------------------------------------------
PCIE_GEN         = Metric("DCGM_FI_DEV_PCIE_LINK_GEN",       GAUGE,   "generation", "Current PCIe generation of the link (drops when idle).",       1, 16, dcgm=237,  nvml=Call("CurrPcieLinkGeneration"))
PCIE_WIDTH       = Metric("DCGM_FI_DEV_PCIE_LINK_WIDTH",     GAUGE,   "lanes",      "Current number of PCIe lanes of the link.",                    1, 32, dcgm=238,  nvml=Call("CurrPcieLinkWidth"))
PCIE_MAX_GEN     = Metric("DCGM_FI_DEV_PCIE_MAX_LINK_GEN",   GAUGE,   "generation", "Highest PCIe generation that both GPU and slot support.",      1, 16, dcgm=235,  nvml=Call("MaxPcieLinkGeneration"), pace=STATIC)
PCIE_MAX_WIDTH   = Metric("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", GAUGE,   "lanes",      "Highest number of PCIe lanes that both GPU and slot support.", 1, 32, dcgm=236,  nvml=Call("MaxPcieLinkWidth"), pace=STATIC)
PCIE_REPLAY      = Metric("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", COUNTER, "replays",    "PCIe packets that were sent again (replays).",                        dcgm=202,  nvml=Call("PcieReplayCounter"), pace=SLOW)
PCIE_CORRECTABLE = Metric("DCGM_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", COUNTER, "errors", "PCIe errors that the link corrected.",                          dcgm=1501, nvml=FieldValue(173), pace=RARE)
PCIE_ERRORS      = tuple(
    Metric("gpu_pcie_errors_total", COUNTER, "errors", "PCIe errors by type.", nvml=FieldValue(nvml), pace=RARE, set=FULL, labels=(("type", error),))
    for nvml, error in ((169, "l0_to_recovery"), (174, "nak_received"), (175, "receiver"), (176, "bad_tlp"), (177, "nak_sent"), (178, "bad_dllp"), (179, "non_fatal"), (180, "fatal"), (181, "unsupported_request"), (182, "lcrc"), (183, "lane")))
NVLINK_COUNT     = Metric("gpu_nvlink_links",                      GAUGE,   "links",            "Number of NVLinks of the GPU.",                                         0, 64,   nvml=FieldValue(91), pace=RARE)
NVLINK_UP        = Metric("gpu_nvlink_links_up",                   GAUGE,   "links",            "Number of active NVLinks of the GPU.",                                  0, 64,   nvml=LinkSum(165), pace=RARE)
NVLINK_SPEED     = Metric("gpu_nvlink_capacity_bytes_per_second",  GAUGE,   "bytes per second", "Speed of all NVLinks together in bytes per second, in each direction.", 0, 1e13, nvml=LinkSum(164), scale=1e6, pace=RARE)
NVLINK_REPLAY    = Metric("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",   COUNTER, "errors", "NVLink replay errors, sum of all links.",                dcgm=429, nvml=LinkSum(161), pace=RARE)
NVLINK_RECOVERY  = Metric("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", COUNTER, "errors", "NVLink recovery errors, sum of all links.",              dcgm=439, nvml=LinkSum(162), pace=RARE)
NVLINK_CRC       = Metric("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", COUNTER, "errors", "NVLink CRC errors, sum of all links.",                   dcgm=409, nvml=LinkSum(163), pace=RARE)
# GPUs before Hopper count errors by lane; the driver adds them up.
NVLINK_CRC_DATA  = Metric("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", COUNTER, "errors", "NVLink data CRC errors, sum of all links (GPUs before Hopper).", dcgm=419, nvml=FieldValue(45), pace=RARE, set=FULL)
LINK_UP          = Metric("gpu_nvlink_link_up",                    GAUGE,   "bool",             "1 if this NVLink is active.",                                   0, 1,    NVLINK, 1508, FieldValue(165), pace=RARE, set=FULL)
LINK_SPEED       = Metric("gpu_nvlink_link_speed_bytes_per_second", GAUGE,  "bytes per second", "Speed of this NVLink in bytes per second, in each direction.",  0, 1e13, NVLINK, None, FieldValue(164), 1e6, RARE, FULL)
LINK_ERRORS      = tuple(
    Metric("gpu_nvlink_link_errors_total", COUNTER, "errors", "Errors of this NVLink by type.", entity=NVLINK, dcgm=dcgm, nvml=FieldValue(nvml), pace=RARE, set=FULL, labels=(("type", error),))
    for nvml, dcgm, error in ((161, 1527, "replay"), (162, 1528, "recovery"), (163, 1525, "crc")))
FABRIC           = Metric("DCGM_FI_DEV_FABRIC_MANAGER_STATUS",     GAUGE, "status", "Registration of the GPU with the NVSwitch fabric: 1 not started, 2 in progress, 3 completed, 4 failed.", 1, 4, dcgm=170, nvml=Call("GpuFabricInfoV", pick="status"), pace=RARE)
PLACEMENT        = Metric("gpu_placement_info",                    GAUGE, "info",   "NVLink fabric of the GPU (cluster and clique; GPUs with the same ones reach each other over NVLink) and its place in the chassis; always 1.", nvml=Details(("GpuFabricInfoV", "PlatformInfo")), pace=RARE)
FABRIC_CODE      = Metric("gpu_nvlink_fabric_code",                GAUGE, "code",   "Number made of the cluster and the clique of the NVLink fabric that the GPU has joined: the same for GPUs that reach each other over NVLink, also on other nodes; only of fabrics that have a cluster.", 0, 2**32 - 1, nvml=Call("GpuFabricInfoV", pick="code"), pace=RARE)
FABRIC_ERROR     = Metric("DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE", GAUGE, "code",   "NVML return code of the GPU's registration with the NVSwitch fabric, 0 on success.",                     0, 999, dcgm=171, nvml=Call("GpuFabricInfoV", pick="error"), pace=RARE, set=FULL)
FABRIC_FAULTS    = tuple(
    Metric("gpu_fabric_fault", GAUGE, "bool", "1 while the NVSwitch fabric reports this fault for the GPU.", 0, 1, nvml=Call("GpuFabricInfoV", pick=fault), pace=RARE, set=FULL, labels=(("fault", fault),))
    for fault in ("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery"))

# --- state ----------------------------------------------------------------------------------------------------------------------------
PSTATE      = Metric("DCGM_FI_DEV_PSTATE",                  GAUGE, "state",   "Performance state; 0 is the fastest.",                                                            0, 15,  dcgm=190,  nvml=Call("PerformanceState"))
FAN         = Metric("DCGM_FI_DEV_FAN_SPEED",               GAUGE, "percent", "Fan speed as a share of the maximum speed (may exceed it).",                                      0, 200, dcgm=191,  nvml=Call("FanSpeed"), pace=SLOW)
GPU_COUNT   = Metric("DCGM_FI_DEV_COUNT",                   GAUGE, "gpus",    "Number of GPUs that the driver lists on this node; the same on each of them.",                     1, 1024, dcgm=4,   nvml=Call("Count"), pace=RARE, set=FULL)
MINOR       = Metric("DCGM_FI_DEV_MINOR_NUMBER",            GAUGE, "number",  "Minor number of the GPU's device file: n of /dev/nvidia<n>.",                                      0, 65535, dcgm=55, nvml=Call("MinorNumber"), pace=STATIC, set=FULL)
PERSISTENCE = Metric("DCGM_FI_DEV_PERSISTENCE_MODE",        GAUGE, "bool",    "1 if the driver stays loaded while no program uses the GPU.",                                     0, 1,   dcgm=66,   nvml=Call("PersistenceMode"), pace=RARE)
COMPUTE_MODE = Metric("DCGM_FI_DEV_COMPUTE_MODE",           GAUGE, "status",  "Compute mode: 0 any number of programs may use the GPU, 2 none, 3 only one at a time.",            0, 3,   dcgm=65,   nvml=Call("ComputeMode"), pace=RARE, set=FULL)
RECOVERY    = Metric("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", GAUGE, "action",  "Recovery action that the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX domain, 6 bus reset, 7 power cycle or reboot.", 0, 15, dcgm=1523, nvml=FieldValue(230), pace=SLOW)
INFOROM     = Metric("DCGM_FI_DEV_INFOROM_CONFIG_VALID",    GAUGE, "bool",    "1 if the checksums of the InfoROM are valid, 0 if it is corrupt.",                                0, 1,   dcgm=84,   nvml=Call("ValidateInforom"), pace=STATIC)

# --- not GPUs, from DCGM only: NVSwitches that this node manages, and Grace CPUs ------------------------------------------------
SWITCH_TEMP      = Metric("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", GAUGE,   "celsius", "NVSwitch temperature in degrees Celsius.",            ABOVE_0, 200,   entity=NVSWITCH, dcgm=858,  pace=SLOW, set=FULL)
SWITCH_TX        = Metric("DCGM_FI_DEV_NVSWITCH_THROUGHPUT_TX",       COUNTER, "counts",  "NVLink traffic sent by the NVSwitch, in the unit of its driver.",       entity=NVSWITCH, dcgm=861,  pace=SLOW, set=FULL)
SWITCH_RX        = Metric("DCGM_FI_DEV_NVSWITCH_THROUGHPUT_RX",       COUNTER, "counts",  "NVLink traffic received by the NVSwitch, in the unit of its driver.",   entity=NVSWITCH, dcgm=862,  pace=SLOW, set=FULL)
SWITCH_FATAL     = Metric("DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS",        GAUGE,   "sxid",    "Code of the last fatal SXid of the NVSwitch.",              0, 99999, entity=NVSWITCH, dcgm=856,  pace=SLOW, set=FULL)
SWITCH_NON_FATAL = Metric("DCGM_FI_DEV_NVSWITCH_NON_FATAL_ERRORS",    GAUGE,   "sxid",    "Code of the last non-fatal SXid of the NVSwitch.",          0, 99999, entity=NVSWITCH, dcgm=857,  pace=SLOW, set=FULL)
SWITCH_RESET     = Metric("DCGM_FI_DEV_NVSWITCH_RESET_REQUIRED",      GAUGE,   "bool",    "1 if the NVSwitch needs a reset.",                          0, 1,     entity=NVSWITCH, dcgm=864,  pace=SLOW, set=FULL)
SWITCH_LINK      = Metric("DCGM_FI_DEV_NVSWITCH_LINK_STATUS",         GAUGE,   "state",   "State of this NVLink of the NVSwitch: -1 unknown, 0 off, 1 safe, 2 active, 3 error.", -1, 3, entity=NVSWITCH, dcgm=870, pace=SLOW, set=FULL)
SWITCH_LINK_TX   = Metric("DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_TX",  COUNTER, "counts",  "Traffic sent over this NVLink of the NVSwitch, in the unit of its driver.",           entity=NVSWITCH, dcgm=780,  pace=SLOW, set=FULL)
SWITCH_LINK_RX   = Metric("DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_RX",  COUNTER, "counts",  "Traffic received over this NVLink of the NVSwitch, in the unit of its driver.",       entity=NVSWITCH, dcgm=781,  pace=SLOW, set=FULL)
SWITCH_LINKS     = frozenset({SWITCH_LINK, SWITCH_LINK_TX, SWITCH_LINK_RX})
CPU_UTIL         = Metric("DCGM_FI_DEV_CPU_UTIL_TOTAL",               GAUGE,   "ratio",   "Utilisation of this Grace CPU core, 0 to 1.", 0, 1.001, entity=CPU_CORE, dcgm=1100, pace=SLOW, set=FULL)
CPU_TEMP         = Metric("DCGM_FI_DEV_CPU_TEMP_CURRENT",             GAUGE,   "celsius", "Grace CPU temperature in degrees Celsius.",   -50, 200, entity=CPU,      dcgm=1110, pace=SLOW, set=FULL)
CPU_POWER        = Metric("DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT",       GAUGE,   "watts",   "Grace CPU power draw in watts.",              0, 5_000, entity=CPU,      dcgm=1130, pace=SLOW, set=FULL)

# --- MIG: an instance is a part of a GPU with its own SMs and memory ---------------------------------------------------------------
MIG_MODE        = Metric("DCGM_FI_DEV_MIG_MODE",  GAUGE, "bool",   "1 if the GPU is in MIG mode.",                                                         0, 1, dcgm=67, nvml=Call("MigMode", pick=0), pace=SLOW)
MIG_PENDING     = Metric("gpu_mig_mode_pending",  GAUGE, "bool",   "1 if the GPU will be in MIG mode after its next reset.",                               0, 1, nvml=Call("MigMode", pick=1), pace=RARE, set=FULL)
MIG_DEVICE      = Metric("gpu_mig_device_info",   GAUGE, "info",   "MIG device (a compute instance of a GPU instance) with its UUID; always 1.",                   entity=INSTANCE)
INSTANCE_SLICES = Metric("gpu_instance_slices",   GAUGE, "slices", "Compute slices of this GPU instance, the weight of its ratios in those of the whole GPU.", 1, 16, INSTANCE, nvml=Call("Attributes_v2", pick="gpuInstanceSliceCount"), pace=STATIC)

# --- processes, with --processes ---------------------------------------------------------------------------------------------------
PROCESS_MEMORY       = Metric("gpu_process_memory_used_bytes",    GAUGE, "bytes",     "Device memory in bytes used by this process.",                                                        entity=PROCESS, nvml=PerProcess("memory"))
PROCESS_SM           = Metric("gpu_process_sm_utilization_ratio", GAUGE, "ratio",     "Share of time during which a kernel of this process ran, sampled by the driver.",             0, 1,    entity=PROCESS, nvml=PerProcess("sm"), scale=PERCENT, pace=SLOW)
PROCESSES            = Metric("gpu_processes",                    GAUGE, "processes", "Number of processes that use this GPU.",                                                              nvml=PerProcess("listed"))
PROCESSES_UNRESOLVED = Metric("gpu_processes_unresolved",         GAUGE, "processes", "Number of processes without series because their PID cannot be resolved here (another PID namespace).", nvml=PerProcess("unresolved"))

# --- what the host does for the processes of the GPU, with --host-evidence: read from procfs, cgroups and sysfs by host/ -----------------
# The launching thread is the main thread together with PyTorch's autograd threads, or a busier thread of the same process.
def _host(name: str, kind: Kind, unit: str, help: str, high: float = UNBOUNDED, labels: Labels = (), pace: Pace = STEADY, rate: float = 0.0) -> Metric:
    """Return a row that no driver has: the thread of host/ makes its samples."""
    return Metric(f"gpu_host_{name}", kind, unit, help, 0, high, labels=labels, pace=pace, set=HOST, rate=rate)


HOST_LAUNCH_CPU     = _host("launch_cpu_seconds_total",         COUNTER, "seconds", "CPU time in seconds of the thread that launches work on the GPU.")
HOST_LAUNCH_WAIT    = _host("launch_run_queue_seconds_total",   COUNTER, "seconds", "Seconds in which the thread that launches work on the GPU was runnable but waited for a CPU.")
HOST_LAUNCH_BLOCKED = _host("launch_blocked_seconds_total",     COUNTER, "seconds", "Seconds in which the main thread was in uninterruptible sleep, usually waiting for storage; sampled.")
HOST_WORKERS        = _host("workers",                          GAUGE,   "processes", "Number of child processes of the processes on the GPU, such as data loader workers.")
HOST_WORKERS_ACTIVE = _host("workers_active",                   GAUGE,   "processes", "Number of worker processes that used a CPU, waited for one or were blocked in the last period.")
HOST_WORKER_CPU     = _host("worker_cpu_seconds_total",         COUNTER, "seconds", "CPU time in seconds of all worker processes.", rate=4096)
HOST_WORKER_WAIT    = _host("worker_run_queue_seconds_total",   COUNTER, "seconds", "Seconds in which worker processes were runnable but waited for a CPU, sum over the workers.", rate=4096)
HOST_WORKER_BLOCKED = _host("worker_blocked_seconds_total",     COUNTER, "seconds", "Seconds in which worker processes were in uninterruptible sleep, usually waiting for storage, sum over the workers; sampled.", rate=4096)
HOST_CPU            = _host("cpu_seconds_total",                COUNTER, "seconds", "CPU time in seconds of the processes on the GPU and all their descendants.", rate=4096)
HOST_FAULTS         = _host("major_page_faults_total",          COUNTER, "faults",  "Major page faults of the processes on the GPU and all their descendants: pages that had to be read from storage.", rate=1e7)
HOST_READ           = _host("read_bytes_total",                 COUNTER, "bytes",   "Bytes that the processes on the GPU and all their descendants had read from storage.", pace=SLOW)
HOST_SWAP           = _host("swap_bytes",                       GAUGE,   "bytes",   "Memory in bytes of the processes on the GPU and all their descendants that is in swap.", pace=SLOW)
HOST_CPUS           = _host("cpus_allowed",                     GAUGE,   "cpus",    "Number of CPUs that the process may use, by its affinity and the CPU limit of its cgroups.", 65536)
HOST_CPUS_BUSY      = _host("cpus_busy_seconds_total",          COUNTER, "seconds", "CPU time in seconds that was used of the CPUs that the process may use, by any process.", rate=65536)
HOST_PERIODS        = _host("cpu_limit_periods_total",          COUNTER, "periods", "Periods of the CPU limit of the process's cgroup in which it ran.", rate=1e6)
HOST_THROTTLED      = _host("cpu_limit_throttled_periods_total", COUNTER, "periods", "Periods in which the CPU limit of the process's cgroup stopped it.", rate=1e6)
HOST_PRESSURE       = tuple(
    _host("pressure_seconds_total", COUNTER, "seconds", "Seconds in which some task waited for this resource (pressure stall information), in the process's cgroup or on the whole machine.", labels=(("resource", resource), ("scope", scope)))
    for scope in ("cgroup", "machine") for resource in ("cpu", "io", "memory"))
HOST_REMOTE         = _host("remote_node_seconds_total",        COUNTER, "seconds", "Seconds in which the process ran on another NUMA node than that of the GPU; sampled. Absent on machines with one node.")
HOST_LOCAL_CPUS     = _host("local_cpus_ratio",                 GAUGE,   "ratio",   "Share of the CPUs of the process's affinity that are on the NUMA node of the GPU.", 1.001, pace=SLOW)
HOST_SHM_USED       = _host("shm_used_bytes",                   GAUGE,   "bytes",   "Used bytes of /dev/shm as the process sees it.", pace=SLOW)
HOST_SHM_LIMIT      = _host("shm_limit_bytes",                  GAUGE,   "bytes",   "Size in bytes of /dev/shm as the process sees it.", pace=SLOW)
HOST_PROCESS        = _host("process_info",                     GAUGE,   "info",    "Process that launches most work on the GPU, with its user and the pod, container or job that it belongs to; always 1. Needs --processes, too.")

# --- network cards for RDMA (InfiniBand, RoCE, EFA), unless --no-nics: read from sysfs by host/fabric/. On machines without, no samples --------
def _nic(name: str, kind: Kind, unit: str, help: str, high: float = UNBOUNDED, labels: Labels = (), *, of_gpu: bool = False, pace: Pace = STEADY) -> Metric:
    """Return a row of a port (labels `device` and `port`), or of the ports nearest to a GPU."""
    return Metric(f"gpu_nic_{name}", kind, unit, help, 0, high, GPU if of_gpu else NODE, labels=labels, pace=pace, set=NIC, rate=float("inf") if kind is COUNTER else 0.0)


NIC_PORT_INFO    = _nic("port_info",                  GAUGE,   "info",             "Port of a network card for RDMA: link layer, driver, PCI address and NUMA node; always 1.")
NIC_PORT_UP      = _nic("port_up",                    GAUGE,   "bool",             "1 if the port is active, 0 in any other state.", 1)
NIC_PORT_RATE    = _nic("port_rate_bytes_per_second", GAUGE,   "bytes per second", "Rate of the link of the port in each direction, in bytes per second.", 1e13)
NIC_PORT_TX      = _nic("port_tx_bytes_total",        COUNTER, "bytes",            "Bytes that the port sent. With RoCE on mlx5, only those of RDMA.")
NIC_PORT_RX      = _nic("port_rx_bytes_total",        COUNTER, "bytes",            "Bytes that the port received. With RoCE on mlx5, only those of RDMA.")
NIC_PORT_DOWNED  = _nic("port_link_downed_total",     COUNTER, "events",           "How often the link of the port went down, by InfiniBand's counter; only with --metrics full.", pace=SLOW)
NIC_PORT_ERRORS  = tuple(
    _nic("port_errors_total", COUNTER, "errors", "Errors of the port by kind, each a sum of the counters that docs/fabric.md names: link, retransmit, congestion, drop; only with --metrics full.", labels=(("kind", kind),), pace=SLOW)
    for kind in ("link", "retransmit", "congestion", "drop"))
NIC_PORT_COUNTER = _nic("port_counter_total",         COUNTER, "events",           "Each counter of the port, in the unit and with the name of the kernel; only with --metrics full.", pace=SLOW)
NIC_GPUDIRECT    = _nic("gpudirect_available",        GAUGE,   "bool",             "1 if network cards can access the memory of GPUs through this method: nvidia_peermem (the module is loaded) or dma_buf (open kernel modules, Linux 5.12 or newer).", 1, pace=RARE)
NIC_INFO         = _nic("info",                       GAUGE,   "info",             "Port that is nearest to the GPU, with its distance as in nvidia-smi topo -m; always 1.", of_gpu=True)
NIC_FAULT        = _nic("faulty_port_info",           GAUGE,   "info",             "Port nearest to the GPU that is down (fault=\"down\") or slower than it should be (fault=\"slow\"); always 1, and absent without a fault.", of_gpu=True)
NIC_DISTANCE     = _nic("distance_level",             GAUGE,   "level",            "Distance of the GPU from its nearest port: 1 PIX, 2 PXB, 3 PHB, 4 NODE, 5 SYS.", 5, of_gpu=True)
NIC_UP           = _nic("up",                         GAUGE,   "bool",             "1 if the ports nearest to the GPU are active, 0 if one that was active is not, or if none is although those of other GPUs are.", 1, of_gpu=True)
NIC_RATE_SHARE   = _nic("rate_ratio",                 GAUGE,   "ratio",            "Rate of the slowest link of the ports nearest to the GPU, as a share of the highest that it has had, or that a port of the same kind has.", 1.001, of_gpu=True)
NIC_TX           = _nic("tx_bytes_total",             COUNTER, "bytes",            "Bytes sent by the ports nearest to the GPU since the exporter started. GPUs with the same port all have its bytes.", of_gpu=True)
NIC_RX           = _nic("rx_bytes_total",             COUNTER, "bytes",            "Bytes received by the ports nearest to the GPU since the exporter started. GPUs with the same port all have its bytes.", of_gpu=True)
NIC_DOWNED       = _nic("link_downed_total",          COUNTER, "events",           "How often the links of the ports nearest to the GPU were down since the exporter started.", of_gpu=True)
NIC_ERRORS       = _nic("link_errors_total",          COUNTER, "errors",           "Link errors of the ports nearest to the GPU since the exporter started.", of_gpu=True, pace=SLOW)
NIC_RETRANSMITS  = _nic("retransmits_total",          COUNTER, "packets",          "Packets that the ports nearest to the GPU sent or requested again since the exporter started.", of_gpu=True, pace=SLOW)

# --- collectives, with --nccl-inspector-dir: read by host/fabric/ from the files that NCCL's Inspector plugin writes --------------------
NCCL_BUS       = Metric("gpu_nccl_bus_bandwidth_bytes_per_second",       GAUGE, "bytes per second", "Bus bandwidth in bytes per second of NCCL's operations on the GPU, by operation, size of the message, and whether all ranks are on one node: geometric mean over the last file of NCCL Inspector (docs/fabric.md).", 0, 1e14, set=NCCL)
NCCL_ALGORITHM = Metric("gpu_nccl_algorithm_bandwidth_bytes_per_second", GAUGE, "bytes per second", "Algorithm bandwidth in bytes per second of NCCL's operations on the GPU, with the labels of the bus bandwidth; only the Inspector of NCCL 2.29 writes it.", 0, 1e14, set=NCCL)

# --- training loops, with --job-socket: what their ranks send, with the labels job_id and rank -------------------------------------------
def _job(name: str, kind: Kind, unit: str, help: str, edges: tuple[float, ...] = (), labels: Labels = ()) -> Metric:
    """Return a row that training loops send: jobs/ makes its samples."""
    return Metric(f"gpu_job_{name}", kind, unit, help, set=JOB, edges=edges, labels=labels, rate=float("inf") if kind is COUNTER else 0.0)


# By key of the message.
JOB_SENT: Mapping[str, Metric] = {
    name: _job(key.metric.removeprefix("gpu_job_"), HISTOGRAM if key.kind == job_message.HISTOGRAM else COUNTER, key.unit, key.help, STEP_BUCKETS if key.kind == job_message.HISTOGRAM else ())
    for name, key in KEYS.items() if key.metric}
JOB_STEPPED_AT = _job("last_step_timestamp_seconds", GAUGE, "seconds", "Unix time in seconds at which the last step of a rank ended; absent before the first step, and when its process has ended.")
JOB_NOW        = tuple(
    _job("activity", GAUGE, "bool", "What a rank does now: 1 for training, evaluation, checkpoint or compile, 0 for the others.", labels=(("activity", activity),))
    for activity in ACTIVITIES)
JOB_STARTED_AT = _job("start_timestamp_seconds",   GAUGE,   "seconds", "Unix time in seconds at which the first process of a rank started; its successors on the same GPU keep it, as they keep the counters.")
JOB_RESTARTS   = _job("restarts_total",            COUNTER, "restarts", "Restarts of a rank: how many of its processes another one has succeeded.")
JOB_ENDED_AT   = _job("rank_ended_timestamp_seconds", GAUGE, "seconds", "Unix time in seconds of the last message of a rank whose process has ended or sends nothing, while other ranks of its job on this node go on training; absent otherwise, and after a restart of the job with fewer ranks.")
JOB_PEAK       = _job("peak_flops_per_second",     GAUGE,   "flops per second", "Peak of the rank's GPU for the data type that the rank declares, without sparsity, from the data sheet (docs/gpu-models.md); absent if either is unknown.")
JOB_RANK_INFO  = _job("rank_info",                 GAUGE,   "info",    "World size, data type and pod of a rank; clock=\"gpu\" if the times within its steps are those of the GPU, not of the CPU; verified=\"true\" if the driver lists its process, or a parent or child of it, on the GPU, \"false\" if the GPU is only the rank's own statement; always 1.")
JOB_SOCKET_UP  = Metric("gpu_exporter_job_socket_up", GAUGE, "bool", "1 if the exporter listens on the socket of training loops, 0 while it cannot make it.", 0, 1, NODE, set=JOB)
JOB_MESSAGES   = Metric("gpu_exporter_job_messages_total", COUNTER, "messages", "Messages of training loops by result: accepted, or why the message was dropped (docs/jobs.md).", entity=NODE, set=JOB)

# --- profiles of the processes on the GPUs, with --profile: py-spy samples their stacks, and profiling/ sums them up ---------------------
IDLE_CAUSE       = Metric("gpu_idle_cause_ratio",              GAUGE,   "ratio",     "What the main threads of the processes on the GPU did, by cause, as shares of their time; they add up to 1. Sampled: only from the latest profile, of a few seconds, and for an hour after it.", 0, 1, set=PROFILE)
PROFILED_AT      = Metric("gpu_profile_timestamp_seconds",     GAUGE,   "seconds",   "Unix time in seconds of the profile that gpu_idle_cause_ratio is from.", set=PROFILE)
WAITING_LINE     = Metric("gpu_waiting_line_ratio",            GAUGE,   "ratio",     "Share of its time that the main thread of the process on the GPU spends at this line of code (file without its folder, line and function), and the cause: the line that keeps the GPU waiting, of the latest profile of a stall, a straggler or a GPU that waits for its host, for an hour after it. Only with --profile-lines.", 0, 1, set=PROFILE)
KERNEL_CLASS     = Metric("gpu_kernel_class_seconds_total",    COUNTER, "seconds",   "GPU time of kernels and copies by class, such as gemm or communication. Sampled: only within the traces that somebody requested, of half a second each; compare classes with each other, not with the clock. Absent before the first trace.", set=PROFILE)
PROFILES         = Metric("gpu_exporter_profiles_total",       COUNTER, "profiles",  "Profiles that the exporter took, by reason: by itself, or because of a request (docs/profile.md).", entity=NODE, set=PROFILE)
PROFILE_FAILURES = Metric("gpu_exporter_profile_failures_total", COUNTER, "processes", "Processes that were not profiled although it was time to, by reason; with reason disk also profiles that could not be stored (docs/profile.md).", entity=NODE, set=PROFILE)

# --- active checks: their last results in --state-dir, and what `check --active --textfile` writes for node_exporter ------------------------
CHECK_BANDWIDTH = Metric("gpu_probe_bytes_per_second", GAUGE, "bytes per second", "Bandwidth in bytes per second that the last active check measured while no other GPU was tested: device memory, PCIe, NVLink.", 0, 1e14, set=CHECK)
CHECK_RATE      = Metric("gpu_probe_flops_per_second", GAUGE, "flops per second", "Arithmetic rate in FLOP/s that the last active check measured while no other GPU was tested.", 0, 1e17, set=CHECK)
CHECK_LINK      = Metric("gpu_probe_link_bytes_per_second", GAUGE, "bytes per second", "Bandwidth in bytes per second from this GPU to another one (label peer, its index), measured by the last active check.", 0, 1e14, set=CHECK)
CHECK_PASSED    = Metric("gpu_probe_passed", GAUGE, "bool", "1 if the last active check found nothing wrong with the GPU, 0 if it found a problem; absent if it could not tell.", 0, 1, set=CHECK)
CHECK_AT        = Metric("gpu_probe_timestamp_seconds", GAUGE, "seconds", "Unix time in seconds of the last active check of the GPU.", set=CHECK)

# --- events: counted from NVML and the kernel log ---------------------------------------------------------------------------------
XID_EVENTS  = Metric("gpu_xid_events_total",               COUNTER, "events",  "XID errors by code; codes that require a drain start at 0.")
XID_LAST    = Metric("gpu_xid_last_timestamp_seconds",     GAUGE,   "seconds", "Unix time in seconds of the last XID error with this code; alert on time() minus this value.")
XID_ERRORS  = Metric("DCGM_FI_DEV_XID_ERRORS",             GAUGE,   "xid",     "Code of the last XID error, 0 if there was none; never resets, so use gpu_xid_* for alerts.", 0, 65535, dcgm=230)
SXID_EVENTS = Metric("gpu_nvswitch_sxid_events_total",     COUNTER, "events",  "NVSwitch errors (SXids) in the kernel log by code.", entity=NODE)
SXID_LAST   = Metric("gpu_nvswitch_sxid_last_timestamp_seconds", GAUGE, "seconds", "Unix time in seconds of the last SXid with this code.", entity=NODE)
WITNESS     = Metric("gpu_exporter_xid_witness_up",        GAUGE,   "bool",    "1 if this source of XID errors works: NVML on every GPU, or the kernel log.", 0, 1, NODE)
MISSED      = Metric("gpu_exporter_kernel_log_missed_total", COUNTER, "records", "Kernel log records that were overwritten before the exporter read them.", entity=NODE)

# --- dcgm-exporter's own metrics, computed from samples and events as it does (dcgm_own.py): only if a file of fields names them ------------
EXP_XID_COUNT   = Metric("DCGM_EXP_XID_ERRORS_COUNT",   GAUGE,   "events",  "XID errors within the last --xid-count-window, by code.", set=NAMED)
EXP_XID_TOTAL   = Metric("DCGM_EXP_XID_ERRORS_TOTAL",   COUNTER, "events",  "XID errors since the exporter started, by code.", set=NAMED)
EXP_CLOCK_COUNT = Metric("DCGM_EXP_CLOCK_EVENTS_COUNT", GAUGE,   "samples", "Collections within the last --clock-events-count-window in which the clock was held down, by reason.", set=NAMED)
EXP_CLOCK_TOTAL = Metric("DCGM_EXP_CLOCK_EVENTS_TOTAL", COUNTER, "events",  "Times that the clock began to be held down since the exporter started, by reason.", set=NAMED)
EXP_HEALTH      = Metric("DCGM_EXP_GPU_HEALTH_STATUS",  GAUGE,   "status",  "DCGM's health verdict by system: 0 pass, 10 warning, 20 failure; needs DCGM (see also gpu_health_state).", 0, 20, pace=SLOW, set=NAMED)
EXP_P2P         = Metric("DCGM_EXP_P2P_STATUS",         GAUGE,   "status",  "NVLink status to each other GPU: 0 works, otherwise the reason why not (link_status).", 0, 6, nvml=PerPeer("P2PStatus", (2,)), pace=RARE, set=NAMED)

# --- what the exporter knows about the GPUs and itself: set by the collection loop, not read from a field -----------------------------
INFO          = Metric("gpu_info",                                    GAUGE,   "info",    "Identity of the GPU and versions of its software; always 1.")
POD_INFO      = Metric("gpu_pod_info",                                GAUGE,   "info",    "Pod that uses the GPU, with its namespace and its workload (whose ranks are compared); always 1.")
SOURCE_INFO   = Metric("gpu_source_info",                             GAUGE,   "info",    "Source that reads this GPU, and why `--source auto` chose it; always 1.")
POD_UNRESOLVED = Metric("gpu_pod_device_unresolved",                  GAUGE,   "info",    "Device of a container whose GPU cannot be determined, with the reason; with reason=\"too_many\", the number of those beyond the limit.", entity=NODE)
JOB_INFO      = Metric("gpu_job_info",                                GAUGE,   "info",    "Job of Slurm or another scheduler that uses the GPU; always 1.")
CONTAINER_INFO = Metric("gpu_container_info",                         GAUGE,   "info",    "Container outside Kubernetes with a process on the GPU; always 1.")
POD_MEMORY    = Metric("gpu_pod_memory_used_bytes",                   GAUGE,   "bytes",   "Device memory in bytes used by the processes of this pod.")
POD_MEMORY_REST = Metric("gpu_pod_memory_unattributed_bytes",         GAUGE,   "bytes",   "Device memory in bytes used by no pod; adds up to all used memory with gpu_pod_memory_used_bytes.")
POD_SM        = Metric("gpu_pod_sm_utilization_ratio",                GAUGE,   "ratio",   "Share of time during which a kernel of this pod ran, sampled by the driver.", 0, 1)
POD_SM_REST   = Metric("gpu_pod_sm_unattributed_ratio",               GAUGE,   "ratio",   "Share of time during which a kernel of no pod ran.", 0, 1)
POD_SM_IDLE   = Metric("gpu_pod_sm_idle_ratio",                       GAUGE,   "ratio",   "Share of time during which no kernel ran; adds up to 1 with the shares of pods and of no pod.", 0, 1)
ATTRIBUTION_UP = Metric("gpu_exporter_attribution_up",                GAUGE,   "bool",    "1 if this source of GPU owners answers: kubelet, pods, resource_slices, hpc_jobs or processes.", 0, 1, NODE)
ATTRIBUTION_AGE = Metric("gpu_exporter_attribution_age_seconds",      GAUGE,   "seconds", "Age in seconds of the last answer of this source of GPU owners; an answer is used for up to ten minutes.", entity=NODE)
ATTRIBUTION_ERRORS = Metric("gpu_attribution_errors_total",           COUNTER, "answers", "Lookups of GPU owners that failed or were incomplete, by reason.", entity=NODE)
UP            = Metric("gpu_up",                                      GAUGE,   "bool",    "1 if the exporter can read the GPU.", 0, 1)
DOWN          = Metric("gpu_down_reason",                             GAUGE,   "bool",    "1 with the reason while gpu_up is 0.", 0, 1)
PROFILING_PAUSED = Metric("gpu_profiling_paused",                     GAUGE,   "bool",    "1 with the reason while there are no profiling values, because another tool uses the GPU's profiling counters, or because they have stopped: all are 0 although the GPU works, or keep their values. They return without a restart of the exporter.", 0, 1)
HEALTH_STATE  = tuple(
    Metric("gpu_health_state", GAUGE, "bool", "Health verdict on the GPU (rules: docs/health.md): the current state is 1; all are 0 while the health is unknown.", 0, 1, labels=(("state", state),))
    for state in ("healthy", "degraded", "unhealthy"))
HEALTH_REASON = Metric("gpu_health_reason",                           GAUGE,   "bool",    "1 for each reason why the GPU is not healthy, with the action that repairs it.", 0, 1)
PCIE_EXPECTED = Metric("gpu_pcie_link_expected_bytes_per_second",     GAUGE,   "bytes per second", "Capacity of the PCIe link in each direction, in bytes per second, for which there is evidence: the link had it before, or the port above the GPU allows it, or, if the port is unknown, other GPUs of this model on the node have it.")
NVLINK_EXPECTED = Metric("gpu_nvlink_links_expected",                 GAUGE,   "links",   "Number of NVLinks that should be active: all of an SXM board or in an NVSwitch fabric, otherwise the most that were active before, also on other GPUs of this model on the node; absent in MIG mode.")
STALLED       = Metric("gpu_read_stalled_seconds",                    GAUGE,   "seconds", "Seconds for which the current read of this GPU has been stuck in the driver, 0 if it is not stuck.")
READ_AT       = Metric("gpu_last_read_timestamp_seconds",             GAUGE,   "seconds", "Unix time in seconds of the last successful read of this GPU.")
READ_AGE      = Metric("gpu_snapshot_age_seconds",                    GAUGE,   "seconds", "Age in seconds of this GPU's values when this response was made.")
SUPPORTED     = Metric("gpu_metric_supported",                        GAUGE,   "bool",    "0 for each metric that is not available on this GPU, with the reason.", 0, 1)
REJECTED      = Metric("gpu_samples_rejected_total",                  COUNTER, "samples", "Values that were dropped as misread: outside their metric's range, or a jump that no counter can make.")
EXPECTED      = Metric("gpu_devices_expected",                        GAUGE,   "gpus",    "Number of GPUs expected on this node: those on the PCI bus, the most ever seen, or the configured number.", entity=NODE)
VISIBLE       = Metric("gpu_devices_visible",                         GAUGE,   "gpus",    "Number of GPUs that can be read.", entity=NODE)
MISSING       = Metric("gpu_device_missing",                          GAUGE,   "bool",    "1 for each NVIDIA GPU on the PCI bus that the driver does not list, with its address and the kernel driver that it is bound to, if any.", 0, 1, NODE)
SOURCE_UP     = Metric("gpu_exporter_source_up",                      GAUGE,   "bool",    "1 if the source of GPU values (its library) works.", 0, 1, NODE)
SOURCE_DOWN   = Metric("gpu_exporter_source_down_reason",             GAUGE,   "bool",    "1 with the reason while the source of GPU values does not work.", 0, 1, NODE)
RELOAD_NEEDED = Metric("gpu_driver_reload_needed",                    GAUGE,   "bool",    "1 if library and kernel driver differ in version (an upgrade without a reboot); absent where that cannot be determined.", 0, 1, NODE)
DURATION      = Metric("gpu_exporter_collection_duration_seconds",    GAUGE,   "seconds", "Duration in seconds of the last read of this GPU.")
SPENT         = Metric("gpu_exporter_collection_seconds_total",       COUNTER, "seconds", "Seconds spent reading this GPU; the rate is the share of time that reads take.")
FAILURES      = Metric("gpu_exporter_collection_failures_total",      COUNTER, "reads",   "Reads of this GPU that failed completely.")
FIELD_FAILURES = Metric("gpu_exporter_field_failures_total",          COUNTER, "reads",   "Failed reads of supported fields, by metric and outcome.")
SKIPPED       = Metric("gpu_exporter_ticks_skipped_total",            COUNTER, "ticks",   "Collections skipped because an earlier read of this GPU was still running.")
RENDERED_AT   = Metric("gpu_exporter_snapshot_timestamp_seconds",     GAUGE,   "seconds", "Unix time in seconds at which this response was made.", entity=NODE)
INTERVAL      = Metric("gpu_exporter_interval_seconds",               GAUGE,   "seconds", "Seconds between two collections.", entity=NODE)
RENDER_TIME   = Metric("gpu_exporter_render_duration_seconds",        GAUGE,   "seconds", "Duration in seconds of rendering the previous response.", entity=NODE)
RELEASED      = Metric("gpu_exporter_released",                       GAUGE,   "bool",    "1 while the exporter has released the driver (`gpu-exporter release`).", 0, 1, NODE)
RELEASED_UNTIL = Metric("gpu_exporter_released_until_timestamp_seconds", GAUGE, "seconds", "Unix time in seconds at which the release ends by itself; present only during a release with an end.", entity=NODE)
RELOAD_OK     = Metric("gpu_exporter_config_last_reload_successful",  GAUGE,   "bool",    "1 if the last reload of the file of fields (--collectors) succeeded, 0 if the previous content is still in use.", 0, 1, NODE)
RELOAD_AT     = Metric("gpu_exporter_config_last_reload_success_timestamp_seconds", GAUGE, "seconds", "Unix time in seconds of the last successful reload of the file of fields (--collectors).", entity=NODE)
LOG_DROPPED   = Metric("gpu_exporter_log_dropped_total",              COUNTER, "lines",   "Log lines dropped because stderr was not read in time.", entity=NODE)
UNSAVED       = Metric("gpu_exporter_state_write_failures_total",     COUNTER, "writes",  "Failed writes of XIDs to the state directory (--state-dir), such as to a full disk; profiles have gpu_exporter_profile_failures_total.", entity=NODE)
CONNECTIONS   = tuple(
    Metric("gpu_exporter_http_connections_dropped_total", COUNTER, "connections", "HTTP connections closed or refused at a limit: `address` (per client), `total`, `descriptors` (open files) or `bytes` (unread responses).", entity=NODE, labels=(("limit", limit),))
    for limit in ("address", "total", "descriptors", "bytes"))
BUILD_INFO    = Metric("gpu_exporter_build_info",                     GAUGE,   "info",    "Version of the exporter; always 1.", entity=NODE)
# fmt: on


def by_key(assigned: Iterable[tuple[str, object]]) -> Mapping[str, Metric]:
    """Return the rows among these names and values, in order. Raise ValueError, with the fix, for a duplicate key."""
    rows: dict[str, Metric] = {}
    names: dict[str, str] = {}
    for name, value in assigned:
        for row in value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,):
            if not isinstance(row, Metric):
                continue
            if row.key in rows:
                raise ValueError(
                    f"catalogue/metrics.py: {names[row.key]} and {name} are both {row.key}:"
                    " remove one, or give it another name or other labels"
                )
            rows[row.key], names[row.key] = row, name
    return rows


BY_KEY = by_key(globals().items())
METRICS: tuple[Metric, ...] = tuple(BY_KEY.values())
# What needs profiling counters: those of GPM, and what is computed from them.
PROFILING = frozenset(
    row
    for row in METRICS
    for read in (row.integral_of or row.histogram_of or row,)
    if isinstance(read.nvml, Gpm) or (read.sum_of and all(isinstance(part.nvml, Gpm) for part in read.sum_of))
)
# A driver that answers with 0 where that is below the lowest possible value does not know the value. Then it does not
# know these rows either, if they are 0, too: the row of each that tells.
BASES: Mapping[Metric, Metric] = {
    **{row: row.at_most for row in METRICS if row.at_most},
    FB_USED_RATIO: FB_TOTAL,
    SM_CLOCK: MAX_SM_CLOCK,
    MEM_CLOCK: MAX_MEM_CLOCK,
    VIDEO_CLOCK: MAX_VID_CLOCK,
    TEMP_MARGIN: GPU_TEMP,
    **dict.fromkeys((POWER, POWER_INSTANT, ENERGY, ENERGY_JOULES), POWER_LIMIT),
}
# The gauge of what a buffer of the driver has samples of. Simulated and recorded GPUs have no buffers, but these gauges.
GAUGES_OF_SAMPLES: Mapping[Metric, Metric] = {
    POWER_SAMPLES: POWER_INSTANT,
    GPU_UTIL_SECONDS: GPU_UTIL,
    MEM_UTIL_SECONDS: MEM_UTIL,
}
# Names for what other modules read of JOB_SENT.
JOB_STEP, JOB_SELF, JOB_STEPS = (JOB_SENT[key] for key in ("step", "self", "steps"))
JOB_DATA, JOB_PHASE, JOB_ACTIVITY = (JOB_SENT[key] for key in ("data_seconds", "phase_seconds", "activity_seconds"))
JOB_SELF_SQUARES = JOB_SENT["self_squares"]
JOB_TOKENS, JOB_SAMPLES, JOB_FLOPS = (JOB_SENT[key] for key in ("tokens", "samples", "flops"))
# With high resolution these rows are read more often than others, for their histograms.
OBSERVED = frozenset(row.histogram_of for row in METRICS if row.histogram_of is not None)


# The sets of rows that host/ reads.
OF_HOSTS = frozenset({HOST, NIC})
# Units of states: a mean of them is meaningless.
STATE_UNITS = frozenset(
    {"bitmask", "bool", "state", "action", "status", "code", "generation", "lanes", "links", "banks", "xid", "sxid"}
)
# The rows whose labels name the owner of a GPU.
OWNERS = frozenset({POD_INFO, JOB_INFO, CONTAINER_INFO})


def selected(choice: MetricSet, *, processes: bool = False, host: bool = False) -> tuple[Metric, ...]:
    """Return the rows that a source reads: `full` includes `default`; integrals and the exporter's own rows are not read.
    Sums are included, because DCGM has fields for them. `host`: also host evidence and network cards, which only
    recordings and simulated GPUs have."""
    sets = {MetricSet.DEFAULT, choice}
    return tuple(
        row
        for row in METRICS
        if (host and row.set in OF_HOSTS and row.entity is GPU and row.unit != "info")
        or (
            (row.nvml is not None or row.sum_of or row.entity in NON_GPU_ENTITIES)
            and row.set in sets
            and (processes or not isinstance(row.nvml, PerProcess))
        )
    )


def histograms(choice: MetricSet) -> tuple[Metric, ...]:
    """Return the histogram rows whose underlying rows are read."""
    return tuple(row for row in METRICS if row.histogram_of is not None and row.set in {MetricSet.DEFAULT, choice})


def read_from(metric: Metric) -> str:
    """Return where the value is read from, in words."""
    match metric.nvml:
        case Call(name, args, pick):
            return f"{name}({', '.join(map(str, args))})" + ("" if pick is None else f"[{pick}]")
        case FieldValue(number):
            return f"field {number}"
        case Buffered(number):
            return f"Samples({number})"
        case LinkSum(number):
            return f"field {number}, all links"
        case PerPeer(name, args):
            return f"{name}({', '.join(('each other GPU', *map(str, args)))})"
        case Details(names):
            return " and ".join(f"{name}()" for name in names)
        case PerProcess(what):
            return f"process list: {what}"
        case Gpm(number, stride, _):
            return f"GPM {number}" + (f" + {stride} per link" if stride else "")
    if metric.entity in NON_GPU_ENTITIES or metric is EXP_HEALTH:
        return "DCGM only"
    if metric.sum_of:
        return " + ".join(part.name for part in metric.sum_of)
    if metric.histogram_of:
        return f"histogram of {metric.histogram_of}"
    if metric.peak_of:
        return f"peak of {' and '.join(part.name for part in metric.peak_of)}"
    return f"integral of {metric.integral_of}" if metric.integral_of else "the exporter"
