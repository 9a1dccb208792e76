"""The kernels of active checks, as PTX text that the driver compiles: `generic` for sm_80 on, `hopper` for sm_90a.

Every block of an arithmetic kernel computes the same, so a block with another checksum has run on a faulty SM.
With `ones`, all operands are 1: each accumulator is then the number of products, which checks the result absolutely.
Otherwise operands are random numbers of magnitude 1 to 2, since the power of tensor cores depends on the data.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

# Threads of a block, blocks per SM, and floating-point operations of a block per iteration.
FP32_THREADS, FP32_BLOCKS, FP32_CHAINS, FP32_STEPS = 256, 8, 8, 32
FP32_WORK = 2 * FP32_THREADS * FP32_CHAINS * FP32_STEPS
SYNC_THREADS, SYNC_BLOCKS, SYNC_TILES, SYNC_STEPS = 512, 2, 8, 8
SYNC_WORK = 2 * (16 * 8 * 16) * (SYNC_THREADS // 32) * SYNC_TILES * SYNC_STEPS
GROUP_THREADS, GROUP_BLOCKS, GROUP_ACCUMULATORS, GROUP_STEPS = 256, 1, 128, 16
# The first values of the accumulators of a thread. They differ, so that the compiler cannot compute one for another.
FP32_STARTS = tuple(map(float, range(FP32_CHAINS)))
SYNC_STARTS = tuple(float(tile) for tile in range(SYNC_TILES) for _ in range(4))
GROUP_STARTS = (0.0,) * GROUP_ACCUMULATORS
GROUP_WORK = 2 * (64 * 256 * 16) * (GROUP_THREADS // 128) * GROUP_STEPS
# Of the checksum of accumulators. 1 modulo 4: an error that 2^n of them have in common is multiplied by 2^n and an odd
# number, which leaves bits of it (31 would make the checksum 0 for 128 equal accumulators, right or wrong).
MULTIPLIER = 37
# Of the memory kernels: threads of a block, blocks per SM, and loads of 16 bytes in flight per thread.
MEMORY_THREADS, MEMORY_BLOCKS, LOADS = 256, 8, 8
# What `pattern_verify` reports: a count, then records of index (64 bits), expected and actual word.
MOST_ERRORS = 16
ERROR_BYTES = 16 + 16 * MOST_ERRORS

_ONES, _SIGN_AND_FRACTION = 0x3F803F80, 0x807F807F
# Registers that every kernel may use, and the index of the thread in its block (%thread) and in the grid (%at).
_HEAD = """
    .reg .pred %p, %q;
    .reg .b32 %h, %g, %n, %i, %thread, %cta, %dim, %sum, %x, %y;
    .reg .b64 %out, %at, %step, %end, %address, %long, %other;
    mov.u32 %thread, %tid.x;
    mov.u32 %cta, %ctaid.x;
    mov.u32 %dim, %ntid.x;
    mad.wide.u32 %at, %cta, %dim, 0;
    cvt.u64.u32 %long, %thread;
    add.u64 %at, %at, %long;
    mov.u32 %x, %nctaid.x;
    mul.wide.u32 %step, %x, %dim;
"""
_STORE_SUM = """
    shl.b64 %long, %at, 2;
    add.u64 %address, %out, %long;
    st.global.u32 [%address], %sum;
    ret;
