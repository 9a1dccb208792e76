"""A thread that follows the kernel log, adds its XIDs to the event log, and saves that over a restart."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.events.kernel_log_entry import LogEntry
from gpu_exporter.events.kernel_log_reader import KernelLog
from gpu_exporter.events.xid_counts import SLACK_SECONDS, Moment, Now, read_clocks
from gpu_exporter.io.file_access import FileWorker

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
# After this time NVML and the kernel log have both reported an event, and it is written to the history.
SETTLED_SECONDS = 10.0
# A line counts as one of this boot if its date is at most this much earlier: the clock may have been set since.
BOOT_SLACK_SECONDS = 60.0
# How long the end waits for the kernel log to be read once more.
STOP_SECONDS = 0.7
# Reads after which a command stops to read a log that grows as fast as it is read.
MOST_STEPS = 200


class KernelWatch(threading.Thread):
    """Reads the log of this boot, or from the stored position on, and then follows it."""

    def __init__(
        self,
        events: EventLog,
        path: Path | None,
        store: EventStore | None,
        *,
        procfs: Path = Path("/proc"),
    ) -> None:
        super().__init__(name="kernel-log", daemon=True)
        self._events = events
        self._store = store
        if store:
            store.load(events)
        self._log = KernelLog(path, events.position, procfs=procfs) if path else None
        self._file = FileWorker("kernel-log-file")
        self._entries: list[LogEntry] = []
        self._resumed = events.position is not None
        self._caught_up, self._polled_at = False, float("-inf")
        self._stopping = threading.Event()
        self.reason = "" if path else "switched off"

    def run(self) -> None:
        while True:
            try:
                self._step()
            except Exception:
                log.exception("kernel log: unexpected error, please report it")
            if self._stopping.wait(INTERVAL_SECONDS):
                break
        if self._log:
            with contextlib.suppress(OSError):  # it hangs
                self._file.call(self._log.close, 0.1)
        if self._store:
            self._store.save(self._events, 0.0)
            self._store.close()

    def poll(self) -> None:
        """Read the log to its end, and add its entries to the events."""
        for _ in range(MOST_STEPS):
            self._step()
            if self._caught_up or self.reason:
                break

    def _step(self) -> None:
        """Add the next entries of the log to the events, and save these."""
        if self._log:
            self._poll(self._log)
        if self._store and (self._events.changed or self._store.has_unwritten(self._events, SETTLED_SECONDS)):
            self._store.save(self._events, SETTLED_SECONDS)

    def _poll(self, kernel_log: KernelLog) -> None:
        """Read the log, on another thread if it is a file, whose disk may hang. `reason` says why it cannot be read.

        Entries of a read that is late are added when it has ended.
        """
        try:
            if kernel_log.never_waits and not self.reason:  # no read is late
                self._entries.extend(kernel_log.read())
            else:
                self._file.call(lambda: self._entries.extend(kernel_log.read()))
        except OSError as error:
            self._set_reason(kernel_log, f"{kernel_log.path}: {error.strerror}")
            return
        self._set_reason(kernel_log, kernel_log.reason)
        entries, self._entries = self._entries, []
        now = read_clocks()
        for entry in entries:
            moment = self._moment(entry, now)
            if moment is not None:
                self._events.add_kernel_log_entry(entry, moment)
        self._caught_up = self._caught_up or kernel_log.at_end or bool(kernel_log.reason)
        self._polled_at = now.monotonic
        self._events.position, self._events.missed = kernel_log.position, kernel_log.missed

    def _set_reason(self, kernel_log: KernelLog, reason: str) -> None:
        self._events.kernel_up = not reason
        if reason != self.reason:
            log.info("kernel log: %s", reason or f"reading {kernel_log.path}")
        self.reason = reason

    def _moment(self, entry: LogEntry, now: Now) -> Moment | None:
        """When an entry happened. None if it may be of an earlier boot: a line without year and zone in the first poll.

        An entry that the last poll did not contain is newer than that, however far the kernel's clock has drifted.
        """
        happened, clamped = now.monotonic, False
        if entry.since_boot is not None:
            happened = entry.since_boot
        elif entry.at is not None:
            happened = now.monotonic - (now.unix - entry.at)
            clamped = happened - now.monotonic > SLACK_SECONDS
        elif not (self._caught_up or self._resumed):
            return None
        if not (self._caught_up or self._resumed) and happened < -BOOT_SLACK_SECONDS:
            return None
        happened = min(happened, now.monotonic)
        if self._caught_up:
            happened = max(happened, self._polled_at)
        return Moment(round(now.unix - (now.monotonic - happened), 6), happened, clamped)

    def stop(self) -> None:
        """Stop, and save what has not been saved yet."""
        self._stopping.set()
        self.join(STOP_SECONDS)
        if self._store and self.is_alive():  # the kernel log hangs
            self._store.save(self._events, 0.0)
