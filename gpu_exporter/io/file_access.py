"""Access to files that may hang or be something else than files: a slow disk, a lost NFS server, a FIFO."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import BinaryIO, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

# The longest that reading or writing a file may take.
FILE_SECONDS = 5.0
# After a failed write, such as to a full disk, the next attempt comes so much later.
RETRY_SECONDS = 60.0


def cause(error: Exception) -> str:
    """Return why a file cannot be used, without its name and the number of the error."""
    return getattr(error, "strerror", None) or str(error)


def open_regular(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file. Raises OSError at once for anything else, such as a FIFO."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO without a reader, or a socket
            raise OSError(errno.EINVAL, "not a regular file") from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "a directory, not a regular file")
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def open_unlinked(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError at once for anything else, also for a symbolic link."""
    return os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")


def read(path: Path, most: int) -> bytes:
    """Return the content of a regular file. Raises OSError, also if it has more than `most` bytes."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB")
    return content


class ProblemLog:
    """Logs a problem when it begins, not while it lasts. `current` is the problem; empty if there is none."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self.current = log, ""

    def report(self, problem: str) -> None:
        """Take note of a problem; with an empty text, that there is none any more."""
        if problem and problem != self.current:
            self._log.warning("%s", problem)
        self.current = problem


def refuse_unwritable(path: Path) -> None:
    """Raise OSError, which names the file, unless it can be written: before the work whose result it will have."""
    where = path if path.exists() else path.parent
    if path.is_dir():
        problem = errno.EISDIR
    elif not where.exists():
        problem = errno.ENOENT
    elif where != path and not where.is_dir():
        problem = errno.ENOTDIR
    elif not os.access(where, os.W_OK):
        problem = errno.EROFS if os.statvfs(where).f_flag & os.ST_RDONLY else errno.EACCES
    else:
        return
    raise OSError(problem, os.strerror(problem), str(path))


class InUse(OSError):
    """Another process uses a directory whose files have one writer."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"{directory}: another gpu-exporter uses this state directory: XIDs, incidents and what GPUs did for jobs"
            " are not saved until it ends; if it is to run on, give one of them another --state-dir"
        )


class WaitingWriters:
    """Which writers of this process wait for another one that uses their directory. The first one says so."""

    def __init__(self) -> None:
        self._writers: set[object] = set()

    def add(self, writer: object, error: InUse) -> None:
        """Log the error, unless a writer waits already."""
        if not self._writers:
            log.warning("%s", error)
        self._writers.add(writer)

    def remove(self, writer: object) -> None:
        """Note that a writer does not wait."""
        self._writers.discard(writer)


def lock(path: Path) -> int:
    """Return a descriptor that has the lock of a file until it is closed. A file system without locks grants it to all.

    Raises BlockingIOError if another process has it. Follows no link.
    """
    import fcntl  # Windows has none, and serves nothing

    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass
    return descriptor


class FileWorker:
    """Runs accesses to files one at a time, on a thread beside the caller, which waits only until a deadline."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._free = threading.Lock()
        self._overdue = False

    def call(self, access: Callable[[], T], seconds: float = FILE_SECONDS) -> T:
        """Return or raise what `access` does. Raises TimeoutError if that takes longer.

        An access that is late keeps running; while it hangs, other calls fail at once.
        """
        end = time.monotonic() + seconds
        late = TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:g} s")
        if not self._free.acquire(timeout=0.0 if self._overdue else seconds):
            raise late
        self._overdue = False
        outcome: futures.Future[T] = futures.Future()
        try:
            threading.Thread(target=self._run, args=(access, outcome), name=self._name, daemon=True).start()
        except RuntimeError as error:  # no thread can be started
            self._free.release()
            raise OSError(errno.EAGAIN, str(error)) from error
        try:
            return outcome.result(max(0.0, end - time.monotonic()))
        except futures.TimeoutError:
            if outcome.done():
                raise
            self._overdue = True
            raise late from None

    def _run(self, access: Callable[[], T], outcome: futures.Future[T]) -> None:
        try:
            result = access()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._finish()
            outcome.set_exception(error)
        else:
            self._finish()
            outcome.set_result(result)

    def _finish(self) -> None:
        self._overdue = False
        self._free.release()


PRIVATE = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600, whatever mode an existing one had. Follows no link. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, PRIVATE)
            os.ftruncate(descriptor, 0)
        file.write(content)


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader sees its old or its new content. Raises OSError, which names the file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
