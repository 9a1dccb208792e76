"""The XIDs that the driver reports for one GPU."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from typing import Any

import pynvml

from gpu_exporter.model.gpu import XidEvent

# The most XIDs of one read; if there are more, the next read has them.
MOST = 1000
NO_INSTANCE = 0xFFFFFFFF


class XidWatch:
    """An event set of one GPU, polled at each read, so that no thread has to wait in the driver."""

    def __init__(self, handle: Any, pci: str, lock: AbstractContextManager[None]) -> None:
        self.since: float | None = None
        self._pci, self._lock = pci, lock
        self._set: Any = None
        now = time.time()  # before the registration: an XID in between must not also count from the kernel log
        with suppress(pynvml.NVMLError), lock:
            self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            self.since = now

    def events(self) -> list[XidEvent]:
        """Return the XIDs since the last call. Never raises: a GPU that fell off the bus still reports that."""
        events: list[XidEvent] = []
        while self.since is not None and len(events) < MOST:
            try:
                with self._lock:
                    data = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:  # usually a timeout: there are no more
                break
            if data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                instance = None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId)
                events.append(XidEvent(time.time(), self._pci, int(data.eventData), instance))
        return events

    def close(self) -> None:
        """Free the event set."""
        if self._set is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = self.since = None
