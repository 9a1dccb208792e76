"""Profiling counters of DCGM that have stopped: the GPU is not idle. Held for hours, as dcgm-exporter shows them."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.model.metric import Metric
from tests.rules.shapes import Shape

# Longer than GpuAllocatedIdle waits.
HELD = 150.0
Shapes = Mapping[Metric, Shape]


def stopped(values: Shapes) -> Shapes:
    """Return the values of a GPU whose counters are all 0."""
    return {row: 0.0 if row in m.PROFILING else value for row, value in values.items()}


# Samples of a moment: the GPU works half of the time.
TRAINS = {**p.SLEEPY, m.GPU_UTIL: (100.0, 0.0, 97.0, 3.0, 0.0, 60.0)}
# Power always changes by a little.
_POWER = (688.1, 689.3, 690.2, 687.7)
BRIEF = {m.GPU_UTIL: (*(0.0,) * 9, 30.0), m.GR_ENGINE_ACTIVE: (*(0.0,) * 9, 0.003), m.DRAM_ACTIVE: (*(0.0,) * 9, 1e-4)}
# Utilisation is that of a moment, the counters come with the next scrape.
LATE = {m.GR_ENGINE_ACTIVE: (0.003, *(0.0,) * 9), m.DRAM_ACTIVE: (1e-4, *(0.0,) * 9)}
GPUS: Mapping[str, Shapes] = {
    "gemm": stopped(p.GEMM),
    "sleepy": stopped(p.SLEEPY),
    "tiny": stopped(p.TINY_KERNELS),
    "trains": stopped(TRAINS),
    "frozen-idle": {**p.GEMM, **{r: v for r, v in p.IDLE.items() if r in m.PROFILING}, m.POWER: _POWER},
    "frozen-busy": {**p.IDLE, **{r: v for r, v in p.GEMM.items() if r in m.PROFILING}, m.POWER: (120.2, 121.0, 119.8)},
    "idle": p.IDLE,
    "zero-idle": stopped(p.IDLE),
    "context": {**p.IDLE, **p.memory(20 * p.GIB)},
    "one-thread": p.ONE_THREAD,
    "brief": {**p.IDLE, **BRIEF},
    "late": {**p.IDLE, **BRIEF, **LATE},
    "copies": p.HOST_COPY,
    "slow-copies": {**p.HOST_COPY, m.DRAM_ACTIVE: 0.0, m.PCIE_RX: 1e8, m.PCIE_TX: 1e6, m.GPU_UTIL: 60.0},
}
