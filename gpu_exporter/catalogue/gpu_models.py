"""GPU models and MIG slices: the numbers on which readings depend, and the public documents that they come from.

Recordings exist of the models that are marked `seen`. The other rows are from NVIDIA's documents; they show where a
condition that was developed on the seen models may not carry over (`model_assumptions.py`).

The peak of a GPU in FLOP/s by data type, without sparsity, is what model FLOPs utilisation (MFU) refers to. The table
has FP32 and BF16. In the data sheets of these models, the other types have fixed ratios to BF16, within 2 %: the tensor
cores take half the time for half the width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gpu_exporter.catalogue import signals as s
from gpu_exporter.conditions.signal import Derived, Signal

GB, TB, TFLOP = 1e9, 1e12, 1e12
# Copies between the memory of a Grace CPU and its GPU: 900 GB/s in both directions together.
C2C_BYTES_PER_SECOND = 450 * GB


class Profiling(Enum):
    """What provides the profiling metrics: SM, pipe and DRAM activity, PCIe and NVLink traffic."""

    GPM = "NVML"
    DCGM = "DCGM only"


@dataclass(frozen=True, slots=True)
class NvLink:
    """The NVLinks of one GPU; `bytes_per_second` is the sum of all links in both directions, as in data sheets."""

    generation: int
    links: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One model, or one MIG slice of a model (`slice_of`).

    `name` is what the label modelName has. `fp32` and `bf16` are FLOP/s without sparsity. `pcie` lists the generations
    with which the model is sold, always with 16 lanes. `blocks` is how many thread blocks, and so SMs, a collective of
    NCCL uses at most. `lacks` are signals that no source reports. `watts` is None for a slice, which has no power
    limit of its own. `seen`: recordings of it exist.
    """

    name: str
    architecture: str
    sms: int
    watts: float | None
    memory: float
    memory_type: str
    memory_bandwidth: float
    fp32: float
    bf16: float
    nvlink: NvLink | None
    pcie: tuple[int, ...]
    profiling: Profiling
    blocks: int
    sources: tuple[str, ...]
    c2c: bool = False
    lacks: tuple[Signal, ...] = ()
    slice_of: str = ""
    seen: bool = False

    @property
    def pcie_links(self) -> tuple[float, ...]:
        """Return the capacities of its PCIe links as the signal `pcie_link` computes them, slowest first."""
        return tuple(pcie_capacity(generation) for generation in self.pcie)


def pcie_capacity(generation: float, lanes: float = 16) -> float:
    """Return the capacity of a PCIe link in bytes per second and direction, by the signal's own definition."""
    known = {s.PCIE_GEN: generation, s.PCIE_WIDTH: lanes}
    (way,) = s.PCIE_LINK.definitions
    capacity = way.value(known.get) if isinstance(way, Derived) else None
    if capacity is None:
        raise ValueError("signals.PCIE_LINK is not derived from generation and lanes alone")
    return capacity


# A rank that waits in NCCL fills 0.18 of the SMs of an H100 and an H200: 24 blocks on 132 SMs. The others are assumed:
# 24 on GPUs with as many or fewer NVLinks, NCCL's limit of 32 on newer ones, and few without NVLink.
BLOCKS_MEASURED, BLOCKS_LIMIT, BLOCKS_PCIE = 24, 32, 8

MIG_GUIDE = "NVIDIA Multi-Instance GPU User Guide"
DCGM_DOCS = "NVIDIA DCGM Documentation, Profiling"
NVML_DOCS = "NVIDIA NVML API Reference Guide, GPM Functions"
_A100 = ("NVIDIA A100 Tensor Core GPU Data Sheet", "NVIDIA A100 Tensor Core GPU Architecture (white paper)", DCGM_DOCS)
_H100 = ("NVIDIA H100 Tensor Core GPU Data Sheet", "NVIDIA H100 Tensor Core GPU Architecture (white paper)", NVML_DOCS)
_H200 = ("NVIDIA H200 Tensor Core GPU Data Sheet", NVML_DOCS)
_ADA = ("NVIDIA Ada GPU Architecture (white paper)", DCGM_DOCS)
_BLACKWELL = ("NVIDIA Blackwell Architecture Technical Brief", NVML_DOCS)

