"""Whether the driver's library can be used: written by the connect thread, read by the workers and the clock."""

from __future__ import annotations

import logging
import threading

from gpu_exporter.collection.hand_over import HandOver
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.source import Source

log = logging.getLogger(__name__)

NOT_ANSWERED = "the library has not answered yet"


class Connection:
    """The state of the connection to a source's library.

    `up`: the library can be used. `paused`: no read may begin, because the library is about to be opened again.
    `generation`: counts the times that all handles became invalid; a worker gives its handle back when it changes.
    `reason`: why the library is down, as the label of a metric has it. `stopping` is set when the collector stops.
    """

    def __init__(self, source: Source, stopping: threading.Event) -> None:
        self.source = source
        self.stopping = stopping
        self.up = False
        self.paused = False
        self.generation = 0
        self.reason = "no_answer"
        self.hand_over = HandOver(self.wake)
        self._error = ""
        self._lock = threading.Lock()
        self._attempted = threading.Event()
        self._woken = threading.Event()

    def problem(self) -> str:
        """Return why the library can't be used, in one line; empty if it can."""
        return "" if self.up else self._error or NOT_ANSWERED

    @property
    def released(self) -> bool:
        """Whether somebody asked for the driver to be released, and the release is not over."""
        return self.hand_over.release is not None

    # --- any thread -----------------------------------------------------------------------------------------------

    def lost(self, generation: int, error: SourceLost) -> None:
        """Report that the library is gone, which a read of this generation noticed. Only the first report of a
        generation counts."""
        with self._lock:
            if not self.up or generation != self.generation:
                return
            self._down(error)
        self.wake()

    def wake(self) -> None:
        """Have the connect thread run now: something has changed."""
        self._woken.set()

    def await_attempt(self, timeout: float) -> bool:
        """Wait until the library was opened for the first time, or that failed. False if it takes longer."""
        return self._attempted.wait(timeout)

    # --- the connect thread ---------------------------------------------------------------------------------------

    def opened(self) -> None:
        """The library answers."""
        if self._error:
            log.info("source %s is back", self.source.name)
        self.up, self._error = True, ""

    def failed(self, error: SourceLost) -> None:
        """The library does not answer."""
        with self._lock:  # a worker may notice at the same time: that is one change of state
            self._down(error)

    def invalidate(self) -> None:
        """No handle is valid any more, and none can be had until the library is opened."""
        self.generation += 1
        self.up = False

    def begin_release(self) -> None:
        """The library is about to be closed for a release."""
        if self.up:
            self._error = NOT_ANSWERED

    def sleep(self, timeout: float) -> None:
        """End an attempt, and wait until something changes, for `timeout` seconds at most."""
        self._attempted.set()
        self._woken.wait(timeout)
        self._woken.clear()

    def _down(self, error: SourceLost) -> None:
        message = str(error)
        if message != self._error and self._attempted.is_set():  # the caller of `start` reports the first failure
            log.warning("source %s is down: %s", self.source.name, message)
        self.up, self._error, self.reason = False, message, error.reason
