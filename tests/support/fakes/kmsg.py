"""A fake /dev/kmsg: a named pipe that keeps records apart, as the kernel does."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


class FakeKmsg:
    """Remembers the written records, so that a second reader can get them again, as from the kernel's ring."""

    def __init__(self, path: Path, boot_id: str = "") -> None:
        self.path = path
        self._records: list[bytes] = []
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK)  # a read returns one whole write

    def write(self, message: str, *, facility: int = 0, at: float | None = None) -> float:
        """Write a record, by default of the kernel's facility; return its unix time."""
        now = time.time()
        monotonic = time.monotonic() if at is None else time.monotonic() - (now - at)
        header = f"{facility << 3 | 3},{len(self._records) + 1},{int(monotonic * 1e6)},-;"
        self._records.append(f"{header}{message}\n SUBSYSTEM=pci\n".encode())
        os.write(self._fd, self._records[-1])
        return now if at is None else at

    def xid(self, code: int, rest: str = "", *, gpu: int = 0, at: float | None = None) -> float:
        """Write an XID of a GPU of the fake driver."""
        return self.write(f"NVRM: Xid (PCI:0000:{6 + gpu:02x}:00): {code}, {rest or 'text'}", at=at)

    def again(self) -> None:
        """Write all records again, as a ring returns them to a new reader."""
        for record in self._records:
            os.write(self._fd, record)
