"""The thread that owns the socket: who floods it, and what if its file is gone or taken."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.jobs.connections import SocketPeer
from gpu_exporter.jobs.socket_file import JobSocket
from gpu_exporter.jobs.store import Accepted
from gpu_exporter.jobs.watch import JobWatch
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuSamples
from tests.support.job_sender import encoded, message, send
from tests.support.tools import until

GPU = Gpu(0, "GPU-1")


@pytest.fixture
def path() -> Iterator[Path]:
    """A path that is short enough for a socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory) / "jobs.sock"


@pytest.fixture
def watch(path: Path) -> Iterator[JobWatch]:
    watch = JobWatch(path)
    yield watch
    watch.stop()
    if watch.ident is None:
        watch.start()  # only the thread closes the socket
    watch.join()


def seen(*pids: int) -> list[GpuSamples]:
    samples = [Sample(Series(m.PROCESS_MEMORY, GPU, (("pid", str(pid)), ("process", "python3"))), 1) for pid in pids]
    return [GpuSamples(GPU, None, samples, {})]


def values(watch: JobWatch, *pids: int) -> dict[str, float]:
    """Return the values of the exporter's own metrics and of steps, by name and result."""
    shown = (m.JOB_MESSAGES, m.JOB_SOCKET_UP, m.JOB_STEPS)
    samples = [sample for sample in watch.samples(seen(*pids)) if sample.series.metric in shown]
    return {" ".join([series.name, dict(series.labels).get("result", "")]).strip(): value for series, value in samples}


def verified(watch: JobWatch, *pids: int) -> list[str]:
    samples = watch.samples(seen(*pids))
    return [dict(series.labels)["verified"] for series, _ in samples if series.metric is m.JOB_RANK_INFO]


def packet(**changes: Any) -> bytes:
    return encoded(message(uuid="GPU-1", **changes))


def test_a_child_of_the_process_on_the_gpu_is_verified(watch: JobWatch, path: Path) -> None:
    """The parent of this process is taken for the one on the GPU."""
    values(watch, os.getppid())
    watch.start()
    assert send(path, encoded(message()))
    until(lambda: verified(watch, os.getppid()) == ["true"], what="a rank")


def test_a_stranger_is_not_verified(watch: JobWatch, path: Path) -> None:
    values(watch, 2**22 + 1)
    watch.start()
    assert send(path, packet())
    until(lambda: verified(watch, 2**22 + 1) == ["false"], what="a rank")


