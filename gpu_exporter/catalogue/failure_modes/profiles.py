"""Values measured on real GPUs (H200, means), from which injections and tests are made."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values
from gpu_exporter.catalogue.faults import pcie_capacity
from gpu_exporter.model.metric import Metric

GIB = 1024.0  # MiB
TOTAL, RESERVED = 143771.0, 615.0  # MiB


def memory(used: float, growth: float = 0.0) -> Values:
    """Return used and free memory of a GPU: MiB in use at the start, MiB per second."""
    free = TOTAL - RESERVED - used
    return (
        {m.FB_USED: Ramp(used, growth), m.FB_FREE: Ramp(free, -growth)}
        if growth
        else {m.FB_USED: used, m.FB_FREE: free}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """The load of one kind of work: means as the exporter reads them. The defaults are those of an ordinary kernel."""

    util: float
    engine: float
    sm: float
    tensor: float
    dram: float
    watts: float
    occupancy: float = 0.15
    fp32: float = 0.01
    rx: float = 2e7
    tx: float = 1e7
    nvlink: float = 0.0
    clock: float = 1980

    def values(self) -> dict[Metric, float]:
        """Return the values of a GPU under this load."""
        return {
            m.GPU_UTIL: self.util,
            m.MEM_UTIL: round(100 * self.dram),
            m.GR_ENGINE_ACTIVE: self.engine,
            m.SM_ACTIVE: self.sm,
            m.SM_OCCUPANCY: self.occupancy,
            m.TENSOR_ACTIVE: self.tensor,
            m.HMMA_ACTIVE: self.tensor,
            m.DRAM_ACTIVE: self.dram,
            m.FP64_ACTIVE: 0.0,
            m.FP32_ACTIVE: self.fp32,
            m.FP16_ACTIVE: 0.0,
            m.PCIE_RX: self.rx,
            m.PCIE_TX: self.tx,
            m.NVLINK_RX: self.nvlink,
            m.NVLINK_TX: self.nvlink,
            m.POWER: self.watts,
            m.POWER_INSTANT: self.watts,
            m.SM_CLOCK: self.clock,
        }


# fmt: off
IDLE         = MeasuredLoad(util=0,   engine=0.0,   sm=0.0,   tensor=0.0,   dram=0.0,   watts=121, occupancy=0.0, fp32=0.0, rx=1e6, tx=1e6).values()
GEMM         = MeasuredLoad(util=100, engine=0.995, sm=0.96,  tensor=0.93,  dram=0.17,  watts=689, occupancy=0.14, clock=1458).values()
FP32_GEMM    = MeasuredLoad(util=100, engine=0.998, sm=0.97,  tensor=0.0,   dram=0.05,  watts=682, occupancy=0.12, fp32=0.77).values()
COPY         = MeasuredLoad(util=99,  engine=0.994, sm=0.99,  tensor=0.0,   dram=0.887, watts=653, occupancy=0.8).values()
ONE_THREAD   = MeasuredLoad(util=100, engine=0.999, sm=0.008, tensor=0.0,   dram=0.0,   watts=123, occupancy=0.0, fp32=0.0, rx=1e6, tx=1e6).values()
TINY_KERNELS = MeasuredLoad(util=24,  engine=0.24,  sm=0.0,   tensor=0.0,   dram=0.0,   watts=123, occupancy=0.0, fp32=0.0, rx=2e8, tx=2.5e7).values()
SLEEPY       = MeasuredLoad(util=48,  engine=0.48,  sm=0.41,  tensor=0.33,  dram=0.13,  watts=508, occupancy=0.09, rx=1.8e7, tx=6e6, clock=1920).values()
LAUNCHING    = MeasuredLoad(util=77,  engine=0.77,  sm=0.147, tensor=0.0,   dram=0.003, watts=178, occupancy=0.036, fp32=0.0, rx=8.5e7, tx=1e7, nvlink=2.18e9).values()
LAUNCHING_LATE = MeasuredLoad(util=12, engine=0.114, sm=0.017, tensor=0.0,  dram=0.003, watts=162, occupancy=0.003, fp32=0.0, rx=8.2e7, tx=9e6, nvlink=2.18e9).values()
HOST_COPY    = MeasuredLoad(util=100, engine=0.0,   sm=0.0,   tensor=0.0,   dram=0.011, watts=133, occupancy=0.0, fp32=0.0, rx=5.86e10, tx=3.5e9).values()
SLOW_LOADER  = MeasuredLoad(util=24,  engine=0.08,  sm=0.07,  tensor=0.02,  dram=0.03,  watts=162, occupancy=0.03, rx=9.4e9, tx=5e8).values()
SMALL_DECODE = MeasuredLoad(util=100, engine=0.99,  sm=0.36,  tensor=0.015, dram=0.38,  watts=350, occupancy=0.1).values()
ALL_REDUCE   = MeasuredLoad(util=97,  engine=0.94,  sm=0.16,  tensor=0.0,   dram=0.21,  watts=270, occupancy=0.04, nvlink=3e11).values()
BALANCED     = MeasuredLoad(util=96,  engine=0.95,  sm=0.78,  tensor=0.31,  dram=0.34,  watts=670, occupancy=0.3, rx=9e7, nvlink=2.5e10, clock=1950).values()
STARVED      = MeasuredLoad(util=33,  engine=0.33,  sm=0.27,  tensor=0.11,  dram=0.12,  watts=334, occupancy=0.11, nvlink=8.85e9).values()
OF_STARVED   = MeasuredLoad(util=98,  engine=0.98,  sm=0.40,  tensor=0.11,  dram=0.12,  watts=445, occupancy=0.14, nvlink=8.75e9).values()
SLOW         = MeasuredLoad(util=99,  engine=0.98,  sm=0.89,  tensor=0.62,  dram=0.25,  watts=675, occupancy=0.24, nvlink=1.24e10, clock=1605).values()
OF_SLOW      = MeasuredLoad(util=98,  engine=0.98,  sm=0.50,  tensor=0.15,  dram=0.17,  watts=500, occupancy=0.18, nvlink=1.23e10).values()
HANGING      = MeasuredLoad(util=100, engine=1.0,   sm=0.18,  tensor=0.0,   dram=0.0,   watts=127, occupancy=0.05, fp32=0.0, rx=1e6, tx=1e6).values()
ABSENT       = MeasuredLoad(util=0,   engine=0.0,   sm=0.0,   tensor=0.0,   dram=0.0,   watts=126, occupancy=0.0, fp32=0.0, rx=1e6, tx=1e6).values()
# fmt: on

# The state of a healthy GPU, whatever runs on it.
BOARD: Values = {
    m.POWER_LIMIT: 700.0,
    m.POWER_MAX: 700.0,
    m.GPU_TEMP: 55.0,
    m.MEMORY_TEMP: 60.0,
    m.TEMP_MARGIN: 32.0,
    m.SLOWDOWN_TEMP: 89.0,
    m.MEM_CLOCK: 3201.0,
    m.MAX_SM_CLOCK: 1980.0,
    m.CLOCK_EVENTS: 0.0,
    m.FB_TOTAL: TOTAL,
    m.FB_RESERVED: RESERVED,
    **memory(80 * GIB),
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
    m.PCIE_EXPECTED: pcie_capacity(5, 16),
    m.NVLINK_COUNT: 18.0,
    m.NVLINK_EXPECTED: 18.0,
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
