"""The sampler in another process: its protocol, whom it samples, and what goes wrong."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import sample_server
from gpu_exporter.profiling.processes import Process, look_up
from gpu_exporter.profiling.pyspy import NotSampled, Sampling, SamplingFailure
from gpu_exporter.profiling.sample_server import MOST_RATE, SampleServer, checked
from gpu_exporter.profiling.sampler import (
    MOST_REQUEST_BYTES,
    MOST_WHY,
    RemoteSampler,
    SampleAnswer,
    SampleRequest,
    _outcome,
    encoded,
    holds_gpu,
    local_sampler,
    receive,
)
from gpu_exporter.profiling.triggers import MOST_PROCESSES, SECONDS, sampling_of
from tests.support.busy_jobs import busy_job
from tests.unit.profiling.test_watch import proc

FILES = HostFiles(Path("/proc"), Path("/sys"))
REQUEST = {"version": 1, "pids": [7], "seconds": 5.0, "rate": 50}


class Answers:
    """A sampler that answers without py-spy."""

    def sample(self, processes: Sequence[Process], sampling: Sampling) -> Mapping[int, str | NotSampled]:
        return {process.pid: f"stacks of {process.pid}" for process in processes}


class NoDisk:
    """A sampler that cannot write."""

    def sample(self, processes: Sequence[Process], sampling: Sampling) -> Mapping[int, str | NotSampled]:
        raise OSError(28, "No space left on device")


@pytest.fixture
def path() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "s"


@pytest.fixture
def served(path: Path) -> Iterator[Path]:
    """The socket of a running server that believes that this process holds a GPU, and no other."""
    stop = threading.Event()
    server = SampleServer(path, Answers(), FILES, lambda pid: pid == os.getpid())
    thread = threading.Thread(target=server.run, args=(stop,))
    thread.start()
    yield path
    stop.set()
    thread.join()
    server.close()


@pytest.mark.slow
def test_only_processes_on_a_gpu_are_sampled(served: Path) -> None:
    here, parent = look_up(FILES, os.getpid()), look_up(FILES, os.getppid())
    gone = Process((1 << 22) + 1, 1, 0, "gone", 1)
    found = RemoteSampler(served).sample([here, parent, gone], Sampling())
    assert found[here.pid] == f"stacks of {here.pid}"
    refused, ended = found[parent.pid], found[gone.pid]
    assert isinstance(refused, NotSampled)
    assert (refused.failure, str(refused).endswith(": holds no GPU")) == (SamplingFailure.NOT_PERMITTED, True)
    assert isinstance(ended, NotSampled)
    assert ended.failure is SamplingFailure.ENDED


@pytest.mark.slow
def test_garbage_ends_only_its_connection(served: Path) -> None:
    for content in (b"", b"{", b"x" * (MOST_REQUEST_BYTES + 1), json.dumps({**REQUEST, "seconds": 600}).encode()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(30)
            client.connect(str(served))
            with suppress(ConnectionError):  # the server has not read everything
                client.sendall(content)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(10) == b""
    here = look_up(FILES, os.getpid())
    assert RemoteSampler(served).sample([here], Sampling()) == {here.pid: f"stacks of {here.pid}"}


def test_a_server_that_is_not_there(path: Path) -> None:
    here = look_up(FILES, os.getpid())
    found = RemoteSampler(path).sample([here], Sampling())[here.pid]
    assert isinstance(found, NotSampled)
    assert found.failure is SamplingFailure.SAMPLER
    assert str(found) == f"--profile-socket {path}: No such file or directory: is gpu-exporter sampler running?"


def test_answers_of_another_program(path: Path) -> None:
    """Whatever it answers, only the profile is lost."""
    here = look_up(FILES, os.getpid())
    answers = [b"[]", b"not json", encoded([SampleAnswer(here.pid, "", "new_reason", "why\n\x1b")])]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            for content in answers:
                connection, _ = server.accept()
                with connection:
                    receive(connection, MOST_REQUEST_BYTES)
                    connection.sendall(content)

        thread = threading.Thread(target=answer)
        thread.start()
        found = [RemoteSampler(path).sample([here], Sampling())[here.pid] for _ in answers]
        thread.join()
    assert [each.failure for each in found if isinstance(each, NotSampled)] == [
        SamplingFailure.SAMPLER,
        SamplingFailure.SAMPLER,
        SamplingFailure.OTHER,
    ]
    assert all(str(each).isprintable() for each in found)


def test_whom_a_server_samples(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Processes that hold a GPU, each once and all together; the others have a reason."""
    caplog.set_level("INFO")
    for pid in (7, 8, 9):
        proc(tmp_path, pid)
    asked: list[tuple[list[int], Sampling]] = []

    class Fake:
        def sample(self, processes: Sequence[Process], sampling: Sampling) -> Mapping[int, str | NotSampled]:
            asked.append(([process.pid for process in processes], sampling))
            return {7: "stacks", 9: NotSampled("it hangs", SamplingFailure.TIMEOUT)}

    with closing(SampleServer(path, Fake(), HostFiles(tmp_path, tmp_path), lambda pid: pid != 8)) as server:
        answers = server.answers(SampleRequest(1, (7, 8, 9, 7, 10), 2.0, 25))
        assert server.answers(SampleRequest(1, (8,), 2.0, 25)) == [answers[0]]
    assert answers == [
        SampleAnswer(8, "", "not_permitted", "process 8 (python): holds no GPU"),
        SampleAnswer(10, "", "process_ended", answers[1].why),
        SampleAnswer(7, "stacks"),
        SampleAnswer(9, "", "timeout", "it hangs"),
    ]
    assert answers[1].why.startswith("there is no process 10 here")
    assert asked == [([7, 9], sampling_of(2.0, 25, 2))]
    said = [record.getMessage() for record in caplog.records]
    assert said == ["stacks of process 7 (python), process 9 (python) for 2 s", "stacks of nothing for 2 s"]


