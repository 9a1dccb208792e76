"""The Xids that the driver tells of one GPU."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from typing import Any

import pynvml

from gpu_exporter.model.gpu import XidEvent

# A storm of more than that in a tick goes on in the next.
MOST = 1000
NO_INSTANCE = 0xFFFFFFFF


class XidWatch:
    """An event set of one GPU, looked into at each tick: no thread has to wait in the driver."""

    def __init__(self, handle: Any, pci: str, turn: AbstractContextManager[None]) -> None:
        self.since: float | None = None
        self._pci, self._turn = pci, turn
        self._set: Any = None
        now = time.time()  # before: what happens meanwhile is in the kernel log, and then of this registration
        with suppress(pynvml.NVMLError), turn:
            self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            self.since = now

    def events(self) -> list[XidEvent]:
        """Those since the last call. Never raises: a GPU that fell off the bus still tells of it."""
        found: list[XidEvent] = []
        while self.since is not None and len(found) < MOST:
            try:
                with self._turn:
                    data = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:  # a timeout, which is as it should be
                break
            if data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                instance = None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId)
                found.append(XidEvent(time.time(), self._pci, int(data.eventData), instance))
        return found

    def close(self) -> None:
        """Give the set back."""
        if self._set is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = self.since = None
