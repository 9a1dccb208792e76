"""Short names of metrics with their unit, for experiment trackers such as Weights & Biases, MLflow and TensorBoard."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Metric


class Readable(NamedTuple):
    """A name, and the factor from the metric's unit to that of the name."""

    name: str
    factor: float = 1.0


# Activities and shares are from 0 to 1. A metric without a row has its own name, without prefix and in small letters.
READABLE: Mapping[Metric, Readable] = {
    m.GR_ENGINE_ACTIVE: Readable("engine_active"),
    m.SM_ACTIVE: Readable("sm_active"),
    m.SM_OCCUPANCY: Readable("sm_occupancy"),
    m.TENSOR_ACTIVE: Readable("tensor_active"),
    m.DRAM_ACTIVE: Readable("dram_active"),
    m.FP64_ACTIVE: Readable("fp64_active"),
    m.FP32_ACTIVE: Readable("fp32_active"),
    m.FP16_ACTIVE: Readable("fp16_active"),
    m.PCIE_TX: Readable("pcie_tx_bytes_per_second"),
    m.PCIE_RX: Readable("pcie_rx_bytes_per_second"),
    m.NVLINK_TX: Readable("nvlink_tx_bytes_per_second"),
    m.NVLINK_RX: Readable("nvlink_rx_bytes_per_second"),
    m.GPU_UTIL: Readable("utilization", m.PERCENT),
    m.MEM_UTIL: Readable("memory_utilization", m.PERCENT),
    m.ENC_UTIL: Readable("encoder_utilization", m.PERCENT),
    m.DEC_UTIL: Readable("decoder_utilization", m.PERCENT),
    m.SM_CLOCK: Readable("sm_clock_mhz"),
    m.MEM_CLOCK: Readable("memory_clock_mhz"),
    m.POWER: Readable("power_watts"),
    m.POWER_INSTANT: Readable("power_instant_watts"),
    m.POWER_LIMIT: Readable("power_limit_watts"),
    m.ENERGY: Readable("energy_since_driver_load_joules", 0.001),
    m.ENERGY_JOULES: Readable("energy_joules_total"),
    m.GPU_TEMP: Readable("temperature_celsius"),
    m.MEMORY_TEMP: Readable("memory_temperature_celsius"),
    m.TEMP_MARGIN: Readable("thermal_margin_celsius"),
    m.FB_TOTAL: Readable("memory_total_bytes", m.MIB),
    m.FB_FREE: Readable("memory_free_bytes", m.MIB),
    m.FB_USED: Readable("memory_used_bytes", m.MIB),
    m.FB_RESERVED: Readable("memory_reserved_bytes", m.MIB),
    m.FB_USED_RATIO: Readable("memory_used_ratio"),
    m.FAN: Readable("fan_speed", m.PERCENT),
    m.PSTATE: Readable("performance_state"),
}
PREFIXES = re.compile(r"^(DCGM_FI_(DEV|PROF)|gpu)_")
# What MLflow allows in a name, without spaces and separators.
FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]+")


def readable(metric: Metric, name: str, labels: Mapping[str, str]) -> Readable:
    """Return the readable name of a series of a metric, whose labels beyond the GPU's follow a slash each."""
    row = READABLE.get(metric) or Readable(PREFIXES.sub("", name).lower())
    values = "".join(f"/{FORBIDDEN.sub('_', value)}" for value in labels.values())
    return Readable(row.name + values, row.factor)
