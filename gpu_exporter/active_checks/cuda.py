"""The CUDA driver API, as far as active checks need it: `libcuda.so.1` through ctypes.

NVIDIA's `cuda-bindings` is not used: it is compiled for a CUDA version and loads the driver through a table of several
hundred functions, while these thirty have been stable since CUDA 11 and come with every driver.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from gpu_exporter.model.pci import same_device

LIBRARY = "libcuda.so.1"
# CUdevice_attribute
SMS, MAJOR, MINOR, L2_BYTES = 16, 75, 76, 38
# CUresult of a call that only says that something was done before.
PEER_ACCESS_ALREADY_ENABLED = 704
# Errors after which the context, and often the GPU, is unusable.
LOST = {
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_UNKNOWN",
}

_OUT = POINTER(c_void_p)
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuModuleLoadData": (_OUT, c_char_p),
    "cuModuleGetFunction": (_OUT, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (_OUT, c_size_t, c_uint),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, c_void_p),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpyPeerAsync": (c_uint64, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "cuStreamCreate": (_OUT, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (_OUT, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}


class CudaError(Exception):
    """A call of the driver that failed. `lost`: the context, and often the GPU, cannot be used any more."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.lost = name in LOST


class Cuda:
    """The loaded driver. Raises CudaError if there is none, or for a call that fails."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError("load", f"{LIBRARY}: no CUDA driver ({error})") from error
        for name, types in PROTOTYPES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise CudaError("load", f"{LIBRARY} has no {name}: the driver is too old") from error
            function.argtypes, function.restype = types, c_int
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any, harmless: int = 0) -> None:
        """Call a function. Raises CudaError for a result other than 0 and `harmless`."""
        result = getattr(self._library, name)(*arguments)
        if result not in (0, harmless):
            text = c_char_p()
            known = self._library.cuGetErrorName(result, byref(text)) == 0 and text.value is not None
            raise CudaError(name, text.value.decode() if known and text.value else f"error {result}")

    def device(self, pci: str) -> int:
        """Return the device with this PCI bus id. Raises CudaError, also if this process does not see it."""
        count, failed = c_int(), None
        self.call("cuDeviceGetCount", byref(count))
        for index in range(count.value):
            device, name = c_int(), ctypes.create_string_buffer(32)
            try:
                self.call("cuDeviceGet", byref(device), index)
                self.call("cuDeviceGetPCIBusId", name, len(name), device)
            except CudaError as error:  # it may be another one
                failed = error
            if same_device(name.value.decode(), pci):
                return device.value
        raise failed or CudaError("cuDeviceGetPCIBusId", f"{pci} is not visible to CUDA: see CUDA_VISIBLE_DEVICES")

    def attribute(self, device: int, attribute: int) -> int:
        """Return an attribute of a device."""
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), attribute, device)
        return value.value

    def can_access(self, device: int, peer: int) -> bool:
        """Return whether a device can access the memory of another one directly."""
        value = c_int()
        self.call("cuDeviceCanAccessPeer", byref(value), device, peer)
        return bool(value.value)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a module, with the threads of its blocks."""

    function: c_void_p
    threads: int


class CudaGpu:
    """The primary context of a device, with a stream. Use it from one thread, and call `close`."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self.cuda = cuda
        self.device = device
        self.context = c_void_p()
        cuda.call("cuDevicePrimaryCtxRetain", byref(self.context), device)
        try:
            self.use()
            self.stream = self._handle("cuStreamCreate", 1)  # CU_STREAM_NON_BLOCKING
            self._start, self._end = self._handle("cuEventCreate", 0), self._handle("cuEventCreate", 0)
            self.sms = cuda.attribute(device, SMS)
            self.capability = (cuda.attribute(device, MAJOR), cuda.attribute(device, MINOR))
            self.l2 = cuda.attribute(device, L2_BYTES)
        except CudaError:
            self.close()
            raise

    def _handle(self, name: str, flags: int) -> c_void_p:
        handle = c_void_p()
        self.cuda.call(name, byref(handle), flags)
        return handle

    def use(self) -> None:
        """Make its context that of this thread."""
        self.cuda.call("cuCtxSetCurrent", self.context)

    def close(self) -> None:
        """Release the context, and with it all that it has. Raises CudaError."""
        self.cuda.call("cuDevicePrimaryCtxRelease_v2", self.device)

    def module(self, ptx: str) -> c_void_p:
        """Compile PTX. Raises CudaError, such as CUDA_ERROR_INVALID_PTX."""
        module = c_void_p()
        self.cuda.call("cuModuleLoadData", byref(module), ptx.encode() + b"\0")
        return module

    def kernel(self, module: c_void_p, name: str, threads: int) -> Kernel:
        """Return a function of a module."""
        function = c_void_p()
        self.cuda.call("cuModuleGetFunction", byref(function), module, name.encode())
        return Kernel(function, threads)

    def free_memory(self) -> int:
        """Return the bytes of free device memory."""
        free, total = c_size_t(), c_size_t()
        self.cuda.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Return the address of new device memory."""
        address = c_uint64()
        self.cuda.call("cuMemAlloc_v2", byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        """Release device memory."""
        self.cuda.call("cuMemFree_v2", address)

    def pinned(self, size: int) -> c_void_p:
        """Return the address of new host memory that the GPU can access."""
        address = c_void_p()
        self.cuda.call("cuMemHostAlloc", byref(address), size, 1)  # CU_MEMHOSTALLOC_PORTABLE
        return address

    def launch(self, kernel: Kernel, blocks: int, *arguments: c_uint64 | c_uint) -> None:
        """Launch a kernel on the stream."""
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        grid = (blocks, 1, 1, kernel.threads, 1, 1, 0)
        self.cuda.call("cuLaunchKernel", kernel.function, *grid, self.stream, pointers, None)

    def read(self, address: int, size: int) -> bytes:
        """Return device memory, after the work on the stream."""
        self.wait()
        host = ctypes.create_string_buffer(size)
        self.cuda.call("cuMemcpyDtoH_v2", host, address, size)
        return host.raw

    def clear(self, address: int, size: int) -> None:
        """Set device memory to zero, on the stream."""
        self.cuda.call("cuMemsetD32Async", address, 0, size // 4, self.stream)

    def wait(self) -> None:
        """Wait until the work on the stream has ended."""
        self.cuda.call("cuStreamSynchronize", self.stream)

    def start(self) -> None:
        """Note the time on the stream."""
        self.cuda.call("cuEventRecord", self._start, self.stream)

    def end(self) -> None:
        """Note the time on the stream again."""
        self.cuda.call("cuEventRecord", self._end, self.stream)

    def seconds(self) -> float:
        """Wait, and return the seconds that the GPU needed from `start` to `end`."""
        self.wait()
        milliseconds = c_float()
        self.cuda.call("cuEventElapsedTime", byref(milliseconds), self._start, self._end)
        return milliseconds.value / 1e3
