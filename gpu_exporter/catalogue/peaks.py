"""The peaks of a GPU that no table lists, from what the driver says about its chip.

FP32 is two operations per core and cycle; the memory moves its bus width twice per cycle of its clock. Tensor cores do
so many operations per SM and cycle as the white papers of the architectures say (V100, Turing, GA100, GA102, Ada,
H100), with FP32 accumulation, dense. Data sheets count with a boost clock. On boards for data centers, that is the
highest clock that the driver names; on cards and workstation boards, the driver names a higher one, which is no rating,
so these need their rated clock (`BOOST`, from their data sheets and specifications). What a data sheet contradicts has
no peak: the tensor cores of an H100 NVL run at another clock, and some boards for inference have half of the rate.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.model.gpu import Gpu

MHZ = 1e6
# FP32 cores per SM by compute capability.
CORES: Mapping[tuple[int, int], int] = {
    **dict.fromkeys(((6, 0), (7, 0), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((6, 1), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)), 128),
}
# Operations per SM and cycle of the tensor cores in 16-bit types. An H100 and an H200 have a lower clock when these
# work: 1830 MHz where the highest is 1980, and 1620 of 1755 on the PCIe board.
TENSOR: Mapping[tuple[int, int], float] = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 9): 1024,
    (9, 0): 4096 * 1830 / 1980,
}
# With FP32 accumulation, GeForce cards and these boards have half of the rate.
HALF = frozenset({"NVIDIA A10G", "NVIDIA L20", "NVIDIA L40"})
# Of these capabilities, boards exist with the whole and with half of the rate; these are known to have the whole.
MIXED = frozenset({(8, 6), (8, 9)})
WHOLE_RATE = frozenset(
    {
        *("NVIDIA A10", "NVIDIA A40", "NVIDIA L2", "NVIDIA L4", "NVIDIA L40S", "NVIDIA RTX A6000"),
        *("NVIDIA RTX 2000 Ada Generation", "NVIDIA RTX 4000 SFF Ada Generation", "NVIDIA RTX 6000 Ada Generation"),
    }
)
# Boost clocks in MHz.
BOOST: Mapping[str, float] = {
    "Tesla P100-PCIE-16GB": 1303,
    "NVIDIA GeForce RTX 2080": 1710,
    "NVIDIA GeForce RTX 2080 SUPER": 1815,
    "NVIDIA GeForce RTX 3060": 1777,
    "NVIDIA GeForce RTX 3070": 1725,
    "NVIDIA GeForce RTX 3080": 1710,
    "NVIDIA GeForce RTX 3090": 1695,
    "NVIDIA GeForce RTX 4060 Ti": 2535,
    "NVIDIA GeForce RTX 4080 SUPER": 2550,
    "NVIDIA GeForce RTX 4090": 2520,
    "NVIDIA RTX A6000": 1800,
    "NVIDIA RTX 2000 Ada Generation": 2130,
    "NVIDIA RTX 4000 SFF Ada Generation": 1560,
    "NVIDIA RTX 6000 Ada Generation": 2505,
}
# Brands of boards for data centers.
DATA_CENTER = frozenset({"Tesla", "NVIDIA"})


def sm_count(gpu: Gpu) -> int | None:
    """Return the number of SMs; None if the driver does not say how many cores there are."""
    per_sm = CORES.get(gpu.chip.capability) if gpu.chip else None
    return gpu.chip.cores // per_sm if gpu.chip and per_sm and gpu.chip.cores else None


def boost_clock(gpu: Gpu) -> float | None:
    """Return the clock in Hz with which data sheets compute the peaks; None if it is not known."""
    known = BOOST.get(gpu.model)
    if known is None and gpu.chip and gpu.chip.sm_mhz and dict(gpu.info).get("brand", "") in DATA_CENTER:
        known = gpu.chip.sm_mhz
    return None if known is None else known * MHZ


def fp32(gpu: Gpu) -> float | None:
    """Return the peak in FP32, in FLOP/s."""
    clock = boost_clock(gpu)
    return 2 * gpu.chip.cores * clock if gpu.chip and gpu.chip.cores and clock else None


def tensor(gpu: Gpu) -> float | None:
    """Return the peak of the tensor cores in 16-bit types, in FLOP/s."""
    clock, sms = boost_clock(gpu), sm_count(gpu)
    rate = TENSOR.get(gpu.chip.capability) if gpu.chip else None
    if not (gpu.chip and clock and sms and rate) or "NVL" in gpu.model:
        return None
    if gpu.model in HALF or "GeForce" in gpu.model:
        return sms * clock * rate / 2
    return None if gpu.chip.capability in MIXED and gpu.model not in WHOLE_RATE else sms * clock * rate


def memory_bandwidth(gpu: Gpu) -> float | None:
    """Return the bandwidth of the device memory, in bytes per second."""
    chip = gpu.chip
    return 2 * chip.memory_mhz * MHZ * chip.bus_bits / 8 if chip and chip.memory_mhz and chip.bus_bits else None