NVLINK_3 = NvLink(3, 12, 600 * GB)
NVLINK_4 = NvLink(4, 18, 900 * GB)
NVLINK_5 = NvLink(5, 18, 1800 * GB)
NO_NVLINK = (s.NVLINK, s.NVLINK_RX, s.NVLINK_TX, s.NVLINK_LINKS, s.NVLINK_UP)
# DCGM reports no activity of the FP64 pipe on GPUs with two FP64 units per SM.
NO_FP64 = (s.FP64_ACTIVE,)

# fmt: off
# In the order of the documentation.
H200     = GpuModel(name="NVIDIA H200", architecture="Hopper", sms=132, watts=700, memory=141 * GB, memory_type="HBM3e", memory_bandwidth=4.8 * TB, fp32=67 * TFLOP, bf16=989 * TFLOP, nvlink=NVLINK_4, pcie=(5,), profiling=Profiling.GPM, blocks=BLOCKS_MEASURED, sources=_H200, seen=True)
H100     = GpuModel(name="NVIDIA H100 80GB HBM3", architecture="Hopper", sms=132, watts=700, memory=80 * GB, memory_type="HBM3", memory_bandwidth=3.35 * TB, fp32=67 * TFLOP, bf16=989 * TFLOP, nvlink=NVLINK_4, pcie=(5,), profiling=Profiling.GPM, blocks=BLOCKS_MEASURED, sources=_H100, seen=True)
H100_PCIE = replace(H100, name="NVIDIA H100 PCIe", sms=114, watts=350, memory_type="HBM2e", memory_bandwidth=2.0 * TB, fp32=51 * TFLOP, bf16=756 * TFLOP, nvlink=NvLink(4, 12, 600 * GB), blocks=BLOCKS_MEASURED, seen=False)
A100     = GpuModel(name="NVIDIA A100-SXM4-80GB", architecture="Ampere", sms=108, watts=400, memory=80 * GB, memory_type="HBM2e", memory_bandwidth=2.039 * TB, fp32=19.5 * TFLOP, bf16=312 * TFLOP, nvlink=NVLINK_3, pcie=(4,), profiling=Profiling.DCGM, blocks=BLOCKS_MEASURED, sources=_A100)
A100_40  = replace(A100, name="NVIDIA A100-SXM4-40GB", memory=40 * GB, memory_type="HBM2", memory_bandwidth=1.555 * TB)
A100_PCIE = replace(A100, name="NVIDIA A100 80GB PCIe", watts=300, memory_bandwidth=1.935 * TB)
L40S     = GpuModel(name="NVIDIA L40S", architecture="Ada", sms=142, watts=350, memory=48 * GB, memory_type="GDDR6", memory_bandwidth=864 * GB, fp32=91.6 * TFLOP, bf16=362 * TFLOP, nvlink=None, pcie=(4,), profiling=Profiling.DCGM, blocks=BLOCKS_PCIE, sources=("NVIDIA L40S Data Sheet", *_ADA), lacks=(*NO_NVLINK, *NO_FP64))
L4       = GpuModel(name="NVIDIA L4", architecture="Ada", sms=58, watts=72, memory=24 * GB, memory_type="GDDR6", memory_bandwidth=300 * GB, fp32=30.3 * TFLOP, bf16=121 * TFLOP, nvlink=None, pcie=(4,), profiling=Profiling.DCGM, blocks=BLOCKS_PCIE, sources=("NVIDIA L4 Data Sheet", *_ADA), lacks=(*NO_NVLINK, *NO_FP64))
B200     = GpuModel(name="NVIDIA B200", architecture="Blackwell", sms=148, watts=1000, memory=180 * GB, memory_type="HBM3e", memory_bandwidth=8 * TB, fp32=80 * TFLOP, bf16=2250 * TFLOP, nvlink=NVLINK_5, pcie=(5, 6), profiling=Profiling.GPM, blocks=BLOCKS_LIMIT, sources=("NVIDIA DGX B200 Data Sheet", *_BLACKWELL))
GB200    = GpuModel(name="NVIDIA GB200", architecture="Blackwell", sms=152, watts=1200, memory=186 * GB, memory_type="HBM3e", memory_bandwidth=8 * TB, fp32=90 * TFLOP, bf16=2500 * TFLOP, nvlink=NVLINK_5, pcie=(5, 6), profiling=Profiling.GPM, blocks=BLOCKS_LIMIT, sources=("NVIDIA GB200 NVL72 Data Sheet", "NVIDIA GB200 NVL Multi-Node Tuning Guide", *_BLACKWELL), c2c=True)
WHOLE = tuple(model for model in globals().values() if isinstance(model, GpuModel))
# Profile, SMs, eighths of the memory and of its bandwidth. A slice of an A100 has 14 SMs, one of an H100 16 or more.
_SLICES = {
    A100:  (("1g.10gb", 14, 1), ("2g.20gb", 28, 2), ("3g.40gb", 42, 4), ("4g.40gb", 56, 4), ("7g.80gb", 98, 8)),
    A100_40: (("1g.5gb", 14, 1), ("2g.10gb", 28, 2), ("3g.20gb", 42, 4), ("4g.20gb", 56, 4), ("7g.40gb", 98, 8)),
    H100:  (("1g.10gb", 16, 1), ("2g.20gb", 32, 2), ("3g.40gb", 60, 4), ("4g.40gb", 64, 4), ("7g.80gb", 132, 8)),
    H200:  (("1g.18gb", 16, 1), ("2g.35gb", 32, 2), ("3g.71gb", 60, 4), ("4g.71gb", 64, 4), ("7g.141gb", 132, 8)),
    B200:  (("1g.23gb", 18, 1),),
}
# fmt: on


