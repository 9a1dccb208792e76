"""A thread that repeats a lookup every few seconds, with back-off while it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic

from gpu_exporter.model.lookup import LONGEST_WAIT, Incomplete, Lookup, LookupFailed, T


class Poller(threading.Thread, Generic[T]):
    """Calls `ask` every `period` seconds, and stores the answer in `lookup`. Backs off while `ask` fails."""

    def __init__(
        self, lookup: Lookup[T], ask: Callable[[], T], period: float, close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(name=f"attribution-{lookup.source}", daemon=True)
        self.lookup = lookup
        self._ask, self._period, self._close = ask, period, close
        self._stopping = threading.Event()

    def run(self) -> None:
        wait = self._period
        while True:
            try:
                self.lookup.answer(self._ask())
                wait = self._period
            except Incomplete as error:
                self.lookup.answer(error.rest)
                self.lookup.drop(error)
                wait = self._period
            except LookupFailed as error:
                self.lookup.fail(error, error.rest)
                wait = max(self._period, min(2 * wait, LONGEST_WAIT))
            except Exception:  # noqa: BLE001 - fail_unexpectedly logs it with its traceback
                self.lookup.fail_unexpectedly()
                wait = LONGEST_WAIT
            if self._stopping.wait(wait):
                break
        self._close()

    def stop(self) -> None:
        """Request the end; does not wait for a request in flight."""
        self._stopping.set()
