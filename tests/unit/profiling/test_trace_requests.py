"""The course of a request for traces, with a socket whose datagrams are made up, in virtual time."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import trace_file, trace_session
from gpu_exporter.profiling.kineto_daemon import Peer, TraceOptions, configuration, encode, registered
from gpu_exporter.profiling.processes import look_up
from gpu_exporter.profiling.trace_file import MOST_TRACE_BYTES, TraceFile
from gpu_exporter.profiling.trace_session import (
    ANSWER_SECONDS,
    POLL_SECONDS,
    SLACK_SECONDS,
    TICK_SECONDS,
    WRITE_SECONDS,
    TraceSession,
)
from tests.unit.profiling.test_watch import proc

UNIX = 1_700_000_000.0
POLL = encode("req", struct.pack("=iiqi", 2, 1, 0, 42))
BUSY = encode("req", struct.pack("=iiqi", 0, 1, 0, 42))
REGISTRATION = encode("ctxt", struct.pack("=iiq", 0, 42, 0))
OPTIONS = TraceOptions(0.5, warm_up=2)
GARBAGE = b"x" * 50


@dataclass
class Node:
    """Jobs below a procfs, a socket to them, and a clock. `files` is what jobs write: when, which, and how much."""

    folder: Path
    now: float = 100.0
    arrives: list[tuple[float, int, bytes]] = field(default_factory=list)
    files: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    replies: list[tuple[float, int, bytes]] = field(default_factory=list)
    may: bool = True
    reads: bool = True

    def add(self, *pids: int, environment: str = "KINETO_USE_DAEMON=1\0KINETO_ONDEMAND_TRACE_DIR=/traces\0") -> None:
        """Add jobs whose PIDs in their own namespace are ten times as large."""
        (self.folder / "root/traces").mkdir(parents=True, exist_ok=True)
        for pid in pids:
            proc(self.folder / "proc", pid)
            status = self.folder / f"proc/{pid}/status"
            status.write_text(f"Uid:\t{os.getuid()}\t{os.getuid()}\nNSpid:\t{pid}\t{10 * pid}\n")
            (self.folder / f"proc/{pid}/environ").write_text(environment)
            (self.folder / f"proc/{pid}/root").symlink_to(self.folder / "root")

    def end(self, pid: int) -> None:
        """Let a job end."""
        (self.folder / f"proc/{pid}/stat").unlink()

    def polls(self, pid: int, at: float, datagram: bytes = POLL) -> None:
        """Let a job send a datagram so many seconds after the beginning."""
        self.arrives.append((100.0 + at, pid, datagram))

    def writes(self, pid: int, at: float, size: int = 3, *, complete: bool = True) -> None:
        """Let a job write its trace, so many seconds after the beginning."""

        def write() -> None:
            path = Path(self.requested(pid)["ACTIVITIES_LOG_FILE"])
            name = f"{path.stem}_{10 * pid}.json{'' if complete else '.tmp'}"
            target = self.folder / f"root/{path.parent}" / name
            target.touch()
            os.truncate(target, size)

        self.files.append((100.0 + at, write))

    def requested(self, pid: int) -> dict[str, str]:
        """Return the configuration that a job was sent."""
        (text,) = [datagram[40:].decode() for _, to, datagram in self.replies if to == pid and len(datagram) > 44]
        return dict(line.split("=", 1) for line in text.splitlines())

    def left(self) -> list[str]:
        """Return the files of the jobs."""
        return [path.name for path in (self.folder / "root/traces").iterdir()]

    # As DaemonSocket:

    def receive(self, seconds: float) -> tuple[Peer, bytes] | None:
        end = self.now + seconds
        for at, write in sorted((each for each in self.files if each[0] <= end), key=lambda each: each[0]):
            self.files.remove((at, write))
            write()
        coming = sorted(each for each in self.arrives if each[0] <= end)
        if not coming:
            self.now = end
            return None
        self.arrives.remove(coming[0])
        self.now, pid, datagram = max(self.now, coming[0][0]), coming[0][1], coming[0][2]
        return Peer(pid, 0, f"/s/{pid}"), datagram

    def may_reply(self, peer: Peer) -> bool:
        return self.may

    def reply(self, peer: Peer, datagram: bytes) -> bool:
        if self.reads:
            self.replies.append((self.now, peer.pid, datagram))
        return self.reads

    def session(self, *pids: int, write: float = WRITE_SECONDS, trace_dir: str = "") -> TraceSession:
        """Run a session with these jobs."""
        files = HostFiles(self.folder / "proc", Path("/sys"))
        processes = [look_up(files, pid) for pid in pids]
        wanted = PurePosixPath(trace_dir) if trace_dir else None
        session = TraceSession(processes, OPTIONS, files, files.procfs, wanted, write_seconds=write)
        session.run(self)  # type: ignore[arg-type]
        return session


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    clocks = SimpleNamespace(monotonic=lambda: made.now, time=lambda: made.now - 100.0 + UNIX)
    monkeypatch.setattr(trace_session, "time", clocks)
    return made


def passed(node: Node) -> float:
    """Return the seconds since the beginning."""
    return node.now - 100.0


def errors(session: TraceSession) -> dict[int, str]:
    """Return why processes have no trace, by PID."""
    return {process.pid: str(error) for process, error in session.failed}


def test_one_process(node: Node) -> None:
    """It begins when its profiler is warm; further polls are answered with nothing to do."""
    node.add(7)
    for at, datagram in ((0.5, REGISTRATION), (1.0, POLL), (2.0, POLL), (2.5, BUSY)):
        node.polls(7, at, datagram)
    node.writes(7, 6.0, 3)
    session = node.session(7)
    (taken,) = session.taken
    assert os.pread(taken.descriptor, 10, 0) == bytes(3)
    assert (taken.process.pid, taken.requested_at) == (7, 101.0)
    assert 105.9 <= taken.taken_at < 106.2
    request = node.requested(7)
    assert (request["PROFILE_START_TIME"], request["ACTIVITIES_DURATION_MSECS"]) == ("0", "500")
    assert [datagram for _, _, datagram in node.replies if len(datagram) < 50] == [
        registered(1),
        configuration(""),
        configuration(""),
    ]
    assert session.has_requested
    assert (session.errors, node.left()) == ([], [])
    session.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken.descriptor)


def test_several_processes_begin_together(node: Node) -> None:
    """When the slowest one has polled and warmed up; one that does not poll by then is not waited for."""
    node.add(7, 8, 9)
    node.polls(7, 1.0)
    node.polls(8, 5.0)
    node.writes(7, 12.0)
    node.writes(8, 12.5)
    session = node.session(7, 8, 9)
    start = UNIX + 1.0 + POLL_SECONDS + SLACK_SECONDS + OPTIONS.warm_up
    for pid in (7, 8):
        assert float(node.requested(pid)["PROFILE_START_TIME"]) == pytest.approx(1000 * start, abs=1)
    assert sorted(each.process.pid for each in session.taken) == [7, 8]
    assert list(errors(session)) == [9]
    assert session.has_requested
    session.close()


@pytest.mark.parametrize(
    ("environment", "seconds", "why"),
    [
        ("KINETO_USE_DAEMON=1\0", ANSWER_SECONDS, "it did not ask for a trace: it must import torch"),
        ("KINETO_USE_DAEMON=0\0", POLL_SECONDS, "it was not started with KINETO_USE_DAEMON=1"),
        ("A=1\0", POLL_SECONDS, "it was not started with KINETO_USE_DAEMON=1"),
    ],
)
def test_a_process_that_does_not_poll(node: Node, environment: str, seconds: float, why: str) -> None:
    """One that was started without the variable may have set it itself, but is waited for only as long as a poll."""
    node.add(7, environment=f"{environment}KINETO_ONDEMAND_TRACE_DIR=/traces\0")
    session = node.session(7)
    assert errors(session)[7].startswith(f"process 7 (python): {why}")
    assert seconds < passed(node) < seconds + 3 * TICK_SECONDS
    assert not session.has_requested


def test_an_environment_that_may_not_be_read(node: Node) -> None:
    """It may have the variable; its folder is libkineto's own."""
    node.add(7)
    (node.folder / "proc/7/environ").unlink()
    (node.folder / "root/tmp").mkdir()
    session = node.session(7)
    assert "it did not ask for a trace" in errors(session)[7]
    assert passed(node) > ANSWER_SECONDS


