"""Writes patterns to most of the free memory of a GPU, and reads them back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from ctypes import c_uint, c_uint64
from typing import Any, NamedTuple

from gpu_exporter.active_checks import kernels as k
from gpu_exporter.active_checks.bench import GIB, MIB, Bench
from gpu_exporter.active_checks.cuda import CudaError

# What is left to the driver, and the size of the pieces in which memory is allocated.
SPARE_SHARE, LARGEST_PIECE = 0.05, 4 * GIB
# A pass of each: every bit is once 0 and once 1.
SEEDS = (0x00000000, 0xFFFFFFFF, 0xA5A5A5A5)


class _Piece(NamedTuple):
    """Memory to test. `offset` is its place in all that is tested."""

    address: int
    size: int
    offset: int


def memory_test(bench: Bench, seconds: float) -> dict[str, Any]:
    """Test with all patterns, and then for so many seconds, or until a word is wrong."""
    bench.release()
    errors = bench.buffer("errors", k.ERROR_BYTES)
    pieces = list(_pieces(bench))
    end, passes, wrong, words = time.monotonic() + seconds, 0, 0, list[dict[str, Any]]()
    try:
        while not wrong and (passes < len(SEEDS) or time.monotonic() < end):
            seed = SEEDS[passes % len(SEEDS)] ^ (passes // len(SEEDS))
            for piece in pieces:
                _launch(bench, "pattern_write", piece, c_uint(seed))
            for piece in pieces:
                bench.gpu.clear(errors, k.ERROR_BYTES)
                _launch(bench, "pattern_verify", piece, c_uint(seed), c_uint64(errors))
                report = bench.gpu.read(errors, k.ERROR_BYTES)
                wrong += int.from_bytes(report[:4], "little")
                words += [_wrong_word(record, piece) for record in _records(report)]
            passes += 1
    finally:
        for piece in pieces:
            bench.gpu.free(piece.address)
    tested = sum(piece.size for piece in pieces)
    return {"bytes": tested, "passes": passes, "wrong": wrong, "words": words[: k.MOST_ERRORS]}


def _launch(bench: Bench, name: str, piece: _Piece, *others: c_uint | c_uint64) -> None:
    kernel, blocks = bench.kernel(name, k.MEMORY_THREADS), k.MEMORY_BLOCKS * bench.gpu.sms
    bench.gpu.launch(kernel, blocks, c_uint64(piece.address), c_uint64(piece.size // 16), *others)


def _pieces(bench: Bench) -> Iterator[_Piece]:
    """Allocate most of the free memory."""
    left, most, offset = int(bench.gpu.free_memory() * (1 - SPARE_SHARE)), LARGEST_PIECE, 0
    while size := min(left, most) // MIB * MIB:
        try:
            address = bench.gpu.allocate(size)
        except CudaError as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise
            most = size // 2  # it is fragmented
            continue
        yield _Piece(address, size, offset)
        left, offset = left - size, offset + size


def _records(report: bytes) -> Iterator[bytes]:
    count = min(k.MOST_ERRORS, int.from_bytes(report[:4], "little"))
    for number in range(count):
        yield report[16 + 16 * number : 32 + 16 * number]


def _wrong_word(record: Sequence[int], piece: _Piece) -> dict[str, Any]:
    """Return the place and the content of a wrong word."""
    content = bytes(record)
    index, expected, actual = (int.from_bytes(content[at:to], "little") for at, to in ((0, 8), (8, 12), (12, 16)))
    return {
        "address": f"{piece.address + 4 * index:#x}",
        "offset": piece.offset + 4 * index,
        "expected": f"{expected:#010x}",
        "actual": f"{actual:#010x}",
        "bits": (expected ^ actual).bit_count(),
    }
