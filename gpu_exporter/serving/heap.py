"""Settings of glibc's heap that save memory in a process with many threads. Other C libraries ignore them."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# malloc.h
M_ARENA_MAX = -8


def share() -> None:
    """Let threads that start later share one arena: Python runs one at a time, and more arenas only retain memory."""
    with suppress(OSError, TypeError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    """Return free memory to the system."""
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
