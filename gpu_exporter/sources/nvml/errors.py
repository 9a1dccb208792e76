"""NVML return codes -> five outcomes, and which codes mean that a GPU or the source is lost."""

from __future__ import annotations

import pynvml

from gpu_exporter.model.errors import GpuLost, SourceLost

UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not_supported",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "not_supported",
    pynvml.NVML_ERROR_NOT_FOUND: "not_supported",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "not_supported",
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "not_supported",
    26: "not_supported",  # NVML_ERROR_DEPRECATED: older bindings lack the name
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
}
LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset_required",
    28: "lost",  # NVML_ERROR_GPU_NOT_FOUND
}
LIBRARY_LOST = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
REASONS = {
    pynvml.NVML_ERROR_UNINITIALIZED: "reloaded",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "not_loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_library",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "version_mismatch",
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
}
# What a code means, and the fix.
CAUSES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 not found",
        "install the NVIDIA driver, or give the container the NVIDIA runtime (NVIDIA_DRIVER_CAPABILITIES=utility)",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA kernel driver is not loaded",
        "run `modprobe nvidia`, and check `dmesg | grep NVRM`",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA library and kernel driver differ in version (an upgrade without a reboot)",
        "reload the driver or reboot",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "no permission to open the NVIDIA devices",
        "check the modes of /dev/nvidia*",
    ),
}


def outcome(code: int) -> str:
    """Return the outcome of a code: not_supported, no_permission, lost, reset_required or unknown."""
    return UNSUPPORTED.get(code) or LOST.get(code) or "unknown"


def raise_if_lost(code: int, what: str) -> None:
    """Raise SourceLost or GpuLost if the code means that; return for all other codes."""
    if code in LIBRARY_LOST:
        raise source_lost(code)
    if code in LOST:
        raise GpuLost(f"{what}: {pynvml.NVMLError(code)}", LOST[code])


def source_lost(code: int) -> SourceLost:
    """Return the error to raise for a code that means that the source is lost."""
    cause, fix = CAUSES.get(code, (pynvml.NVMLError(code), "run `nvidia-smi` to see why"))
    return SourceLost(f"NVML: {cause}", REASONS.get(code, "unknown"), fix=fix)
