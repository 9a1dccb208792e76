"""The socket on which profilers ask: who may be answered, what is received, and whose socket is removed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import kineto_daemon
from gpu_exporter.profiling.kineto_daemon import MOST_BYTES, MOST_PATH, DaemonSocket, Peer
from tests.support.kineto_jobs import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def client(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as made:
        made.bind(str(folder / "client"))
        yield made


def test_a_datagram_and_its_reply(folder: Path, client: socket.socket) -> None:
    """The kernel says who sent it. Without one, it waits no longer than it may."""
    with DaemonSocket(folder) as daemon:
        assert daemon.receive(0.0) is None
        assert daemon.receive(-1.0) is None
        client.sendto(b"x" * MOST_BYTES, str(folder / "dynolog"))
        peer = Peer(os.getpid(), os.getuid(), str(folder / "client"))
        assert daemon.receive(60.0) == (peer, b"x" * MOST_BYTES)
        assert daemon.reply(peer, b"answer")
        assert client.recv(100) == b"answer"
        assert not daemon.reply(Peer(1, 0, str(folder / "nobody")), b"answer")
        assert not daemon.reply(Peer(1, 0, "/elsewhere/client"), b"answer")
    assert not (folder / "dynolog").exists()


def test_datagrams_that_are_too_long_or_without_address(folder: Path, client: socket.socket) -> None:
    with DaemonSocket(folder) as daemon, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nameless:
        client.sendto(b"x" * (MOST_BYTES + 1), str(folder / "dynolog"))
        nameless.sendto(b"x", str(folder / "dynolog"))
        assert [daemon.receive(60.0), daemon.receive(60.0)] == [None, None]


def test_a_peer_that_does_not_read(folder: Path, client: socket.socket) -> None:
    """It never blocks."""
    peer = Peer(os.getpid(), os.getuid(), str(folder / "client"))
    with DaemonSocket(folder) as daemon:
        sent = 0
        while daemon.reply(peer, bytes(1000)):
            sent += 1
            assert sent < 10_000


@pytest.mark.parametrize(
    ("folder", "address", "may"),
    [
        ("/run/kineto", "/run/kineto/job", True),
        ("/run/kineto", "/run/kineto//job", False),
        ("/run/kineto", "/run/kineto2/job", False),
        ("/run/kineto", "/run/job", False),
        ("/run/kineto", b"\0/run/kineto/job", False),
        (None, b"\0job", True),
        (None, b"job", False),
        (None, "/run/kineto/job", False),
        (None, b"", False),
    ],
)
def test_replies_that_are_safe(folder: str | None, address: str | bytes, *, may: bool) -> None:
    """libkineto ends its process if the path does not begin with its own folder."""
    daemon = DaemonSocket(Path(folder) if folder else None)
    assert daemon.may_reply(Peer(1, 0, address)) is may
    daemon._socket.close()


def test_the_socket_of_another_process_is_not_removed(folder: Path) -> None:
    with DaemonSocket(folder):
        (folder / "dynolog").unlink()
        (folder / "dynolog").write_text("of somebody else")
    assert (folder / "dynolog").read_text() == "of somebody else"
    with ExitStack() as stack:
        (folder / "dynolog").unlink()
        stack.enter_context(DaemonSocket(folder))
        (folder / "dynolog").unlink()
    assert not list(folder.iterdir())


def test_the_mode_of_new_files_is_as_before(folder: Path) -> None:
    """All users may send to the socket, whatever the mask was."""
    previous = os.umask(0o077)
    try:
        with DaemonSocket(folder):
            assert (folder / "dynolog").stat().st_mode & 0o777 == 0o666
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(previous)


def test_paths_that_are_too_long(tmp_path: Path) -> None:
    """The kernel has 108 bytes for an address."""
    for length, why in ((MOST_PATH + 1, "the path is too long for a socket"), (MOST_PATH, "No such file or directory")):
        path = Path(f"/{'x' * (length - len('//dynolog'))}")
        with pytest.raises(GpuExporterError) as error:
            DaemonSocket(path).__enter__()
        assert str(error.value) == f"--socket-dir {path}: {why}"
    assert MOST_PATH < 108


def test_a_failure_closes_the_socket(folder: Path) -> None:
    (folder / "dynolog").mkdir()
    daemon = DaemonSocket(folder)
    with pytest.raises(GpuExporterError, match="dynolog is no socket: use another --socket-dir"):
        daemon.__enter__()
    assert daemon._socket.fileno() == -1


def test_the_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name ends with a null byte. This test has a name of its own: all processes share the real one."""
    monkeypatch.setattr(kineto_daemon, "ABSTRACT", f"\0test-{os.getpid()}\0")
    with DaemonSocket() as daemon:
        with pytest.raises(
            GpuExporterError, match=r"another daemon, such as dynolog, has the socket @dynolog: stop it"
        ):
            DaemonSocket().__enter__()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.bind(f"\0test-client-{os.getpid()}\0")
            client.sendto(b"x", kineto_daemon.ABSTRACT)
            received = daemon.receive(60.0)
            assert received
            assert received[0].address == f"\0test-client-{os.getpid()}\0".encode()
            assert daemon.reply(received[0], b"y")
            assert client.recv(10) == b"y"
    assert kineto_daemon.ABSTRACT.endswith("\0")
