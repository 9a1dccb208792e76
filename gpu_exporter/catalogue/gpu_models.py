"""GPU models and MIG slices: the numbers on which readings depend, and the public documents that they come from.

Recordings exist of the models that are marked `seen`. The other rows are from NVIDIA's documents; they show where a
condition that was developed on the seen models may not carry over (`model_assumptions.py`).

The peak of a GPU in FLOP/s by data type, without sparsity, is what model FLOPs utilisation (MFU) refers to. The table
has FP32 and BF16. In the data sheets of these models, the other types have fixed ratios to BF16, within 2 %: the tensor
cores take half the time for half the width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpu_exporter.catalogue import peaks
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.profiling_support import WITH_GPM
from gpu_exporter.conditions.signal import Derived, Signal
from gpu_exporter.model.gpu import Gpu

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
    in_rules: bool = True

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
B200     = GpuModel(name="NVIDIA B200", architecture="Blackwell", sms=148, watts=1000, memory=180 * GB, memory_type="HBM3e", memory_bandwidth=8 * TB, fp32=75 * TFLOP, bf16=2250 * TFLOP, nvlink=NVLINK_5, pcie=(5, 6), profiling=Profiling.GPM, blocks=BLOCKS_LIMIT, sources=("NVIDIA DGX B200 Data Sheet", *_BLACKWELL))
GB200    = GpuModel(name="NVIDIA GB200", architecture="Blackwell", sms=152, watts=1200, memory=186 * GB, memory_type="HBM3e", memory_bandwidth=8 * TB, fp32=80 * TFLOP, bf16=2500 * TFLOP, nvlink=NVLINK_5, pcie=(5, 6), profiling=Profiling.GPM, blocks=BLOCKS_LIMIT, sources=("NVIDIA GB200 NVL72 Data Sheet", "NVIDIA GB200 NVL Multi-Node Tuning Guide", *_BLACKWELL), c2c=True)
GH200    = GpuModel(name="NVIDIA GH200 480GB", architecture="Hopper", sms=132, watts=900, memory=96 * GB, memory_type="HBM3", memory_bandwidth=4.0 * TB, fp32=67 * TFLOP, bf16=990 * TFLOP, nvlink=NVLINK_4, pcie=(4, 5), profiling=Profiling.GPM, blocks=BLOCKS_MEASURED, sources=("NVIDIA GH200 Grace Hopper Superchip Data Sheet", NVML_DOCS), c2c=True, in_rules=False)
H20      = replace(H100, name="NVIDIA H20", sms=78, watts=500, memory=96 * GB, memory_bandwidth=4.0 * TB, fp32=44 * TFLOP, bf16=148 * TFLOP, sources=("Public reports on the NVIDIA H20, which has no public data sheet", NVML_DOCS), seen=False, in_rules=False)
A30      = GpuModel(name="NVIDIA A30", architecture="Ampere", sms=56, watts=165, memory=24 * GB, memory_type="HBM2", memory_bandwidth=933 * GB, fp32=10.3 * TFLOP, bf16=165 * TFLOP, nvlink=NvLink(3, 4, 200 * GB), pcie=(4,), profiling=Profiling.DCGM, blocks=BLOCKS_PCIE, sources=("NVIDIA A30 Tensor Core GPU Data Sheet", DCGM_DOCS), in_rules=False)
RTX_PRO_6000 = GpuModel(name="NVIDIA RTX PRO 6000 Blackwell Server Edition", architecture="Blackwell", sms=188, watts=600, memory=96 * GB, memory_type="GDDR7", memory_bandwidth=1.597 * TB, fp32=120 * TFLOP, bf16=500 * TFLOP, nvlink=None, pcie=(5,), profiling=Profiling.GPM, blocks=BLOCKS_PCIE, sources=("NVIDIA RTX PRO 6000 Blackwell Server Edition Data Sheet", NVML_DOCS), lacks=NO_NVLINK, in_rules=False)
WHOLE = tuple(model for model in globals().values() if isinstance(model, GpuModel))


def _profiles(parts: int, memory: Sequence[str], sms: Mapping[str, int], *, media: Sequence[int] = (1,)) -> tuple[tuple[str, float, int, int], ...]:
    """Return the profiles of a GPU that has so many compute slices: name, share of the memory, slices, and SMs (0: unknown).

    `memory` are the GB in the names, for an eighth (or a fourth of four slices) up to the whole. On seven slices, one of
    them may have twice its memory. Profiles of so many slices as `media` names also exist with media engines (`+me`).
    """
    shares = (1 / 8, 2 / 8, 4 / 8, 1.0) if parts == 7 else (1 / 4, 2 / 4, 1.0)
    counts = ((1, 0), (1, 1), (2, 1), (3, 2), (4, 2), (7, 3)) if parts == 7 else ((1, 0), (2, 1), (4, 2))
    names = [(f"{count}g.{memory[share]}gb", shares[share], count) for count, share in counts]
    plain = [(name, share, count, sms.get(name, 0)) for name, share, count in names]
    return (*plain, *((f"{name}+me", share, count, known) for name, share, count, known in plain if count in media and share * (8 if parts == 7 else 4) < 2 * count))


# The SMs of slices as `nvidia-smi mig -lgip` lists them: of an A100 14 each, of an H100 SXM 16 or more; of a B200 18, by
# NVIDIA's go-nvml. Where no list is public, they are assumed to be the guide's fraction of the SMs of the GPU.
def _of_a100(*names: str) -> Mapping[str, int]:
    return {name: 14 * int(name[0]) for name in names}


_SXM = {"1g": 16, "2g": 32, "3g": 60, "4g": 64, "7g": 132}


def _of_h100(small: str, double: str, half: str, whole: str) -> Mapping[str, int]:
    names = (f"1g.{small}gb", f"2g.{double}gb", f"3g.{half}gb", f"4g.{half}gb", f"7g.{whole}gb")
    return {f"1g.{double}gb": 26, **{name: _SXM[name[:2]] for name in names}}


_A100_80, _A100_40 = ("10", "20", "40", "80"), ("5", "10", "20", "40")
_OF_80 = _of_a100("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
_SLICES = {
    A100: _profiles(7, _A100_80, _OF_80),
    A100_40: _profiles(7, _A100_40, _of_a100("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")),
    A100_PCIE: _profiles(7, _A100_80, _OF_80),
    A30: _profiles(4, ("6", "12", "24"), _of_a100("1g.6gb", "2g.12gb", "4g.24gb"), media=(1, 2)),
    H100: _profiles(7, ("10", "20", "40", "80"), _of_h100("10", "20", "40", "80")),
    H100_PCIE: _profiles(7, ("10", "20", "40", "80"), {}),
    H20: _profiles(7, ("12", "24", "48", "96"), {}),
    GH200: _profiles(7, ("12", "24", "48", "96"), _of_h100("12", "24", "48", "96")),
    H200: _profiles(7, ("18", "35", "71", "141"), _of_h100("18", "35", "71", "141")),
    B200: _profiles(7, ("23", "45", "90", "180"), {"1g.23gb": 18, "1g.45gb": 18, "2g.45gb": 36, "3g.90gb": 54, "4g.90gb": 72}),
    GB200: _profiles(7, ("23", "47", "93", "186"), {"1g.23gb": 18, "1g.47gb": 18, "2g.47gb": 36, "3g.93gb": 54, "4g.93gb": 72}),
    RTX_PRO_6000: _profiles(4, ("24", "48", "96"), {"1g.24gb": 46}),
}
# fmt: on


def whole_gpu_only() -> tuple[Signal, ...]:
    """Return the signals that only the whole GPU has in MIG mode."""
    return tuple(signal for signal in s.SIGNALS if not signal.per_instance)


def _slices() -> Iterator[GpuModel]:
    for model, rows in _SLICES.items():
        whole = max(slices for _, _, slices, _ in rows)
        for profile, share, slices, known in rows:
            sms = known or model.sms * slices // whole
            part = sms / model.sms
            yield replace(
                model,
                name=f"{model.name} MIG {profile}",
                sms=sms,
                watts=None,
                memory=model.memory * share,
                memory_bandwidth=model.memory_bandwidth * share,
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
    "fp16": (1.0, _TENSOR | {"Volta", "Turing"}),
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


def model_of(gpu: Gpu) -> GpuModel | None:
    """Return the row of a GPU, or one that is computed from its chip; None if neither is known.

    A computed row has only rates, which are 0 where they are unknown: neither links nor a power limit.
    """
    known = BY_NAME.get(gpu.model)
    sms, fp32, memory = peaks.sm_count(gpu), peaks.fp32(gpu), peaks.memory_bandwidth(gpu)
    if known or not (fp32 or memory):
        return known
    architecture = dict(gpu.info).get("architecture", "")
    return GpuModel(
        name=gpu.model,
        architecture=architecture,
        sms=sms or 0,
        watts=None,
        memory=0.0,
        memory_type="",
        memory_bandwidth=memory or 0.0,
        fp32=fp32 or 0.0,
        bf16=peaks.tensor(gpu) or 0.0,
        nvlink=None,
        pcie=(),
        profiling=Profiling.GPM if architecture in WITH_GPM else Profiling.DCGM,
        blocks=BLOCKS_PCIE,
        sources=("computed from cores, clocks and bus width",),
    )


def peak_of(model: GpuModel, dtype: str) -> float | None:
    """Return the peak of a model in FLOP/s; None if it does not have this data type, or if its rate is unknown."""
    if dtype == FP32:
        return model.fp32 or None
    ratio, architectures = OF_BF16.get(dtype, (0.0, set()))
    return model.bf16 * ratio or None if model.architecture in architectures else None


def peak(model: GpuModel | None, dtype: str) -> float | None:
    """Return the peak in FLOP/s, with the data type as a training loop names it; None if either is unknown."""
    name = dtype.lower().removeprefix("torch.")
    return None if model is None else peak_of(model, ALIASES.get(name, name))
