"""Saves events in `--state-dir`: `events.json` to continue the counts, `events.jsonl` as their history.

One process at a time writes them: the one that holds the lock on `events.lock`. Two overlap while a pod is replaced, so
the second one serves, and saves from the moment when the first one has ended.

Symbolic links in place of these files are not followed. Otherwise, a user who may create files in the directory could
make gpu-exporter, which often runs as root, overwrite any file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_exporter.events.event_log import LARGEST_STATE, VERSION, Event, EventLog, SavedEvents, decode
from gpu_exporter.io.file_access import FileWorker, InUse, ProblemLog, WaitingWriters, lock, open_regular
from gpu_exporter.io.state_version import NewerStateError

log = logging.getLogger(__name__)

# The history is rotated at this size, and one older file is kept.
LARGEST = 1 << 20


class EventStore:
    """A directory for events.

    Failures to read or write it are logged once and never raised; a state that cannot be read is moved aside, and
    nothing is saved beside one of a newer gpu-exporter.
    """

    def __init__(self, directory: Path, waiting: WaitingWriters | None = None) -> None:
        self._lock_file = directory / "events.lock"
        # Closing its file gives up the lock.
        self._lock_held: Callable[[], object] | None = None
        self._waited, self._waiting = False, waiting or WaitingWriters()
        self._state = directory / "events.json"
        self._history = directory / "events.jsonl"
        self._worker = FileWorker("state")
        self._unread = False
        self._is_newer = False
        self._problems = ProblemLog(log)

    def load(self, events: EventLog) -> None:
        """Restore the saved state. A file that cannot be used is moved aside, and counts start anew."""
        events.failed_writes = 0
        try:
            with contextlib.suppress(FileNotFoundError):  # the directory is made when there is something to save
                self._worker.call(self._lock)
        except InUse as error:
            self._waiting.add(self, error)
        except OSError:  # if it cannot be written, saving says so
            pass
        try:
            state = decode(self._worker.call(self._read))
            with contextlib.suppress(OSError):  # at worst, lines are repeated
                self._worker.call(lambda: self._recognise(state))
            events.restore(state)
        except FileNotFoundError:
            return
        except OSError as error:
            self._unread = True
            problem = f"{_reason(error)}; XIDs are counted from what the kernel log still has"
            self._problems.report(f"{self._state}: {problem}")
            if not isinstance(error, TimeoutError):
                self._move_aside_now()
        except NewerStateError as error:
            self._is_newer = True
            self._complain_of_newer(error)
        except ValueError as error:
            self._unread = True
            problem = f"{error}; it is moved aside to {self._aside().name}, and counts start anew"
            self._problems.report(f"{self._state}: {problem}")
            self._move_aside_now()

    def _lock(self) -> None:
        """Take the lock, which is held until `close`. Raises InUse if another process has it."""
        if self._lock_held:
            return
        try:
            descriptor = lock(self._lock_file)
        except BlockingIOError:
            self._waited = True
            raise InUse(self._state.parent) from None
        except OSError as error:
            error.filename = str(self._lock_file)
            raise
        self._lock_held = weakref.finalize(self, os.close, descriptor)

    def _take_over(self, events: EventLog) -> None:
        """Go on with the history of the process that had the lock, which saw the same events."""
        try:
            events.take_written(decode(self._read())["recent"])
        except NewerStateError:
            raise
        except (OSError, ValueError):  # at worst, lines are repeated
            pass
        self._waited = False
        log.info("%s: the other gpu-exporter has ended: XIDs are saved again", self._state.parent)

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
        except InUse as error:
            events.changed = True
            self._waiting.add(self, error)
        except NewerStateError as error:
            events.changed = True
            self._complain_of_newer(error)
        except OSError as error:
            events.changed = True
            events.failed_writes = (events.failed_writes or 0) + 1
            where = error.filename or self._state.parent
            self._problems.report(f"{where}: {_reason(error)}; XIDs are not kept over a restart (--state-dir)")
        else:
            self._problems.report("")
            self._waiting.remove(self)

    def close(self) -> None:
        """Let another process save its events here."""
        if self._lock_held:
            self._lock_held()
            self._lock_held = None

    def _save(self, events: EventLog, settled: float) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        self._lock()
        if self._waited:
            self._take_over(events)
        if self._is_newer:
            self._look_again()
        if self._unread:  # its counts must not be lost
            self._move_aside()
        if unwritten := events.unwritten(settled):
            try:
                # If the process is killed from here on, the next one looks for the lines behind this place.
                self._write_state({**events.state(), "appending": self._end_of_history()})
            finally:  # a state that cannot be written is no reason to lose the history
                self._append(unwritten)
                for event in unwritten:
                    event.written = True
        self._write_state(events.state())

    def _look_again(self) -> None:
        """Raise NewerStateError unless the state of a newer gpu-exporter has gone."""
        try:
            decode(self._read())
        except NewerStateError:
            raise
        except FileNotFoundError:
            pass
        except ValueError:
            self._unread = True
        self._is_newer = False

    def _write_state(self, state: Mapping[str, Any]) -> None:
        draft = self._state.with_suffix(".draft")
        with os.fdopen(_open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(json.dumps({"version": VERSION, "events": state}).encode())
        os.replace(draft, self._state)

    def _end_of_history(self) -> tuple[int, int]:
        """Return the inode and the size of the history; zeros if there is none."""
        try:
            status = os.stat(self._history, follow_symlinks=False)
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_size

    def _recognise(self, state: SavedEvents) -> None:
        """Mark the events that the previous process had appended to the history when it was killed.

        It may have rotated the history meanwhile: then these are in a new file. A part of a line at the end is removed.
        """
        if "appending" not in state:
            return
        inode, size = state["appending"]
        descriptor = _open(self._history, os.O_RDWR)
        with os.fdopen(descriptor, "rb+") as file:
            begin = size if os.fstat(descriptor).st_ino == inode else 0
            file.seek(begin)
            *lines, rest = file.read(2 * LARGEST).split(b"\n")
            appended = Counter(lines)
            for event in state["recent"]:
                line = _line(event)
                if not event.written and appended[line]:
                    appended[line] -= 1
                    event.written = True
            if rest:
                file.truncate(begin + sum(len(line) + 1 for line in lines))

    def _append(self, events: Sequence[Event]) -> None:
        lines = b"".join(_line(event) + b"\n" for event in events)
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

    def _complain_of_newer(self, error: NewerStateError) -> None:
        self._problems.report(f"{self._state}: {error}; until then, XIDs are not kept over a restart")


def _line(event: Event) -> bytes:
    """Return an event as a line of the history, without its end."""
    return json.dumps(event.shown()).encode()


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