@pytest.mark.parametrize(
    ("datagram", "may", "reads", "why", "answer"),
    [
        (GARBAGE, True, True, "it sent garbage: its size is 10 bytes", None),
        (BUSY, True, True, "another profiler is active in it: try again when that has ended", configuration("")),
        (POLL, False, True, "its KINETO_IPC_SOCKET_DIR is written differently: write it without a slash", None),
        (POLL, True, False, "it did not read the answer", None),
    ],
)
def test_polls_that_cannot_be_answered(
    node: Node, datagram: bytes, may: bool, reads: bool, why: str, answer: bytes | None
) -> None:
    node.add(7)
    node.may, node.reads = may, reads
    node.polls(7, 3.0, datagram)
    session = node.session(7)
    assert f"process 7 (python): {why}" in errors(session)[7]
    assert [sent for _, _, sent in node.replies] == ([answer] if answer else [])
    assert not session.has_requested
    assert passed(node) > ANSWER_SECONDS


def test_others_get_no_answer(node: Node) -> None:
    node.add(7)
    node.polls(8, 1.0)
    node.session(7)
    assert not node.replies


@pytest.mark.parametrize(("polls", "when"), [(True, "while it recorded its trace"), (False, "before it was asked for")])
def test_a_process_that_ends(node: Node, polls: bool, when: str) -> None:
    """This is noticed at once."""
    node.add(7)
    if polls:
        node.polls(7, 1.0)
    node.files.append((103.0, lambda: node.end(7)))
    session = node.session(7)
    assert f"process 7 (python): it ended {when}" in errors(session)[7]
    assert passed(node) < 3.5
    assert session.has_requested is polls


