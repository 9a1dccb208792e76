"""The Unix datagram socket that training loops send to."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.job_message import MOST_BYTES

# pid, uid, gid
CREDENTIALS = struct.Struct("3i")
# A path is part of the address of a socket, which is as short as this.
MOST_PATH = 107
# Jobs run as any user.
MODE = 0o666


class JobSocket:
    """A bound socket and its file. The constructor raises GpuExporterError, and never replaces anything but a socket
    without a process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            _make_room(path)
            self.socket.bind(str(path))
            path.chmod(MODE)
            self._inode = path.lstat().st_ino
        except OSError as error:
            self.socket.close()
            raise GpuExporterError(f"--job-socket {path}: {error.strerror or error}", fix=_fix(error)) from error
        except GpuExporterError:
            self.socket.close()
            raise

    def receive(self) -> tuple[bytes, int, int] | None:
        """Return the next datagram with the PID and the user of its sender; None if there is none now.

        The PID is 0 for a process that is not visible from this PID namespace. Of a datagram that is too large, one
        byte more than allowed is returned.
        """
        try:
            content, ancillary, _, _ = self.socket.recvmsg(MOST_BYTES + 1, socket.CMSG_SPACE(CREDENTIALS.size))
        except (BlockingIOError, InterruptedError):
            return None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) == CREDENTIALS.size:
                pid, uid, _ = CREDENTIALS.unpack(data)
                return content, pid, uid
        return content, 0, -1

    def wake(self) -> None:
        """End a wait for the next datagram, from another thread. None arrives afterwards."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the socket, and remove its file unless another process has replaced it."""
        self.socket.close()
        with suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()


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
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise GpuExporterError(f"--job-socket {path}: another process listens on it", fix="use another path")


def _fix(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "create its directory first"
    if isinstance(error, PermissionError):
        return "make its directory writable for this user"
    return "use another path"
