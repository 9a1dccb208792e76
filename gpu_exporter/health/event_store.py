"""Where events outlive the process: `events.json` to go on counting from, `events.jsonl` as their history."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from gpu_exporter.file_access import FileWorker, open_regular, read
from gpu_exporter.health.events import Event, EventLog

log = logging.getLogger(__name__)

# The history is turned over at this size, and one older file is kept.
LARGEST = 1 << 20
LARGEST_STATE = 64 << 20


class EventStore:
    """A directory. What can't be read or written there in time is said in the log once, and costs nothing else."""

    def __init__(self, directory: Path) -> None:
        self._state = directory / "events.json"
        self._history = directory / "events.jsonl"
        self._worker = FileWorker("state")
        self._unread = False
        self._complained = ""

    def load(self, events: EventLog) -> None:
        """Restore the saved state. A malformed file is put aside, and counts start anew."""
        try:
            content = self._worker.call(lambda: read(self._state, LARGEST_STATE))
            events.restore(json.loads(content)["events"])
        except FileNotFoundError:
            return
        except OSError as error:
            self._unread = isinstance(error, TimeoutError)
            self._complain(f"{self._state}: {error.strerror}; Xids are counted from what the kernel log still has")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError):
            aside = self._aside().name
            self._complain(f"{self._state} is not a state of this exporter: put aside as {aside}, counting anew")
            with contextlib.suppress(OSError):
                self._worker.call(self._put_aside)

    def _aside(self) -> Path:
        return self._state.with_suffix(".bad")

    def _put_aside(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._state, self._aside())

    def waits(self, events: EventLog, settled_before: float) -> bool:
        """Whether there are settled events to write."""
        return bool(events.unwritten(settled_before))

    def save(self, events: EventLog, settled_before: float) -> None:
        """Write the state atomically, and append events older than `settled_before` (unix time) to the history.

        A failed write is retried at the next call.
        """
        events.changed = False
        try:
            self._worker.call(lambda: self._save(events, settled_before))
        except OSError as error:
            events.changed = True
            self._complain(f"{self._state.parent}: {error.strerror}; Xids are not kept over a restart (--state-dir)")
        else:
            self._complained = ""

    def _save(self, events: EventLog, settled_before: float) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        settled = events.unwritten(settled_before)
        self._append(settled)
        for event in settled:
            event.written = True
        if self._unread:  # it could not be read in time: what it counted must not be lost
            self._put_aside()
            self._unread = False
        draft = self._state.with_suffix(".draft")
        with os.fdopen(open_regular(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(json.dumps({"events": events.state()}).encode())
        os.replace(draft, self._state)

    def _append(self, events: Sequence[Event]) -> None:
        lines = "".join(json.dumps(event.shown()) + "\n" for event in events).encode()
        if not lines:
            return
        size = self._history.stat().st_size if self._history.exists() else 0
        if size and size + len(lines) > LARGEST:
            os.replace(self._history, self._history.with_suffix(".jsonl.1"))
            size = 0
        try:
            descriptor = open_regular(self._history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(descriptor, "ab", buffering=0) as file:
                if file.write(lines) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):  # half a line would corrupt the next one
                os.truncate(self._history, size)
            raise

    def _complain(self, message: str) -> None:
        if message != self._complained:
            log.warning("%s", message)
        self._complained = message
