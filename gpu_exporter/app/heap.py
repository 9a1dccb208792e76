"""Settings that save memory in a process with many threads. C libraries other than glibc ignore those of the heap."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress

# malloc.h
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
# Larger blocks are pages and their buffers, which are freed at the next collection.
LARGE_BYTES = 64 << 10
# Of address space, which `ulimit -v` limits. The default, `ulimit -s`, is mostly 8 MiB; threads of Rust have this size.
STACK_BYTES = 2 << 20


def limit_stacks() -> None:
    """Let threads that start later have small stacks."""
    threading.stack_size(STACK_BYTES)


def share() -> None:
    """Let threads that start later share one arena: Python runs one at a time, and more arenas only retain memory.

    Large blocks are returned to the system when they are freed. By default, glibc keeps them in the heap as soon as one
    was freed, where they leave gaps.
    """
    with suppress(OSError, TypeError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def trim() -> None:
    """Return free memory to the system."""
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
