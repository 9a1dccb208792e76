"""The Unix socket that training loops connect to. It is of the type SEQPACKET, which keeps the bounds of messages."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from gpu_exporter.model.errors import GpuExporterError

# pid, uid, gid
CREDENTIALS = struct.Struct("3i")
# Connections that wait to be accepted.
BACKLOG = 256
# A path is part of the address of a socket, which is as short as this.
MOST_PATH = 107
# Jobs run as any user.
MODE = 0o666


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the PID and the user that opened a connection; the PID is 0 if it is not visible from here."""
    pid, uid, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid


class SocketInUse(GpuExporterError):
    """Another process listens on the path, such as an exporter that is about to end."""


class JobSocket:
    """A bound socket and its file. The constructor raises GpuExporterError, and never replaces anything but a socket
    without a process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            _make_room(path)
            self.socket.bind(str(path))
            self.socket.listen(BACKLOG)
            path.chmod(MODE)
            self._file = _identity(path)
        except OSError as error:
            self.socket.close()
            raise GpuExporterError(f"--job-socket {path}: {error.strerror or error}", fix=_fix(error)) from error
        except GpuExporterError:
            self.socket.close()
            raise

    def accept(self) -> tuple[socket.socket, int, int] | None:
        """Return the next connection with the PID and the user that opened it; None if there is none now.

        The PID is 0 for a process that is not visible from this PID namespace.
        """
        try:
            connection, _ = self.socket.accept()
        except OSError:  # none waits, or this process may not open further files
            return None
        connection.setblocking(False)
        return connection, *peer(connection)

    def wake(self) -> None:
        """End a wait for the next connection, from another thread. None arrives afterwards."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this socket, not to nothing or to another file."""
        try:
            return _identity(self._path) == self._file
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the file of the socket, unless another process has replaced it."""
        with suppress(OSError):
            if self.is_in_place():
                self._path.unlink()

    def close(self) -> None:
        """Close the socket and remove its file."""
        self.remove()
        self.socket.close()


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def answers(path: Path) -> bool:
    """Return whether a process listens on a socket. Raises OSError, also if the socket is of another type."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # it does not keep up
            return True
    return True


def _make_room(path: Path) -> None:
    """Remove the socket that an earlier process left at this path."""
    if len(os.fsencode(path)) > MOST_PATH:
        raise GpuExporterError(f"--job-socket {path}: longer than {MOST_PATH} bytes", fix="use a shorter path")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise GpuExporterError(f"--job-socket {path}: exists, and is not a socket", fix="use another path or remove it")
    if not answers(path):
        path.unlink()
        return
    raise SocketInUse(f"--job-socket {path}: another process listens on it", fix="stop it, or use another path")


def _fix(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "create its directory first"
    if isinstance(error, PermissionError):
        return "make its directory writable for this user"
    return "use another path"
