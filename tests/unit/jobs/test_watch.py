"""The thread that owns the socket: who floods it, and what if its file is gone or taken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.jobs.socket_file import JobSocket
from gpu_exporter.jobs.store import Result
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
    assert watch.take(stray, os.getpid(), os.getuid()) is Result.ACCEPTED
    watch.start()
    until(lambda: any(sample.series.metric is m.JOB_STEPS for sample in watch.samples(gpus)), what="a rank")
    assert {series.gpu for series, _ in watch.samples(gpus) if series.metric is m.JOB_STEPS} == {gpus[2].gpu}
    watch.stop()
    watch.join()
    real = JobWatch(path.with_name("real.sock"))
    real.samples(gpus)
    assert real.take(stray, os.getpid(), os.getuid()) is Result.UNKNOWN_GPU
    assert "neither process, UUID nor pod belongs to one GPU" in caplog.text
    real.stop()
    real.start()
    real.join()


def test_a_process_cannot_have_run_for_longer_than_the_machine(watch: JobWatch) -> None:
    values(watch)
    assert watch.take(packet(elapsed=9e7), 41, 1000) is Result.INVALID


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
