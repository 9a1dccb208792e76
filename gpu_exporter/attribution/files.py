"""Small files written by other programs: read whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# Systems other than Linux lack some of these flags.
FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


def read(path: Path, largest: int) -> tuple[bytes, os.stat_result] | None:
    """Return the content and status of a regular file of at most `largest` bytes; None for anything else.

    Raises OSError if it cannot be opened; symbolic links never can.
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
    return (content, about) if len(content) <= largest else None
