"""A thread that follows the kernel log, adds its XIDs to the event log, and saves that over a restart."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from gpu_exporter.health.event_store import EventStore
from gpu_exporter.health.events import EventLog
from gpu_exporter.health.kernel_log_reader import KernelLog, Logged, Start

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
# After this time both witnesses have reported an event, and it is written to the history.
SETTLED_SECONDS = 10.0
# By how much the clock may have been set since the kernel wrote a line.
SLACK_SECONDS = 60.0
# How long the end waits for the kernel log to be read once more.
STOP_SECONDS = 0.7


class KernelWatch(threading.Thread):
    """Reads the log of this boot, or from the stored position on, and then follows it."""

    def __init__(
        self, events: EventLog, path: Path | None, store: EventStore | None, *, procfs: Path = Path("/proc")
    ) -> None:
        super().__init__(name="kernel-log", daemon=True)
        self._events = events
        self._store = store
        if store:
            store.load(events)
        self._log = KernelLog(path, events.position or Start.FIRST, procfs=procfs) if path else None
        self._booted_at = time.time() - time.monotonic()
        self._resumed = events.position is not None
        self._caught_up, self._polled_at = False, 0.0
        self._stopping = threading.Event()
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why the log cannot be read; empty if it can."""
        return self._log.reason if self._log else "switched off"

    def run(self) -> None:
        while True:
            try:
                self.poll()
            except Exception:
                log.exception("kernel log: unexpected error, please report it")
            if self._stopping.wait(INTERVAL_SECONDS):
                break
        if self._log:
            self._log.close()
        if self._store:
            self._store.save(self._events, time.time())

    def poll(self) -> None:
        """Add the new entries of the log to the events, and save these."""
        entries = self._log.read() if self._log else []
        now = time.time()
        if self.reason != self._reason:
            self._reason = self.reason
            if self._log:
                log.info("kernel log: %s", self._reason or f"{self._log.path} is read")
        for entry in entries:
            at = self._time(entry, now)
            if at is not None:
                self._events.logged(entry, at)
        self._events.position = self._log.position if self._log else None
        self._caught_up, self._polled_at = (
            True,
            max(self._polled_at, now),
        )  # a clock set back must not separate the reports of two witnesses
        self._events.kernel_up, self._events.missed = not self.reason, self._log.missed if self._log else 0
        if self._store and (self._events.changed or self._store.waits(self._events, now - SETTLED_SECONDS)):
            self._store.save(self._events, now - SETTLED_SECONDS)

    def _time(self, entry: Logged, now: float) -> float | None:
        """Unix time of an entry; None if it may be of an earlier boot: a line without year and zone in the first poll.

        An entry that the last poll did not contain is newer than that, however far the kernel's clock has drifted.
        """
        if self._caught_up:
            return max(min(entry.at or now, now), self._polled_at)
        if entry.at is None:
            return now if self._resumed else None
        return entry.at if self._resumed or entry.at >= self._booted_at - SLACK_SECONDS else None

    def stop(self) -> None:
        """Stop, and save what has not been saved yet."""
        self._stopping.set()
        self.join(STOP_SECONDS)
        if self._store and self.is_alive():  # the kernel log hangs
            self._store.save(self._events, time.time())
