"""The socket of training loops: its file, and what it says about senders."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_exporter.jobs.socket_file import JobSocket, SocketInUse
from gpu_exporter.model.errors import GpuExporterError
from tests.support.job_sender import send


@pytest.fixture
def path() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory) / "jobs.sock"


def test_a_connection_comes_with_its_sender(path: Path) -> None:
    jobs = JobSocket(path)
    assert jobs.accept() is None
    send(path, b"x")
    accepted = jobs.accept()
    assert accepted is not None
    connection, pid, uid = accepted
    assert (connection.recv(10), pid, uid) == (b"x", os.getpid(), os.getuid())
    connection.close()
    jobs.close()
    assert not path.exists()


@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_a_socket_without_a_process_is_replaced(path: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as old:
        old.bind(str(path))
    jobs = JobSocket(path)
    assert send(path, b"x")
    jobs.close()


def test_the_socket_of_a_process_is_kept(path: Path) -> None:
    jobs = JobSocket(path)
    with pytest.raises(SocketInUse, match="another process listens on it: stop it, or use another path"):
        JobSocket(path)
    assert send(path, b"x")
    jobs.close()


def test_the_socket_of_another_program_is_kept(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(GpuExporterError, match="Protocol wrong type for socket: use another path"):
            JobSocket(path)
    assert path.is_socket()


@pytest.mark.parametrize("link", [False, True])
def test_no_other_file_is_replaced(path: Path, link: bool) -> None:
    kept = path.parent / "kept"
    kept.write_text("kept")
    if link:
        path.symlink_to(kept)
    else:
        path.write_text("kept")
    with pytest.raises(GpuExporterError, match="exists, and is not a socket"):
        JobSocket(path)
    assert (path.read_text(), kept.read_text()) == ("kept", "kept")


def test_a_file_that_is_deleted_or_replaced_is_noticed(path: Path) -> None:
    jobs = JobSocket(path)
    assert jobs.is_in_place()
    path.unlink()
    assert not jobs.is_in_place()
    successor = JobSocket(path)
    assert not jobs.is_in_place()
    jobs.close()
    assert successor.is_in_place()
    successor.close()


def test_the_file_of_a_successor_is_kept(path: Path) -> None:
    jobs = JobSocket(path)
    path.unlink()
    path.write_text("other")
    jobs.close()
    assert path.exists()
