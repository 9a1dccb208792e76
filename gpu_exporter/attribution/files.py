"""Small files that others write: read whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# Other systems than Linux lack some; there is no procfs there.
FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


def read(path: Path, largest: int) -> tuple[bytes, os.stat_result] | None:
    """The bytes of a regular file of at most `largest` bytes; None of anything else.

    Raises OSError if it can't be opened, as a link can't.
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
