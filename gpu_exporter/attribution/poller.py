"""A thread that looks something up every few seconds, and more rarely while there is no answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic

from gpu_exporter.model.lookup import LONGEST_WAIT, Lookup, LookupFailed, T


class Poller(threading.Thread, Generic[T]):
    """Asks every `period` seconds, and more rarely while there is no answer."""

    def __init__(
        self, told: Lookup[T], ask: Callable[[], T], period: float, close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(name=f"attribution-{told.source}", daemon=True)
        self.told = told
        self._ask, self._period, self._close = ask, period, close
        self._stopping = threading.Event()

    def run(self) -> None:
        wait = self._period
        while True:
            try:
                self.told.tell(self._ask())
                wait = self._period
            except LookupFailed as error:
                self.told.fail(error, error.rest)
                wait = max(self._period, min(2 * wait, LONGEST_WAIT))
            except Exception:  # noqa: BLE001 - it is logged there, with its place
                self.told.broke()
                wait = LONGEST_WAIT
            if self._stopping.wait(wait):
                break
        self._close()

    def stop(self) -> None:
        """End soon; who is being asked is not waited for."""
        self._stopping.set()
