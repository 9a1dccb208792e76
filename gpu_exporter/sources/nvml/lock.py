"""Locks that let one thread at a time call the driver."""

from __future__ import annotations

import threading
import time

# Longer than any healthy call, shorter than the deadline of a read.
PATIENCE = 0.5
# Longer than a healthy read of all that changes fast.
BRIEF = 0.05


class DriverLock:
    """A lock around nvmlDeviceGetFieldValues and GPM that no thread holds for longer than `patience` seconds.

    When such calls of four H200s (driver 580) overlapped, processes died of a segmentation fault in nvmlGpmMetricsGet.
    At that time, batches were also read past their end (`handle.LAST_FIELD`), which crashes without any overlap. Since
    that was fixed, no process has died on two H200s, with or without this lock. Other NVML clients serialise these
    calls, too. A holder that takes longer is stuck in the kernel, where it races with no other thread, so the next
    thread proceeds: a wedged GPU delays the others once.

    A second lock, with BRIEF, is around whole reads, because threads that call the driver at the same time spend CPU
    waiting for each other. For two H200s that are read at the same time, it saves about a tenth of a read, little more
    than the noise; it was not measured with more GPUs.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._free = threading.Condition()
        self._holder: int | None = None
        self._since = 0.0

    def __enter__(self) -> None:
        with self._free:
            while self._holder is not None and (left := self._since + self._patience - time.monotonic()) > 0:
                self._free.wait(left)
            self._holder, self._since = threading.get_ident(), time.monotonic()

    def __exit__(self, *exception: object) -> None:
        with self._free:
            if self._holder == threading.get_ident():
                self._holder = None
                self._free.notify()
