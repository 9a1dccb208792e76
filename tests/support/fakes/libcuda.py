"""A stand-in for the CUDA driver within the process of a test. Its time is virtual, and memory is allocated when used.

It checks each call against the prototypes that `Cuda` sets, and passes the parameters of a kernel by the types that its
PTX declares. What a kernel does, and how long it takes, is a function of the test.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable
from ctypes import c_float, c_int, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.support.ptx import Kernel

ERRORS = {2: b"CUDA_ERROR_OUT_OF_MEMORY", 218: b"CUDA_ERROR_INVALID_PTX", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}
PEER_ENABLED, ANOTHER = 704, 5
_kernel = cache(Kernel)
_TYPES = {".u64": c_uint64, ".u32": c_uint}


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that was launched on a device."""

    device: int
    name: str
    blocks: int
    threads: int
    arguments: tuple[int, ...]


class Libcuda:
    """The library with its GPUs, which are all alike.

    `fails` has the result of calls by name, and `calls` all calls with their arguments. `sizes` is the memory that is
    allocated, by address, in pieces of at most `largest`; `contexts` is how often the one of a device is held. Kernels
    and copies move `now` (seconds).
    """

    def __init__(self, gpus: int = 1, *, free: int = 80 << 30, capability: tuple[int, int] = (9, 0)) -> None:
        self.gpus, self.free, self.capability = gpus, free, capability
        self.sms, self.l2, self.peers = 3, 1 << 18, True
        self.largest = free
        self.now = 0.0
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fails: dict[str, int] = {}
        self.launches: list[Launch] = []
        self.sizes: dict[int, int] = {}
        self._content: dict[int, bytearray] = {}
        self.contexts: defaultdict[int, int] = defaultdict(int)
        self.kernel: Callable[[Launch], float] = lambda launch: 1e-3
        self.copy_seconds: Callable[[str, int], float] = lambda name, size: size / 1e12
        self._current, self._modules, self._functions = -1, list[str](), list[tuple[str, str]]()
        self._handles, self._events = 1000, dict[int, float]()

    def load(self, name: str) -> Any:
        """Return the library, as `ctypes.CDLL` does."""
        assert name == "libcuda.so.1"
        names = [name.removeprefix("do_") for name in dir(self) if name.startswith("do_cu")]
        return SimpleNamespace(**{name: self._function(name) for name in names})

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a function."""
        return [arguments for called, arguments in self.calls if called == name]

    def _function(self, name: str) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            types = function.argtypes  # type: ignore[attr-defined]
            assert function.restype is c_int  # type: ignore[attr-defined]
            assert len(types) == len(arguments), name
            for kind, argument in zip(types, arguments, strict=True):
                kind.from_param(argument)
            self.calls.append((name, arguments))
            if result := self.fails.get(name, 0):
                return result
            found = getattr(self, f"do_{name}")(*arguments)
            return int(found or 0)

        return function

    def _handle(self, out: Any) -> int:
        self._handles += 1
        out._obj.value = self._handles
        return self._handles

    def do_cuInit(self, flags: int) -> None:
        assert flags == 0

    def do_cuGetErrorName(self, code: int, out: Any) -> int:
        out._obj.value = ERRORS.get(code)
        return 0 if code in ERRORS else 1

    def do_cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = self.gpus

    def do_cuDeviceGet(self, out: Any, index: int) -> None:
        assert 0 <= index < self.gpus
        out._obj.value = index

    def do_cuDeviceGetPCIBusId(self, out: Any, size: int, device: Any) -> None:
        text = f"0000:{6 + device.value:02x}:00.0".encode()
        assert len(text) < size == len(out)
        out.value = text

    def do_cuDeviceGetAttribute(self, out: Any, attribute: int, device: int) -> None:
        major, minor = self.capability
        out._obj.value = {16: self.sms, 38: self.l2, 75: major, 76: minor}[attribute]

    def do_cuDeviceCanAccessPeer(self, out: Any, device: int, peer: int) -> None:
        out._obj.value = 7 if self.peers and device != peer else 0

    def do_cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        self.contexts[device] += 1
        out._obj.value = 100 + device

    def do_cuDevicePrimaryCtxRelease_v2(self, device: int) -> None:
        self.contexts[device] -= 1

    def do_cuCtxSetCurrent(self, context: c_void_p) -> None:
        self._current = (context.value or 0) - 100
        assert self.contexts[self._current]

    def do_cuCtxEnablePeerAccess(self, context: c_void_p, flags: int) -> int:
        assert flags == 0
        return PEER_ENABLED if len(self.named("cuCtxEnablePeerAccess")) > 1 else 0

    def do_cuModuleLoadData(self, out: Any, ptx: bytes) -> None:
        assert ptx.endswith(b"\0")
        self._modules.append(ptx[:-1].decode())
        out._obj.value = len(self._modules)

    def do_cuModuleGetFunction(self, out: Any, module: c_void_p, name: bytes) -> None:
        self._functions.append((self._modules[(module.value or 0) - 1], name.decode()))
        out._obj.value = len(self._functions)

    def do_cuLaunchKernel(self, function: c_void_p, *rest: Any) -> None:
        blocks, by, bz, threads, ty, tz, shared, _, pointers, extra = rest
        assert (by, bz, ty, tz, shared, extra) == (1, 1, 1, 1, 0, None)
        module, name = self._functions[(function.value or 0) - 1]
        kernel = _kernel(module, name)
        assert threads == kernel.threads
        arguments = tuple(
            _TYPES[kind].from_address(pointer).value
            for (kind, _), pointer in zip(kernel.parameters, pointers, strict=True)
        )
        self.launches.append(Launch(self._current, name, blocks, threads, arguments))
        self.now += self.kernel(self.launches[-1])

    def do_cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = self.free, self.free + (1 << 30)

    def do_cuMemAlloc_v2(self, out: Any, size: int) -> int:
        if size > min(self.free, self.largest):
            return 2
        self.free -= size
        self._allocate(out, size)
        return 0

    def do_cuMemFree_v2(self, address: int) -> None:
        self.free += self.sizes.pop(address)
        self._content.pop(address, None)

    def do_cuMemHostAlloc(self, out: Any, size: int, flags: int) -> None:
        assert flags == 1  # CU_MEMHOSTALLOC_PORTABLE
        self._allocate(out, size)

    def _allocate(self, out: Any, size: int) -> None:
        self._handles += 1
        out._obj.value = self._handles << 40
        self.sizes[out._obj.value] = size

    def content(self, address: int) -> bytearray:
        """Return what is in memory; it is garbage at first."""
        return self._content.setdefault(address, bytearray(b"\xaa" * self.sizes[address]))

    def do_cuMemsetD32Async(self, address: int, value: int, count: int, stream: c_void_p) -> None:
        assert value == 0
        if 4 * count < 1 << 20:
            self.content(address)[: 4 * count] = bytes(4 * count)
        assert 4 * count <= self.sizes[address]

    def do_cuMemcpyDtoH_v2(self, host: Any, address: int, size: int) -> None:
        content = self.content(address)
        assert size <= len(content)
        ctypes.memmove(host, bytes(content), size)

    def do_cuMemcpyHtoDAsync_v2(self, target: int, source: c_void_p, size: int, stream: c_void_p) -> None:
        self._copied("to_gpu", target, source.value, size)

    def do_cuMemcpyDtoHAsync_v2(self, target: c_void_p, source: int, size: int, stream: c_void_p) -> None:
        self._copied("from_gpu", target.value, source, size)

    def do_cuMemcpyDtoDAsync_v2(self, target: int, source: int, size: int, stream: c_void_p) -> None:
        self._copied("within", target, source, size)

    def do_cuMemcpyPeerAsync(self, target: int, of: Any, source: int, to: Any, size: int, stream: c_void_p) -> None:
        assert self._current == to.value - 100
        self._copied(f"{to.value - 100} to {of.value - 100}", target, source, size)

    def _copied(self, name: str, target: int | None, source: int | None, size: int) -> None:
        assert target is not None
        assert source is not None
        assert size <= min(self.sizes[target], self.sizes[source])
        self.now += self.copy_seconds(name, size)

    def do_cuStreamCreate(self, out: Any, flags: int) -> None:
        assert flags == 1  # CU_STREAM_NON_BLOCKING
        self._handle(out)

    def do_cuStreamSynchronize(self, stream: c_void_p) -> None:
        pass

    def do_cuEventCreate(self, out: Any, flags: int) -> None:
        assert flags == 0  # with timing
        self._handle(out)

    def do_cuEventRecord(self, event: c_void_p, stream: c_void_p) -> None:
        self._events[event.value or 0] = self.now

    def do_cuEventElapsedTime(self, out: Any, start: c_void_p, end: c_void_p) -> None:
        assert isinstance(out._obj, c_float)
        out._obj.value = 1e3 * (self._events[end.value or 0] - self._events[start.value or 0])
