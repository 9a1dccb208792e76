"""Writes files that only their owner may read: profiles contain paths and names of code."""

from __future__ import annotations

import os
import stat
from pathlib import Path

PRIVATE = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600, whatever mode an existing one had. Follows no link. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, PRIVATE)
            os.ftruncate(descriptor, 0)
        file.write(content)
