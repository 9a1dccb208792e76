"""Buffers, kernels and times of measurements, and the rates that they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gpu_exporter.active_checks import child
from gpu_exporter.active_checks import kernels as k
from gpu_exporter.active_checks.bench import IDLE_SECONDS, L2_TIMES, LARGEST_BUFFER, WARM_UP_SECONDS, Bench, rate
from gpu_exporter.active_checks.cuda import Cuda, CudaError, CudaGpu
from tests.support.fakes.libcuda import Launch, Libcuda


@pytest.fixture
def bench(cuda: Libcuda) -> Bench:
    return Bench(CudaGpu(Cuda(), 0))


@pytest.mark.parametrize("free", [80 << 30, 1 << 30, 40 << 20])
def test_buffers_that_no_cache_holds(cuda: Libcuda, bench: Bench, free: int) -> None:
    """Two of one size, filled with zeros, of which a kernel reads every byte. They are kept."""
    cuda.free = free
    a, b, size = bench.pair()
    assert cuda.sizes == {a: size, b: size}
    assert L2_TIMES * cuda.l2 <= size <= min(LARGEST_BUFFER, free // 2)
    assert size > 0.3 * min(LARGEST_BUFFER, free)
    cleared = cuda.named("cuMemsetD32Async")
    assert [(address, value, 4 * count) for address, value, count, _ in cleared] == [(a, 0, size), (b, 0, size)]
    assert bench.read_memory() == size
    (launch,) = cuda.launches
    data, units, out = launch.arguments
    assert (launch.name, data, 16 * units) == ("memory_read", a, size)
    assert launch.blocks == k.MEMORY_BLOCKS * cuda.sms
    assert units % (launch.blocks * launch.threads * k.LOADS) == 0
    assert cuda.sizes[out] >= 4 * launch.blocks * launch.threads
    assert bench.pair() == (a, b, size)
    bench.release()
    assert (cuda.sizes, cuda.free) == ({}, free)


def test_too_little_memory(cuda: Libcuda, bench: Bench) -> None:
    """Rates of buffers that the cache holds would say nothing about memory."""
    unit = k.MEMORY_THREADS * k.MEMORY_BLOCKS * k.LOADS * 16 * cuda.sms
    cuda.l2, cuda.free = 8 * unit // L2_TIMES, 8 * unit * 5 // 2 + 8
    bench = Bench(CudaGpu(Cuda(), 0))
    assert bench.pair()[2] == 8 * unit
    bench.release()
    for free, l2 in ((8 * unit * 5 // 2 - 8, cuda.l2), (unit * 2, 0), (0, 0)):
        cuda.free, cuda.l2 = free, l2
        with pytest.raises(CudaError, match=f"^memory: too little is free for two buffers of {L2_TIMES} times the L2"):
            Bench(CudaGpu(Cuda(), 0)).pair()
    assert not cuda.sizes


def test_a_buffer_grows(cuda: Libcuda, bench: Bench) -> None:
    first = bench.buffer("x", 64)
    assert bench.buffer("x", 64) == bench.buffer("x", 16) == first
    larger = bench.buffer("x", 65)
    assert cuda.sizes == {larger: 65}
    assert bench.buffer("y", 8) != larger


def test_pinned_memory_is_kept(cuda: Libcuda, bench: Bench) -> None:
    one, other = bench.host(64), bench.host(128)
    assert (bench.host(64), bench.host(128)) == (one, other)
    assert [cuda.sizes[host.value or 0] for host in (one, other)] == [64, 128]


def test_a_module_is_compiled_once(cuda: Libcuda, bench: Bench) -> None:
    for name in ("fp32", "bf16_sync", "fp32"):
        bench.kernel(name, 1)
    bench.kernel("bf16_group", 1, k.hopper)
    assert [ptx.decode() for _, ptx in cuda.named("cuModuleLoadData")] == [k.generic() + "\0", k.hopper() + "\0"]


@pytest.mark.parametrize("seconds", [0.9, 1e-3, 1e-6])
def test_an_idle_gpu_warms_up(cuda: Libcuda, bench: Bench, seconds: float) -> None:
    """Until its clock has had time to rise, however short the kernel is; not if it has just worked."""
    cuda.kernel = lambda launch: seconds
    bench.warm_up()
    assert len(cuda.launches) == 256 or WARM_UP_SECONDS < cuda.now < WARM_UP_SECONDS + 1.5 * seconds
    assert len(cuda.named("cuStreamSynchronize")) == len(cuda.launches)
    bench.timed(lambda: None, 1)
    before = len(cuda.launches)
    cuda.kernel = lambda launch: 1.0
    cuda.now += 0.9 * IDLE_SECONDS
    bench.warm_up()
    assert len(cuda.launches) == before
    cuda.now += 0.2 * IDLE_SECONDS
    bench.warm_up()
    assert len(cuda.launches) > before


def test_times(cuda: Libcuda, bench: Bench) -> None:
    """Those of one piece of work, after a first one that does not count."""
    done = []

    def work() -> None:
        done.append(cuda.now)
        cuda.now += 100.0 if len(done) == 1 else float(len(done))

    assert bench.timed(work, 2, 3) == pytest.approx([2.5, 4.5, 6.5], rel=1e-4)
    assert len(done) == 7
    assert bench.timed(lambda: None, 1, 2) == [1e-9, 1e-9]


@pytest.mark.parametrize(
    ("rates", "median", "spread"),
    [
        ([4, 1, 7, 2, 6, 3, 5], 4, (6 - 2) / 4),
        ([1, 2, 3, 4, 10], 3, (4 - 2) / 3),
        ([1, 2, 3, 5], 2.5, (3 - 2) / 2.5),
        ([8], 8, 0),
    ],
)
def test_rates(rates: Sequence[float], median: float, spread: float) -> None:
    """The median and the distance of the quartiles, or the best one."""
    times = [12 / each for each in rates]
    assert rate(12, times) == pytest.approx({"value": median, "spread": spread, "samples": len(rates)})
    assert rate(12, times, best=True)["value"] == pytest.approx(max(rates))


def of_memory(launch: Launch) -> float:
    assert launch.name == "memory_read"
    return 16 * launch.arguments[1] / 3e12


@pytest.mark.parametrize(
    ("work", "value"),
    [
        (child.memory_copy, 2 * 1e12),  # each byte is read and written
        (child.memory_read, 3e12),
        (child.pcie_to_gpu, 50e9),
        (child.pcie_from_gpu, 40e9),
    ],
)
@pytest.mark.parametrize("free", [80 << 30, 64 << 20])
def test_rates_of_memory(
    cuda: Libcuda, bench: Bench, work: Callable[[Bench], dict[str, Any]], value: float, free: int
) -> None:
    speeds = {"within": 1e12, "to_gpu": 50e9, "from_gpu": 40e9}
    cuda.free, cuda.kernel = free, of_memory
    cuda.copy_seconds = lambda name, size: size / speeds[name]
    found = work(bench)
    assert found["value"] == pytest.approx(value, rel=1e-3)
    assert found["spread"] < 1e-3
    assert child.MEASUREMENTS[work.__name__] is work


@pytest.mark.parametrize(
    ("work", "best"), [(child.pcie_to_gpu, True), (child.pcie_from_gpu, True), (child.memory_copy, False)]
)
def test_what_others_slow_down(
    cuda: Libcuda, bench: Bench, work: Callable[[Bench], dict[str, Any]], *, best: bool
) -> None:
    """Copies from and to the host share its memory with others, so the best sample counts."""
    copied = []

    def seconds(name: str, size: int) -> float:
        copied.append(size)
        return size / (50e9 if 10 < len(copied) <= 14 else 10e9)

    cuda.copy_seconds = seconds
    share = work(bench)["value"] / (2 if work is child.memory_copy else 1)
    assert share > 20e9 if best else share == pytest.approx(10e9, rel=1e-3)
    assert max(copied) <= min(bench.pair()[2], child.HOST_BUFFER if best else LARGEST_BUFFER)
