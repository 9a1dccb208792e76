"""Requests for traces to jobs that speak Kineto's IPC, and to jobs that misbehave."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.kineto_daemon import DaemonSocket, TraceOptions
from gpu_exporter.profiling.processes import Process, look_up
from gpu_exporter.profiling.trace_file import TraceFile
from gpu_exporter.profiling.trace_session import (
    TraceSession,
    check_socket_folder,
    no_answer,
    socket_folder,
    trace_folder,
)
from tests.support.kineto_jobs import SLOW_LOADER, jobs, short_folder, traces_in

PROCFS = Path("/proc")
FILES = HostFiles(PROCFS, Path("/sys"))


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def session_of(
    running: Sequence[subprocess.Popen[str]], folder: Path, *, answer: float = 20.0, write: float = 30.0
) -> TraceSession:
    """Request traces of jobs, and return the finished session."""
    processes = [look_up(FILES, job.pid) for job in running]
    session = TraceSession(
        processes, TraceOptions(warm_up=0), FILES, PROCFS, answer_seconds=answer, write_seconds=write
    )
    with DaemonSocket(folder) as daemon:
        session.run(daemon)
    return session


def only_error(session: TraceSession) -> str:
    (error,) = session.errors
    assert not session.taken
    return str(error)


@pytest.mark.slow
def test_a_trace_is_taken_and_its_file_removed(folder: Path) -> None:
    with jobs("records", folder=folder) as running:
        session = session_of(running, folder)
        (taken,) = session.taken
        assert os.fstat(taken.descriptor).st_size == SLOW_LOADER.stat().st_size
        assert os.pread(taken.descriptor, 1 << 20, 0) == SLOW_LOADER.read_bytes()
        assert not traces_in(folder)
        assert not (folder / "dynolog").exists()
        assert not session.errors
        session.close()
        assert running[0].poll() is None


@pytest.mark.slow
def test_the_abstract_socket(folder: Path) -> None:
    """No other test uses it, because it is the same for all processes."""
    with jobs("records", folder=folder, env={"KINETO_IPC_SOCKET_DIR": ""}) as running:
        processes = [look_up(FILES, job.pid) for job in running]
        session = TraceSession(processes, TraceOptions(warm_up=0), FILES, PROCFS)
        with DaemonSocket() as daemon:
            session.run(daemon)
            with pytest.raises(GpuExporterError, match="has the socket @dynolog: stop it"):
                DaemonSocket().__enter__()
        assert [trace.process.pid for trace in session.taken] == [running[0].pid]
        session.close()


@pytest.mark.slow
def test_all_ranks_record_from_the_same_moment(folder: Path) -> None:
    with jobs("records", "records", "records", folder=folder) as running:
        session = session_of(running, folder)
        assert {trace.process.pid for trace in session.taken} == {job.pid for job in running}
        starts = set()
        for job in running:
            assert job.stdout
            starts.add(job.stdout.readline())
        (line,) = starts
        assert float(line.split()[1]) < time.time()
        assert float(line.split()[1]) > 0
        session.close()


@pytest.mark.slow
def test_nothing_is_requested_from_others(folder: Path) -> None:
    """A job that was not asked for polls, too, and goes on."""
    with jobs("records", "records", folder=folder) as running:
        session = session_of(running[:1], folder)
        assert [trace.process.pid for trace in session.taken] == [running[0].pid]
        session.close()
        assert running[1].poll() is None
        output = running[1].stdout
        assert output
        assert not select.select([output], [], [], 0.0)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("dies", "it ended while it recorded its trace"),
        ("link", "its trace is not used: a symbolic link"),
        ("device", "its trace is not used: not a regular file"),
        ("linked", "its trace is not used: it has other names"),
        ("huge", "1024 MiB: use a shorter --seconds, or --no-stacks"),
        (
            "other_user",
            "its trace is not used: it belongs to user 65534, not to user 0 as the process",
        ),
    ],
)
def test_hostile_files(behaviour: str, why: str, folder: Path) -> None:
    if behaviour == "other_user" and os.getuid():
        why = "it ended"  # it may not give its file away
    with jobs(behaviour, folder=folder) as running:
        session = session_of(running, folder)
    assert why in only_error(session)
    assert not traces_in(folder) or behaviour == "linked"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("silent", "it did not ask for a trace: it must import torch, run with KINETO_USE_DAEMON=1"),
        ("busy", "another profiler is active in it"),
        ("sends_garbage", "it sent garbage"),
        ("writes_nothing", "it accepted the request, but wrote no trace: its log says why"),
    ],
)
def test_jobs_that_do_not_record(behaviour: str, why: str, folder: Path) -> None:
    with jobs(behaviour, folder=folder) as running:
        # Only what the job must do in time has time on a busy machine, too.
        session = session_of(running, folder, answer=20.0 if behaviour == "writes_nothing" else 3.0, write=0.5)
        assert why in only_error(session)
        assert running[0].poll() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "free", "why"),
    [
        ("records", [1 << 20], "only 1 MiB are free in its {folder}, and a trace may need 512"),
        ("writes_nothing", [1 << 30, 0], "the file system of {folder}/gpu-exporter-"),
    ],
)
def test_a_full_volume(
    behaviour: str, free: list[int], why: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is requested if it is full before; the job's trace is lost if it gets full."""
    answers = iter(free)
    monkeypatch.setattr(TraceFile, "free_bytes", lambda file: next(answers))
    with jobs(behaviour, folder=folder) as running:
        session = session_of(running, folder, write=0.5)
        assert why.format(folder=folder) in only_error(session)
        assert running[0].poll() is None
    assert not traces_in(folder)