class AfterOneConnection(threading.Event):
    """An event that is set when it is asked for the second time."""

    asked = 0

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked > 1


def test_clients_are_answered_until_the_end(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One after another; a request that is refused, or a client that has gone, ends only its connection."""
    requests = [b"{", json.dumps({**REQUEST, "pids": [os.getpid()]}).encode()]
    for request, answer in zip(requests, (b"", f"stacks of {os.getpid()}".encode()), strict=True):
        stop = AfterOneConnection()
        with (
            closing(SampleServer(path, Answers(), FILES, lambda pid: True)) as server,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
        ):
            client.connect(str(path))
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            server.run(stop)
            assert answer in receive(client, MOST_REQUEST_BYTES)
            assert stop.asked == 2
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["a request is refused"]


@pytest.mark.parametrize(
    ("answer", "failure", "text"),
    [
        (SampleAnswer(7, "folded"), None, "folded"),
        (SampleAnswer(7, "", "timeout", "it hangs"), SamplingFailure.TIMEOUT, "it hangs"),
        (
            SampleAnswer(7, "", "of a newer server", "x\n" * 300),
            SamplingFailure.OTHER,
            ("x " * 150)[: MOST_WHY - 1] + "…",
        ),
        (None, SamplingFailure.SAMPLER, "process 7 (a.py): the sample server did not answer about it"),
    ],
)
def test_outcomes(answer: SampleAnswer | None, failure: SamplingFailure | None, text: str) -> None:
    found = _outcome(Process(7, 1, 0, "a.py", 7), answer)
    assert str(found) == text
    assert (found.failure if isinstance(found, NotSampled) else None) is failure


@pytest.mark.parametrize(("size", "fits"), [(MOST_REQUEST_BYTES, True), (MOST_REQUEST_BYTES + 1, False)])
def test_what_is_received_is_bounded(size: int, *, fits: bool) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"x" * size)
        one.shutdown(socket.SHUT_WR)
        if fits:
            assert receive(other, MOST_REQUEST_BYTES) == b"x" * size
            return
        with pytest.raises(ValueError, match="more than 4 KiB"):
            receive(other, MOST_REQUEST_BYTES)


def test_requests_at_their_limits() -> None:
    """Any that an exporter sends: as many processes, as long and as often as it samples at most."""
    most = {"pids": list(range(1, MOST_PROCESSES + 1)), "seconds": SECONDS, "rate": MOST_RATE}
    assert checked(json.dumps({**REQUEST, **most}).encode()).rate == MOST_RATE
    for changes in ({"seconds": 0}, {"rate": 0}, {"seconds": SECONDS + 0.1}, {"rate": MOST_RATE + 1}, {"rate": -1}):
        with pytest.raises(ValueError, match="at most 5 s at 100 samples per second"):
            checked(json.dumps({**REQUEST, **changes}).encode())
    assert checked(json.dumps({**REQUEST, "pids": [1], "seconds": 0.1, "rate": 1}).encode()).pids == (1,)


@pytest.mark.parametrize(
    ("kind", "major", "minor", "holds"),
    [
        (stat.S_IFCHR, 195, 0, True),
        (stat.S_IFCHR, 195, 253, True),
        (stat.S_IFCHR, 195, 254, False),  # nvidia-modeset
        (stat.S_IFCHR, 195, 255, False),  # nvidiactl
        (stat.S_IFCHR, 196, 0, False),
        (stat.S_IFREG, 195, 0, False),
    ],
)
def test_devices_that_are_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, major: int, minor: int, *, holds: bool
) -> None:
    """Linux, Documentation/admin-guide/devices.txt: 195 is NVIDIA's, whose last minors are control devices."""
    (tmp_path / "7/fd").mkdir(parents=True)
    for name in ("3", "4"):
        (tmp_path / "7/fd" / name).touch()
    real = os.stat

    def found(path: str, **options: Any) -> Any:
        if str(path).endswith("/fd/3"):
            raise FileNotFoundError
        if str(path).endswith("/fd/4"):
            return SimpleNamespace(st_mode=kind, st_rdev=os.makedev(major, minor))
        return real(path, **options)

    monkeypatch.setattr(os, "stat", found)
    assert holds_gpu(tmp_path, 7) is holds


def test_a_server_without_disk(path: Path) -> None:
    with closing(SampleServer(path, NoDisk(), FILES, lambda pid: True)) as server:
        (answer,) = server.answers(SampleRequest(1, (os.getpid(),), 1.0, 50))
    assert (answer.failure, answer.why) == ("disk", "py-spy cannot write its result: No space left on device")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 2}, "version 2, but this server speaks version 1: update both"),
        ({"seconds": 6}, "at most 5 s"),
        ({"seconds": -1}, "at most 5 s"),
        ({"rate": 1000}, "at 100 samples"),
        ({"pids": []}, "1 to 16 processes"),
        ({"pids": list(range(1, 18))}, "1 to 16 processes"),
        ({"pids": [0]}, "1 to 16 processes"),
        ({"pids": ["x"]}, "Expected `int`"),
    ],
)
def test_requests_are_bounded(changes: dict[str, Any], why: str) -> None:
    assert checked(json.dumps(REQUEST).encode()).pids == (7,)
    with pytest.raises(ValueError, match=why):
        checked(json.dumps({**REQUEST, **changes}).encode())


