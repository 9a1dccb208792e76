"""How close a busy GPU is to the limits of its chip. A GPU that reaches none of them could do more."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.catalogue import bottlenecks as c
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
