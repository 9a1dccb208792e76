"""One thread at a time in the parts of NVML that are not thread-safe."""

from __future__ import annotations

import threading
import time

# Longer than any healthy call, shorter than the deadline of a read.
PATIENCE = 0.5


class Turn:
    """A lock around nvmlDeviceGetFieldValues and GPM, unless its holder does not come back.

    With such calls of four H200s (driver 580) overlapping, processes died of a segmentation fault in nvmlGpmMetricsGet.
    They also read behind the end of batches then (`questions.LAST_FIELD`), which kills without any overlap; since they
    don't, none has died on two H200s, taking turns or not. Other NVML clients serialise these calls, too. A holder that
    stays longer than PATIENCE is stuck in the kernel, where it races with nobody: the next one goes ahead, so that a
    wedged GPU costs the others one wait.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._holder: int | None = None
        self._since = 0.0

    def __enter__(self) -> None:
        with self._free:
            while self._holder is not None and (left := self._since + PATIENCE - time.monotonic()) > 0:
                self._free.wait(left)
            self._holder, self._since = threading.get_ident(), time.monotonic()

    def __exit__(self, *exception: object) -> None:
        with self._free:
            if self._holder == threading.get_ident():
                self._holder = None
                self._free.notify()
