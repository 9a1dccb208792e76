"""The socket `dynolog`, on which PyTorch's profilers (Kineto) ask for traces, and the messages on it.

A datagram is a size, a type of 32 bytes and a body, in the byte order of the machine. Structures and names are those of
`ipcfabric/FabricManager.h`, `IpcFabricConfigClient.cpp` and `Config.cpp` of libkineto.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError

_HEAD = struct.Struct("=Q32s")
_CONTEXT = struct.Struct("=iiq")
_REQUEST = struct.Struct("=iiq")
# A process names itself and its ancestors.
MOST_PIDS = 64
MOST_BYTES = _HEAD.size + _REQUEST.size + 4 * MOST_PIDS
CONTEXT, REQUEST = "ctxt", "req"
# The bit of a request that asks for a trace. It is missing while the process is being profiled already.
_ACTIVITIES = 2


@dataclass(frozen=True, slots=True)
class Registration:
    """A process says that its profiler is ready to be asked; the reply is how many processes have done so."""

    gpu: int
    pid: int


@dataclass(frozen=True, slots=True)
class Poll:
    """A process asks for a configuration, every few seconds. Its PIDs are of its own PID namespace."""

    pids: tuple[int, ...]
    accepts: bool


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What to record: for how many seconds, and what of the options of `torch.profiler`.

    `activities` are types of Kineto, such as `kernel` and `cuda_runtime`; none means its defaults. The profiler is
    switched on `warm_up` seconds before the recording, a whole number.
    """

    seconds: float = 0.5
    stacks: bool = True
    shapes: bool = False
    activities: tuple[str, ...] = ()
    warm_up: int = 2


def decode(datagram: bytes) -> Registration | Poll:
    """Return the message in a datagram. Raises ValueError if it is none that libkineto sends."""
    if len(datagram) < _HEAD.size:
        raise ValueError(f"{len(datagram)} bytes are too few for a message")
    size, name = _HEAD.unpack_from(datagram)
    body = datagram[_HEAD.size :]
    if size != len(body):
        raise ValueError(f"its size is {len(body)} bytes, not {size} as it says")
    kind = name.partition(b"\0")[0]
    if kind == CONTEXT.encode() and len(body) == _CONTEXT.size:
        gpu, pid, _ = _CONTEXT.unpack(body)
        return Registration(gpu, pid)
    if kind == REQUEST.encode() and len(body) >= _REQUEST.size:
        wanted, count, _ = _REQUEST.unpack_from(body)
        if not 0 <= count <= MOST_PIDS or len(body) != _REQUEST.size + 4 * count:
            raise ValueError(f"it names {count} PIDs in {len(body)} bytes")
        return Poll(struct.unpack_from(f"={count}i", body, _REQUEST.size), bool(wanted & _ACTIVITIES))
    raise ValueError(f"a message of type {printable(kind.decode('ascii', 'replace'), 32)!r} has {len(body)} bytes")


def encode(kind: str, body: bytes) -> bytes:
    """Return a datagram with this type and body."""
    return _HEAD.pack(len(body), kind.encode()) + body


def registered(count: int) -> bytes:
    """Return the reply to a registration."""
    return encode(CONTEXT, struct.pack("=i", count))


def configuration(text: str) -> bytes:
    """Return the reply to a poll: a configuration, or nothing to do if it is empty."""
    return encode(REQUEST, text.encode())


def trace_configuration(options: TraceOptions, path: str, start: float | None = None) -> str:
    """Return the configuration that requests a trace.

    `path` ends in .json, before which the process inserts its PID. `start` is in seconds of Unix time; without it the
    recording begins after the warm-up.
    """
    lines = [
        f"ACTIVITIES_LOG_FILE={path}",
        f"PROFILE_START_TIME={round(start * 1000) if start else 0}",
        f"ACTIVITIES_DURATION_MSECS={max(1, round(options.seconds * 1000))}",
        f"ACTIVITIES_WARMUP_PERIOD_SECS={options.warm_up}",
        f"PROFILE_WITH_STACK={_boolean(options.stacks)}",
        f"PROFILE_REPORT_INPUT_SHAPES={_boolean(options.shapes)}",
    ]
    if options.activities:
        lines.append(f"ACTIVITY_TYPES={','.join(options.activities)}")
    return "\n".join(lines) + "\n"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