@pytest.mark.slow
def test_what_an_exporter_that_ended_left_is_removed(folder: Path) -> None:
    """Only what this process wrote for an exporter."""
    with jobs("records", folder=folder) as running:
        left = [f"gpu-exporter-{'a' * 32}_{pid}.json{end}" for pid in (running[0].pid, 1) for end in ("", ".tmp")]
        for name in left:
            (folder / name).write_bytes(bytes(1000))
        session = session_of(running, folder)
        assert len(session.taken) == 1
        session.close()
    assert traces_in(folder) == sorted(left[2:])


@pytest.mark.slow
def test_a_job_that_writes_the_folder_differently_is_not_answered(folder: Path) -> None:
    """libkineto would end the job."""
    with jobs("records", folder=folder, env={"KINETO_IPC_SOCKET_DIR": f"{folder}/"}) as running:
        session = session_of(running, folder, answer=2.0)
        assert "its KINETO_IPC_SOCKET_DIR is written differently" in only_error(session)
        assert running[0].poll() is None


@pytest.mark.slow
def test_a_process_that_ended_before(folder: Path) -> None:
    with jobs("silent", folder=folder) as running:
        process = look_up(FILES, running[0].pid)
        session = TraceSession([process], TraceOptions(), FILES, PROCFS)
        with DaemonSocket(folder) as daemon:
            running[0].kill()
            session.run(daemon)
    assert "No such file" in only_error(session) or "it ended before" in only_error(session)


