"""What each GPU model can do: rates that `gpu-exporter check --active` measures, and rates of data sheets.

A measured value belongs to the kernels of `active_checks/kernels.py`, so it is a reference for them. A rate of a data
sheet is the theoretical maximum, which no program reaches: `SHARES` says which part of it is usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.gpu_models import BY_NAME, GB, H100, H200, TB, TFLOP, GpuModel
from gpu_exporter.model.metric import Metric


class Quantity(Enum):
    """What an active check measures, as it is called in JSON, in the history and in the label `quantity`."""

    MEMORY_COPY = "memory_copy"
    MEMORY_READ = "memory_read"
    PCIE_TO_GPU = "pcie_to_gpu"
    PCIE_FROM_GPU = "pcie_from_gpu"
    NVLINK = "nvlink"
    FP32 = "fp32"
    BF16 = "bf16"

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return _WORDS[self]

    @property
    def unit(self) -> str:
        """`FLOP/s` or `B/s`."""
        return "FLOP/s" if self in (Quantity.BF16, Quantity.FP32) else "B/s"

    @property
    def metric(self) -> Metric:
        """The metric of what was measured."""
        return m.CHECK_RATE if self.unit == "FLOP/s" else m.CHECK_BANDWIDTH

    @property
    def tolerance(self) -> float:
        """How far below its reference a healthy GPU may be, as a share of it."""
        return _TOLERANCES[self]


_WORDS = {
    Quantity.MEMORY_COPY: "device memory, copy (read + write)",
    Quantity.MEMORY_READ: "device memory, read",
    Quantity.PCIE_TO_GPU: "PCIe, host to GPU",
    Quantity.PCIE_FROM_GPU: "PCIe, GPU to host",
    Quantity.NVLINK: "NVLink, median over its peers",
    Quantity.BF16: "tensor cores, bf16",
    Quantity.FP32: "FP32 arithmetic",
}
# Repeated runs on an H100 agreed within 1 %. The rate of arithmetic depends on the clock at the power limit, which
# differs between healthy chips, and PCIe on what else uses the host's memory.
_TOLERANCES = {
    Quantity.MEMORY_COPY: 0.05,
    Quantity.MEMORY_READ: 0.08,
    Quantity.PCIE_TO_GPU: 0.10,
    Quantity.PCIE_FROM_GPU: 0.10,
    Quantity.NVLINK: 0.05,
    Quantity.BF16: 0.10,
    Quantity.FP32: 0.07,
}
# The least share of the data sheet that a healthy GPU reaches. It is low on purpose: without a measurement of the same
# model, only a gross fault is certain. The H100 reaches 0.90, 0.92, 0.87, 0.87, 0.87, 0.93 and 0.99.
SHARES: Mapping[Quantity, float] = {
    Quantity.MEMORY_COPY: 0.70,
    Quantity.MEMORY_READ: 0.70,
    Quantity.PCIE_TO_GPU: 0.65,
    Quantity.PCIE_FROM_GPU: 0.65,
    Quantity.NVLINK: 0.65,
    Quantity.BF16: 0.35,
    Quantity.FP32: 0.60,
}
# Their tensor cores need instructions (tcgen05) that no kernel of `active_checks/kernels.py` uses. What is measured
# there can be compared only with other GPUs and with the past.
NO_TENSOR_KERNEL = {"Blackwell"}
# Those, and architectures whose tensor cores do not know the type.
WITHOUT_BF16 = NO_TENSOR_KERNEL | {"Volta", "Turing"}


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates of healthy GPUs of a model (bytes/s or FLOP/s), from the lowest to the highest run, and where from."""

    low: float
    high: float
    source: str

    @property
    def usual(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2


_ALL_H100 = "9 x H100 80GB HBM3, driver 580.159.04, 2026-11-26, 45 runs"
# The runs in which arithmetic was measured at the power limit, and those in which nothing else used the host.
_SOME_H100 = "7 x H100 80GB HBM3, driver 580.159.04, 2026-11-26, 35 runs"
_QUIET_H100 = "5 x H100 80GB HBM3, driver 580.159.04, 2026-11-26, 28 runs"
_H200 = "2 x H200, driver 580.159.04, 2026-11-26, 70 runs"
MEASURED: Mapping[str, Mapping[Quantity, Measured]] = {
    H100.name: {
        Quantity.MEMORY_COPY: Measured(3.01 * TB, 3.03 * TB, _ALL_H100),
        Quantity.MEMORY_READ: Measured(3.04 * TB, 3.09 * TB, _ALL_H100),
        Quantity.PCIE_TO_GPU: Measured(54.5 * GB, 55.3 * GB, _QUIET_H100),
        Quantity.PCIE_FROM_GPU: Measured(55.0 * GB, 55.2 * GB, _QUIET_H100),
        Quantity.NVLINK: Measured(393 * GB, 396 * GB, _QUIET_H100),
        Quantity.BF16: Measured(907 * TFLOP, 924 * TFLOP, _SOME_H100),
        Quantity.FP32: Measured(65.4 * TFLOP, 66.6 * TFLOP, _SOME_H100),
    },
    H200.name: {
        Quantity.MEMORY_COPY: Measured(4.23 * TB, 4.27 * TB, _H200),
        Quantity.MEMORY_READ: Measured(4.46 * TB, 4.63 * TB, _H200),
        Quantity.PCIE_TO_GPU: Measured(55.3 * GB, 55.5 * GB, _H200),
        Quantity.PCIE_FROM_GPU: Measured(55.2 * GB, 55.4 * GB, _H200),
        Quantity.BF16: Measured(882 * TFLOP, 908 * TFLOP, _H200),
        Quantity.FP32: Measured(65.8 * TFLOP, 66.1 * TFLOP, _H200),
    },
}


@dataclass(frozen=True, slots=True)
class Reference:
    """What a GPU should reach. `least` is the lowest rate that is not a fault, `measured` is False for data sheets."""

    value: float
    least: float
    source: str
    measured: bool


def datasheet(model: GpuModel, quantity: Quantity) -> float | None:
    """Return the theoretical rate of a model (bytes/s or FLOP/s); None if it does not have this part."""
    match quantity:
        case Quantity.MEMORY_COPY | Quantity.MEMORY_READ:
            return model.memory_bandwidth or None
        case Quantity.BF16:
            return model.bf16 or None
        case Quantity.FP32:
            return model.fp32 or None
        case Quantity.NVLINK:
            return model.nvlink.bytes_per_second / 2 if model.nvlink else None
        case Quantity.PCIE_TO_GPU | Quantity.PCIE_FROM_GPU:
            return model.pcie_links[0] if model.pcie else None


def reference(
    model_name: str, quantity: Quantity, computed: GpuModel | None = None, link: float | None = None
) -> Reference | None:
    """Return what a GPU of this model should reach; None for an unknown model, or a part that it does not have.

    `computed` is its row where no table lists it. `link` is the capacity of its PCIe link in bytes/s, where that is
    known: references are those of 16 lanes, and many slots have fewer.
    """
    model = BY_NAME.get(model_name) or computed
    theoretical = datasheet(model, quantity) if model else None
    if model is None or theoretical is None:
        return None
    over_pcie = quantity in (Quantity.PCIE_TO_GPU, Quantity.PCIE_FROM_GPU)
    share = 1.0 if link is None or not over_pcie else min(1.0, link / theoretical)
    measured = MEASURED.get(model_name, {}).get(quantity)
    if measured is not None:
        least = measured.low * (1 - quantity.tolerance) * share
        return Reference(measured.usual * share, least, f"measured on {measured.source}", measured=True)
    if quantity is Quantity.BF16 and model.architecture in WITHOUT_BF16:
        return None
    return Reference(theoretical * share, theoretical * share * SHARES[quantity], model.sources[0], measured=False)
