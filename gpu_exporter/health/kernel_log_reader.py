"""Follows the kernel log: /dev/kmsg, or a file that syslog writes. What a line says is `kernel_log`'s to decide."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpu_exporter.health.kernel_log_parser import SxidLine, XidLine, parse, parse_kmsg

RECORD = 16384  # the kernel refuses a buffer that its record does not fit in; the longest are 8 KiB
CHUNK = 65536
LONGEST_LINE = 65536
MOST_RECORDS = 20_000
MOST_CHUNKS = 128


class Start(Enum):
    """Where to begin: with the first that is still there, or with what comes from now on."""

    FIRST = "first"
    END = "end"


@dataclass(frozen=True, slots=True)
class Position:
    """What has been read: of /dev/kmsg the boot id and the last sequence number, of a file its inode and the offset
    behind the last line. Unique for an event, and so what to deduplicate by and to resume from."""

    origin: str
    number: int


@dataclass(frozen=True, slots=True)
class Logged:
    """An (S)Xid in the log. `at` is unix time in seconds; None if a syslog line has no year or zone."""

    position: Position
    at: float | None
    line: XidLine | SxidLine


def unix_time(since_boot: float, now: float, monotonic: float) -> float:
    """Unix time of a moment `since_boot` (seconds by the kernel's clock), given both clocks now. Exact but for what the
    wall clock was stepped since."""
    return now - (monotonic - since_boot)


def boot_id(procfs: Path) -> str:
    """The id of this boot; "" if it can't be read."""
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class KernelLog:
    """The kernel log at `path`, for one thread. It never blocks and never raises: what it can't do, `reason` says.

    A path that is a character device or is called `kmsg` is read as /dev/kmsg, any other as lines of text; a file may
    be rotated and truncated. `missed` counts the records of /dev/kmsg that were overwritten before they were read.
    """

    def __init__(
        self,
        path: Path,
        start: Start | Position = Start.FIRST,
        *,
        procfs: Path = Path("/proc"),
        read: Callable[[int, int], bytes] = os.read,
        clocks: Callable[[], tuple[float, float]] = lambda: (time.time(), time.monotonic()),
    ) -> None:
        self.path = path
        self.reason = ""
        self.missed = 0
        self.position = start if isinstance(start, Position) else None
        self._end = start is Start.END
        self._procfs, self._read, self._clocks = procfs, read, clocks
        self._fd: int | None = None
        self._kmsg = False
        self._boot_id = ""
        self._partial = b""
        self._torn = False

    def read(self) -> list[Logged]:
        """The (S)Xids since the last call; at most some 20 000 records or 8 MiB are looked at in one call."""
        found: list[Logged] = []
        try:
            if self._fd is None:
                self._fd = self._open()
            if self._kmsg:
                self._records(self._fd, found)
            else:
                self._file(self._fd, found)
            self.reason = ""
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            self.reason = self._why(error)
            self.close()
        return found

    def close(self) -> None:
        """Give the file back; a later read opens it again and goes on where this one was."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd, self._partial, self._torn = None, b"", False

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            self._kmsg = stat.S_ISCHR(status.st_mode) or self.path.name == "kmsg"
            if self._kmsg:
                # Unreadable: a name of its own, lest a sequence number be compared with that of another boot.
                self._boot_id = boot_id(self._procfs) or self._boot_id or f"unknown-{time.time_ns()}"
                if self._end:
                    with contextlib.suppress(OSError):  # a pipe has no end to go to
                        os.lseek(fd, 0, os.SEEK_END)
            else:
                self._place(fd, status)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _place(self, fd: int, status: os.stat_result) -> None:
        """Go to where reading starts; another inode, or a file shorter than what was read, is a new one."""
        origin, offset = str(status.st_ino), 0
        if self._end:
            offset = status.st_size
            self._torn = offset > 0 and os.pread(fd, 1, offset - 1) != b"\n"
        elif self.position and self.position.origin == origin and self.position.number <= status.st_size:
            offset = self.position.number
        os.lseek(fd, offset, os.SEEK_SET)
        self.position, self._end = Position(origin, offset), False

    def _records(self, fd: int, found: list[Logged]) -> None:
        for _ in range(MOST_RECORDS):
            try:
                data = self._read(fd, RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten meanwhile; the next read has the oldest that is left
                continue
            if not data:
                return
            record = parse_kmsg(data)
            if record is None:
                continue
            if self.position and self.position.origin == self._boot_id:
                if record.sequence <= self.position.number:
                    continue
                self.missed += record.sequence - self.position.number - 1
            self.position, self._end = Position(self._boot_id, record.sequence), False
            line = record.found
            if line:
                now, monotonic = self._clocks()
                found.append(Logged(self.position, unix_time(record.microseconds / 1e6, now, monotonic), line))

    def _file(self, fd: int, found: list[Logged]) -> None:
        ended, replaced = self._lines(fd, found), self._replaced(fd)
        # Twice: lines may have been written between the end and the renaming.
        if ended and replaced and self._lines(fd, found):
            self.close()
            self._fd = self._open()
            self._lines(self._fd, found)

    def _lines(self, fd: int, found: list[Logged]) -> bool:
        """Look at complete lines; whether the end was reached."""
        for _ in range(MOST_CHUNKS):
            if self.position and os.fstat(fd).st_size < self.position.number + len(self._partial):
                self._restart(fd)
            chunk = self._read(fd, CHUNK)
            if not chunk:
                return True
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            for line in lines:
                self._line(line, found)
            if len(self._partial) > LONGEST_LINE:
                self._advance(len(self._partial))
                self._partial, self._torn = b"", True
        return False

    def _line(self, line: bytes, found: list[Logged]) -> None:
        position = self._advance(len(line) + 1)
        torn, self._torn = self._torn, False
        says = None if torn else parse(line.decode(errors="replace"))  # the tail of a line is not a line
        if says:
            found.append(Logged(position, says.stamp.at, says))

    def _advance(self, length: int) -> Position:
        assert self.position is not None
        self.position = Position(self.position.origin, self.position.number + length)
        return self.position

    def _restart(self, fd: int) -> None:
        """The file was truncated."""
        os.lseek(fd, 0, os.SEEK_SET)
        self._partial, self._torn = b"", False
        self.position = Position(str(os.fstat(fd).st_ino), 0)

    def _replaced(self, fd: int) -> bool:
        """Another file has the name. An empty one may wait for the writer still: until it switches, so do we."""
        try:
            new = os.stat(self.path)
        except FileNotFoundError:
            return False
        old = os.fstat(fd)
        return (new.st_dev, new.st_ino) != (old.st_dev, old.st_ino) and new.st_size > 0

    def _why(self, error: OSError | ValueError) -> str:
        kmsg = self._kmsg or self.path.name == "kmsg"
        what = f"{self.path}: {(getattr(error, 'strerror', None) or str(error)).lower()}"
        if isinstance(error, PermissionError):
            return f"{what}; " + ("run as root or with CAP_SYSLOG" if kmsg else "let this user's group read it")
        if isinstance(error, FileNotFoundError):
            return f"{what}; in a container, mount the host's"
        return what
