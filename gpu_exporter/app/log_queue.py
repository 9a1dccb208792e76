"""A bounded queue in front of stderr or stdout: if nobody reads it, lines are lost, but no thread waits."""

from __future__ import annotations

import copy
import logging
import os
import select
import threading
from logging.handlers import QueueHandler
from queue import SimpleQueue

# Log lines that may wait for their reader. While the queue is full, further lines are dropped.
QUEUED_LINES = 1000
# How long a command waits at its end until the last lines are written.
LAST_LINES_SECONDS = 0.3
DROPPED = "%d log lines were dropped because stderr was not read in time"


class LogQueue(QueueHandler):
    """Writes log records to a file descriptor from a thread of its own, so that no other thread waits.

    The thread holds no lock while it writes, so that nothing else can wait for a write that never ends. The queue is
    reentrant: a destructor may log while its thread is adding a line. The line with the words `lost` has the number of
    those that were lost before it.
    """

    queue: SimpleQueue[logging.LogRecord | threading.Event]

    def __init__(self, descriptor: int, lines: int = QUEUED_LINES, lost: str = DROPPED) -> None:
        super().__init__(SimpleQueue())
        self._descriptor, self._most, self._lost = descriptor, lines, lost
        self._refused = self._failed = self._reported = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """The number of log lines that were never written."""
        return self._refused + self._failed

    def drain(self, seconds: float = LAST_LINES_SECONDS) -> bool:
        """Wait until all lines are written, at most for this time. Return whether they are."""
        written = threading.Event()
        self.queue.put(written)
        return written.wait(seconds)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Format the message, whose arguments may change. The thread formats tracebacks, which reads source files."""
        record = copy.copy(record)
        record.msg, record.args = record.getMessage(), None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it."""
        if self.queue.qsize() < self._most:
            self.queue.put(record)
        else:
            self._refused += 1

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a record that cannot be formatted. By default, logging prints a traceback, which may block."""
        self._refused += 1

    def _run(self) -> None:
        while True:
            record = self.queue.get()
            if isinstance(record, threading.Event):
                record.set()
                continue
            if not self._write(record):
                self._failed += 1
            dropped = self.dropped
            if dropped > self._reported:
                arguments = (dropped - self._reported,)
                self._reported = dropped
                self._write(logging.LogRecord(__name__, logging.WARNING, "", 0, self._lost, arguments, None))

    def _write(self, record: logging.LogRecord) -> bool:
        """Write a line; return whether that was possible."""
        try:
            rest = f"{self.format(record)}\n".encode(errors="backslashreplace")
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # another process made stderr non-blocking
                    select.select([], [self._descriptor], [])
        except Exception:  # noqa: BLE001 - it cannot be reported, and later lines must be written
            return False
        return True
