"""DCGM's attributes and fields of a GPU -> its identity, with NVML's names."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.model.gpu import Gpu, detail
from gpu_exporter.sources.dcgm.bindings import Attributes
from gpu_exporter.sources.dcgm.layout import UUID
from gpu_exporter.sources.dcgm.values import Answer

# Fields of the system and of a GPU that complement its attributes.
NVML_VERSION, CUDA_DRIVER, MINOR_NUMBER, COMPUTE_CAPABILITY, MIG_MODE = 2, 5, 55, 63, 67
SYSTEM_FIELDS = (NVML_VERSION, CUDA_DRIVER)
GPU_FIELDS = (MINOR_NUMBER, COMPUTE_CAPABILITY, MIG_MODE, UUID)
# NVML's names of architectures, by compute capability.
ARCHITECTURES = {
    (5, 0): "Maxwell",
    (6, 0): "Pascal",
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
}


def identify(index: int, attributes: Attributes, answers: Mapping[int, Answer]) -> Gpu:
    """Return the identity, without details that DCGM does not know."""

    def number(field: int) -> int | None:
        answer = answers.get(field)
        return int(answer.value) if answer is not None and isinstance(answer.value, int | float) else None

    nvml = answers.get(NVML_VERSION)
    cuda, minor, capability = number(CUDA_DRIVER), number(MINOR_NUMBER), number(COMPUTE_CAPABILITY)
    pair = None if capability is None else (capability >> 16, capability & 0xFFFF)
    info = {
        "driver_version": attributes.driver,
        "nvml_version": nvml.value if nvml is not None and isinstance(nvml.value, str) else "",
        "cuda_version": "" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        "serial": attributes.serial,
        "vbios_version": attributes.vbios,
        "inforom_version": attributes.inforom,
        "architecture": "" if pair is None else _architecture(pair),
        "compute_capability": "" if pair is None else f"{pair[0]}.{pair[1]}",
    }
    return Gpu(
        index=index,
        uuid=attributes.uuid,
        pci_bus_id=detail(attributes.pci),
        model=attributes.name,
        device="" if minor is None else f"nvidia{minor}",
        driver=attributes.driver,
        info=tuple((name, value) for name, value in info.items() if detail(value)),
    )


def _architecture(capability: tuple[int, int]) -> str:
    """Return the newest architecture up to this compute capability; a capability that is not listed may be any."""
    return next((ARCHITECTURES[first] for first in sorted(ARCHITECTURES, reverse=True) if first <= capability), "")
