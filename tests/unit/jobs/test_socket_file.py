"""The socket of training loops: its file, and what it says about senders."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_exporter.jobs.socket_file import JobSocket, SocketInUse, answers
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


def test_jobs_of_every_user_may_connect(path: Path) -> None:
    jobs = JobSocket(path)
    assert path.stat().st_mode & 0o777 == 0o666
    jobs.close()


def test_a_path_at_its_limit(path: Path) -> None:
    """Of 107 bytes, not letters."""
    longest = path.parent / ("j" * (106 - len(os.fsencode(path.parent))))
    assert len(os.fsencode(longest)) == 107
    JobSocket(longest).close()
    for longer in (longest.with_name(longest.name + "j"), longest.with_name(longest.name[:-1] + "é")):
        with pytest.raises(GpuExporterError, match="longer than 107 bytes: use a shorter path"):
            JobSocket(longer)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (FileNotFoundError(2, "No such file"), "No such file: create its directory first"),
        (NotADirectoryError(20, "Not a directory"), "Not a directory: create its directory first"),
        (PermissionError(13, "Permission denied"), "Permission denied: make its directory writable for this user"),
        (OSError(95, "Not supported"), "Not supported: use another path"),
        (OSError("odd"), "odd: use another path"),
    ],
)
def test_errors_name_the_fix(path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, fix: str) -> None:
    def refuse(_: Path) -> None:
        raise error

    monkeypatch.setattr("gpu_exporter.jobs.socket_file._make_room", refuse)
    with pytest.raises(GpuExporterError, match=f"--job-socket {path}: {fix}"):
        JobSocket(path)


def test_an_exporter_that_does_not_keep_up_still_listens(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as busy, ExitStack() as stack:
        busy.bind(str(path))
        busy.listen(0)
        with suppress(BlockingIOError):
            while True:
                sender = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                stack.enter_context(sender).connect(str(path))
        assert answers(path)


def test_a_wait_is_ended_from_another_thread(path: Path) -> None:
    """Nothing is accepted afterwards."""
    jobs = JobSocket(path)
    send(path, b"x")
    jobs.wake()
    with pytest.raises(OSError, match="refused"):
        send(path, b"y")
    jobs.close()
    jobs.wake()  # it is closed already
