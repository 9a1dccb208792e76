"""Traces that somebody asks an exporter for: what they say, and jobs that spoil only their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_exporter.host.files import HostFiles
from gpu_exporter.profiling.kineto_daemon import TraceOptions
from gpu_exporter.profiling.processes import look_up
from gpu_exporter.profiling.records import StackKind
from gpu_exporter.profiling.taking import Taken
from gpu_exporter.profiling.tracing import trace
from tests.support.kineto_jobs import jobs, short_folder, traces_in

pytestmark = pytest.mark.slow
FILES = HostFiles(Path("/proc"), Path("/sys"))


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def test_one_job_dies_and_one_writes_garbage(folder: Path) -> None:
    """The third one has its kernels by class, its stacks, and the outputs that were asked for."""
    with jobs("records", "dies", "garbage", folder=folder) as running:
        processes = [look_up(FILES, job.pid, (gpu,)) for gpu, job in enumerate(running, 3)]
        traced = trace(processes, TraceOptions(warm_up=0), FILES, {gpu: f"GPU-{gpu}" for gpu in (3, 4, 5)}, ["text"])
    good, dead, hostile = (job.pid for job in running)
    assert [process.pid for process in traced.taken] == [good]
    why = {process.pid: str(error) for process, error in traced.failed}
    assert "it ended while it recorded its trace" in why.pop(dead)
    assert "the trace cannot be analysed: " in why.pop(hostile)
    assert not why
    assert {kernels.gpu for kernels in traced.kernels} == {"GPU-3"}
    assert sum(kernels.seconds for kernels in traced.kernels) > 0
    assert [(stacks.pid, stacks.kind) for stacks in traced.stacks] == [
        (good, StackKind.GPU),
        (good, StackKind.IDLE),
    ]
    assert traced.outputs["text"].startswith(b"Verdict: ")
    assert not traces_in(folder)


def test_garbage(folder: Path) -> None:
    """One line says so for each process."""
    with jobs("garbage", folder=folder) as (job,):
        traced = trace([look_up(FILES, job.pid, (0,))], TraceOptions(warm_up=0), FILES, {0: "GPU-0"}, ["text"])
    assert not any((traced.outputs, traced.taken, traced.kernels, traced.stacks))
    assert traced.requested
    assert Taken(traced=traced).counts  # the job may be slower
    ((_, error),) = traced.failed
    assert str(error).startswith("the trace cannot be analysed: ")
    assert "\n" not in str(error)


def test_a_process_with_several_gpus_has_no_kernels(folder: Path) -> None:
    """It numbers its GPUs in its own way, so nobody knows which of them worked."""
    with jobs("records", folder=folder) as (job,):
        uuids = {0: "GPU-0", 1: "GPU-1"}
        traced = trace([look_up(FILES, job.pid, (0, 1))], TraceOptions(warm_up=0), FILES, uuids, [])
    assert not traced.kernels
    assert traced.stacks
