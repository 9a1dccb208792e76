"""Which GPUs have profiling metrics, through what, and what they need.

NVML has them itself (GPM) on Hopper and newer. On older GPUs, DCGM reads them with NVIDIA's proprietary profiling
module, which knows Volta, Turing, Ampere and Ada, on boards for data centers and workstations. GeForce cards before
Blackwell lack the hardware for it (NVIDIA in dcgm-exporter's issues 5, 152, 294 and 404, and DCGM's issue 234), Pascal
and older GPUs too, and a vGPU does not pass it on to its guest.
"""

from __future__ import annotations

from gpu_exporter.model.gpu import Gpu

WITH_GPM = frozenset({"Hopper", "Blackwell", "Rubin"})
WITH_MODULE = frozenset({"Volta", "Turing", "Ampere", "Ada"})
# NVML's brands: vGPUs by their licensed product, and cards for games.
VGPU_BRANDS = frozenset(
    {
        "Grid",
        "NVIDIA Virtual Applications",
        "NVIDIA Virtual PC",
        "NVIDIA Virtual Compute Server",
        "NVIDIA RTX Virtual Workstation",
        "NVIDIA vGaming",
    }
)
GAMING_BRANDS = frozenset({"GeForce", "GeForce RTX"})

PACKAGES = "datacenter-gpu-manager-4-core and datacenter-gpu-manager-4-proprietary"
PERMISSION = (
    "run nv-hostengine as root, or load the driver with the module option NVreg_RestrictProfilingToAdminUsers=0"
)
WITH_DCGM = f"install {PACKAGES}; {PERMISSION}"
INSTEAD = "`gpu-exporter profile`, traces and the step timer work without"


def is_vgpu(gpu: Gpu) -> bool:
    """Return whether this is a vGPU in the guest of a hypervisor, by its brand or its name (GRID V100D-8C)."""
    return dict(gpu.info).get("brand", "") in VGPU_BRANDS or gpu.model.startswith("GRID ")


def why_never_profiled(gpu: Gpu) -> str:
    """Return why nothing can read profiling metrics of a GPU; empty if something can, or if that is not known."""
    info = dict(gpu.info)
    architecture, capability = info.get("architecture", ""), info.get("compute_capability", "")
    if is_vgpu(gpu):
        return "a vGPU has no profiling counters: they stay on the host"
    if architecture in WITH_GPM:
        return ""
    if info.get("brand", "") in GAMING_BRANDS or "GeForce" in gpu.model:
        return "GeForce cards before Blackwell have no profiling counters, also with DCGM"
    too_old = capability.partition(".")[0] in {"1", "2", "3", "5", "6"}
    if too_old or architecture in {"Kepler", "Maxwell", "Pascal"}:
        which = f"{architecture} GPUs" if architecture else f"GPUs of compute capability {capability}"
        return f"{which} have no profiling counters, also with DCGM: Volta was the first"
    if architecture and architecture not in WITH_MODULE:
        return f"DCGM does not profile {architecture} GPUs"
    return ""