def test_a_socket_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(GpuExporterError, match=r"--socket .*: use a path in a folder that exists"):
        SampleServer(tmp_path / "missing" / "s", Answers(), FILES, lambda pid: True)
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuExporterError, match="file: exists, and is not a socket: remove it or use another path"):
        SampleServer(tmp_path / "file", Answers(), FILES, lambda pid: True)
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("uid", "is_answered"), [(0, True), (os.geteuid(), True), (65534, True), (1000, False), (2**31 - 1, False)]
)
def test_only_known_users_are_answered(
    path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, is_answered: bool
) -> None:
    monkeypatch.setattr(sample_server, "peer", lambda connection: (1, uid))
    answer = b""
    with (
        closing(SampleServer(path, Answers(), FILES, lambda pid: True, (65534,))) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
    ):
        client.connect(str(path))
        client.sendall(json.dumps(REQUEST).encode())
        client.shutdown(socket.SHUT_WR)
        server.run(AfterOneConnection())
        with suppress(ConnectionResetError):
            answer = client.recv(1)
    assert bool(answer) == is_answered


def test_an_old_socket_is_replaced(path: Path) -> None:
    for _ in range(2):
        SampleServer(path, Answers(), FILES, lambda pid: True).close()
    assert path.is_socket()


def test_device_files() -> None:
    """/dev/null has the major number 1, and stands for a device."""
    assert not holds_gpu(Path("/proc"), os.getpid())
    with open("/dev/null", "rb"):
        assert holds_gpu(Path("/proc"), os.getpid(), os.major(os.stat("/dev/null").st_rdev))
    assert not holds_gpu(Path("/proc"), (1 << 22) + 1)


@pytest.mark.slow
def test_the_real_py_spy_behind_the_socket(path: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    with (
        busy_job("loader", tmp_path) as (job, line),
        closing(SampleServer(path, local_sampler(FILES), FILES, lambda pid: pid == job.pid)) as server,
    ):
        thread = threading.Thread(target=server.run, args=(stop,))
        thread.start()
        found = RemoteSampler(path).sample([look_up(FILES, job.pid)], Sampling(1.0))[job.pid]
        stop.set()
        thread.join()
    assert isinstance(found, str)
    assert f"load_batch ({line.partition('(')[0]}:" in found
