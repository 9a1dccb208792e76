"""Arithmetic rates: what is launched, how many operations count, and results that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from gpu_exporter.active_checks import arithmetic as a
from gpu_exporter.active_checks.bench import Bench
from gpu_exporter.active_checks.cuda import Cuda, CudaError, CudaGpu
from tests.support.fakes.libcuda import Launch, Libcuda
from tests.unit.active_checks.test_kernels import COMPUTE, computed, operations

FP32, SYNC, GROUP = COMPUTE
# Of a launch: seconds per iteration.
ITERATION = 1e-6
Change = Callable[[Launch, list[int]], None]


@cache
def sum_of_ones(name: str) -> int:
    """Return what the PTX computes for a thread in the checked run."""
    (unit,) = (unit for unit in COMPUTE if unit.name == name)
    return computed(unit, ones=1)[1]


@cache
def work(name: str) -> int:
    """Return the operations of a block per iteration, counted in the PTX."""
    (unit,) = (unit for unit in COMPUTE if unit.name == name)
    return operations(computed(unit, ones=0, iterations=1)[0], unit)[0]


class Units:
    """The arithmetic units of a GPU, whose results `change` may spoil, each a word of a thread."""

    def __init__(self, cuda: Libcuda, change: Change = lambda launch, results: None) -> None:
        self.cuda, self.change = cuda, change
        self.seconds: Callable[[Launch], float] = lambda launch: ITERATION * launch.arguments[1]
        cuda.kernel = self.launched

    def launched(self, launch: Launch) -> float:
        if launch.name == "memory_read":
            return 1e-3
        out, _, ones = launch.arguments
        if ones:
            results = [sum_of_ones(launch.name)] * (launch.blocks * launch.threads)
        else:
            results = list(range(launch.threads)) * launch.blocks
        self.change(launch, results)
        self.cuda.content(out)[:] = b"".join(result.to_bytes(4, "little") for result in results)
        return self.seconds(launch)

    def launches(self) -> list[Launch]:
        """Return the launches that compute."""
        return [launch for launch in self.cuda.launches if launch.name != "memory_read"]


def bench_of(cuda: Libcuda, capability: tuple[int, int] = (9, 0)) -> Bench:
    cuda.capability = capability
    return Bench(CudaGpu(Cuda(), 0))


MEASURED = pytest.mark.parametrize(
    ("measure", "capability", "unit", "how", "seconds"),
    [
        (a.fp32, (9, 0), FP32, "FFMA", a.FP32_SECONDS),
        (a.bf16, (9, 0), GROUP, "wgmma", a.BF16_SECONDS),
        (a.bf16, (8, 0), SYNC, "mma.sync", a.BF16_SECONDS),
        (a.bf16, (10, 0), SYNC, "mma.sync", a.BF16_SECONDS),
    ],
    ids=lambda value: getattr(value, "__name__", getattr(value, "name", str(value))),
)
Measure = Callable[[Bench], dict[str, Any]]


@MEASURED
def test_a_rate(
    cuda: Libcuda, measure: Measure, capability: tuple[int, int], unit: Any, how: str, seconds: float
) -> None:
    """All operations of all blocks count. Ones are checked first; samples begin when the GPU has worked for a while."""
    units = Units(cuda)
    found = measure(bench_of(cuda, capability))
    blocks = unit.blocks * cuda.sms
    assert found["value"] == pytest.approx(work(unit.name) * blocks / ITERATION, rel=1e-5)
    assert (found["how"], found["samples"]) == (how, a.SAMPLES)
    first, *others = units.launches()
    assert {(launch.name, launch.blocks, launch.threads) for launch in (first, *others)} == {
        (unit.name, blocks, unit.threads)
    }
    assert first.arguments[1:] == (a.CHECKED_ITERATIONS, 1)
    assert {launch.arguments[2] for launch in others} == {0}
    iterations = [launch.arguments[1] for launch in others]
    assert all(now <= 16 * before for before, now in pairwise(iterations))
    sample = iterations[-1]
    assert 0.9 * seconds < sample * ITERATION <= seconds
    settled = iterations.count(sample) - 1 - a.SAMPLES
    assert a.SETTLE_SECONDS <= settled * sample * ITERATION < a.SETTLE_SECONDS + 2 * seconds


def test_runs_of_one_process_do_the_same(cuda: Libcuda) -> None:
    """So that rates alone and together compare, also if the GPU is slower meanwhile; a longer run is another one."""
    units = Units(cuda)
    bench = bench_of(cuda)
    a.bf16(bench)
    sample = units.launches()[-1].arguments[1]
    units.seconds = lambda launch: 3 * ITERATION * launch.arguments[1]
    before = len(units.launches())
    a.bf16(bench)
    assert {launch.arguments[1] for launch in units.launches()[before + 1 :]} == {sample}
    a.sustained(bench, 0.0)
    assert units.launches()[-1].arguments[1] * 3 * ITERATION == pytest.approx(a.SUSTAINED_SECONDS, rel=0.1)
    assert len(cuda.sizes) == len(set(cuda.sizes))


def test_a_kernel_that_is_slow_from_the_start(cuda: Libcuda) -> None:
    """One iteration is the least. Times below a microsecond are none."""
    units = Units(cuda)
    units.seconds = lambda launch: 1.0 * launch.arguments[1]
    a.fp32(bench_of(cuda))
    assert units.launches()[-1].arguments[1] == 1
    units.seconds = lambda launch: 0.0 if launch.arguments[1] <= 64 else ITERATION * launch.arguments[1]
    bench = bench_of(cuda)
    a.fp32(bench)
    assert units.launches()[-1].arguments[1] * ITERATION == pytest.approx(a.FP32_SECONDS, rel=0.1)


@MEASURED
@pytest.mark.parametrize(
    ("wrong", "words"), [([700], "1 of {} threads"), ([0, 7, 900], "3 of {} threads"), (None, "{} of {} threads")]
)
def test_wrong_sums_of_ones(
    cuda: Libcuda,
    measure: Measure,
    capability: tuple[int, int],
    unit: Any,
    how: str,
    seconds: float,
    wrong: list[int] | None,
    words: str,
) -> None:
    threads = unit.blocks * cuda.sms * unit.threads

    def change(launch: Launch, results: list[int]) -> None:
        for thread in (wrong or range(threads)) if launch.arguments[2] else ():
            results[thread % threads] ^= 1 << 31

    units = Units(cuda, change)
    with pytest.raises(a.WrongResult, match=f"^{how}: {words.format(threads, threads)} got a wrong sum of ones$"):
        measure(bench_of(cuda, capability))
    assert len(units.launches()) == 1


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([4], "1 of 24 blocks computed something else: 4"),
        ([0, 23], "2 of 24 blocks computed something else: 0, 23"),
        (list(range(2, 13)), "11 of 24 blocks computed something else: 2, 3, 4, 5, 6, 7, 8, 9"),
    ],
)
def test_blocks_that_compute_something_else(cuda: Libcuda, blocks: list[int], words: str) -> None:
    """The usual result is that of most blocks: nobody knows the right one."""

    def change(launch: Launch, results: list[int]) -> None:
        for block in blocks if not launch.arguments[2] else ():
            results[(block + 1) * launch.threads - 1] ^= 1

    Units(cuda, change)
    with pytest.raises(a.WrongResult, match=f"^FFMA: {words}$"):
        a.fp32(bench_of(cuda))


def test_a_driver_without_wgmma(cuda: Libcuda) -> None:
    """The other instruction is used, and a note says why; a GPU that fails is another matter."""
    Units(cuda)
    bench = bench_of(cuda)
    bench.kernel("bf16_sync", SYNC.threads)
    cuda.fails["cuModuleLoadData"] = 218
    assert a.bf16(bench)["how"] == "mma.sync"
    assert bench.notes == ["wgmma cannot be used, mma.sync is used instead: cuModuleLoadData: CUDA_ERROR_INVALID_PTX"]
    cuda.fails["cuModuleLoadData"] = 700
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
        a.bf16(bench)


@pytest.mark.parametrize(("seconds", "launches"), [(6.0, 30), (0.0, 3)])
def test_sustained_load(cuda: Libcuda, seconds: float, launches: int) -> None:
    """The rate of the last third is given, and that of the first one to compare. Each third has a sample at least."""
    units = Units(cuda)
    bench = bench_of(cuda)
    calibrated = list[int]()
    units.seconds = lambda launch: ITERATION * launch.arguments[1] * slower(len(units.launches()))

    def slower(number: int) -> float:
        """Return by how much the launch is slower: from the middle on, by half."""
        return 2.0 if calibrated and number > calibrated[0] + launches / 2 else 1.0

    calibrate = a._Run.calibrate

    def noted(run: a._Run, seconds: float) -> None:
        calibrate(run, seconds)
        calibrated.append(len(units.launches()))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(a._Run, "calibrate", noted)
        found = a.sustained(bench, seconds)
    rate = work("bf16_group") * GROUP.blocks * cuda.sms / ITERATION
    assert found["first"] == pytest.approx(rate, rel=1e-5)
    assert found["last"] == found["value"] == pytest.approx(rate / 2, rel=1e-5)
    assert found["how"] == "wgmma"
    done = units.launches()[calibrated[0] :]
    assert sum(units.seconds(launch) for launch in done) >= seconds
    assert found["samples"] == len(done) // 3 >= 1
