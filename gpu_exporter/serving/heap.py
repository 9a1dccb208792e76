"""The C library's heap, where it is glibc's: what a long-lived process with many threads does without."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# malloc.h
M_ARENA_MAX = -8


def share() -> None:
    """Have threads that start later use one arena: Python's run one at a time, and more would only keep memory."""
    with suppress(OSError, TypeError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    """Give free memory back to the system."""
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
