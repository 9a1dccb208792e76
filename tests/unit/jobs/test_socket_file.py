"""The socket of training loops: its file, and what it says about senders."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_exporter.jobs.socket_file import JobSocket
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.job_message import MOST_BYTES
from tests.support.job_sender import send


@pytest.fixture
def path() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory) / "jobs.sock"


def test_a_datagram_comes_with_its_sender(path: Path) -> None:
    jobs = JobSocket(path)
    assert jobs.receive() is None
    send(path, b"x")
    assert jobs.receive() == (b"x", os.getpid(), os.getuid())
    send(path, b"x" * (MOST_BYTES + 1000))
    received = jobs.receive()
    assert received is not None
    assert len(received[0]) == MOST_BYTES + 1
    jobs.close()
    assert not path.exists()


def test_files_that_a_sender_passes_are_not_kept(path: Path) -> None:
    """A hostile sender could otherwise use up the exporter's file descriptors."""
    jobs = JobSocket(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]).tobytes())]
        before = len(os.listdir("/proc/self/fd"))
        sender.sendmsg([b"x"], rights, 0, str(path))
        assert jobs.receive() == (b"x", os.getpid(), os.getuid())
        assert len(os.listdir("/proc/self/fd")) == before
    jobs.close()


def test_a_socket_without_a_process_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as old:
        old.bind(str(path))
    jobs = JobSocket(path)
    assert send(path, b"x")
    jobs.close()


def test_the_socket_of_a_process_is_kept(path: Path) -> None:
    jobs = JobSocket(path)
    with pytest.raises(GpuExporterError, match="another process listens on it: use another path"):
        JobSocket(path)
    assert send(path, b"x")
    jobs.close()


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


def test_the_file_of_a_successor_is_kept(path: Path) -> None:
    jobs = JobSocket(path)
    path.unlink()
    path.write_text("other")
    jobs.close()
    assert path.exists()
