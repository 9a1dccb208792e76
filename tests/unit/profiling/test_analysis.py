"""The analysis of traces from jobs, in a process with limits."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import analysis, analysis_child
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.trace_session import TakenTrace
from tests.support.kineto_jobs import SLOW_LOADER
from tests.support.traces import SyntheticTrace

Take = Callable[[bytes], TakenTrace]


@pytest.fixture
def take(tmp_path: Path) -> Iterator[Take]:
    """Make a trace of a job, as a file without a name."""
    taken = []

    def make(content: bytes) -> TakenTrace:
        path = tmp_path / "trace"
        path.write_bytes(content)
        taken.append(TakenTrace(Process(42, 1, 0, "train.py", 42), os.open(path, os.O_RDONLY)))
        path.unlink()
        return taken[-1]

    yield make
    for trace in taken:
        os.close(trace.descriptor)


@pytest.mark.slow
def test_every_output(take: Take) -> None:
    trace = take(SLOW_LOADER.read_bytes())
    outputs = analysis.analyze([trace], ["text", "json", "folded", "pprof", "report"])
    assert outputs["text"].startswith(b"Verdict: data-loading-bound\n")
    assert b"<stdin>(12): go > <built-in function sleep>" in outputs["text"]
    assert json.loads(outputs["json"])["ranks"][0]["file"] == "process 42"
    assert outputs["folded"].startswith(b"rank 0;data_loading;")
    assert gzip.decompress(outputs["pprof"])
    assert outputs["report"].startswith(b"<!doctype html>")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "process 42: the file is empty"),
        (os.urandom(1 << 16), "process 42"),
        (b'{"traceEvents": [' + b"[" * 200_000, "process 42"),
        (b"\x1f\x8b" + os.urandom(1000), "process 42"),
        (b"SQLite format 3\0" + bytes(4000), "process 42"),
    ],
)
def test_garbage_is_one_line(content: bytes, why: str, take: Take) -> None:
    with pytest.raises(GpuExporterError) as error:
        analysis.analyze([take(content)], ["text"])
    assert str(error.value).startswith(f"the trace cannot be analysed: {why}")
    assert "\n" not in str(error.value)
    assert "/proc/" not in str(error.value)


@pytest.mark.slow
def test_a_gzip_bomb_ends_with_the_limit_of_time(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GiB of blanks in 8 MB."""
    monkeypatch.setattr(analysis, "CPU_SECONDS", 1)
    monkeypatch.setattr(analysis, "BYTES_PER_SECOND", 1 << 30)
    block = gzip.compress(b" " * (64 << 20))
    with pytest.raises(GpuExporterError, match="the trace cannot be analysed: "):
        analysis.analyze([take(gzip.compress(b'{"traceEvents": [') + block * 128)], ["text"])


@pytest.mark.slow
def test_an_answer_that_is_too_large_is_not_kept(take: Take) -> None:
    """The exporter allows less than the command."""
    trace = take(SLOW_LOADER.read_bytes())
    with pytest.raises(GpuExporterError, match="the trace cannot be analysed: "):
        analysis.analyze([trace], {"report"}, 1000)


@pytest.mark.slow
def test_the_limits_of_the_child() -> None:
    program = (
        "import json, os, resource\n"
        "from gpu_exporter.profiling import analysis_child\n"
        "analysis_child._limit(7)\n"
        "names = ('AS', 'CPU', 'FSIZE', 'CORE')\n"
        "limits = {name: resource.getrlimit(getattr(resource, f'RLIMIT_{name}'))[1] for name in names}\n"
        "print(json.dumps([limits, os.nice(0)]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    limits, niceness = json.loads(ran.stdout)
    assert limits == {"AS": analysis_child.MOST_MEMORY, "CPU": 7, "FSIZE": 0, "CORE": 0}
    assert niceness >= min(19, analysis_child.NICENESS + os.nice(0))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] != 0


def test_kept_traces_are_private(take: Take, tmp_path: Path) -> None:
    trace = take(SLOW_LOADER.read_bytes())
    (path,) = analysis.keep([trace], tmp_path / "kept")
    assert path.read_bytes() == SLOW_LOADER.read_bytes()
    assert path.name == "trace_42.json.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        analysis.keep([trace], tmp_path / "kept")


@pytest.mark.slow
def test_a_trace_without_gpu_work(take: Take, tmp_path: Path) -> None:
    """The process hung, or has no GPU: its stacks help, its trace does not."""
    trace = SyntheticTrace()
    trace.host("train.py(3): load_batch", 0, 100)
    content = trace.write(tmp_path / "host.json").read_bytes()
    with pytest.raises(GpuExporterError, match="process 42: no work began on a GPU while it was recorded: leave out"):
        analysis.analyze([take(content)], ["text"])
