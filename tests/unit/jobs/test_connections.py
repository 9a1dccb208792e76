"""Each sender has its own queue, within limits."""

from __future__ import annotations

import array
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from gpu_exporter.jobs import connections
from gpu_exporter.jobs.connections import Connections
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
    return sorted(content for content, _ in exporter.receive(0.0))


def test_a_message_comes_with_its_sender(exporter: Connections, path: Path, stack: ExitStack) -> None:
    connect(path, stack).send(b"x")
    assert list(exporter.receive(0.0)) == []  # accepted
    assert [(content, peer.pid, peer.uid) for content, peer in exporter.receive(0.0)] == [(b"x", PID, UID)]


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
        self._stack, self.senders = stack, senders

    def accept(self) -> tuple[socket.socket, int, int] | None:
        if not self.senders:
            return None
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peers.append(self._stack.enter_context(there))
        return (here, *self.senders.pop(0))

    def close(self) -> None:
        """Closed by the test."""


CONNECTIONS = 8
# Who sent nothing, who sent something valid, and whose process is on a GPU.
NEW, VALID, VERIFIED = "new", "valid", "verified"


@pytest.mark.parametrize(
    ("held", "new", "gone"),
    [
        ([(1, NEW, 1.0)] * 4 + [(2, NEW, 1.0)] * 4, 3, 0),
        ([(1, VALID, 1.0)] * 4 + [(2, NEW, 1.0)] * 4, 3, 4),
        ([(1, VALID, 2.0)] * 3 + [(1, VALID, 1.0)] * 3 + [(2, VALID, 3.0)] * 2, 3, 3),
        ([(1, VALID, 1.0)] * 3 + [(1, NEW, 2.0)] * 3 + [(2, VALID, 3.0)] * 2, 3, 3),
        ([(1, VALID, 0.0)] * 4 + [(2, NEW, 1.5)] * 4, 1, None),
        ([(1, VALID, 0.0)] * 4 + [(2, NEW, 0.5)] * 4, 1, 4),
        ([(uid, VALID, 0.0) for uid in range(10, 18)], 3, None),
        ([(uid, VALID, 0.0) for uid in range(10, 18)], 0, 0),
        ([(uid, VERIFIED, 0.0) for uid in range(10, 17)] + [(3, VALID, 0.0)], 0, 7),
        ([(uid, VERIFIED, 0.0) for uid in range(10, 18)], 0, None),
        ([(1, VERIFIED, 0.0)] * 8, 3, None),
        ([(1, VERIFIED, 0.0)] * 8, 0, 0),
        ([(1, VALID, 0.0)] * 5 + [(0, VALID, 0.0)] * 3, 0, 0),
        ([(3, VALID, -28.5)] * 3 + [(1, VALID, 0.0)] * 5, 1, 0),
        ([(3, VALID, -28.0)] * 3 + [(1, VALID, 0.0)] * 5, 1, None),
    ],
)
def test_which_connection_gives_way(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, held: list[tuple[int, str, float]], new: int, gone: int | None
) -> None:
    """At 2 s, where there is room for eight: `held` are user, state, and when it was last heard. User 0 is on a GPU."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", CONNECTIONS)
    listener = Listener(stack, [(0, uid) for uid, _, _ in held])
    made = Connections(cast(JobSocket, listener), lambda _, uid: uid == 0, lambda: 2.0)
    made._accept()
    before = list(made._senders)
    for (_, peer), (_, state, heard_at) in zip(made._senders.values(), held, strict=True):
        peer.valid, peer.verified, peer.heard_at = state != NEW, state == VERIFIED, heard_at
    listener.senders.append((0, new))
    peers = [peer for _, peer in made._senders.values()]
    made._accept()
    left = [peer for _, peer in made._senders.values()]
    assert [index for index, peer in enumerate(peers) if not any(peer is kept for kept in left)] == (
        [] if gone is None else [gone]
    )
    assert (len(made._senders), made.refused, len(before)) == (CONNECTIONS, 1, CONNECTIONS)
    made.close()


def test_two_users_that_send_nothing_leave_room_for_a_third(stack: ExitStack) -> None:
    """Also if all connect at the same moment. Without a valid message, all are closed after ten seconds."""
    now = [0.0]
    listener = Listener(stack, [(0, uid) for uid in (1, 2) for _ in range(128)])
    made = Connections(cast(JobSocket, listener), clock=lambda: now[0])
    made._accept()
    assert len(made._senders) == 256
    listener.senders.extend([(0, 3)] * 200)
    made._accept()
    users = Counter(peer.uid for _, peer in made._senders.values())
    assert users == {1: 85, 2: 86, 3: 85}
    next(peer for _, peer in made._senders.values() if peer.uid == 3).valid = True
    now[0] = 10.0
    made._expire()
    assert len(made._senders) == 256
    now[0] = 10.5
    made._expire()
    assert [peer.uid for _, peer in made._senders.values()] == [3]
    made.close()


def test_what_has_been_sent_is_read_before_others_take_its_place(
    exporter: Connections, path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_OF_PROCESS", 1)
    first = connect(path, stack)
    list(exporter.receive(0.0))
    next(iter(exporter._senders.values()))[1].heard_at -= 100.0
    first.send(b"x")
    connect(path, stack)
    contents = []
    for content, peer in exporter.receive(0.0):
        contents.append(content)
        peer.valid, peer.heard_at = True, exporter._clock()
    assert (contents, len(exporter._senders), exporter.refused) == ([b"x"], 1, 1)


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
    assert [content for content, _ in exporter.receive(0.0)] == [b"63"]
    assert [content for content, _ in exporter.receive(0.0)] == [b"69"]
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
    assert [content for content, _ in exporter.receive(0.0)] == [b"x"]
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
