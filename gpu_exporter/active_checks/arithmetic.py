"""The arithmetic rates of a GPU, and whether what it computes is right."""

from __future__ import annotations

import statistics
import time
from ctypes import c_uint, c_uint64
from dataclasses import dataclass
from typing import Any

from gpu_exporter.active_checks import kernels as k
from gpu_exporter.active_checks.bench import Bench, rate
from gpu_exporter.active_checks.cuda import CudaError, Kernel

# How long a sample takes (seconds), and how many there are. Before the first one, the kernel runs for a while: until
# the power limit acts, rates differ more from run to run (on an H100 by 5 % instead of 1 %).
FP32_SECONDS, BF16_SECONDS, SUSTAINED_SECONDS, SAMPLES, SETTLE_SECONDS = 0.02, 0.04, 0.1, 5, 0.06
HOPPER = (9, 0)
# Iterations of the run that is checked. The sums of ones stay far below 2^24, up to which FP32 is exact.
CHECKED_ITERATIONS = 16


class WrongResult(Exception):
    """The GPU has computed something else than it should."""


@dataclass(frozen=True, slots=True)
class ArithmeticUnit:
    """A kernel that computes: its blocks, the operations of a block per iteration, the first values of the accumulators
    of a thread, and by how much each rises per iteration with ones. `name` is that of the instruction."""

    name: str
    kernel: Kernel
    blocks: int
    work: int
    starts: tuple[float, ...]
    rise: float


def fp32(bench: Bench) -> dict[str, Any]:
    """Multiply and add in FP32, without tensor cores."""
    kernel, blocks = bench.kernel("fp32", k.FP32_THREADS), k.FP32_BLOCKS * bench.gpu.sms
    unit = ArithmeticUnit("FFMA", kernel, blocks, k.FP32_WORK, k.FP32_STARTS, float(k.FP32_STEPS))
    return _Run(bench, unit).measured(FP32_SECONDS)


def bf16(bench: Bench) -> dict[str, Any]:
    """Multiply matrices of bf16 numbers with the tensor cores, with the instruction that suits the GPU."""
    return _Run(bench, _tensor(bench)).measured(BF16_SECONDS)


def sustained(bench: Bench, seconds: float) -> dict[str, Any]:
    """Compute with the tensor cores for so many seconds, and return the rates of the first and the last third."""
    run = _Run(bench, _tensor(bench))
    run.calibrate(SUSTAINED_SECONDS)
    times, end = list[float](), time.monotonic() + seconds
    while len(times) < 3 or time.monotonic() < end:
        times.append(run.seconds())
    work, third = run.work, len(times) // 3
    first, last = (work / statistics.median(part) for part in (times[:third], times[-third:]))
    return {**rate(work, times[-third:]), "first": first, "last": last, "how": run.unit.name}


def _tensor(bench: Bench) -> ArithmeticUnit:
    """Return `wgmma` on Hopper, whose tensor cores need it to reach their rate; on other GPUs `mma.sync`."""
    if bench.gpu.capability == HOPPER:
        try:
            kernel = bench.kernel("bf16_group", k.GROUP_THREADS, k.hopper)
        except CudaError as error:
            if error.lost:
                raise
            bench.notes = [f"wgmma cannot be used, mma.sync is used instead: {error}"]
        else:
            blocks = k.GROUP_BLOCKS * bench.gpu.sms
            return ArithmeticUnit("wgmma", kernel, blocks, k.GROUP_WORK, k.GROUP_STARTS, 16.0 * k.GROUP_STEPS)
    kernel, blocks = bench.kernel("bf16_sync", k.SYNC_THREADS), k.SYNC_BLOCKS * bench.gpu.sms
    return ArithmeticUnit("mma.sync", kernel, blocks, k.SYNC_WORK, k.SYNC_STARTS, 16.0 * k.SYNC_STEPS)


class _Run:
    """A kernel with the memory for its results."""

    def __init__(self, bench: Bench, unit: ArithmeticUnit) -> None:
        self._bench, self.unit = bench, unit
        self._block = 4 * unit.kernel.threads
        self._out = bench.buffer("results", self._block * unit.blocks)
        self._iterations = 1

    @property
    def work(self) -> float:
        """The floating-point operations of one launch."""
        return self.unit.work * self._iterations * self.unit.blocks

    def measured(self, seconds: float) -> dict[str, Any]:
        """Return the rate, with samples of so many seconds. Raises WrongResult."""
        self._check_ones()
        self.calibrate(seconds)
        settled = 0.0
        while settled < SETTLE_SECONDS:
            settled += self.seconds()
        times = self._bench.timed(lambda: self._launch(self._iterations, ones=0), 1, SAMPLES)
        self._check_alike()
        return {**rate(self.work, times), "how": self.unit.name}

    def _launch(self, iterations: int, *, ones: int) -> None:
        arguments = c_uint64(self._out), c_uint(iterations), c_uint(ones)
        self._bench.gpu.launch(self.unit.kernel, self.unit.blocks, *arguments)

    def seconds(self) -> float:
        """Return the seconds of one launch."""
        gpu = self._bench.gpu
        gpu.start()
        self._launch(self._iterations, ones=0)
        gpu.end()
        return max(1e-6, gpu.seconds())

    def calibrate(self, seconds: float) -> None:
        """Choose for how many iterations the GPU computes so long; once, so that later runs do the same."""
        key = f"{self.unit.name} {seconds:g}"
        if key not in self._bench.iterations:
            self._bench.warm_up()
            self._iterations, once = 64, 0.0
            while once < seconds / 2:
                once = self.seconds()
                self._iterations = max(1, int(self._iterations * min(16.0, seconds / once)))
            self._bench.iterations[key] = self._iterations
        self._iterations = self._bench.iterations[key]

    def _check_ones(self) -> None:
        """Raise WrongResult unless every accumulator has counted its products."""
        self._launch(CHECKED_ITERATIONS, ones=1)
        unit = self.unit
        right = k.checksum([start + unit.rise * CHECKED_ITERATIONS for start in unit.starts]).to_bytes(4, "little")
        results = self._bench.gpu.read(self._out, self._block * unit.blocks)
        if results != right * (len(results) // 4):
            wrong = sum(results[at : at + 4] != right for at in range(0, len(results), 4))
            raise WrongResult(f"{unit.name}: {wrong} of {len(results) // 4} threads got a wrong sum of ones")

    def _check_alike(self) -> None:
        """Raise WrongResult unless all blocks have computed the same."""
        results = self._bench.gpu.read(self._out, self._block * self.unit.blocks)
        blocks = [results[at : at + self._block] for at in range(0, len(results), self._block)]
        usual = statistics.mode(blocks)
        wrong = [number for number, result in enumerate(blocks) if result != usual]
        if wrong:
            some = ", ".join(map(str, wrong[:8]))
            raise WrongResult(f"{self.unit.name}: {len(wrong)} of {len(blocks)} blocks computed something else: {some}")
