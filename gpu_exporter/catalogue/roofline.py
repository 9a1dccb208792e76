"""What the best kernels reach on each GPU model, and how close a GPU that works is to that: its place in the roofline.

A busy GPU that reaches none of the limits of its chip could do more: its headroom.

Two rates bound every kernel: that of the tensor cores and that of the memory. The tensor rate is expressed as clock
cycles per second with active tensor cores, because it then holds for every data type: FLOP/s is this times the SMs and
`FLOPS_PER_CYCLE`. It counts lower clocks as lost, which the activity of the pipe alone does not. It is that of matrix
products: the tensor rate of active checks is higher, because their operands stay in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.capabilities import MEASURED as CHECKED
from gpu_exporter.catalogue.capabilities import Quantity
from gpu_exporter.catalogue.gpu_models import BY_NAME, H100, H200, MODELS, GpuModel
from gpu_exporter.conditions.evaluate import Device, SignalWindow, holds, value

# What the best kernels reach: copies 0.9 of the memory bandwidth, matrix products 0.93 to 0.97 of their pipe.
DRAM_PEAK, PIPE_PEAK = 0.9, 1.0
# Above this share of a limit, it is the limit.
NEAR = 0.6


@dataclass(frozen=True, slots=True)
class Headroom:
    """The use of a chip as shares of its limits: tensor cores, memory bandwidth, other arithmetic pipes."""

    tensor: float
    memory: float
    pipes: float

    @property
    def limited_by(self) -> str:
        """Return the limit that it reaches, or an empty string if it reaches none."""
        name, share = max(
            (("tensor", self.tensor), ("memory", self.memory), ("pipes", self.pipes)), key=lambda of: of[1]
        )
        return name if share >= NEAR else ""


def headroom(window: SignalWindow, device: Device) -> Headroom | None:
    """Return the headroom of a GPU whose kernels fill it; None for any other, and if it is unknown."""
    if holds(c.FILLS, window, device) is not True:
        return None
    tensor, dram = value(c.TENSOR, window, device), value(c.DRAM, window, device)
    if tensor is None or dram is None:
        return None
    pipes = max(value(term, window, device) or 0.0 for term in (c.FLOAT, c.INT))
    return Headroom(tensor / PIPE_PEAK, min(dram / DRAM_PEAK, 1.0), min(pipes / PIPE_PEAK, 1.0))


# Dense FLOP per cycle and SM of the tensor cores in BF16: the data sheet's rate is this, times SMs and boost clock.
FLOPS_PER_CYCLE = {"Ampere": 2048, "Ada": 1024, "Hopper": 4096, "Blackwell": 8192}
# What is assumed of models that were not measured: the lower of the measured shares of the data sheets.
ASSUMED_TENSOR, ASSUMED_MEMORY = 0.74, 0.887
# The memory is the limit, the tensor cores are not: a larger batch costs little time.
NEAR_BEST, WELL_BELOW = 0.6, 0.5
# Two operations on each weight of two bytes use more than this share of the tensor cores, by that of the memory: no
# chip does 1000 operations in the time that it reads a byte. Less is other work.
LEAST_OF_WEIGHTS = 1e-3


@dataclass(frozen=True, slots=True)
class Roof:
    """What a model reaches: cycles per second with active tensor cores, and the share of the data sheet's bandwidth."""

    tensor: float
    memory: float
    source: str = ""

    @property
    def measured(self) -> bool:
        """Whether it was measured on this model."""
        return bool(self.source)


def _cycles(flops: float, model: GpuModel) -> float:
    return flops / (model.sms * FLOPS_PER_CYCLE[model.architecture])


def _memory(model: GpuModel) -> float:
    """Return the share of the data sheet's bandwidth that copies reached in active checks, or the assumed one."""
    checked = CHECKED.get(model.name, {}).get(Quantity.MEMORY_COPY)
    return checked.usual / model.memory_bandwidth if checked else ASSUMED_MEMORY


MEASURED = {
    H100.name: Roof(_cycles(776e12, H100), _memory(H100), "cuBLAS on 2 x H100, 2026-11-22; copies of active checks"),
    H200.name: Roof(0.93 * 1.458e9, 0.887, "activity and clock of a BF16 product and a copy on 8 x H200, 2026-11-20"),
}  # fmt: skip


def roof(model: GpuModel) -> Roof:
    """Return what a model reaches; a MIG slice has the rates of its GPU, on its own SMs and its own memory."""
    whole = BY_NAME[model.slice_of] if model.slice_of else model
    return MEASURED.get(whole.name) or Roof(ASSUMED_TENSOR * _cycles(whole.bf16, whole), _memory(whole))


ROOFS = {model.name: roof(model) for model in MODELS if not model.slice_of and model.in_rules}


@dataclass(frozen=True, slots=True)
class Position:
    """Achieved rates as shares of what the GPU can reach. `checked`: its own active check gave the memory bandwidth.

    What a model reaches is a mean, which the better half of its GPUs exceeds by a few percent: that is 1.
    """

    tensor: float
    memory: float
    measured: bool
    checked: bool

    @property
    def batch(self) -> float | None:
        """How many times as large a batch may be until tensor cores are as close to their limit as the memory is.

        None unless the memory is the limit and they are well below theirs, but still used. This holds where the memory
        traffic is that of weights, which are read once per batch, as in the decoding phase of inference.
        """
        if self.memory < NEAR_BEST or not LEAST_OF_WEIGHTS * self.memory < self.tensor < WELL_BELOW * self.memory:
            return None
        return self.memory / self.tensor


def position(window: SignalWindow, device: Device, model_name: str) -> Position | None:
    """Return the place of a GPU whose kernels fill it; None for any other, and for unknown models and values."""
    limit, model = ROOFS.get(model_name), BY_NAME.get(model_name)
    if limit is None or model is None or holds(c.FILLS, window, device) is not True:
        return None
    tensor, dram, clock = (value(term, window, device) for term in (c.TENSOR, c.DRAM, mean(s.SM_CLOCK)))
    if tensor is None or dram is None or clock is None:
        return None
    own = value(mean(s.CHECKED_MEMORY), window, device)
    memory = own / model.memory_bandwidth if own else limit.memory
    return Position(min(tensor * clock / limit.tensor, 1.0), min(dram / memory, 1.0), limit.measured, bool(own))