def test_ranks_on_gpus_that_are_not_live(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No process can be on a simulated or replayed GPU: a rank gets the GPU of its number. A real node logs why not."""
    gpus = [GpuSamples(Gpu(index, f"GPU-{9 - index}"), None, (), {}) for index in range(4)]
    stray = encoded(message(rank=6, world_size=8))
    watch = JobWatch(path, live=False)
    watch.samples(gpus)
    assert watch.take(stray, SocketPeer(os.getpid(), os.getuid())) is Accepted.ACCEPTED
    watch.start()
    until(lambda: any(sample.series.metric is m.JOB_STEPS for sample in watch.samples(gpus)), what="a rank")
    assert {series.gpu for series, _ in watch.samples(gpus) if series.metric is m.JOB_STEPS} == {gpus[2].gpu}
    watch.stop()
    watch.join()
    real = JobWatch(path.with_name("real.sock"))
    real.samples(gpus)
    assert real.take(stray, SocketPeer(os.getpid(), os.getuid())) is Accepted.UNKNOWN_GPU
    assert "neither process, UUID nor pod belongs to one GPU" in caplog.text
    real.stop()
    real.start()
    real.join()


def test_a_process_cannot_have_run_for_longer_than_the_machine(watch: JobWatch) -> None:
    values(watch)
    assert watch.take(packet(elapsed=9e7), SocketPeer(41, 1000)) is Accepted.INVALID


def test_a_process_may_have_started_before_the_clock_that_is_read(
    watch: JobWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By five seconds; the machine runs for 100 s."""
    values(watch)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    monkeypatch.setattr("time.time", lambda: 5000.0)
    assert watch.take(packet(elapsed=105.5), SocketPeer(41, 1000)) is Accepted.INVALID
    assert watch.take(packet(elapsed=105.0), SocketPeer(41, 1000)) is Accepted.ACCEPTED
    watch._publish(100.0)
    (started,) = (sample for sample in watch.samples(seen()) if sample.series.metric is m.JOB_STARTED_AT)
    assert started.value == 4895.0


@pytest.mark.parametrize(
    ("content", "result", "why"),
    [
        (b"x" * 8193, Accepted.TOO_LARGE, "larger than 8192 bytes"),
        (b"x" * 8192, Accepted.INVALID, "JSON"),
        (encoded({"version": 7}), Accepted.VERSION, "version 7, but this exporter reads version 1"),
        (packet(rank=9), Accepted.INVALID, "rank: must be"),
    ],
)
def test_faulty_messages_are_logged_once_a_minute(
    watch: JobWatch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    result: Accepted,
    why: str,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for now[0] in (100.0, 159.5, 160.0):
        assert watch.take(content, SocketPeer(41, 1000)) is result
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("job socket: message of PID 41, user 1000 is dropped: ")
    assert why in first
    assert second == first


@pytest.mark.parametrize(
    ("pid", "uuid", "verified", "result"),
    [
        (41, "", "true", Accepted.ACCEPTED),
        (41, "GPU-9", "true", Accepted.ACCEPTED),
        (999_999_999, "GPU-1", "false", Accepted.ACCEPTED),
        (999_999_999, "GPU-9", "", Accepted.UNKNOWN_GPU),
        (0, "", "", Accepted.UNKNOWN_GPU),
    ],
)
def test_who_is_verified(watch: JobWatch, pid: int, uuid: str, verified: str, result: Accepted) -> None:
    """By the driver's list of processes; a statement is only believed of a GPU of this node."""
    values(watch, 41)
    declared: dict[str, Any] = {"uuid": uuid} if uuid else {}
    peer = SocketPeer(pid, 1000, heard_at=-1.0)
    assert watch.take(b"{}", peer) is Accepted.INVALID
    assert peer == SocketPeer(pid, 1000, heard_at=-1.0)
    assert watch.take(encoded(message(**declared)), peer) is result
    assert (peer.valid, peer.heard_at > 0, peer.verified) == (True, True, verified == "true")
    assert watch._connections
    assert watch._connections._is_on_gpu(pid, 1000) is (verified == "true")
    watch._publish(0.0)
    assert [dict(series.labels)["verified"] for series, _ in watch._published if series.metric is m.JOB_RANK_INFO] == (
        [verified] if verified else []
    )


def test_ranks_of_gpus_that_are_gone_are_not_shown(watch: JobWatch) -> None:
    """They are again when the GPU is back; a GPU that has changed has new series."""

    def published(*gpus: Gpu) -> list[Series]:
        watch.samples([GpuSamples(gpu, None, [], {}) for gpu in gpus])
        watch._publish(0.0)
        return [series for series, _ in watch._published if series.metric is m.JOB_STEPS]

    published(GPU)
    watch.take(packet(), SocketPeer(41, 1000))
    (first,) = published(GPU)
    (same,) = published(GPU)
    assert same is first
    assert published() == []
    other = Gpu(0, "GPU-1", model="another")
    (new,) = published(other)
    assert new.gpu is other


def test_a_turn_counts_what_arrived_and_what_was_refused(watch: JobWatch, path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("gpu_exporter.jobs.watch.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("gpu_exporter.jobs.connections.MOST_OF_PROCESS", 1)
    values(watch)
    with ExitStack() as stack:
        for _ in range(3):
            sender = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            sender.connect(str(path))
            with suppress(BrokenPipeError):
                sender.send(packet())
        for _ in range(3):
            watch._turn()
    found = values(watch)
    assert found["gpu_exporter_job_messages_total accepted"] == 1
    assert found["gpu_exporter_job_messages_total limit"] == 2
    assert found["gpu_exporter_job_socket_up"] == 1
    assert found["gpu_job_steps_total"] == 3


def test_a_message_without_some_phases_counts_as_limit_too(watch: JobWatch, path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("gpu_exporter.jobs.watch.IDLE_SECONDS", 0.0)
    values(watch)
    assert send(path, packet(phase_seconds={"x" * 49: 1, "short": 1}))
    for _ in range(3):
        watch._turn()
    found = values(watch)
    assert found["gpu_exporter_job_messages_total accepted"] == found["gpu_exporter_job_messages_total limit"] == 1
    assert found["gpu_job_steps_total"] == 3


def test_a_socket_that_cannot_be_made_again(
    watch: JobWatch, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is logged once, until there is a socket again."""
    monkeypatch.setattr("gpu_exporter.jobs.watch.IDLE_SECONDS", 0.0)
    caplog.set_level("WARNING")
    for _ in range(2):
        path.unlink()
        path.write_text("mine")
        for _ in range(2):
            watch._turn()
            assert values(watch)["gpu_exporter_job_socket_up"] == 0
        path.unlink()
        watch._turn()
        assert values(watch)["gpu_exporter_job_socket_up"] == 1
    problem = (
        f"--job-socket {path}: exists, and is not a socket: use another path or remove it; the exporter tries again"
    )
    assert [record.getMessage() for record in caplog.records] == [
        problem,
        f"job socket: {path} is in place again",
    ] * 2


def test_an_unexpected_error_is_logged_once(
    watch: JobWatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And again after a turn that worked; the thread goes on."""
    monkeypatch.setattr("gpu_exporter.jobs.watch.PAUSE_SECONDS", 0.0)
    turns = [True, True, False, True]

    def turn() -> None:
        if len(turns) == 1:
            watch._stopping.set()
        if turns.pop(0):
            raise ZeroDivisionError

    monkeypatch.setattr(watch, "_turn", turn)
    watch.run()
    assert [record.getMessage() for record in caplog.records] == ["job socket: unexpected error, please report it"] * 2
    assert watch._socket is None


def test_the_end_does_not_wait_for_the_thread(watch: JobWatch) -> None:
    """A process that ends must not hang because of a job."""
    assert watch.daemon


def test_a_deleted_socket_is_made_again(watch: JobWatch, path: Path) -> None:
    values(watch)
    watch.start()
    path.unlink()
    until(path.is_socket, what="another socket")
    until(lambda: send(path, packet()), what="room in the socket")
    until(lambda: values(watch).get("gpu_job_steps_total") == 3, what="a rank")
    assert values(watch)["gpu_exporter_job_socket_up"] == 1


@pytest.mark.slow
def test_a_path_in_use_is_taken_once_it_is_free(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """During an update, the old exporter still listens when the new one starts."""
    old = JobSocket(path)
    watch = JobWatch(path)
    assert values(watch)["gpu_exporter_job_socket_up"] == 0
    watch.start()
    assert send(path, b"to the old one")
    old.close()
    until(lambda: values(watch)["gpu_exporter_job_socket_up"] == 1, what="the socket")
    watch.stop()
    watch.join()
    assert not path.exists()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [
        f"--job-socket {path}: another process listens on it: stop it, or use another path; the exporter tries again"
    ]


def test_a_path_that_cannot_work_ends_the_start(path: Path) -> None:
    with pytest.raises(GpuExporterError, match="create its directory first"):
        JobWatch(path.parent / "missing" / "jobs.sock")


def test_the_end_removes_the_file_at_once(watch: JobWatch, path: Path) -> None:
    """The process ends without waiting for the thread."""
    watch.stop()
    assert not path.exists()


@pytest.mark.slow
def test_the_log_names_ranks_that_end_and_run_again(
    watch: JobWatch, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once each. This process is on the GPU, so both ranks are verified."""
    pid = os.getpid()
    watch.samples(seen(pid))
    watch.start()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as stays:
        stays.connect(str(path))

        def logged(text: str) -> bool:
            with suppress(BlockingIOError):
                stays.send(encoded(message(rank=0, attempt="first")))
            watch.samples(seen(pid))
            return text in caplog.text

        until(lambda: send(path, encoded(message(rank=1, attempt="second"))), what="room in the socket")
        until(lambda: logged("training loop: rank 1 of job llm-7b has ended or sends nothing"))
        until(lambda: send(path, encoded(message(rank=1, attempt="third", steps=1))), what="room in the socket")
        until(lambda: logged("training loop: rank 1 of job llm-7b runs again, after 1 restarts"))
    assert caplog.text.count("has ended") == caplog.text.count("runs again") == 1