NAME = "dynolog"
# libkineto binds and sends to names of abstract sockets that end with a null byte.
ABSTRACT = f"\0{NAME}\0"
_CREDENTIALS = struct.Struct("=3i")
# Processes of all users poll, each as itself: the socket gets the mode 0666.
_NOT_EVERYBODY = 0o111
MOST_PATH = 106
ANOTHER_DAEMON = "another daemon, such as dynolog, has"
OTHER_FOLDER = "stop it, or set KINETO_IPC_SOCKET_DIR in the job to a folder without one"


@dataclass(frozen=True, slots=True)
class Peer:
    """A process that sent a datagram: its PID here, its user, which the kernel vouches for, and its address."""

    pid: int
    uid: int
    address: str | bytes


class DaemonSocket:
    """The bound socket, in a `with` block: abstract, or `dynolog` in a folder that jobs have mounted.

    Raises GpuExporterError if another daemon has it, or the folder cannot be used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._path = folder / NAME if folder else None
        self._inode: tuple[int, int] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def __enter__(self) -> DaemonSocket:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._bind()
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path and self._inode:
            with suppress(OSError):
                if _inode(self._path) == self._inode:
                    self._path.unlink()
        self._socket.close()

    def receive(self, seconds: float) -> tuple[Peer, bytes] | None:
        """Return the next datagram and its sender; None if there is none within so many seconds, or it is unusable."""
        try:
            content, ancillary, flags, address = self._receive()
        except BlockingIOError:
            select.select([self._socket], [], [], max(0.0, seconds))
            try:
                content, ancillary, flags, address = self._receive()
            except BlockingIOError:
                return None
        credentials = None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
                credentials = _CREDENTIALS.unpack_from(data)
            elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                for (descriptor,) in struct.iter_unpack("=i", data[: len(data) & ~3]):
                    os.close(descriptor)
        if credentials is None or flags & socket.MSG_TRUNC or not address:
            return None
        return Peer(credentials[0], credentials[1], address), content

    def _receive(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, str | bytes]:
        return self._socket.recvmsg(MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_CMSG_CLOEXEC)

    def may_reply(self, peer: Peer) -> bool:
        """Return whether a reply is safe.

        libkineto ends its process if a reply comes from a socket whose path does not begin with its own
        KINETO_IPC_SOCKET_DIR and a slash: both must write the folder in the same way.
        """
        if self._path is None:
            return isinstance(peer.address, bytes) and peer.address.startswith(b"\0")
        return isinstance(peer.address, str) and peer.address.rpartition("/")[0] == str(self._path.parent)

    def reply(self, peer: Peer, datagram: bytes) -> bool:
        """Send a reply and return whether it was sent: never blocks, and a peer that does not read gets none."""
        if not self.may_reply(peer):
            return False
        try:
            self._socket.sendto(datagram, socket.MSG_DONTWAIT, peer.address)
        except OSError:
            return False
        return True

    def _bind(self) -> None:
        if self._path is None:
            try:
                self._socket.bind(ABSTRACT)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise GpuExporterError(f"{ANOTHER_DAEMON} the socket @dynolog", fix=OTHER_FOLDER) from None
                raise GpuExporterError(f"the socket @dynolog: {error.strerror}") from error
            return
        if len(os.fsencode(self._path)) > MOST_PATH:
            raise GpuExporterError(f"--socket-dir {self._path.parent}: the path is too long for a socket")
        self._remove_stale(self._path)
        try:
            # Not chmod: who owns the folder could replace the socket by a link in between.
            previous = os.umask(_NOT_EVERYBODY)
            try:
                self._socket.bind(str(self._path))
            finally:
                os.umask(previous)
            self._inode = _inode(self._path)
        except OSError as error:
            raise GpuExporterError(f"--socket-dir {self._path.parent}: {error.strerror}") from error

    @staticmethod
    def _remove_stale(path: Path) -> None:
        """Remove a socket without a daemon. Raises GpuExporterError if there is a daemon, or something else."""
        try:
            mode = path.lstat().st_mode
        except OSError:
            return
        if not stat.S_ISSOCK(mode):
            raise GpuExporterError(f"{path} is no socket: use another --socket-dir")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                with suppress(OSError):
                    path.unlink()
                return
            except OSError as error:
                raise GpuExporterError(f"{path}: {error.strerror}") from error
        raise GpuExporterError(f"{ANOTHER_DAEMON} {path}", fix=OTHER_FOLDER)


def _inode(path: Path) -> tuple[int, int]:
    about = path.lstat()
    return about.st_dev, about.st_ino
