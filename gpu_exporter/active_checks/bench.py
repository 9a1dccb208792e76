"""What all measurements on a GPU share: its kernels, and buffers that are kept from one measurement to the next."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from ctypes import c_uint64, c_void_p
from typing import Any

from gpu_exporter.active_checks import kernels as k
from gpu_exporter.active_checks.cuda import CudaError, CudaGpu, Kernel

GIB, MIB = 1 << 30, 1 << 20
# The size of buffers in device memory: far more than the L2 cache has, which a GPU of any size can spare.
LARGEST_BUFFER, L2_TIMES = 2 * GIB, 8
SAMPLES = 7
# A GPU that has done nothing for this long may have lowered its clock, and is warmed up for so long (seconds).
IDLE_SECONDS, WARM_UP_SECONDS = 0.1, 0.06


class Bench:
    """One GPU that is measured. Every method raises CudaError if a call fails."""

    def __init__(self, gpu: CudaGpu) -> None:
        self.gpu = gpu
        self.notes: list[str] = []
        self.modules: dict[str, c_void_p] = {}
        self.iterations: dict[str, int] = {}
        self._buffers: dict[str, tuple[int, int]] = {}
        self._host: dict[int, c_void_p] = {}
        self._worked_at = float("-inf")

    def kernel(self, name: str, threads: int, ptx: Callable[[], str] = k.generic) -> Kernel:
        """Return a kernel. Its module is compiled once."""
        if ptx.__name__ not in self.modules:
            self.modules[ptx.__name__] = self.gpu.module(ptx())
        return self.gpu.kernel(self.modules[ptx.__name__], name, threads)

    def buffer(self, name: str, size: int) -> int:
        """Return the address of device memory of this size, which is kept until `release`."""
        if self._buffers.get(name, (0, -1))[1] < size:
            if name in self._buffers:
                self.gpu.free(self._buffers.pop(name)[0])
            self._buffers[name] = self.gpu.allocate(size), size
        return self._buffers[name][0]

    def pair(self) -> tuple[int, int, int]:
        """Return the addresses and the size of two equal buffers that no cache can hold, filled with zeros."""
        if "a" not in self._buffers:
            size = self._pair_size()
            for name in ("a", "b"):
                self.gpu.clear(self.buffer(name, size), size)
        (a, size), (b, _) = self._buffers["a"], self._buffers["b"]
        return a, b, size

    def _pair_size(self) -> int:
        size = min(LARGEST_BUFFER, int(self.gpu.free_memory() * 0.4))
        unit = k.MEMORY_THREADS * k.MEMORY_BLOCKS * k.LOADS * 16 * self.gpu.sms
        size -= size % unit
        if size < max(unit, L2_TIMES * self.gpu.l2):
            raise CudaError("memory", f"too little is free for two buffers of {L2_TIMES} times the L2 cache")
        return size

    def host(self, size: int) -> c_void_p:
        """Return the address of pinned host memory of this size, which is kept."""
        if size not in self._host:
            self._host[size] = self.gpu.pinned(size)
        return self._host[size]

    def release(self) -> None:
        """Free all device memory that is kept."""
        while self._buffers:
            self.gpu.free(self._buffers.popitem()[1][0])

    def read_memory(self) -> int:
        """Launch a kernel that reads a buffer. Returns its size."""
        a, _, size = self.pair()
        blocks = k.MEMORY_BLOCKS * self.gpu.sms
        out = self.buffer("out", 4 * blocks * k.MEMORY_THREADS)
        kernel = self.kernel("memory_read", k.MEMORY_THREADS)
        self.gpu.launch(kernel, blocks, c_uint64(a), c_uint64(size // 16), c_uint64(out))
        return size

    def warm_up(self) -> None:
        """Let the GPU work until its clock has risen, if it was idle."""
        now = time.monotonic()
        if now - self._worked_at < IDLE_SECONDS:
            return
        for _ in range(256):
            self.read_memory()
            self.gpu.wait()
            if time.monotonic() - now > WARM_UP_SECONDS:
                break

    def timed(self, work: Callable[[], object], times: int, samples: int = SAMPLES) -> Sequence[float]:
        """Return the seconds of one `work`, for each sample of some `times`."""
        self.warm_up()
        work()
        results = []
        for _ in range(samples):
            self.gpu.start()
            for _ in range(times):
                work()
            self.gpu.end()
            results.append(max(1e-9, self.gpu.seconds() / times))
        self._worked_at = time.monotonic()
        return results


def rate(work: float, times: Sequence[float], *, best: bool = False) -> dict[str, Any]:
    """Return the median rate, or the best one, and the spread between the quartiles as a share of the median.

    The best one is right for what shares the host's memory with others: it shows what the GPU and its link can do.
    """
    rates = sorted(work / seconds for seconds in times)
    middle = statistics.median(rates)
    low, high = rates[len(rates) // 4], rates[-1 - len(rates) // 4]
    return {"value": rates[-1] if best else middle, "spread": (high - low) / middle, "samples": len(rates)}