@pytest.mark.parametrize(
    ("free", "why"),
    [
        ((1 << 20) - 1, "the file system of /traces/gpu-exporter-"),
        (1 << 20, "it accepted the request, but wrote no trace: its log says why"),
    ],
)
def test_a_process_that_writes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch, free: int, why: str) -> None:
    """It has the time for the recording and for the writing. libkineto warms up two seconds longer without a start."""
    monkeypatch.setattr(TraceFile, "check_space", lambda file: None)
    monkeypatch.setattr(TraceFile, "free_bytes", lambda file: free)
    node.add(7)
    node.polls(7, 1.0)
    session = node.session(7, write=6.0)
    assert f"process 7 (python): {why}" in errors(session)[7]
    deadline = 1.0 + OPTIONS.warm_up + 2.0 + OPTIONS.seconds + 6.0
    assert deadline < passed(node) < deadline + 3 * TICK_SECONDS


@pytest.mark.parametrize(
    ("grows", "ends"),
    [
        ([11.0, 12.0, 14.0], 14.0 + 6.0 / 2),
        ([6.0], 5.5 + 6.0),  # a file that grew early changes nothing
        (range(6, 100, 2), 5.5 + 30.0),
    ],
)
def test_a_file_that_grows(node: Node, monkeypatch: pytest.MonkeyPatch, grows: Iterable[float], ends: float) -> None:
    """It has half of the time from each growth on, up to a limit."""
    monkeypatch.setattr(trace_session, "MOST_WRITE_SECONDS", 30.0)
    node.add(7)
    node.polls(7, 1.0)
    for number, at in enumerate(grows):
        node.writes(7, at, number + 1, complete=False)
    session = node.session(7, write=6.0)
    assert "it accepted the request, but wrote no trace" in errors(session)[7]
    assert ends < passed(node) < ends + 4 * TICK_SECONDS
    assert not node.left()


@pytest.mark.parametrize(
    ("size", "complete", "why"),
    [
        (MOST_TRACE_BYTES + 1, False, "its trace exceeds 1024 MiB: use a shorter --seconds, or --no-stacks"),
        (MOST_TRACE_BYTES + 1, True, "its trace is not used: larger than 1024 MiB: use a shorter --seconds"),
        (0, True, "its trace is not used: it is empty"),
    ],
)
def test_files_that_are_not_used(node: Node, size: int, complete: bool, why: str) -> None:
    """Nothing of them is left."""
    node.add(7)
    node.polls(7, 1.0)
    node.writes(7, 4.0, size, complete=complete)
    session = node.session(7)
    assert f"process 7 (python): {why}" in errors(session)[7]
    assert passed(node) < 4.5
    assert (node.left(), session.taken) == ([], [])


def test_the_largest_file(node: Node) -> None:
    node.add(7)
    node.polls(7, 1.0)
    node.writes(7, 4.0, MOST_TRACE_BYTES, complete=False)
    node.files.append((104.5, lambda: node.end(7)))
    session = node.session(7)
    assert "it ended while it recorded" in errors(session)[7]


def test_too_little_space_before(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is requested then, and the others are."""
    node.add(7, 8)
    free = iter([trace_file.LEAST_FREE_BYTES - 1, trace_file.LEAST_FREE_BYTES])
    monkeypatch.setattr(TraceFile, "free_bytes", lambda file: next(free))
    node.polls(7, 1.0)
    node.polls(8, 1.0)
    node.writes(8, 12.0)
    session = node.session(7, 8)
    assert errors(session) == {
        7: "process 7 (python): only 511 MiB are free in its /traces, and a trace may need 512: free some, or use"
        " another --trace-dir"
    }
    assert [datagram for _, pid, datagram in node.replies if pid == 7] == [configuration("")]
    session.close()


@pytest.mark.parametrize("trace_dir", ["/missing", "traces", "/traces/.."])
def test_a_folder_that_cannot_be_used(node: Node, trace_dir: str) -> None:
    node.add(7)
    session = node.session(7, trace_dir=trace_dir)
    assert "--trace-dir" in errors(session)[7]
    assert node.now == 100.0


def test_a_flood_does_not_delay_files(node: Node) -> None:
    """They are looked at ten times a second, not after each datagram, and not only when there is none."""
    node.add(7)
    node.polls(7, 0.0)
    for number in range(1200):
        node.polls(99, number / 1000, GARBAGE)
    node.writes(7, 1.0)
    looks = []
    complete = TraceFile.is_complete

    def looked(file: TraceFile) -> bool:
        looks.append(node.now)
        return complete(file)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TraceFile, "is_complete", looked)
        session = node.session(7)
    assert passed(node) < 1.3
    assert 9 <= len(looks) <= 14
    session.close()


def test_a_trace_that_is_of_no_use(node: Node) -> None:
    """It is closed, and its process is among the failed ones."""
    node.add(7)
    node.polls(7, 1.0)
    node.writes(7, 4.0)
    session = node.session(7)
    (taken,) = session.taken
    session.discard(taken, GpuExporterError("garbage"))
    assert (session.taken, errors(session)) == ([], {7: "garbage"})
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken.descriptor)
