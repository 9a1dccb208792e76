"""Whether the driver's library can be used. The connect thread writes it; the workers and the clock read it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.source import Source
from gpu_exporter.pipeline.hand_over import HandOverState

log = logging.getLogger(__name__)

NOT_ANSWERED = "the library has not answered yet"


class DriverConnection:
    """The state of the connection to a source's library.

    `up`: the library can be used. `paused`: no read may begin, because the library is about to be reopened.
    `generation` counts how often all handles became invalid; when it changes, a worker releases its handle.
    `reason` is why the library is down, as a label value. `called_at` is since when a call about no single GPU has been
    in progress (monotonic seconds). `stopping` is set when the collector stops.
    """

    def __init__(self, source: Source, stopping: threading.Event) -> None:
        self.source = source
        self.stopping = stopping
        self.up = False
        self.paused = False
        self.generation = 0
        self.reason = "no_answer"
        self.called_at: float | None = None
        self.hand_over_state = HandOverState(self.wake)
        self._error: SourceLost | None = None
        self._logs_failures = False
        self._lock = threading.Lock()
        self._attempted = threading.Event()
        self._woken = threading.Event()

    def problem(self) -> str:
        """Return why the library can't be used, in one line; empty if it can."""
        return "" if self.up else str(self.error())

    def error(self) -> SourceLost:
        """Return the last reason why the library can't be used, as an error to raise."""
        return _copy(self._error) if self._error else SourceLost(NOT_ANSWERED, "no_answer")

    @property
    def released(self) -> bool:
        """Whether a hand-over was requested and has not ended."""
        return self.hand_over_state.hand_over is not None

    # --- any thread -----------------------------------------------------------------------------------------------

    def lost(self, generation: int, error: SourceLost) -> None:
        """Report that a read of this generation found the library dead. Only the first report of a generation
        counts."""
        with self._lock:
            if not self.up or generation != self.generation:
                return
            self._down(error)
        self.wake()

    def wake(self) -> None:
        """Run the connect thread now, because something has changed."""
        self._woken.set()

    def await_attempt(self, timeout: float) -> bool:
        """Wait for the first attempt to open the library. Return False if that takes longer than `timeout` seconds."""
        return self._attempted.wait(timeout)

    def log_late(self, seconds: float) -> None:
        """Log that the library has not answered for this long since the start. From now on, every failure is logged."""
        with self._lock:
            self._logs_failures, error = True, self._error
            self._error = self.error()
        log.warning(
            "source %s: %s; GPU metrics follow as soon as it answers",
            self.source.name,
            error or f"the driver's library has not answered for {seconds:g} s",
        )

    # --- the connect thread ---------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Note that the library answers."""
        if self._error:
            log.info("source %s answers", self.source.name)
        self.up, self._error = True, None

    def failed(self, error: SourceLost) -> None:
        """Note that the library does not answer."""
        with self._lock:  # a worker may notice at the same time, which is the same change of state
            self._down(error)

    def invalidate(self) -> None:
        """Mark all handles as invalid. There are no new ones until the library is opened."""
        self.generation += 1
        self.up = False

    def begin_hand_over(self) -> None:
        """Note that the library is about to be closed for a hand-over."""
        if self.up:
            self._error = SourceLost(NOT_ANSWERED, "no_answer")

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Note that a call about no single GPU is in progress."""
        self.called_at = time.monotonic()
        try:
            yield
        finally:
            self.called_at = None

    def sleep(self, timeout: float) -> None:
        """End an attempt, and wait until something changes, at most `timeout` seconds."""
        self._attempted.set()
        self._woken.wait(timeout)
        self._woken.clear()

    def _down(self, error: SourceLost) -> None:
        # The caller of `start` reports the first failure, if it waits that long.
        if str(error) != str(self._error) and (self._logs_failures or self._attempted.is_set()):
            log.warning("source %s is down: %s", self.source.name, error)
        self.up, self._error, self.reason = False, _copy(error), error.reason


def _copy(error: SourceLost) -> SourceLost:
    """Return the error without its traceback, which would keep the frames of the failed call alive."""
    return SourceLost(error.message, error.reason, fix=error.fix)
