"""What GPUs were measured to do (H200, means): the values from which injections and tests are made."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.mode import Values
from gpu_exporter.model.metric import Metric

GIB = 1024.0  # MiB


def _profile(
    util: float,
    engine: float,
    sm: float,
    tensor: float,
    dram: float,
    watts: float,
    *,
    occupancy: float = 0.15,
    fp32: float = 0.01,
    rx: float = 2e7,
    tx: float = 1e7,
    nvlink: float = 0.0,
    clock: float = 1980,
) -> dict[Metric, float]:
    return {
        m.GPU_UTIL: util,
        m.MEM_UTIL: round(100 * dram),
        m.GR_ENGINE_ACTIVE: engine,
        m.SM_ACTIVE: sm,
        m.SM_OCCUPANCY: occupancy,
        m.TENSOR_ACTIVE: tensor,
        m.HMMA_ACTIVE: tensor,
        m.DRAM_ACTIVE: dram,
        m.FP64_ACTIVE: 0.0,
        m.FP32_ACTIVE: fp32,
        m.FP16_ACTIVE: 0.0,
        m.PCIE_RX: rx,
        m.PCIE_TX: tx,
        m.NVLINK_RX: nvlink,
        m.NVLINK_TX: nvlink,
        m.POWER: watts,
        m.POWER_INSTANT: watts,
        m.SM_CLOCK: clock,
    }


# fmt: off
IDLE         = _profile(0,   0.0,   0.0,   0.0,  0.0,   121, occupancy=0.0, fp32=0.0, rx=1e6, tx=1e6)
GEMM         = _profile(100, 0.995, 0.96,  0.93, 0.17,  689, occupancy=0.14, clock=1458)
FP32_GEMM    = _profile(100, 0.998, 0.97,  0.0,  0.05,  682, occupancy=0.12, fp32=0.77)
COPY         = _profile(99,  0.994, 0.99,  0.0,  0.887, 653, occupancy=0.8)
ONE_THREAD   = _profile(100, 0.999, 0.008, 0.0,  0.0,   123, occupancy=0.0, fp32=0.0, rx=1e6, tx=1e6)
TINY_KERNELS = _profile(24,  0.24,  0.0,   0.0,  0.0,   123, occupancy=0.0, fp32=0.0, rx=2e8, tx=2.5e7)
HOST_COPY    = _profile(100, 0.0,   0.0,   0.0,  0.011, 133, occupancy=0.0, fp32=0.0, rx=5.86e10, tx=3.5e9)
SLOW_LOADER  = _profile(24,  0.08,  0.07,  0.02, 0.03,  162, occupancy=0.03, rx=9.4e9, tx=5e8)
SMALL_DECODE = _profile(100, 0.99,  0.36,  0.015, 0.38, 350, occupancy=0.1)
ALL_REDUCE   = _profile(97,  0.94,  0.16,  0.0,  0.21,  270, occupancy=0.04, nvlink=3e11)
BALANCED     = _profile(96,  0.95,  0.78,  0.31, 0.34,  670, occupancy=0.3, rx=9e7, nvlink=2.5e10, clock=1950)
STARVED      = _profile(33,  0.33,  0.27,  0.11, 0.12,  334, occupancy=0.11, nvlink=8.85e9)
OF_STARVED   = _profile(98,  0.98,  0.40,  0.11, 0.12,  445, occupancy=0.14, nvlink=8.75e9)
SLOW         = _profile(99,  0.98,  0.89,  0.62, 0.25,  675, occupancy=0.24, nvlink=1.24e10, clock=1605)
OF_SLOW      = _profile(98,  0.98,  0.50,  0.15, 0.17,  500, occupancy=0.18, nvlink=1.23e10)
HANGING      = _profile(100, 1.0,   0.18,  0.0,  0.0,   127, occupancy=0.05, fp32=0.0, rx=1e6, tx=1e6)
ABSENT       = _profile(0,   0.0,   0.0,   0.0,  0.0,   126, occupancy=0.0, fp32=0.0, rx=1e6, tx=1e6)
# fmt: on

# What a healthy board says of itself, whatever runs on it.
BOARD: Values = {
    m.POWER_LIMIT: 700.0,
    m.POWER_MAX: 700.0,
    m.GPU_TEMP: 55.0,
    m.MEMORY_TEMP: 60.0,
    m.TEMP_MARGIN: 32.0,
    m.SLOWDOWN_TEMP: 95.0,
    m.MEM_CLOCK: 3201.0,
    m.MAX_SM_CLOCK: 1980.0,
    m.CLOCK_EVENTS: 0.0,
    m.FB_TOTAL: 143771.0,
    m.FB_USED: 80 * GIB,
    m.FB_FREE: 143771.0 - 80 * GIB - 615,
    m.FB_RESERVED: 615.0,
    m.ECC_MODE: 1.0,
    m.ECC_SBE_VOL: 0.0,
    m.ECC_DBE_VOL: 0.0,
    m.ECC_SBE_AGG: 2.0,
    m.ECC_DBE_AGG: 0.0,
    m.SRAM_EXCEEDED: 0.0,
    m.REMAP_UNCORRECTABLE: 0.0,
    m.REMAP_CORRECTABLE: 0.0,
    m.REMAP_FAILURE: 0.0,
    m.REMAP_PENDING: 0.0,
    m.REMAP_HISTOGRAM[3]: 0.0,
    m.REMAP_HISTOGRAM[4]: 0.0,
    m.PCIE_GEN: 5.0,
    m.PCIE_WIDTH: 16.0,
    m.PCIE_MAX_GEN: 5.0,
    m.PCIE_MAX_WIDTH: 16.0,
    m.PCIE_REPLAY: 0.0,
    m.NVLINK_COUNT: 18.0,
    m.NVLINK_UP: 18.0,
    m.NVLINK_REPLAY: 0.0,
    m.NVLINK_RECOVERY: 0.0,
    m.NVLINK_CRC: 0.0,
    m.RECOVERY: 0.0,
    m.PSTATE: 0.0,
    m.PERSISTENCE: 1.0,
    m.INFOROM: 1.0,
    m.FABRIC: 3.0,
    **{row: 0.0 for row in m.CLOCK_EVENT_SECONDS},
}
HEALTHY: Values = {**BOARD, **BALANCED}
