"""Follows the kernel log: /dev/kmsg, or a file that syslog writes. `kernel_log_parser` parses the lines."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from gpu_exporter.events.kernel_log_entry import LogEntry, LogPosition
from gpu_exporter.events.kernel_log_parser import LineJoiner, parse, parse_kmsg

RECORD = 16384  # the kernel rejects a buffer that is smaller than a record; the longest are 8 KiB
CHUNK = 65536
LONGEST_LINE = 16384  # a record of 8 KiB as JSON of the journal; longer lines are skipped
MOST_RECORDS = 20_000
MOST_CHUNKS = 128
MOST_ENTRIES = 5_000  # a forged log may consist of nothing else


def unix_time(since_boot: float, now: float, monotonic: float) -> float:
    """Return the unix time of `since_boot` (seconds by the kernel's clock), given both clocks now.

    Exact, except for steps of the wall clock since then.
    """
    return now - (monotonic - since_boot)


def boot_id(procfs: Path) -> str:
    """Return the id of this boot; "" if it cannot be read."""
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class KernelLog:
    """The kernel log at `path`, for one thread. It never blocks and never raises: `reason` says why it cannot be read.

    A path that is a character device or is called `kmsg` is read as /dev/kmsg, any other as lines of text; a file may
    be rotated and truncated. `missed` counts the records of /dev/kmsg that were overwritten before they were read.
    `first` is the number of the first record that was read. `at_end`: the last call of `read` has read the log to its
    end.
    """

    def __init__(
        self,
        path: Path,
        start: LogPosition | None = None,
        *,
        procfs: Path = Path("/proc"),
        read: Callable[[int, int], bytes] = os.read,
        clocks: Callable[[], tuple[float, float]] = lambda: (time.time(), time.monotonic()),
    ) -> None:
        self.path = path
        self.reason = ""
        self.missed, self.first = 0, 0
        self.at_end = False
        self.position = start
        self._procfs, self._read, self._clocks = procfs, read, clocks
        self._fd: int | None = None
        self._kmsg = self._device = False
        self._boot_id = ""
        self._partial = b""
        self._skip_partial_line = False
        self._joiner = LineJoiner()

    def read(self) -> list[LogEntry]:
        """Return the (S)XIDs since the last call. Reads at most 20 000 records or 8 MiB, and about 5000 (S)XIDs."""
        entries: list[LogEntry] = []
        self.at_end = False
        try:
            if self._fd is None:
                self._fd = self._open()
            if self._kmsg:
                self.at_end = self._records(self._fd, entries)
            else:
                self.at_end = self._file(self._fd, entries)
            self.reason = ""
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            self.reason = self.why(error)
            self.close()
        return entries

    @property
    def never_waits(self) -> bool:
        """Whether the next read does not wait: a device is open, not a file, whose disk may hang."""
        return self._device and self._fd is not None

    def close(self) -> None:
        """Close the file; a later read opens it again and resumes."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd, self._partial, self._skip_partial_line = None, b"", False

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            self._device = stat.S_ISCHR(status.st_mode)
            self._kmsg = self._device or self.path.name == "kmsg"
            if self._kmsg:
                # If unreadable, a unique id: sequence numbers of different boots must not be compared.
                self._boot_id = boot_id(self._procfs) or self._boot_id or f"unknown-{time.time_ns()}"
            else:
                self._place(fd, status)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _place(self, fd: int, status: os.stat_result) -> None:
        """Seek to where reading starts. Another inode, or a file shorter than what was read, is a new file."""
        origin, offset = str(status.st_ino), 0
        if self.position and self.position.origin == origin and self.position.number <= status.st_size:
            offset = self.position.number
        os.lseek(fd, offset, os.SEEK_SET)
        self.position = LogPosition(origin, offset)

    def _records(self, fd: int, entries: list[LogEntry]) -> bool:
        """Read records; return whether the end was reached."""
        for _ in range(MOST_RECORDS):
            if len(entries) >= MOST_ENTRIES:
                return False
            try:
                data = self._read(fd, RECORD)
            except BlockingIOError:
                return True
            except BrokenPipeError:  # overwritten meanwhile; the next read returns the oldest record left
                continue
            if not data:
                return True
            record = parse_kmsg(data)
            if record is None:
                continue
            if self.position and self.position.origin == self._boot_id:
                if record.sequence <= self.position.number:
                    continue
                self.missed += record.sequence - self.position.number - 1
            if self.position is None:
                self.first = record.sequence
            self.position = LogPosition(self._boot_id, record.sequence)
            line = record.xid_line
            if line:
                now, monotonic = self._clocks()
                since_boot = record.microseconds / 1e6
                entries.append(LogEntry(self.position, unix_time(since_boot, now, monotonic), line, since_boot))
        return False

    def _file(self, fd: int, entries: list[LogEntry]) -> bool:
        ended, replaced = self._lines(fd, entries), self._replaced(fd)
        # Read again: lines may have been written before the file was renamed.
        if ended and replaced and self._lines(fd, entries):
            self.close()
            self._fd = self._open()
            return self._lines(self._fd, entries)
        return ended and not replaced

    def _lines(self, fd: int, entries: list[LogEntry]) -> bool:
        """Read complete lines; return whether the end was reached."""
        for _ in range(MOST_CHUNKS):
            if len(entries) >= MOST_ENTRIES:
                return False
            if self.position and os.fstat(fd).st_size < self.position.number + len(self._partial):
                self._restart(fd)
            chunk = self._read(fd, CHUNK)
            if not chunk:
                return True
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            for line in lines:
                self._line(line, entries)
            if len(self._partial) > LONGEST_LINE:
                self._advance(len(self._partial))
                self._partial, self._skip_partial_line = b"", True
        return False

    def _line(self, line: bytes, entries: list[LogEntry]) -> None:
        position = self._advance(len(line) + 1)
        skipped, self._skip_partial_line = self._skip_partial_line or len(line) > LONGEST_LINE, False
        if skipped:  # the tail of a line is not parsed
            return
        text = line.decode(errors="replace")
        xid, joined = parse(text), self._joiner.take(text)
        if xid:
            entries.append(LogEntry(position, xid.at, xid))
        elif joined:
            entries.append(LogEntry(position, joined[1].at, joined[0]))

    def _advance(self, length: int) -> LogPosition:
        assert self.position is not None
        self.position = LogPosition(self.position.origin, self.position.number + length)
        return self.position

    def _restart(self, fd: int) -> None:
        """Begin again at the start of a file that was truncated."""
        os.lseek(fd, 0, os.SEEK_SET)
        self._partial, self._skip_partial_line = b"", False
        self.position = LogPosition(str(os.fstat(fd).st_ino), 0)

    def _replaced(self, fd: int) -> bool:
        """Whether another file has this name now. An empty one does not count: the writer may not have switched yet."""
        try:
            new = os.stat(self.path)
        except FileNotFoundError:
            return False
        old = os.fstat(fd)
        return (new.st_dev, new.st_ino) != (old.st_dev, old.st_ino) and new.st_size > 0

    def why(self, error: OSError | ValueError) -> str:
        """Return why the log cannot be read, and what to do."""
        kmsg = self._kmsg or self.path.name == "kmsg"
        what = f"{self.path}: {(getattr(error, 'strerror', None) or str(error)).lower()}"
        if isinstance(error, PermissionError):
            return f"{what}; " + ("run as root or with CAP_SYSLOG" if kmsg else "let this user's group read it")
        if isinstance(error, FileNotFoundError):
            return f"{what}; in a container, mount the host's"
        return what
