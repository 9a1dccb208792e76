"""Small files written by other programs: read whole or not at all, and with a deadline."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpu_exporter.io.file_access import FileWorker
from gpu_exporter.model.lookup import LookupFailed

T = TypeVar("T")

# Systems other than Linux lack some of these flags.
FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


def read(path: Path, largest: int) -> tuple[bytes, os.stat_result] | None:
    """Return the content and status of a regular file; None for anything else.

    Raises OSError if it cannot be opened, which includes symbolic links, or has more than `largest` bytes (EFBIG).
    """
    descriptor = os.open(path, FLAGS)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return None
        content = b""
        while len(content) <= largest and (more := os.read(descriptor, largest + 1 - len(content))):
            content += more
    finally:
        os.close(descriptor)
    if len(content) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest >> 10} KiB")
    return content, about


def call_in_time(ask: Callable[[], T], files: FileWorker, what: str, seconds: float) -> T:
    """Return what `ask` returns, which reads files below `what`. Raises LookupFailed, also if that takes too long."""
    try:
        return files.call(ask, seconds)
    except TimeoutError as error:
        raise LookupFailed("timeout", f"{what}: {error.strerror}", fix="is this file system reachable?") from error
