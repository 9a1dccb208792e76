"""The PTX of active checks, executed thread by thread: patterns, counts of products, work and what a block needs."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import pytest

from gpu_exporter.active_checks import kernels as k
from gpu_exporter.active_checks import memory_test
from gpu_exporter.active_checks.arithmetic import CHECKED_ITERATIONS
from tests.support.ptx import ONES, Kernel, Ran, bits, f32, shape

DATA, ERRORS = 1 << 20, 1 << 30
ALL_ONES = 0xFFFFFFFF
# Of compute capability 8.0 to 9.0: registers, threads and threads of a warp, per SM; bytes of static shared memory.
REGISTERS, THREADS, WARP, SHARED = 65536, 2048, 32, 48 << 10


def grid(threads: int, blocks: int) -> list[tuple[int, int]]:
    """Return all threads of a launch: block, and thread of the block."""
    return [(block, thread) for block in range(blocks) for thread in range(threads)]


def written(units: int, seed: int, *, threads: int = 3, blocks: int = 2) -> dict[int, int]:
    """Return memory of so many units of 16 bytes, with a pattern in it."""
    memory: dict[int, int] = {}
    kernel = Kernel(k.generic(), "pattern_write")
    kernel.run((DATA, units, seed), memory, grid(threads, blocks), block=threads, grid=blocks)
    return memory


def verified(memory: dict[int, int], units: int, seed: int) -> bytes:
    """Return what is reported about the pattern in memory."""
    kernel = Kernel(k.generic(), "pattern_verify")
    kernel.run((DATA, units, seed, ERRORS), memory, grid(3, 2), block=3, grid=2)
    assert all(address < ERRORS + k.ERROR_BYTES for address in memory)
    return b"".join(memory.get(ERRORS + at, 0).to_bytes(4, "little") for at in range(0, k.ERROR_BYTES, 4))


@pytest.mark.parametrize("seed", memory_test.SEEDS)
def test_a_pattern_fills_all_units(seed: int) -> None:
    """As many threads as there are, fewer, or more: no word is left out, and none behind the last."""
    for units in (1, 6, 21):
        expected = {DATA + 4 * index: k.word(index, seed) for index in range(4 * units)}
        assert written(units, seed) == expected, units
        assert verified(dict(expected), units, seed) == bytes(k.ERROR_BYTES)


def test_words_differ_by_their_place() -> None:
    """Also by one bit of an index beyond 32, so that memory that is addressed wrongly is noticed."""
    assert len({k.word(index, 0) for index in range(1000)}) == 1000
    for bit in range(40):
        assert all(k.word(index, 0) != k.word(index ^ 1 << bit, 0) for index in (0, 1, 12345, 1 << 35)), bit
    last = 1 << 24  # the first thread of this block has the index 2^34 of words
    memory: dict[int, int] = {}
    Kernel(k.generic(), "pattern_write").run((DATA, (last << 8) + 1, 7), memory, [(last, 0)], block=256, grid=last + 1)
    assert memory == {DATA + (16 << 32) + 4 * part: k.word((4 << 32) + part, 7) for part in range(4)}


def test_every_bit_is_0_and_1() -> None:
    """In the first passes, whatever the place: a bit that cannot change is always noticed."""
    for index in (0, 1, 12345, 1 << 33):
        words = [k.word(index, seed) for seed in memory_test.SEEDS]
        ever, always = 0, ALL_ONES
        for word in words:
            ever, always = ever | word, always & word
        assert (ever, always) == (ALL_ONES, 0)


def test_wrong_words_are_reported() -> None:
    """With their index and content, as `memory_test` reads them."""
    memory, seed = written(21, 5), 5
    wrong = {2: 1, 7: 1 << 31, 83: 0x10000001}
    for index, flipped in wrong.items():
        memory[DATA + 4 * index] ^= flipped
    report = verified(memory, 21, seed)
    assert int.from_bytes(report[:4], "little") == len(wrong)
    piece = memory_test._Piece(DATA, 21 * 16, 1 << 32)
    found = [memory_test._wrong_word(record, piece) for record in memory_test._records(report)]
    assert sorted(found, key=lambda each: each["offset"]) == [
        {
            "address": hex(DATA + 4 * index),
            "offset": (1 << 32) + 4 * index,
            "expected": f"0x{k.word(index, seed):08x}",
            "actual": f"0x{k.word(index, seed) ^ flipped:08x}",
            "bits": f"{flipped:b}".count("1"),
        }
        for index, flipped in wrong.items()
    ]


@pytest.mark.parametrize("wrong", [k.MOST_ERRORS, k.MOST_ERRORS + 1, 84])
def test_more_wrong_words_than_records(wrong: int) -> None:
    """All are counted; the first ones have records, and nothing behind these is written."""
    memory = written(21, 0)
    for index in range(wrong):
        memory[DATA + 4 * index] ^= 1
    report = verified(memory, 21, 0)
    assert int.from_bytes(report[:4], "little") == wrong
    records = list(memory_test._records(report))
    assert len(records) == min(wrong, k.MOST_ERRORS)
    assert all(int.from_bytes(record[12:], "little") for record in records)


def test_all_memory_is_read() -> None:
    """Each unit of 16 bytes once. Nothing is written."""
    memory = {DATA + 4 * index: 7 for index in range(1000)}
    units = 2 * 3 * 2 * k.LOADS
    ran = Kernel(k.generic(), "memory_read").run((DATA, units, ERRORS), memory, grid(3, 2), block=3, grid=2)
    assert sorted(ran.loaded) == [DATA + 4 * index for index in range(4 * units)]
    assert len(memory) == 1000


class Computes(NamedTuple):
    """A kernel that computes, and what the code says about it. `group`: the threads that share an instruction."""

    name: str
    module: Callable[[], str]
    threads: int
    blocks: int
    work: int
    starts: tuple[float, ...]
    group: int


COMPUTE = (
    Computes("fp32", k.generic, k.FP32_THREADS, k.FP32_BLOCKS, k.FP32_WORK, k.FP32_STARTS, 1),
    Computes("bf16_sync", k.generic, k.SYNC_THREADS, k.SYNC_BLOCKS, k.SYNC_WORK, k.SYNC_STARTS, WARP),
    Computes("bf16_group", k.hopper, k.GROUP_THREADS, k.GROUP_BLOCKS, k.GROUP_WORK, k.GROUP_STARTS, 4 * WARP),
)
computes = pytest.mark.parametrize("unit", COMPUTE, ids=lambda unit: unit.name)


@cache
def kernel_of(unit: Computes) -> Kernel:
    """Return the PTX of a kernel."""
    return Kernel(unit.module(), unit.name)


def computed(unit: Computes, *, ones: int, iterations: int = CHECKED_ITERATIONS, thread: int = 5) -> tuple[Ran, int]:
    """Return what one thread of the block 3 has done, and the checksum that it has stored in its place."""
    memory: dict[int, int] = {}
    kernel = kernel_of(unit)
    ran = kernel.run((DATA, iterations, ones), memory, [(3, thread)], block=unit.threads, grid=4)
    assert list(memory) == [DATA + 4 * (3 * unit.threads + thread)]
    return ran, memory.popitem()[1]


def operations(ran: Ran, unit: Computes) -> tuple[int, float]:
    """Return the floating-point operations of a block, and the products that each accumulator of a thread has added."""
    found, products = 0, 0.0
    for name, count in ran.counts.items():
        if name.startswith("fma"):
            found, products = 2 * count * unit.threads, count / len(unit.starts)
        elif "bf16" in name and "mma" in name:
            rows, columns, depth = shape(name)
            found = 2 * rows * columns * depth * count * (unit.threads // unit.group)
            products = depth * count * rows * columns / unit.group / len(unit.starts)
    return found, products


@computes
def test_the_products_of_ones_are_counted(unit: Computes) -> None:
    """By each accumulator; the host computes the same checksum."""
    ran, checksum = computed(unit, ones=1)
    work, products = operations(ran, unit)
    assert work == unit.work * CHECKED_ITERATIONS
    accumulators = [start + products for start in unit.starts]
    assert max(accumulators) < 1 << 24  # exact in 32 bits
    assert checksum == k.checksum(accumulators)
    assert (
        checksum == sum(bits(each) * k.MULTIPLIER**place for place, each in enumerate(reversed(accumulators))) % 2**32
    )


@computes
def test_every_other_count_has_another_checksum(unit: Computes) -> None:
    """Also if all accumulators are wrong by the same amount, such as those of a unit that adds nothing."""
    _, products = operations(computed(unit, ones=1)[0], unit)
    right = k.checksum([start + products for start in unit.starts])
    for wrong in (0.0, *(products * share / 8 for share in range(1, 17) if share != 8), products - 1, products + 1):
        assert k.checksum([start + wrong for start in unit.starts]) != right, wrong
    assert k.checksum([0.0] * len(unit.starts)) != right
    for place in (0, 1, len(unit.starts) // 2, len(unit.starts) - 1):
        one_wrong = [start + products + (number == place) for number, start in enumerate(unit.starts)]
        assert k.checksum(one_wrong) != right, place


@computes
def test_a_block_fits_an_sm(unit: Computes) -> None:
    """As many blocks as are launched for each SM run at once, or the last ones leave SMs idle."""
    kernel = kernel_of(unit)
    assert kernel.threads == unit.threads
    assert unit.threads % max(WARP, unit.group) == 0
    assert 0 < unit.blocks * unit.threads <= THREADS
    assert unit.blocks * unit.threads * kernel.registers <= REGISTERS
    assert kernel.shared <= SHARED


@pytest.mark.parametrize(
    ("unit", "threads"), [(COMPUTE[0], k.FP32_THREADS), (None, k.MEMORY_THREADS)], ids=["fp32", "memory"]
)
def test_threads_that_wait_for_memory_or_for_each_other_fill_an_sm(unit: Computes | None, threads: int) -> None:
    """Without tensor cores, only the number of threads hides latency."""
    assert threads * (unit.blocks if unit else k.MEMORY_BLOCKS) == THREADS
    assert threads % WARP == 0


def test_fp32_stays_finite() -> None:
    """x -> a x + b goes to b / (1 - a), which is largest for the last thread."""
    unit = COMPUTE[0]
    for thread in (0, unit.threads - 1):
        ran, _ = computed(unit, ones=0, iterations=3, thread=thread)
        a, b = ran.registers["%a"], ran.registers["%b"]
        assert 0.99 < a < 1
        assert b == thread
        accumulator = 0.0
        for _ in range(3 * ran.counts["fma.rn.f32"] // (3 * len(unit.starts))):
            accumulator = f32(accumulator * a + b)
        assert ran.registers["%c0"] == accumulator


def halves(register: int) -> tuple[float, float]:
    """Return the two bf16 numbers in a register."""
    low, high = struct.unpack("<ff", struct.pack("<II", register << 16 & ALL_ONES, register & 0xFFFF0000))
    return low, high


# What is random in two bf16 numbers: all but the exponents.
SIGN_AND_FRACTION = (1 << 15 | (1 << 7) - 1) * (1 << 16 | 1)


def bits_of(registers: Iterable[int]) -> int:
    """Return the bits in which any of these registers differs from two ones."""
    found = 0
    for register in registers:
        found |= register ^ ONES
    return found


def test_operands_in_registers() -> None:
    """Ones, or numbers of magnitude 1 to 2 that differ by register and thread. Each B is used with each tile."""
    unit = COMPUTE[1]
    ones, _ = computed(unit, ones=1, iterations=1)
    assert {register for operands in ones.operands for register in operands} == {ONES}
    ran, _ = computed(unit, ones=0, iterations=1)
    other, _ = computed(unit, ones=0, iterations=1, thread=6)
    used = {operands[:4] for operands in ran.operands}
    assert len(used) == 1
    pairs = {operands[4:] for operands in ran.operands}
    registers = [int(register) for operands in (*used, *pairs) for register in operands]
    assert len(registers) == len(set(registers)) == 4 + 4 * 2
    numbers = [number for register in registers for number in halves(register)]
    assert all(1 <= abs(number) < 2 for number in numbers)
    assert {number > 0 for number in numbers} == {True, False}
    assert {register for operands in other.operands for register in operands}.isdisjoint(registers)
    assert bits_of(registers) == SIGN_AND_FRACTION
    for tile in range(k.SYNC_TILES):
        used_pairs = Counter(operands[4:] for operands in ran.operands[tile :: k.SYNC_TILES])
        assert set(used_pairs) == pairs, tile
        assert len(set(used_pairs.values())) == 1, tile


def tiles_of_group() -> tuple[int, int, int]:
    """Return the bytes of a row (one swizzle of 128), of the tile A of a group and of the tile B."""
    (name,) = {name for name in computed(COMPUTE[2], ones=1, iterations=1)[0].counts if "mma_async" in name}
    rows, columns, _ = shape(name)
    return 128, rows * 128, columns * 128


@pytest.mark.parametrize("thread", [0, 1, k.GROUP_THREADS - 1])
def test_shared_memory_is_filled(thread: int) -> None:
    """By all threads together, each with every 256th word."""
    _, a, b = tiles_of_group()
    kernel = kernel_of(COMPUTE[2])
    assert kernel.shared == 2 * a + b
    ones, _ = computed(COMPUTE[2], ones=1, iterations=1, thread=thread)
    tiles = min(ones.stored) - 4 * thread
    expected = [tiles + 4 * word for word in range(thread, kernel.shared // 4, k.GROUP_THREADS)]
    assert sorted(ones.stored) == expected
    assert set(ones.stored.values()) == {ONES}
    ran, _ = computed(COMPUTE[2], ones=0, iterations=1, thread=thread)
    assert sorted(ran.stored) == expected
    assert len(set(ran.stored.values())) > len(expected) // 2
    assert all(1 <= abs(number) < 2 for register in ran.stored.values() for number in halves(register))
    assert bits_of(ran.stored.values()) == SIGN_AND_FRACTION


@pytest.mark.parametrize("thread", [0, 127, 128, 255])
def test_descriptors_of_tiles(thread: int) -> None:
    """PTX ISA, "Matrix Descriptor Format": bits 0-13 address, 16-29 leading offset, 32-45 stride, 62-63 swizzle."""
    row, a, _ = tiles_of_group()
    ran, _ = computed(COMPUTE[2], ones=1, iterations=1, thread=thread)
    tiles = ran.registers["tiles"]
    group = thread // (4 * WARP)
    starts = (tiles + group * a, tiles + 2 * a)
    depth = 16
    for step, descriptors in enumerate(ran.operands):
        for start, descriptor in zip(starts, map(int, descriptors), strict=True):
            assert 16 * (descriptor & 0x3FFF) == start + step % (row // (2 * depth)) * 2 * depth
            assert descriptor >> 16 & 0x3FFF == 1  # not used with this swizzle
            assert 16 * (descriptor >> 32 & 0x3FFF) == 8 * row
            assert descriptor >> 62 == 1  # of 128 bytes
            assert descriptor >> 46 & 0xFFFF == 0
    uses = Counter(ran.operands)
    assert len(uses) == row // (2 * depth)
    assert len(set(uses.values())) == 1
