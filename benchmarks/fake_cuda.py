"""Stands for `torch.cuda`: its layers of Python, as in PyTorch 2, above a driver whose calls cost nothing.

What is measured with it is the Python of the timer and of PyTorch. The calls that would reach the driver are counted.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import ModuleType
from typing import Any

CALLS: Counter[str] = Counter()
_LOCAL = threading.local()


class _CudaStreamBase:
    def __new__(cls, priority: int = 0, **place: int) -> Any:
        made = super().__new__(cls)
        made.__dict__.update(place)
        return made


class Stream(_CudaStreamBase):
    """`torch.cuda.Stream`."""

    def __new__(cls, device: Any = None, priority: int = 0, **place: int) -> Any:
        if device is None or ("stream_id" in place and "device_index" in place):
            return super().__new__(cls, priority=priority, **place)
        raise ValueError(device)


class _CudaEventBase:
    def __new__(cls, enable_timing: bool = False, **_: bool) -> Any:
        CALLS["cudaEventCreate"] += 1
        return super().__new__(cls)

    def record(self, stream: Any) -> None:
        CALLS["cudaEventRecord"] += 1

    def query(self) -> bool:
        CALLS["cudaEventQuery"] += 1
        return True

    def elapsed_time(self, other: Any) -> float:
        CALLS["cudaEventElapsedTime"] += 1
        return 1.0


class Event(_CudaEventBase):
    """`torch.cuda.Event`."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Any:
        return super().__new__(cls, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)

    def record(self, stream: Any = None) -> None:
        if stream is None:
            stream = current_stream()
        super().record(stream)

    def query(self) -> bool:
        return super().query()

    def elapsed_time(self, other: Any) -> float:
        return super().elapsed_time(other)


def is_initialized() -> bool:
    """`torch.cuda.is_initialized`, which asks whether this is a forked child."""
    return not _is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    if is_initialized() or hasattr(_LOCAL, "is_initializing"):
        return


def current_device() -> int:
    """`torch.cuda.current_device`."""
    _lazy_init()
    return _get_device()


def _get_device() -> int:
    return 0


def _get_device_index(device: Any, optional: bool = False) -> int:
    if isinstance(device, (int, str)):
        raise ValueError(device)
    if device is None and optional:
        return current_device()
    raise ValueError(device)


def current_stream(device: Any = None) -> Any:
    """`torch.cuda.current_stream`."""
    _lazy_init()
    number, index, kind = _get_current_stream(_get_device_index(device, optional=True))
    return Stream(stream_id=number, device_index=index, device_type=kind)


def _get_current_stream(device: int) -> tuple[int, int, int]:
    return 0, device, 1


def _get_current_raw_stream(device: int) -> int:
    return 0


def is_current_stream_capturing() -> bool:
    """`torch.cuda.is_current_stream_capturing`."""
    return _is_current_stream_capturing()


def _is_current_stream_capturing() -> bool:
    CALLS["cudaStreamIsCapturing"] += 1
    return False


def install() -> None:
    """Make this the `torch.cuda` of this process."""
    torch: Any = ModuleType("torch")
    torch.cuda, torch._C = sys.modules[__name__], ModuleType("torch._C")
    torch._C._CudaEventBase = _CudaEventBase
    torch._C._cuda_getDevice = _get_device
    torch._C._cuda_getCurrentRawStream = _get_current_raw_stream
    sys.modules["torch"] = torch
