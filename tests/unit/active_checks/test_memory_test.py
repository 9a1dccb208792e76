"""Which memory is tested with which patterns, and where a wrong word is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_exporter.active_checks import kernels as k
from gpu_exporter.active_checks.bench import Bench
from gpu_exporter.active_checks.cuda import Cuda, CudaError, CudaGpu
from gpu_exporter.active_checks.memory_test import LARGEST_PIECE, SEEDS, SPARE_SHARE, memory_test
from tests.support.fakes.libcuda import Launch, Libcuda

MIB = 1 << 20


class Memory:
    """Device memory of which words are wrong: index in its piece, by the number of the piece, from a pass on."""

    def __init__(self, cuda: Libcuda, wrong: dict[int, list[int]] | None = None, from_pass: int = 0) -> None:
        self.cuda, self.wrong, self.from_pass = cuda, wrong or {}, from_pass
        self.written: list[list[tuple[int, int, int]]] = []
        self.verified: list[list[tuple[int, int, int]]] = []
        cuda.kernel = self.launched

    def launched(self, launch: Launch) -> float:
        """Note the memory and the seed, and report wrong words as the kernel does: by adding to what is there."""
        assert launch.blocks == k.MEMORY_BLOCKS * self.cuda.sms
        address, units, seed, *errors = launch.arguments
        passes = self.verified if errors else self.written
        if not passes or address in (of[0] for of in passes[-1]):
            passes.append([])
        passes[-1].append((address, 16 * units, seed))
        if errors and len(passes) > self.from_pass:
            self.report(errors[0], self.wrong.get(len(passes[-1]) - 1, []), seed)
        return 1.0

    def report(self, errors: int, wrong: list[int], seed: int) -> None:
        content = self.cuda.content(errors)
        for index in wrong:
            count = int.from_bytes(content[:4], "little")
            content[:4] = (count + 1).to_bytes(4, "little")
            if count < k.MOST_ERRORS:
                right = k.word(index, seed)
                record = index.to_bytes(8, "little") + right.to_bytes(4, "little") + (right ^ 6).to_bytes(4, "little")
                content[16 + 16 * count : 32 + 16 * count] = record


@pytest.fixture
def bench(cuda: Libcuda) -> Bench:
    return Bench(CudaGpu(Cuda(), 0))


@pytest.mark.parametrize(
    ("free", "largest"),
    [(80 << 30, 80 << 30), (10 << 30, 10 << 30), (80 << 30, 3 << 30), (1 << 30, 100 << 20), (9 * MIB, 2 * MIB)],
)
def test_most_of_the_free_memory_is_tested(cuda: Libcuda, bench: Bench, free: int, largest: int) -> None:
    """Also if it is fragmented. All of it is written before any is read, so that the last write is not in a cache."""
    cuda.free, cuda.largest = free, largest
    kept = bench.buffer("kept", 2 << 20)
    memory = Memory(cuda)
    result = memory_test(bench, 0.0)
    pieces = {(address, size) for address, size, _ in memory.written[0]}
    assert result == {"bytes": sum(size for _, size in pieces), "passes": len(SEEDS), "wrong": 0, "words": []}
    assert all(size <= LARGEST_PIECE for _, size in pieces)
    assert all(size % MIB == 0 for _, size in pieces)
    assert kept not in cuda.sizes
    most = (1 - SPARE_SHARE) * (free - k.ERROR_BYTES)
    assert most - MIB < result["bytes"] <= most
    assert len(pieces) <= most / min(largest, LARGEST_PIECE) * 2 + 1
    assert memory.written == memory.verified
    assert [launch.name for launch in cuda.launches] == [
        name for _ in SEEDS for name in ("pattern_write", "pattern_verify") for _ in pieces
    ]
    assert list(cuda.sizes.values()) == [k.ERROR_BYTES]  # the rest is freed


def test_all_patterns_then_others_until_the_time_is_over(cuda: Libcuda, bench: Bench) -> None:
    """A pass takes two seconds here. No seed comes twice."""
    memory, cuda.free = Memory(cuda), 2 * MIB
    assert memory_test(bench, 39.0)["passes"] == 20
    seeds = [piece[2] for pieces in memory.written for piece in pieces]
    assert seeds == [piece[2] for pieces in memory.verified for piece in pieces]
    assert tuple(seeds[:3]) == SEEDS
    assert len(set(seeds)) == 20
    assert memory_test(bench, 1.0)["passes"] == len(SEEDS)


def test_wrong_words_end_the_test(cuda: Libcuda, bench: Bench) -> None:
    """Their place is that in all tested memory: `offset`. The rest of the pass is done, too."""
    cuda.free, cuda.largest = 1 << 30, 300 * MIB
    memory = Memory(cuda, {1: [5, 7], 3: [1]}, from_pass=1)
    result = memory_test(bench, 100.0)
    assert (result["passes"], result["wrong"]) == (2, 3)
    pieces = memory.written[1]
    starts = [sum(size for _, size, _ in pieces[:number]) for number in range(len(pieces))]
    right = [k.word(index, SEEDS[1]) for index in (5, 7, 1)]
    assert result["words"] == [
        {
            "address": hex(pieces[piece][0] + 4 * index),
            "offset": starts[piece] + 4 * index,
            "expected": f"{word:#010x}",
            "actual": f"{word ^ 6:#010x}",
            "bits": 2,
        }
        for (piece, index), word in zip(((1, 5), (1, 7), (3, 1)), right, strict=True)
    ]
    assert list(cuda.sizes.values()) == [k.ERROR_BYTES]


def test_many_wrong_words(cuda: Libcuda, bench: Bench) -> None:
    """All are counted, and the first ones described."""
    cuda.free, cuda.largest = 1 << 30, 600 * MIB
    Memory(cuda, {0: list(range(10)), 1: list(range(100, 200))})
    result = memory_test(bench, 0.0)
    assert (result["passes"], result["wrong"]) == (1, 110)
    offsets = [word["offset"] for word in result["words"]]
    assert len(offsets) == k.MOST_ERRORS
    assert offsets[:10] == [4 * index for index in range(10)]


@pytest.mark.parametrize(
    "fail", [lambda cuda: cuda.fails.update(cuMemcpyDtoH_v2=700), lambda cuda: cuda.fails.update(cuMemAlloc_v2=700)]
)
def test_a_gpu_that_fails(cuda: Libcuda, bench: Bench, fail: Callable[[Libcuda], None]) -> None:
    cuda.free = 2 * MIB
    bench.buffer("errors", k.ERROR_BYTES)
    Memory(cuda)
    fail(cuda)
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        memory_test(bench, 0.0)
    assert set(cuda.sizes.values()) <= {k.ERROR_BYTES}
