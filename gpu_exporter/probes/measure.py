"""What is measured on one GPU, in the process that holds its context. Rates are bytes/s and FLOP/s, times seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

from gpu_exporter.probes import kernels as k
from gpu_exporter.probes.cuda import CudaError, Gpu, Kernel

GIB, MIB = 1 << 30, 1 << 20
# The size of buffers in device memory: far more than the L2 cache has, which a GPU of any size can spare.
LARGEST_BUFFER, L2_TIMES = 2 * GIB, 8
HOST_BUFFER = 128 * MIB
SAMPLES = 7
# How long the GPU computes for one sample, and before the first one, so that its clock has risen.
SAMPLE_SECONDS, WARM_UP_SECONDS = 0.02, 0.06
# What the memory test leaves to the driver, and the size of its pieces.
SPARE_SHARE, LARGEST_PIECE = 0.05, 4 * GIB
SEEDS = (0x00000000, 0xFFFFFFFF, 0xA5A5A5A5)
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A kernel that computes: its blocks, the operations of a block per iteration, the first values of the accumulators
    of a thread, and by how much each rises per iteration with ones."""

    name: str
    kernel: Kernel
    blocks: int
    work: int
    starts: tuple[float, ...]
    rise: float


class WrongResult(Exception):
    """The GPU has computed something else than it should."""


