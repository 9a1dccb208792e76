"""One thread at a time in NVML."""

from __future__ import annotations

import threading
import time

# Longer than any healthy call, shorter than the deadline of a read.
PATIENCE = 0.5
# Longer than a healthy read of all that changes fast.
BRIEF = 0.05


class Turn:
    """A lock around nvmlDeviceGetFieldValues and GPM, unless its holder does not come back.

    With such calls of four H200s (driver 580) overlapping, processes died of a segmentation fault in nvmlGpmMetricsGet.
    They also read behind the end of batches then (`questions.LAST_FIELD`), which kills without any overlap; since they
    don't, none has died on two H200s, taking turns or not. Other NVML clients serialise these calls, too. A holder that
    stays longer than `patience` is stuck in the kernel, where it races with nobody: the next one goes ahead, so that a
    wedged GPU costs the others one wait.

    Another one, with BRIEF, is around whole reads: threads that want the driver at the same time wait for each other
    there with CPU. Of two H200s, read side by side, that is a tenth of a read or so, little more than two measurements
    differ; of more GPUs it was not measured.
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
