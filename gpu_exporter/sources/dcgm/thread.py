"""One thread for every call into DCGM's library, with a deadline that is ours: no such call can be broken off."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gpu_exporter.model.errors import SourceLost

T = TypeVar("T")


class _Call(Generic[T]):
    """Something to do, and what came of it."""

    def __init__(self, job: Callable[[], T], patience: float) -> None:
        self.job, self.patience = job, patience
        self.begun: float | None = None
        self.done = self.given_up = False
        self.result: T | None = None
        self.error: BaseException | None = None


class Caller:
    """Does one call after the other. While one is stuck no other is begun, and whoever asks is told so at once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()
        self._waiting: deque[_Call[Any]] = deque()
        self._current: _Call[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def stuck(self) -> float:
        """For how many seconds a call that was given up has been stuck; 0 if none is."""
        current = self._current
        begun = current.begun if current and current.given_up else None
        return 0.0 if begun is None else time.monotonic() - begun

    def beat(self) -> None:
        """From within a job: it gets on, and what is late is only what it does next. Ends a job that nobody waits for.

        Raises SourceLost.
        """
        current = self._current
        if current is None:
            return
        if current.given_up:
            raise SourceLost(f"DCGM: {self._what} answered too late", "stalled")
        current.begun = time.monotonic()

    def call(self, job: Callable[[], T], patience: float) -> T:
        """Do it on the thread; wait for calls before it, and `patience` seconds for each beat of this one.

        Raises what the job raises, or SourceLost if it, or the one before it, takes too long.
        """
        call = _Call(job, patience)
        with self._changed:
            self._refuse_if_stuck()
            self._waiting.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dcgm", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            while not call.done:
                self._changed.wait(self._left())
                if not call.done:
                    self._give_up_if_late(call)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def _left(self) -> float | None:
        current = self._current
        if current is None or current.begun is None:
            return None
        return max(0.0, current.begun + current.patience - time.monotonic())

    def _give_up_if_late(self, call: _Call[Any]) -> None:
        current = self._current
        if current is None or current.begun is None or time.monotonic() < current.begun + current.patience:
            return
        current.given_up = True
        if call is not current and call in self._waiting:
            self._waiting.remove(call)
        self._refuse_if_stuck()

    def _refuse_if_stuck(self) -> None:
        if self.stuck:
            raise SourceLost(f"DCGM: {self._what} does not answer: it hangs, or its driver does", "stalled")

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if not self._changed.wait(IDLE_SECONDS) and not self._waiting:
                        self._thread = None
                        return
                call = self._current = self._waiting.popleft()
                call.begun = time.monotonic()
                self._changed.notify_all()
            try:
                call.result = call.job()
            except Exception as error:  # noqa: BLE001 - for whoever asked
                call.error = error
            with self._changed:
                self._current = None
                call.done = True
                self._changed.notify_all()


# A thread that nobody asks anything for so long ends: nothing is left of a source that was closed.
IDLE_SECONDS = 60.0