"""


def generic() -> str:
    """Return the module that runs on every GPU since the A100 (compute capability 8.0)."""
    head = ".version 7.4\n.target sm_80\n.address_size 64\n"
    return "\n".join((head, _read(), _pattern_write(), _pattern_verify(), _fp32(), _bf16_sync()))


def hopper() -> str:
    """Return the module for compute capability 9.0: `wgmma`, without which its tensor cores do not reach their rate."""
    return "\n".join((".version 8.0\n.target sm_90a\n.address_size 64\n", _bf16_group()))


def checksum(accumulators: Sequence[float]) -> int:
    """Return what a kernel stores for a thread with these accumulators."""
    total = 0
    for value in accumulators:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        total = (total * MULTIPLIER + bits) & 0xFFFFFFFF
    return total


def word(index: int, seed: int) -> int:
    """Return the word that `pattern_write` writes at this index, in words of 32 bits."""
    mixed = (index ^ (index >> 32)) * 0x9E3779B1 & 0xFFFFFFFF
    return mixed ^ (mixed >> 15) ^ seed


def _kernel(name: str, parameters: str, threads: int, body: str) -> str:
    declared = ", ".join(
        f".param .{kind} {name}_{key}" for kind, key in (each.split() for each in parameters.split(", "))
    )
    return f".visible .entry {name}({declared})\n.maxntid {threads}, 1, 1\n{{{_HEAD}{body}}}\n"


def _load(name: str, kind: str, key: str, register: str) -> str:
    return f"    ld.param.{kind} {register}, [{name}_{key}];\n"


def _read() -> str:
    """Read `units` x 16 bytes; `units` is a multiple of all threads times LOADS."""
    name = "memory_read"
    registers = [f"%v{load}_{part}" for load in range(LOADS) for part in range(4)]
    body = f"    .reg .b32 {', '.join(registers)};\n    .reg .b64 %base;\n"
    body += (
        _load(name, "u64", "data", "%base") + _load(name, "u64", "units", "%end") + _load(name, "u64", "out", "%out")
    )
    body += "    mov.u32 %sum, 0;\n    mov.u64 %other, %at;\nNEXT:\n"
    for load in range(LOADS):
        parts = ", ".join(registers[4 * load : 4 * load + 4])
        body += (
            "    shl.b64 %long, %other, 4;\n    add.u64 %address, %base, %long;\n"
            f"    ld.global.nc.L1::no_allocate.v4.u32 {{{parts}}}, [%address];\n    add.u64 %other, %other, %step;\n"
        )
    body += "".join(f"    xor.b32 %sum, %sum, {register};\n" for register in registers)
    body += "    setp.lt.u64 %p, %other, %end;\n    @%p bra NEXT;\n"
    body += "    setp.ne.u32 %q, %sum, 0xDEADBEEF;\n    @%q ret;\n" + _STORE_SUM  # so that the loads are not removed
    return _kernel(name, "u64 data, u64 units, u64 out", MEMORY_THREADS, body)


def _words(registers: Sequence[str]) -> str:
    """Compute the four words of the unit %other with the seed %g, as `word` does."""
    body = ""
    for part, register in enumerate(registers):
        body += f"    shl.b64 %long, %other, 2;\n    add.u64 %long, %long, {part};\n"
        body += "    mov.b64 {%x, %y}, %long;\n    xor.b32 %x, %x, %y;\n    mul.lo.u32 %x, %x, 0x9E3779B1;\n"
        body += f"    shr.u32 %y, %x, 15;\n    xor.b32 %x, %x, %y;\n    xor.b32 {register}, %x, %g;\n"
    return body


def _pattern_write() -> str:
    name, registers = "pattern_write", [f"%w{part}" for part in range(4)]
    body = f"    .reg .b32 {', '.join(registers)};\n    .reg .b64 %base;\n"
    body += _load(name, "u64", "data", "%base") + _load(name, "u64", "units", "%end") + _load(name, "u32", "seed", "%g")
    body += "    mov.u64 %other, %at;\nNEXT:\n    setp.ge.u64 %p, %other, %end;\n    @%p ret;\n"
    body += _words(registers)
    body += "    shl.b64 %long, %other, 4;\n    add.u64 %address, %base, %long;\n"
    body += f"    st.global.cs.v4.u32 [%address], {{{', '.join(registers)}}};\n"
    body += "    add.u64 %other, %other, %step;\n    bra NEXT;\n"
    return _kernel(name, "u64 data, u64 units, u32 seed", MEMORY_THREADS, body)


def _pattern_verify() -> str:
    name = "pattern_verify"
    expected, actual = [f"%w{part}" for part in range(4)], [f"%v{part}" for part in range(4)]
    body = f"    .reg .b32 {', '.join((*expected, *actual))};\n    .reg .b64 %base;\n"
    body += _load(name, "u64", "data", "%base") + _load(name, "u64", "units", "%end")
    body += _load(name, "u32", "seed", "%g") + _load(name, "u64", "errors", "%out")
    body += "    mov.u64 %other, %at;\nNEXT:\n    setp.ge.u64 %p, %other, %end;\n    @%p ret;\n"
    body += "    shl.b64 %long, %other, 4;\n    add.u64 %address, %base, %long;\n"
    body += f"    ld.global.cs.v4.u32 {{{', '.join(actual)}}}, [%address];\n"
    body += _words(expected)
    for part in range(4):
        body += f"    setp.eq.u32 %p, {expected[part]}, {actual[part]};\n    @%p bra RIGHT{part};\n"
        body += "    atom.global.add.u32 %n, [%out], 1;\n"
        body += f"    setp.ge.u32 %p, %n, {MOST_ERRORS};\n    @%p bra RIGHT{part};\n"
        body += "    mul.wide.u32 %address, %n, 16;\n    add.u64 %address, %address, %out;\n"
        body += f"    shl.b64 %long, %other, 2;\n    add.u64 %long, %long, {part};\n"
        body += "    st.global.u64 [%address+16], %long;\n"
        body += (
            f"    st.global.u32 [%address+24], {expected[part]};\n    st.global.u32 [%address+28], {actual[part]};\n"
        )
        body += f"RIGHT{part}:\n"
    body += "    add.u64 %other, %other, %step;\n    bra NEXT;\n"
    return _kernel(name, "u64 data, u64 units, u32 seed, u64 errors", MEMORY_THREADS, body)


def _fp32() -> str:
    """Multiply and add: x -> a * x + b with a < 1, which converges, so that no number ever overflows."""
    name = "fp32"
    chains = [f"%c{chain}" for chain in range(FP32_CHAINS)]
    body = f"    .reg .f32 %a, %b, {', '.join(chains)};\n"
    body += (
        _load(name, "u64", "out", "%out") + _load(name, "u32", "iterations", "%i") + _load(name, "u32", "ones", "%g")
    )
    body += "    mov.f32 %a, 0f3F7FF972;\n    cvt.rn.f32.u32 %b, %thread;\n    setp.ne.u32 %q, %g, 0;\n"
    body += "    @%q mov.f32 %a, 0f3F800000;\n    @%q mov.f32 %b, 0f3F800000;\n"
    body += "".join(f"    mov.f32 {chain}, {_f32(start)};\n" for chain, start in zip(chains, FP32_STARTS, strict=True))
    body += "NEXT:\n"
    body += "".join(f"    fma.rn.f32 {chain}, {chain}, %a, %b;\n" for _ in range(FP32_STEPS) for chain in chains)
    body += _loop() + _sum(chains) + _STORE_SUM
    return _kernel(name, "u64 out, u32 iterations, u32 ones", FP32_THREADS, body)


def _f32(value: float) -> str:
    """Return a number as PTX writes it."""
    return f"0f{struct.pack('>f', value).hex().upper()}"


def _loop() -> str:
    return "    sub.u32 %i, %i, 1;\n    setp.ne.u32 %p, %i, 0;\n    @%p bra NEXT;\n"


def _sum(accumulators: Sequence[str]) -> str:
    """Compute the checksum of a thread, as `checksum` does."""
    body = "    mov.u32 %sum, 0;\n"
    for register in accumulators:
        body += f"    mov.b32 %x, {register};\n    mad.lo.u32 %sum, %sum, {MULTIPLIER}, %x;\n"
    return body


def _operand(register: str, salt: int) -> str:
    """Fill a register with two bf16 numbers that depend on %y; with %q, with ones."""
    body = f"    mad.lo.u32 %x, %y, 0x85EBCA6B, {salt * 0x9E3779B1 & 0x7FFFFFFF};\n"
    body += "    shr.u32 %h, %x, 15;\n    xor.b32 %x, %x, %h;\n    mul.lo.u32 %x, %x, 0xC2B2AE35;\n"
    body += "    shr.u32 %h, %x, 13;\n    xor.b32 %x, %x, %h;\n"
    body += f"    and.b32 %x, %x, {_SIGN_AND_FRACTION:#x};\n    or.b32 %x, %x, {_ONES:#x};\n"
    return body + f"    selp.b32 {register}, {_ONES:#x}, %x, %q;\n"


def _bf16_sync() -> str:
    """`mma.sync`: operands in registers, which is the full rate of the A100 and of Ada."""
    name = "bf16_sync"
    a = [f"%a{part}" for part in range(4)]
    b = [f"%b{part}" for part in range(8)]
    tiles = [[f"%d{tile}_{part}" for part in range(4)] for tile in range(SYNC_TILES)]
    accumulators = [register for tile in tiles for register in tile]
    body = f"    .reg .b32 {', '.join((*a, *b))};\n    .reg .f32 {', '.join(accumulators)};\n"
    body += (
        _load(name, "u64", "out", "%out") + _load(name, "u32", "iterations", "%i") + _load(name, "u32", "ones", "%g")
    )
    body += "    setp.ne.u32 %q, %g, 0;\n    mov.u32 %y, %thread;\n"
    body += "".join(_operand(register, salt) for salt, register in enumerate((*a, *b)))
    starts = zip(accumulators, SYNC_STARTS, strict=True)
    body += "".join(f"    mov.f32 {register}, {_f32(start)};\n" for register, start in starts)
    body += "NEXT:\n"
    for step in range(SYNC_STEPS):
        for number, tile in enumerate(tiles):
            d, first = ", ".join(tile), 2 * ((number + step) % 4)
            operands = f"{{{', '.join(a)}}}, {{{b[first]}, {b[first + 1]}}}"
            body += f"    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{d}}}, {operands}, {{{d}}};\n"
    body += _loop() + _sum(accumulators) + _STORE_SUM
    return _kernel(name, "u64 out, u32 iterations, u32 ones", SYNC_THREADS, body)


# A descriptor of a matrix in shared memory with the swizzle of 128 bytes, without its address: the leading offset is
# not used (1), the stride between groups of eight rows is 1024 bytes, and bits 62 and 63 are the swizzle (PTX ISA,
# "Matrix Descriptor Format"). Rows have 64 numbers of 2 bytes, so 16 columns further are 32 bytes, or 2 in its unit.
_DESCRIPTOR = 1 << 62 | (1024 >> 4) << 32 | 1 << 16
_A_BYTES, _B_BYTES = 64 * 64 * 2, 256 * 64 * 2


def _bf16_group() -> str:
    """`wgmma`: two groups of four warps, each with 64 rows of A, share 256 columns of B, all in shared memory."""
    name = "bf16_group"
    shared = 2 * _A_BYTES + _B_BYTES
    accumulators = [f"%d{number}" for number in range(GROUP_ACCUMULATORS)]
    body = f"    .shared .align 1024 .b8 tiles[{shared}];\n    .reg .f32 {', '.join(accumulators)};\n"
    body += "    .reg .b32 %tile, %group;\n    .reg .b64 %a<4>, %b<4>;\n"
    body += (
        _load(name, "u64", "out", "%out") + _load(name, "u32", "iterations", "%i") + _load(name, "u32", "ones", "%g")
    )
    body += "    setp.ne.u32 %q, %g, 0;\n    mov.u32 %tile, tiles;\n    mov.u32 %y, %thread;\nFILL:\n"
    body += _operand("%n", 7)
    body += "    shl.b32 %x, %y, 2;\n    add.u32 %x, %x, %tile;\n    st.shared.u32 [%x], %n;\n"
    body += f"    add.u32 %y, %y, {GROUP_THREADS};\n    setp.lt.u32 %p, %y, {shared // 4};\n    @%p bra FILL;\n"
    body += "    fence.proxy.async.shared::cta;\n    bar.sync 0;\n"
    # All threads of a group must have the same descriptors, in a register of the warp: hence the shuffle.
    body += "    shr.u32 %group, %thread, 7;\n    shfl.sync.idx.b32 %group, %group, 0, 31, 0xffffffff;\n"
    body += f"    mad.lo.u32 %x, %group, {_A_BYTES}, %tile;\n" + _descriptors("%x", "%a")
    body += f"    add.u32 %x, %tile, {2 * _A_BYTES};\n" + _descriptors("%x", "%b")
    body += "".join(f"    mov.f32 {register}, 0f00000000;\n" for register in accumulators)
    body += "    setp.eq.u32 %p, %thread, %thread;\nNEXT:\n    wgmma.fence.sync.aligned;\n"
    for step in range(GROUP_STEPS):
        body += f"    wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {{{', '.join(accumulators)}}},"
        body += f" %a{step % 4}, %b{step % 4}, 1, 1, 1, 0, 0;\n"
    body += "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n"
    body += _loop() + _sum(accumulators) + _STORE_SUM
    return _kernel(name, "u64 out, u32 iterations, u32 ones", GROUP_THREADS, body)


def _descriptors(address: str, prefix: str) -> str:
    """Compute the descriptors of four steps of 16 columns, for a tile at this address in shared memory."""
    body = f"    and.b32 %h, {address}, 0x3FFFF;\n    shr.u32 %h, %h, 4;\n    cvt.u64.u32 {prefix}0, %h;\n"
    body += f"    or.b64 {prefix}0, {prefix}0, {_DESCRIPTOR:#x};\n"
    return body + "".join(f"    add.u64 {prefix}{step}, {prefix}0, {2 * step};\n" for step in range(1, 4))
