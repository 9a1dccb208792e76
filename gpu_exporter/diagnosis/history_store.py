"""Keeps the history of a node in `--state-dir`: a file of JSON lines for each day, `history-YYYY-MM-DD.jsonl`.

Old days are deleted: after KEPT_DAYS, and the oldest ones beyond MOST_BYTES. The first line of a file has the version
of its format; a file of a newer gpu-exporter is left as it is. A line that was cut off by a crash is skipped. Symbolic
links in place of the files are not followed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from gpu_exporter.diagnosis.kept_records import KeptIncident, KeptRecord, KeptUsage
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.file_access import InUse, lock, open_regular, open_unlinked
from gpu_exporter.io.state_version import NewerStateError, check_version

VERSION = 1
KEPT_DAYS, MOST_BYTES = 30, 16 << 20
# A file may be larger than this only if somebody else wrote it.
LARGEST_FILE = MOST_BYTES
_FILE = re.compile(r"history-\d{4}-\d\d-\d\d\.jsonl")


class HistoryStore:
    """The files of one node. The methods may block on the disk, and raise OSError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Closing its file gives up the lock.
        self._lock_held: Callable[[], object] | None = None

    def close(self) -> None:
        """Let another process write here."""
        if self._lock_held:
            self._lock_held()
            self._lock_held = None

    def append(self, at: float, lines: Sequence[bytes]) -> None:
        """Append all lines to the file of a day (unix seconds) or none, and delete what is too old or too much.

        Raises NewerStateError for a file of a newer gpu-exporter, and InUse while another process writes here.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock()
        path = self.directory / f"history-{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d}.jsonl"
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            head = b""
            if size:
                file.seek(0)
                check_version(file.readline(200) or b"{}", VERSION)
                file.seek(size - 1)
                head = b"" if file.read(1) == b"\n" else b"\n"  # ends a line that a crash cut off
            else:
                head = json.dumps({"version": VERSION}).encode() + b"\n"
                self._delete_old(path)
            content = head + b"".join(line + b"\n" for line in lines)
            try:
                if file.write(content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            except OSError:
                with suppress(OSError):  # the caller writes all of it again
                    file.truncate(size)
                raise

    def _lock(self) -> None:
        """Take the lock, which is held until `close`: what GPUs did for jobs must not be counted twice.

        Raises InUse if another process has it.
        """
        if self._lock_held:
            return
        try:
            descriptor = lock(self.directory / "history.lock")
        except BlockingIOError:
            raise InUse(self.directory) from None
        self._lock_held = weakref.finalize(self, os.close, descriptor)

    def _delete_old(self, newest: Path) -> None:
        """Delete the oldest files, so that the bytes and days are within the limits with a file of another day."""
        total = 0
        for place, path in enumerate(sorted(self._files(), reverse=True)):
            total += path.stat().st_size
            if path != newest and (place >= KEPT_DAYS or total > MOST_BYTES * (KEPT_DAYS - 1) // KEPT_DAYS):
                path.unlink()

    def _files(self) -> list[Path]:
        return [path for path in self.directory.glob("history-*.jsonl") if _FILE.fullmatch(path.name)]

    def read(self, since: float) -> Iterator[KeptRecord]:
        """Yield the records that were written from `since` on, and at most a day before, in order."""
        if not self.directory.is_dir():
            return
        first = f"history-{datetime.fromtimestamp(max(since, 0.0), timezone.utc):%Y-%m-%d}.jsonl"
        for path in sorted(self._files()):
            if path.name >= first:
                yield from _records(path)


def _records(path: Path) -> Iterator[KeptRecord]:
    with open_unlinked(path) as file:
        try:
            check_version(file.readline(200) or b"{}", VERSION)
        except NewerStateError:
            raise
        except ValueError:  # the first line was cut off
            pass
        read = 0
        for line in file:
            read += len(line)
            if read > LARGEST_FILE:
                return
            try:
                yield json_as(KeptRecord, line)
            except ValueError:  # a line that a crash cut off
                continue


def line_of(record: KeptIncident | KeptUsage) -> bytes:
    """Return the line of a record, without its end."""
    name = "incident" if isinstance(record, KeptIncident) else "usage"
    return json.dumps({name: record.as_dict()}, separators=(",", ":")).encode()
