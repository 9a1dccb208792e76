"""Gives back what NVIDIA's library clears when it starts: of 18 MiB (driver 580), 13 are pages of zeros."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from gpu_exporter.sources.nvml.driver import library_mapping

# elf.h: Elf64_Ehdr has the table of segments at byte 32, and the size and number of its entries at 54.
ELF64, ENTRIES_AT, SIZES_AT, ENTRY, PT_LOAD = b"\x7fELF\x02", 32, 54, "=IIQQQQQQ", 1
ZEROS = bytes(mmap.PAGESIZE)


def give_back(procfs: Path) -> None:
    """Give the pages of the library's variables that are all zeros back to the system, which has new ones for who
    writes there. Never raises.

    No thread of this process may be inside the library: what it wrote to such a page meanwhile would be lost.
    """
    with suppress(OSError, ValueError, AttributeError, struct.error):
        mapping = library_mapping(procfs)
        # PyDLL keeps other threads of Python out, as the comparison does.
        madvise = ctypes.PyDLL(None).madvise
        for first, last in _uninitialised(int(mapping.partition("-")[0], 16)) if mapping else ():
            for cleared, pages in groupby(range(first, last, mmap.PAGESIZE), _cleared):
                found = list(pages) if cleared else ()
                if found:
                    size = ctypes.c_size_t(len(found) * mmap.PAGESIZE)
                    madvise(ctypes.c_void_p(found[0]), size, mmap.MADV_DONTNEED)


def _cleared(page: int) -> bool:
    return ctypes.string_at(page, mmap.PAGESIZE) == ZEROS


def _uninitialised(base: int) -> Iterator[tuple[int, int]]:
    """First and last address of the whole pages of a library that come from no file (.bss)."""
    if ctypes.string_at(base, len(ELF64)) != ELF64:
        return
    (entries,) = struct.unpack("=Q", ctypes.string_at(base + ENTRIES_AT, 8))
    size, number = struct.unpack("=HH", ctypes.string_at(base + SIZES_AT, 4))
    for at in range(base + entries, base + entries + number * size, size):
        kind, _, _, address, _, in_file, in_memory, _ = struct.unpack(
            ENTRY, ctypes.string_at(at, struct.calcsize(ENTRY))
        )
        if kind == PT_LOAD and in_memory > in_file:
            first, last = base + address + in_file, base + address + in_memory
            yield -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
