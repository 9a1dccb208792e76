"""DCGM's return codes: the outcome of each, and which of them mean that a GPU or the source is lost.

The codes are from `dcgm_structs.h`, the same in DCGM 3.3 and 4. The texts are not the library's, which may not load.
"""

from __future__ import annotations

from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model import snapshot
from gpu_exporter.model.errors import GpuLost, SourceLost

OK = 0
BADPARAM, GENERIC, NOT_SUPPORTED, INIT_ERROR, NVML_ERROR, UNINITIALIZED, TIMEOUT = -1, -3, -6, -7, -8, -10, -11
VER_MISMATCH, UNKNOWN_FIELD, NO_DATA, STALE_DATA, NOT_WATCHED, NO_PERMISSION = -12, -13, -14, -15, -16, -17
GPU_IS_LOST, RESET_REQUIRED, FUNCTION_NOT_FOUND, CONNECTION_NOT_VALID, GPU_NOT_SUPPORTED = -18, -19, -20, -21, -22
MAX_LIMIT, LIBRARY_NOT_FOUND, DUPLICATE_KEY, REQUIRES_ROOT, MODULE_NOT_LOADED, IN_USE = -24, -25, -26, -29, -33, -34
PROFILING_NOT_SUPPORTED, PROFILING_LIBRARY_ERROR, PROFILING_MULTI_PASS, OLD_DRIVER = -36, -37, -38, -44
PAUSED, NVML_NOT_LOADED, NVML_DRIVER_TIMEOUT, GPUS_DETACHED = -54, -56, -57, -67

WORDS = {
    BADPARAM: "bad parameter",
    GENERIC: "unspecified error",
    NOT_SUPPORTED: "not supported",
    INIT_ERROR: "initialization error",
    NVML_ERROR: "NVML error",
    UNINITIALIZED: "not initialized",
    TIMEOUT: "no answer in time",
    VER_MISMATCH: "versions differ",
    UNKNOWN_FIELD: "unknown field",
    NO_DATA: "no data",
    NOT_WATCHED: "not watched",
    NO_PERMISSION: "no permission",
    GPU_IS_LOST: "the GPU is lost",
    RESET_REQUIRED: "the GPU asks for a reset",
    FUNCTION_NOT_FOUND: "function not found",
    CONNECTION_NOT_VALID: "no connection",
    GPU_NOT_SUPPORTED: "GPU not supported",
    MAX_LIMIT: "a limit of the host engine is reached",
    LIBRARY_NOT_FOUND: "library not found",
    DUPLICATE_KEY: "name is taken",
    REQUIRES_ROOT: "the host engine needs root for it",
    MODULE_NOT_LOADED: "module not loaded",
    IN_USE: "in use",
    PROFILING_NOT_SUPPORTED: "profiling not supported",
    PROFILING_LIBRARY_ERROR: "error in the profiling library",
    PROFILING_MULTI_PASS: "more than one pass is needed",
    OLD_DRIVER: "the driver is too old",
    PAUSED: "paused",
    NVML_NOT_LOADED: "NVML is not loaded",
    NVML_DRIVER_TIMEOUT: "the driver does not answer",
    GPUS_DETACHED: "the GPUs are detached",
}
UNSUPPORTED = {
    NOT_SUPPORTED: "not_supported",
    UNKNOWN_FIELD: "not_supported",
    FUNCTION_NOT_FOUND: "not_supported",
    GPU_NOT_SUPPORTED: "not_supported",
    BADPARAM: "unknown_field",
    NO_PERMISSION: "no_permission",
    MAX_LIMIT: "no_room",
}
LOST = {
    GPU_IS_LOST: "lost",
    RESET_REQUIRED: "reset_required",
    NVML_DRIVER_TIMEOUT: "stalled",
}
# Errors of a host engine that cannot profile until something is installed or changed.
NO_PROFILING = {
    MODULE_NOT_LOADED: "no_profiling_module",
    PROFILING_NOT_SUPPORTED: "profiling_not_supported",
    PROFILING_LIBRARY_ERROR: "profiling_library_error",
    PROFILING_MULTI_PASS: "too_many_profiling_fields",
    OLD_DRIVER: "driver_too_old",
    REQUIRES_ROOT: "requires_root",
    NO_PERMISSION: "no_permission",
    NOT_SUPPORTED: "not_supported",
    GPU_NOT_SUPPORTED: "not_supported",
}
# Errors while another process holds the counters, or has asked DCGM to release them.
PROFILING_PAUSED = {IN_USE: "in_use", PAUSED: "paused"}
SOURCE_LOST = {
    CONNECTION_NOT_VALID: "no_connection",
    TIMEOUT: "stalled",
    VER_MISMATCH: "version_mismatch",
    UNINITIALIZED: "no_connection",
    INIT_ERROR: "init_error",
    LIBRARY_NOT_FOUND: "no_library",
    NVML_NOT_LOADED: "not_loaded",
    GPUS_DETACHED: "detached",
}

# What to do about an error whose cause only the host engine knows.
SEE_LOG = "see the log of nv-hostengine"


class DcgmError(Exception):
    """A return code that is not OK."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{WORDS.get(code, 'error')} ({code})")
        self.code = code


def outcome(code: int) -> str:
    """Return the outcome of a field's code: not_supported and the like, lost, reset_required, no_data or unknown."""
    if code in (NO_DATA, NOT_WATCHED, STALE_DATA):
        return "no_data"
    return UNSUPPORTED.get(code) or LOST.get(code) or "unknown"


def down_reason(code: int) -> str:
    """Return why a GPU cannot be attached. Only errors of the driver say anything about the GPU."""
    return LOST.get(code) or ("unknown" if code == NVML_ERROR else snapshot.SOURCE_LOST)


def hung_fix(where: str) -> str:
    """Return what to do about a host engine that hangs. `where` names it."""
    return f"restart {_program(where)}; if that hangs, see `dmesg | grep -i nvrm`"


def stopped_fix(where: str) -> str:
    """Return what to do about profiling counters that have stopped. `where` names the host engine."""
    return f"end the profiler that holds them, or run `dcgmi profile --resume`; else restart {_program(where)}"


def _program(where: str) -> str:
    return "gpu-exporter" if where == str(Hostengine()) else "nv-hostengine"


def source_lost(code: int, where: str) -> SourceLost:
    """Return the error that a code means for the whole source. `where` names the host engine."""
    fix = {
        CONNECTION_NOT_VALID: "is nv-hostengine running there, and does it listen on that address?",
        TIMEOUT: hung_fix(where),
        VER_MISMATCH: "install bindings and a host engine of the same major version",
        GPUS_DETACHED: "attach them to it again",
        NVML_NOT_LOADED: "load the NVIDIA kernel driver there (`modprobe nvidia`), then restart nv-hostengine",
    }.get(code, SEE_LOG)
    return SourceLost(f"DCGM: {where}: {DcgmError(code)}", SOURCE_LOST.get(code, "unknown"), fix=fix)


def raise_if_lost(error: DcgmError, what: str, where: str) -> None:
    """Raise SourceLost or GpuLost if the code means that; return for all other codes."""
    if error.code in SOURCE_LOST:
        raise source_lost(error.code, where) from error
    if error.code in LOST:
        raise GpuLost(f"{what}: {error}", LOST[error.code]) from error