def whole_gpu_only() -> tuple[Signal, ...]:
    """Return the signals that only the whole GPU has in MIG mode."""
    return tuple(signal for signal in s.SIGNALS if not signal.per_instance)


def _slices() -> Iterator[GpuModel]:
    for model, rows in _SLICES.items():
        for profile, sms, eighths in rows:
            part = sms / model.sms
            yield replace(
                model,
                name=f"{model.name} MIG {profile}",
                sms=sms,
                watts=None,
                memory=model.memory * eighths / 8,
                memory_bandwidth=model.memory_bandwidth * eighths / 8,
                fp32=model.fp32 * part,
                bf16=model.bf16 * part,
                nvlink=None,
                blocks=BLOCKS_PCIE,
                lacks=whole_gpu_only(),
                slice_of=model.name,
                seen=False,
                sources=(MIG_GUIDE, *model.sources),
            )


SLICES = tuple(_slices())
MODELS = (*WHOLE, *SLICES)
BY_NAME = {model.name: model for model in MODELS}


FP32 = "fp32"
# By data type: its ratio to BF16, and the architectures whose data sheets have it.
_TENSOR = {"Ampere", "Ada", "Hopper", "Blackwell"}
OF_BF16: Mapping[str, tuple[float, set[str]]] = {
    "tf32": (0.5, _TENSOR),
    "bf16": (1.0, _TENSOR),
    "fp16": (1.0, _TENSOR),
    "fp8": (2.0, _TENSOR - {"Ampere"}),
    "fp4": (4.0, {"Blackwell"}),
}
DTYPES = (FP32, *OF_BF16)
# Other names of PyTorch, Lightning and Transformer Engine.
ALIASES = {
    "float32": FP32,
    "float": FP32,
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}


def peak_of(model: GpuModel, dtype: str) -> float | None:
    """Return the peak of a model in FLOP/s; None if it does not have this data type."""
    if dtype == FP32:
        return model.fp32
    ratio, architectures = OF_BF16.get(dtype, (0.0, set()))
    return model.bf16 * ratio if model.architecture in architectures else None


def peak(model_name: str, dtype: str) -> float | None:
    """Return the peak in FLOP/s of the GPU that the driver calls so; None if model or data type is unknown."""
    model, name = BY_NAME.get(model_name), dtype.lower().removeprefix("torch.")
    return None if model is None else peak_of(model, ALIASES.get(name, name))
