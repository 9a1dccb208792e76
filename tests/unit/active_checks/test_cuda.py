"""Calls of the CUDA driver: what they are given, what they return, and what a failure says."""

from __future__ import annotations

import ctypes
from ctypes import c_uint, c_uint64

import pytest

from gpu_exporter.active_checks.cuda import LOST, Cuda, CudaError, CudaGpu
from gpu_exporter.active_checks.kernels import generic
from tests.support.fakes.libcuda import Libcuda


def test_the_device_of_a_bus_id(cuda: Libcuda) -> None:
    cuda.gpus = 3
    driver = Cuda()
    assert [driver.device(f"00000000:{6 + device:02X}:00.0") for device in range(3)] == [0, 1, 2]
    with pytest.raises(CudaError, match=r"0:9:0\.0 is not visible to CUDA: see CUDA_VISIBLE_DEVICES"):
        driver.device("0:9:0.0")


@pytest.mark.parametrize("call", ["cuDeviceGet", "cuDeviceGetPCIBusId"])
def test_a_device_that_cannot_be_read(cuda: Libcuda, call: str) -> None:
    """Its failure is the reason, rather than that it is not there."""
    cuda.fails[call] = 700
    with pytest.raises(CudaError, match=f"^{call}: CUDA_ERROR_ILLEGAL_ADDRESS$") as error:
        Cuda().device("0:6:0.0")
    assert error.value.lost


def test_results(cuda: Libcuda) -> None:
    """A result other than 0 is an error with its name, or its number if it has none; one may be harmless."""
    driver = Cuda()
    cuda.fails["cuStreamSynchronize"] = 704
    with pytest.raises(CudaError, match=r"^cuStreamSynchronize: error 704$") as error:
        driver.call("cuStreamSynchronize", None)
    assert not error.value.lost
    driver.call("cuStreamSynchronize", None, harmless=704)
    cuda.fails["cuStreamSynchronize"] = 2
    with pytest.raises(CudaError, match=r"^cuStreamSynchronize: CUDA_ERROR_OUT_OF_MEMORY$"):
        driver.call("cuStreamSynchronize", None, harmless=704)


@pytest.mark.parametrize("name", [*sorted(LOST), "CUDA_ERROR_OUT_OF_MEMORY", "error 5"])
def test_which_errors_end_the_context(name: str) -> None:
    error = CudaError("cuX", name)
    assert str(error) == f"cuX: {name}"
    assert error.lost is (name in LOST)


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_exporter.active_checks.cuda.LIBRARY", "libcuda.so.0")
    with pytest.raises(CudaError, match=r"^load: libcuda.so.0: no CUDA driver \("):
        Cuda()


def test_a_driver_that_is_too_old(cuda: Libcuda, monkeypatch: pytest.MonkeyPatch) -> None:
    library = cuda.load("libcuda.so.1")
    del library.cuMemcpyPeerAsync
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    with pytest.raises(CudaError, match=r"libcuda.so.1 has no cuMemcpyPeerAsync: the driver is too old"):
        Cuda()
    assert not cuda.calls


def test_a_context(cuda: Libcuda) -> None:
    """What a GPU is, and that nothing of it is left."""
    cuda.gpus, cuda.capability = 2, (8, 6)
    gpu = CudaGpu(Cuda(), 1)
    assert (gpu.sms, gpu.capability, gpu.l2, gpu.device) == (cuda.sms, (8, 6), cuda.l2, 1)
    assert cuda.contexts == {1: 1}
    assert cuda.named("cuCtxSetCurrent")
    gpu.close()
    assert cuda.contexts == {1: 0}


@pytest.mark.parametrize("call", ["cuCtxSetCurrent", "cuStreamCreate", "cuEventCreate", "cuDeviceGetAttribute"])
def test_a_context_that_cannot_be_used_is_released(cuda: Libcuda, call: str) -> None:
    cuda.fails[call] = 700
    with pytest.raises(CudaError, match=call):
        CudaGpu(Cuda(), 0)
    assert cuda.contexts == {0: 0}


def test_memory(cuda: Libcuda) -> None:
    gpu, free = CudaGpu(Cuda(), 0), cuda.free
    assert gpu.free_memory() == free
    one, other = gpu.allocate(4096), gpu.allocate(64)
    assert (cuda.sizes, gpu.free_memory()) == ({one: 4096, other: 64}, free - 4096 - 64)
    cuda.content(other)[:] = bytes(range(64))
    assert gpu.read(other, 8) == bytes(range(8))
    assert cuda.calls[-2][0] == "cuStreamSynchronize"  # what was launched before has ended
    gpu.clear(other, 16)
    assert gpu.read(other, 20) == bytes(16) + bytes(range(16, 20))
    gpu.free(one)
    assert list(cuda.sizes) == [other]
    pinned = gpu.pinned(512)
    assert cuda.sizes[pinned.value or 0] == 512
    assert gpu.free_memory() == free - 64


def test_a_launch(cuda: Libcuda) -> None:
    """The parameters arrive, and the time on the stream is measured."""
    gpu = CudaGpu(Cuda(), 0)
    module = gpu.module(generic())
    kernel = gpu.kernel(module, "pattern_write", 256)
    cuda.kernel = lambda launch: 0.25
    gpu.start()
    gpu.launch(kernel, 24, c_uint64(1 << 40), c_uint64(3 << 32), c_uint(0xA5A5A5A5))
    gpu.end()
    assert gpu.seconds() == 0.25
    (launch,) = cuda.launches
    assert (launch.name, launch.blocks, launch.threads) == ("pattern_write", 24, 256)
    assert launch.arguments == (1 << 40, 3 << 32, 0xA5A5A5A5)
    gpu.wait()
    assert cuda.calls[-1][0] == "cuStreamSynchronize"
