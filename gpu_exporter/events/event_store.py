"""Saves events in `--state-dir`: `events.json` to continue the counts, `events.jsonl` as their history.

Symbolic links in place of these files are not followed. Otherwise, a user who may create files in the directory could
make gpu-exporter, which often runs as root, overwrite any file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from gpu_exporter.events.event_log import LARGEST_STATE, Event, EventLog, decode
from gpu_exporter.io.file_access import FileWorker, open_regular

log = logging.getLogger(__name__)

# The history is rotated at this size, and one older file is kept.
LARGEST = 1 << 20


class EventStore:
    """A directory for events.

    Failures to read or write it are logged once and never raised; a state that cannot be read is moved aside.
    """

    def __init__(self, directory: Path) -> None:
        self._state = directory / "events.json"
        self._history = directory / "events.jsonl"
        self._worker = FileWorker("state")
        self._unread = False
        self._complained = ""

    def load(self, events: EventLog) -> None:
        """Restore the saved state. A file that cannot be used is moved aside, and counts start anew."""
        try:
            events.restore(decode(self._worker.call(self._read)))
        except FileNotFoundError:
            return
        except OSError as error:
            self._unread = True
            self._complain(f"{self._state}: {_reason(error)}; XIDs are counted from what the kernel log still has")
            if not isinstance(error, TimeoutError):
                self._move_aside_now()
        except ValueError as error:
            self._unread = True
            self._complain(f"{self._state}: {error}; it is moved aside to {self._aside().name}, and counts start anew")
            self._move_aside_now()

    def _read(self) -> bytes:
        with os.fdopen(_open(self._state, os.O_RDONLY), "rb") as file:
            content = file.read(LARGEST_STATE + 1)
        if len(content) > LARGEST_STATE:
            raise ValueError(f"larger than {LARGEST_STATE >> 20} MiB")
        return content

    def _aside(self) -> Path:
        return self._state.with_suffix(".bad")

    def _move_aside_now(self) -> None:
        with contextlib.suppress(OSError):  # it is tried again before the first state is written
            self._worker.call(self._move_aside)

    def _move_aside(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._state, self._aside())
        self._unread = False

    def has_unwritten(self, events: EventLog, settled: float) -> bool:
        """Whether there are events of at least `settled` seconds ago to write."""
        return bool(events.unwritten(settled))

    def save(self, events: EventLog, settled: float) -> None:
        """Write the state atomically, and append events of at least `settled` seconds ago to the history.

        A failed write is retried at the next call.
        """
        events.changed = False
        try:
            self._worker.call(lambda: self._save(events, settled))
        except OSError as error:
            events.changed = True
            where = error.filename or self._state.parent
            self._complain(f"{where}: {_reason(error)}; XIDs are not kept over a restart (--state-dir)")
        else:
            self._complained = ""

    def _save(self, events: EventLog, settled: float) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        unwritten = events.unwritten(settled)
        self._append(unwritten)
        for event in unwritten:
            event.written = True
        if self._unread:  # its counts must not be lost
            self._move_aside()
        draft = self._state.with_suffix(".draft")
        with os.fdopen(_open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(json.dumps({"events": events.state()}).encode())
        os.replace(draft, self._state)

    def _append(self, events: Sequence[Event]) -> None:
        lines = "".join(json.dumps(event.shown()) + "\n" for event in events).encode()
        if not lines:
            return
        descriptor = self._open_history(len(lines))
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            size = os.fstat(descriptor).st_size
            try:
                if file.write(lines) < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with contextlib.suppress(OSError):  # half a line would corrupt the next one
                    os.ftruncate(descriptor, size)
                raise

    def _open_history(self, length: int) -> int:
        """Open the history to append so many bytes. If it would become too large, rotate it first."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = _open(self._history, flags)
        size = os.fstat(descriptor).st_size
        if not size or size + length <= LARGEST:
            return descriptor
        os.close(descriptor)
        os.replace(self._history, self._history.with_suffix(".jsonl.1"))
        return _open(self._history, flags)

    def _complain(self, message: str) -> None:
        if message != self._complained:
            log.warning("%s", message)
        self._complained = message


def _open(path: Path, flags: int) -> int:
    """Open a file of the state directory. Raises OSError that names it."""
    try:
        return open_regular(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        error.filename = str(path)
        raise


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a symbolic link, which is not followed"
    return str(error.strerror)