@dataclass(slots=True)
class Bench:
    """The measurements on one GPU. Each raises CudaError if a call fails."""

    gpu: Gpu
    _generic: c_void_p | None = None
    notes: list[str] = field(default_factory=list)

    def kernel(self, name: str, threads: int) -> Kernel:
        """Return a kernel of the generic module, which is compiled once."""
        if self._generic is None:
            self._generic = self.gpu.module(k.generic())
        return self.gpu.kernel(self._generic, name, threads)

    def buffer_size(self, buffers: int) -> int:
        """Return the size of each of some buffers, a multiple of 64 MiB or of the memory that a small GPU has."""
        size = min(LARGEST_BUFFER, int(self.gpu.free_memory() * 0.8) // buffers)
        unit = k.MEMORY_THREADS * k.MEMORY_BLOCKS * k.LOADS * 16 * self.gpu.sms
        size -= size % unit
        if size < max(unit, L2_TIMES * self.gpu.l2):
            raise CudaError("memory", f"too little is free for {buffers} buffers of {L2_TIMES} times the L2 cache")
        return size

    def memory_copy(self) -> dict[str, Any]:
        """Copy within device memory, as the driver does it for everyone; read and written bytes count."""
        size = self.buffer_size(2)
        with_memory = [self.gpu.allocate(size) for _ in range(2)]
        try:
            source, target = with_memory
            self.gpu.clear(source, size)
            call = ("cuMemcpyDtoDAsync_v2", target, source, size, self.gpu.stream)
            return _rate(2 * size, self._timed(lambda: self.gpu.cuda.call(*call), 4))
        finally:
            self._free(with_memory)

    def memory_read(self) -> dict[str, Any]:
        """Read device memory with 16-byte loads that bypass the L1 cache."""
        size = self.buffer_size(1)
        kernel = self.kernel("memory_read", k.MEMORY_THREADS)
        blocks = k.MEMORY_BLOCKS * self.gpu.sms
        out = self.gpu.allocate(4 * blocks * k.MEMORY_THREADS)
        data = self.gpu.allocate(size)
        try:
            self.gpu.clear(data, size)
            arguments = c_uint64(data), c_uint64(size // 16), c_uint64(out)
            return _rate(size, self._timed(lambda: self.gpu.launch(kernel, blocks, *arguments), 8))
        finally:
            self._free((data, out))

    def pcie_to_gpu(self) -> dict[str, Any]:
        """Copy pinned host memory to the GPU."""
        return self._pcie("cuMemcpyHtoDAsync_v2")

    def pcie_from_gpu(self) -> dict[str, Any]:
        """Copy device memory to pinned host memory."""
        return self._pcie("cuMemcpyDtoHAsync_v2")

    def _pcie(self, call: str) -> dict[str, Any]:
        size = min(HOST_BUFFER, int(self.gpu.free_memory() * 0.8) & ~0xFFFFF)
        device, host = self.gpu.allocate(size), self.gpu.pinned(size)
        try:
            ends = (device, host) if call.startswith("cuMemcpyHtoD") else (host, device)
            return _rate(
                size, self._timed(lambda: self.gpu.cuda.call(call, *ends, size, self.gpu.stream), 4, samples=5)
            )
        finally:
            self.gpu.cuda.call("cuMemFreeHost", host)
            self._free((device,))

    def fp32(self) -> dict[str, Any]:
        """Multiply and add in FP32, without tensor cores."""
        kernel = self.kernel("fp32", k.FP32_THREADS)
        steps = float(k.FP32_STEPS)
        what = Arithmetic("FFMA", kernel, k.FP32_BLOCKS * self.gpu.sms, k.FP32_WORK, k.FP32_STARTS, steps)
        return self._arithmetic(what, SAMPLE_SECONDS)

    def bf16(self) -> dict[str, Any]:
        """Multiply matrices of bf16 numbers with the tensor cores, in the way that suits the GPU."""
        return self._arithmetic(self._bf16(), 2 * SAMPLE_SECONDS)

    def _bf16(self) -> Arithmetic:
        if self.gpu.capability == HOPPER:
            try:
                kernel = self.gpu.kernel(self.gpu.module(k.hopper()), "bf16_group", k.GROUP_THREADS)
            except CudaError as error:
                if error.lost:
                    raise
                self.notes.append(f"wgmma cannot be used, mma.sync is used instead: {error}")
            else:
                blocks = k.GROUP_BLOCKS * self.gpu.sms
                each = 16.0 * k.GROUP_STEPS
                return Arithmetic("wgmma", kernel, blocks, k.GROUP_WORK, k.GROUP_STARTS, each)
        kernel = self.kernel("bf16_sync", k.SYNC_THREADS)
        blocks = k.SYNC_BLOCKS * self.gpu.sms
        return Arithmetic("mma.sync", kernel, blocks, k.SYNC_WORK, k.SYNC_STARTS, 16.0 * k.SYNC_STEPS)

    def _arithmetic(self, what: Arithmetic, seconds: float) -> dict[str, Any]:
        """Measure a kernel. Raises WrongResult if it computes something else than it should."""
        block = 4 * what.kernel.threads
        out = self.gpu.allocate(block * what.blocks)
        try:
            self._check_ones(what, out, block)
            iterations = self._calibrated(what, out, seconds)
            times = self._timed(lambda: self._compute(what, out, iterations, ones=0), 1, seconds=0.0)
            self._check_alike(what, out, block)
        finally:
            self._free((out,))
        return {**_rate(what.work * iterations * what.blocks, times), "how": what.name}

    def _compute(self, what: Arithmetic, out: int, iterations: int, *, ones: int) -> None:
        self.gpu.launch(what.kernel, what.blocks, c_uint64(out), c_uint(iterations), c_uint(ones))

    def _check_ones(self, what: Arithmetic, out: int, block: int) -> None:
        iterations = 16
        self._compute(what, out, iterations, ones=1)
        right = k.checksum([start + what.rise * iterations for start in what.starts]).to_bytes(4, "little")
        results = self.gpu.read(out, block * what.blocks)
        if results != right * (len(results) // 4):
            wrong = sum(results[at : at + 4] != right for at in range(0, len(results), 4))
            raise WrongResult(f"{what.name}: {wrong} of {len(results) // 4} threads got a wrong sum of ones")

    def _check_alike(self, what: Arithmetic, out: int, block: int) -> None:
        results = self.gpu.read(out, block * what.blocks)
        blocks = [results[at : at + block] for at in range(0, len(results), block)]
        usual = statistics.mode(blocks)
        wrong = [number for number, result in enumerate(blocks) if result != usual]
        if wrong:
            some = ", ".join(map(str, wrong[:8]))
            raise WrongResult(f"{what.name}: {len(wrong)} of {len(blocks)} blocks computed something else: {some}")

    def _calibrated(self, what: Arithmetic, out: int, seconds: float) -> int:
        """Return for how many iterations the GPU computes so long. It warms up meanwhile."""
        iterations, once, end = 64, 0.0, time.monotonic() + WARM_UP_SECONDS
        for _ in range(64):
            self.gpu.start()
            self._compute(what, out, iterations, ones=0)
            self.gpu.end()
            once = max(self.gpu.seconds(), 1e-6)
            if once >= seconds / 2 and time.monotonic() > end:
                break
            iterations = max(1, int(iterations * min(16.0, seconds / once)))
        return max(1, int(iterations * seconds / once))

    def memory_test(self, seconds: float) -> dict[str, Any]:
        """Write and verify patterns over most of the free memory, at least once, for so many seconds."""
        write, verify = self.kernel("pattern_write", k.MEMORY_THREADS), self.kernel("pattern_verify", k.MEMORY_THREADS)
        blocks, errors = k.MEMORY_BLOCKS * self.gpu.sms, self.gpu.allocate(k.ERROR_BYTES)
        pieces = list(self._pieces())
        end, passes, wrong, words = time.monotonic() + seconds, 0, 0, list[dict[str, Any]]()
        try:
            while not wrong and (passes < len(SEEDS) or time.monotonic() < end):
                seed = SEEDS[passes % len(SEEDS)] ^ (passes // len(SEEDS))
                for address, size in pieces:
                    self.gpu.launch(write, blocks, c_uint64(address), c_uint64(size // 16), c_uint(seed))
                for offset, (address, size) in zip(_offsets(pieces), pieces, strict=True):
                    self.gpu.clear(errors, k.ERROR_BYTES)
                    what = c_uint64(address), c_uint64(size // 16), c_uint(seed), c_uint64(errors)
                    self.gpu.launch(verify, blocks, *what)
                    report = self.gpu.read(errors, k.ERROR_BYTES)
                    wrong += int.from_bytes(report[:4], "little")
                    words += [_wrong_word(record, address, offset) for record in _records(report)]
                passes += 1
        finally:
            self._free([address for address, _ in pieces] + [errors])
        tested = sum(size for _, size in pieces)
        return {"bytes": tested, "passes": passes, "wrong": wrong, "words": words[: k.MOST_ERRORS]}

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Allocate most of the free memory."""
        left = int(self.gpu.free_memory() * (1 - SPARE_SHARE))
        while left >= MIB:
            size = min(left, LARGEST_PIECE) // MIB * MIB
            try:
                address = self.gpu.allocate(size)
            except CudaError as error:
                if "OUT_OF_MEMORY" not in str(error):
                    raise
                left = size // 2  # it is fragmented
                continue
            left -= size
            yield address, size

    def sustained(self, seconds: float) -> dict[str, Any]:
        """Compute with the tensor cores for so many seconds, and return the rates of the first and the last third."""
        what = self._bf16()
        out = self.gpu.allocate(4 * what.kernel.threads * what.blocks)
        try:
            iterations = self._calibrated(what, out, 0.1)
            times, end = list[float](), time.monotonic() + seconds
            while len(times) < 3 or time.monotonic() < end:
                self.gpu.start()
                self._compute(what, out, iterations, ones=0)
                self.gpu.end()
                times.append(self.gpu.seconds())
        finally:
            self._free((out,))
        work, third = what.work * iterations * what.blocks, len(times) // 3
        first, last = (work / statistics.median(part) for part in (times[:third], times[-third:]))
        return {**_rate(work, times[-third:]), "first": first, "last": last, "how": what.name}

    def _timed(
        self, work: Callable[[], None], times: int, samples: int = SAMPLES, seconds: float = WARM_UP_SECONDS
    ) -> Sequence[float]:
        """Return the seconds of one `work`, for each sample of some `times`, after a warm-up."""
        end = time.monotonic() + seconds
        for _ in range(64):
            work()
            self.gpu.wait()
            if time.monotonic() > end:
                break
        results = []
        for _ in range(samples):
            self.gpu.start()
            for _ in range(times):
                work()
            self.gpu.end()
            results.append(self.gpu.seconds() / times)
        return results

    def _free(self, addresses: Sequence[int]) -> None:
        for address in addresses:
            self.gpu.free(address)


def _rate(work: float, times: Sequence[float]) -> dict[str, Any]:
    """Return the median rate, and the spread between the quartiles as a share of it."""
    rates = sorted(work / max(seconds, 1e-9) for seconds in times)
    middle = statistics.median(rates)
    low, high = rates[len(rates) // 4], rates[-1 - len(rates) // 4]
    return {"value": middle, "spread": (high - low) / middle, "samples": len(rates)}


def _offsets(pieces: Sequence[tuple[int, int]]) -> Iterator[int]:
    total = 0
    for _, size in pieces:
        yield total
        total += size


def _records(report: bytes) -> Iterator[bytes]:
    count = min(k.MOST_ERRORS, int.from_bytes(report[:4], "little"))
    for number in range(count):
        yield report[16 + 16 * number : 32 + 16 * number]


def _wrong_word(record: bytes, address: int, offset: int) -> dict[str, Any]:
    """Return the place and the content of a wrong word. `offset` is that of its piece in the tested memory."""
    index, expected, actual = (int.from_bytes(record[at:to], "little") for at, to in ((0, 8), (8, 12), (12, 16)))
    return {
        "address": f"{address + 4 * index:#x}",
        "offset": offset + 4 * index,
        "expected": f"{expected:#010x}",
        "actual": f"{actual:#010x}",
        "bits": (expected ^ actual).bit_count(),
    }