POLLS = """
import os, socket, struct, sys, time
poll = struct.pack("=Q32siiq", 16, b"req", 2, 0, 0)
clients = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) for _ in range(200)]
for number, client in enumerate(clients):
    client.bind(f"{sys.argv[1]}/client{number}")
print("ready", flush=True)
while True:
    time.sleep(0.1)
    for client in clients:
        try:
            client.sendto(poll if sys.argv[2] == "polls" else os.urandom(100), f"{sys.argv[1]}/dynolog")
        except OSError:
            time.sleep(0.001)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["polls", "garbage"])
def test_two_hundred_clients_that_never_read(sent: str, folder: Path) -> None:
    """They send 50 times as often as libkineto; the job is answered nevertheless."""
    with jobs("records", folder=folder) as running, ExitStack() as stack:
        flooding = subprocess.Popen([sys.executable, "-c", POLLS, str(folder), sent], stdout=subprocess.PIPE, text=True)
        stack.callback(flooding.communicate)
        stack.callback(flooding.kill)
        assert flooding.stdout
        assert flooding.stdout.readline() == "ready\n"
        session = session_of(running, folder)
        assert [trace.process.pid for trace in session.taken] == [running[0].pid]
        session.close()


def test_another_daemon_has_the_socket(folder: Path) -> None:
    with DaemonSocket(folder), pytest.raises(GpuExporterError, match="another daemon, such as dynolog, has"):
        DaemonSocket(folder).__enter__()


def test_a_socket_that_a_crash_left_is_replaced(folder: Path) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.bind(str(folder / "dynolog"))
    left.close()
    with DaemonSocket(folder):
        assert (folder / "dynolog").stat().st_mode & 0o777 == 0o666
    (folder / "dynolog").write_text("precious")
    with pytest.raises(GpuExporterError, match="is no socket"):
        DaemonSocket(folder).__enter__()
    assert (folder / "dynolog").read_text() == "precious"


def test_descriptors_that_a_job_sends_are_closed(folder: Path) -> None:
    reader, writer = os.pipe()
    with DaemonSocket(folder) as daemon, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.bind(str(folder / "client"))
        client.connect(str(folder / "dynolog"))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            socket.send_fds(client, [b"x"], [writer])
            daemon.receive(1.0)
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(reader)
    os.close(writer)


def test_where_the_job_writes() -> None:
    assert str(trace_folder(None, None)) == "/tmp"
    assert str(trace_folder(None, {"KINETO_ONDEMAND_TRACE_DIR": "/traces"})) == "/traces"
    assert str(trace_folder(PurePosixPath("/mine"), {"KINETO_ONDEMAND_TRACE_DIR": "/traces"})) == "/mine"
    for bad in ("traces", "/tmp/../etc", "/tmp\nPROFILE_START_TIME=1"):
        with pytest.raises(GpuExporterError, match="is not an absolute path without"):
            trace_folder(None, {"KINETO_ONDEMAND_TRACE_DIR": bad})


@pytest.mark.slow
def test_a_folder_that_is_a_link_is_refused(folder: Path) -> None:
    (folder / "elsewhere").symlink_to("/etc")
    link = str(folder / "elsewhere")
    with jobs("records", folder=folder, env={"KINETO_ONDEMAND_TRACE_DIR": link}) as running:
        session = session_of(running, folder)
    assert f"{link}: Not a directory: give a folder that it can write to with --trace-dir" in only_error(session)


@pytest.mark.slow
def test_the_socket_of_the_jobs() -> None:
    assert socket_folder([None, {}]) is None
    assert socket_folder([{"KINETO_IPC_SOCKET_DIR": "/run/kineto"}, None]) == Path("/run/kineto")
    with pytest.raises(GpuExporterError, match="different KINETO_IPC_SOCKET_DIR"):
        socket_folder([{"KINETO_IPC_SOCKET_DIR": "/run/kineto"}, {}])


def test_a_socket_folder_that_the_job_could_not_use(folder: Path) -> None:
    """A job of another user must not make root write anywhere."""
    process = Process(7, 1, os.getuid() + 1, "t.py", 7)
    with pytest.raises(GpuExporterError, match="may not write to its KINETO_IPC_SOCKET_DIR"):
        check_socket_folder(folder, [process])
    check_socket_folder(folder, [replace(process, uid=os.getuid())])
    folder.chmod(0o777)
    check_socket_folder(folder, [process])
    with pytest.raises(GpuExporterError, match="No such file or directory: it must be the same folder in the job"):
        check_socket_folder(folder / "gone", [process])


def test_why_there_is_no_answer() -> None:
    assert "not started with KINETO_USE_DAEMON=1" in no_answer("", {})
    assert "set KINETO_IPC_SOCKET_DIR to a folder that both share" in no_answer("", {"KINETO_USE_DAEMON": "1"})
    assert no_answer("it sent garbage", {}) == "it sent garbage"
