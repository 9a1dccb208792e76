"""Each sender has its own queue, within limits."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from gpu_exporter.jobs import connections
from gpu_exporter.jobs.connections import Connections, Received
from gpu_exporter.jobs.socket_file import JobSocket
from gpu_exporter.model.job_message import MOST_BYTES

PID, UID = os.getpid(), os.getuid()


@pytest.fixture
def path() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory) / "jobs.sock"


@pytest.fixture
def exporter(path: Path) -> Iterator[Connections]:
    exporter = Connections(JobSocket(path))
    yield exporter
    exporter.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(path: Path, stack: ExitStack) -> socket.socket:
    sender = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
    sender.connect(str(path))
    return sender


def received(exporter: Connections) -> list[bytes]:
    """Accept what waits, and return what has arrived."""
    list(exporter.receive(0.0))
    return sorted(content for content, _, _ in exporter.receive(0.0))


def test_a_message_comes_with_its_sender(exporter: Connections, path: Path, stack: ExitStack) -> None:
    connect(path, stack).send(b"x")
    assert list(exporter.receive(0.0)) == []  # accepted
    assert list(exporter.receive(0.0)) == [Received(b"x", PID, UID)]


def test_a_message_that_is_too_large_is_cut(exporter: Connections, path: Path, stack: ExitStack) -> None:
    connect(path, stack).send(b"x" * (MOST_BYTES + 1000))
    assert list(map(len, received(exporter))) == [MOST_BYTES + 1]


def test_only_the_last_message_counts(exporter: Connections, path: Path, stack: ExitStack) -> None:
    """After a pause of the exporter, the older ones are about steps of long ago."""
    sender = connect(path, stack)
    for number in range(10):
        sender.send(b"%d" % number)
    assert received(exporter) == [b"9"]


def test_the_last_message_of_a_sender_that_is_gone(exporter: Connections, path: Path, stack: ExitStack) -> None:
    with connect(path, stack) as sender:
        sender.send(b"x")
    assert received(exporter) == [b"x"]
    assert not exporter._senders


def test_a_flood_fills_only_its_own_queue(exporter: Connections, path: Path, stack: ExitStack) -> None:
    flood, other = connect(path, stack), connect(path, stack)
    with suppress(BlockingIOError):
        while True:
            flood.send(b"flood")
    other.send(b"other")
    assert received(exporter) == [b"flood", b"other"]


def test_connections_of_a_process_are_limited(exporter: Connections, path: Path, stack: ExitStack) -> None:
    for number in range(10):
        sender = connect(path, stack)
        with suppress(ConnectionError):
            sender.send(b"%d" % number)
    assert received(exporter) == [b"0", b"1", b"2", b"3"]
    assert exporter.refused == 10 - connections.MOST_OF_PROCESS


@pytest.mark.parametrize("limit", ["MOST_CONNECTIONS", "MOST_OF_USER"])
def test_connections_of_a_user_and_of_all_are_limited(
    exporter: Connections, path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(connections, "MOST_OF_PROCESS", 10)
    monkeypatch.setattr(connections, limit, 2)
    for _ in range(5):
        connect(path, stack)
    received(exporter)
    assert (len(exporter._senders), exporter.refused) == (2, 3)


def test_the_limits() -> None:
    limits = (connections.MOST_CONNECTIONS, connections.MOST_OF_USER, connections.MOST_OF_PROCESS)
    assert limits == (256, 128, 4)


class Listener:
    """A listener whose connections come from the processes and users that a test sets."""

    def __init__(self, stack: ExitStack, senders: list[tuple[int, int]]) -> None:
        self.socket = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.peers: list[socket.socket] = []
        self._stack, self._senders = stack, senders

    def accept(self) -> tuple[socket.socket, int, int] | None:
        if not self._senders:
            return None
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peers.append(self._stack.enter_context(there))
        return (here, *self._senders.pop(0))

    def close(self) -> None:
        """Closed by the test."""


@pytest.mark.parametrize(
    ("senders", "kept"),
    [
        ([(7, 1000)] * 6, 4),
        ([(0, 1000)] * 6, 6),
        ([(7, 1000)] * 4 + [(7, 1001)] * 2, 6),
        ([(7, 1000)] * 4 + [(8, 1000)] * 2, 6),
    ],
)
def test_who_uses_up_whose_room(stack: ExitStack, senders: list[tuple[int, int]], kept: int) -> None:
    """PID 0 is any process that is not visible; the same PID of another user is another process."""
    made = Connections(cast(JobSocket, Listener(stack, list(senders))))
    made._accept()
    assert (len(made._senders), made.refused) == (kept, len(senders) - kept)
    made.close()


def test_few_messages_are_skipped_at_once(exporter: Connections, path: Path, stack: ExitStack) -> None:
    """A sender that sends without a pause does not hold up the others."""
    sender = connect(path, stack)
    list(exporter.receive(0.0))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for number in range(70):
        sender.send(b"%d" % number)
    assert [content for content, _, _ in exporter.receive(0.0)] == [b"63"]
    assert [content for content, _, _ in exporter.receive(0.0)] == [b"69"]
    assert list(exporter.receive(0.0)) == []


def test_a_connection_that_ends_makes_room(exporter: Connections, path: Path, stack: ExitStack) -> None:
    for _ in range(10):
        connect(path, stack).close()
        received(exporter)
    assert (len(exporter._senders), exporter.refused) == (0, 0)


def test_files_that_a_sender_passes_are_not_kept(exporter: Connections, path: Path, stack: ExitStack) -> None:
    """A hostile sender could otherwise use up the exporter's file descriptors."""
    sender = connect(path, stack)
    assert received(exporter) == []
    before = len(os.listdir("/proc/self/fd"))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]).tobytes())]
    sender.sendmsg([b"x"], rights)
    assert [content for content, _, _ in exporter.receive(0.0)] == [b"x"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_connection_that_fails_is_closed(stack: ExitStack) -> None:
    """The others go on."""
    listener = Listener(stack, [(7, 1000), (8, 1000)])
    made = Connections(cast(JobSocket, listener))
    made._accept()
    broken, whole = made._senders
    made._senders[broken][0].send(b"never read")
    listener.peers[0].close()
    assert list(made._latest(broken)) == []
    assert list(made._senders) == [whole]
    made.close()
    assert made._senders == {}
