"""The real py-spy on real processes, and what it cannot sample."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import pyspy
from gpu_exporter.profiling.processes import Process, environment, is_alive, look_up
from gpu_exporter.profiling.pyspy import NotSampled, Sampling, SamplingFailure, failure_of, reason
from gpu_exporter.profiling.stacks import ThreadProfile, parse, profiles
from tests.support.busy_jobs import busy_job
from tests.support.tools import until

FILES = HostFiles(Path("/proc"), Path("/sys"))
ONE_SECOND = Sampling(1.0, 50)


def sampled(pid: int, sampling: Sampling = ONE_SECOND) -> str | GpuExporterError:
    return pyspy.sample(pyspy.program(), [look_up(FILES, pid)], sampling, FILES)[pid]


def threads_of(pid: int, sampling: Sampling = ONE_SECOND) -> tuple[ThreadProfile, ...]:
    answer = sampled(pid, sampling)
    assert isinstance(answer, str), answer
    return profiles(parse(answer, {pid}, native=sampling.native), sampling.rate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("busy", TraceCause.PYTHON),
        ("loader", TraceCause.DATA_LOADING),
        ("queue", TraceCause.PYTHON),
        ("files", TraceCause.CHECKPOINT),
    ],
)
def test_the_line_is_named(name: str, cause: TraceCause, tmp_path: Path) -> None:
    """Whether it computes, sleeps, waits for another thread or for a disk."""
    with busy_job(name, tmp_path) as (job, line):
        main, *_ = threads_of(job.pid)
    assert main.is_main
    assert main.causes[0].cause is cause
    assert main.causes[0].share > 0.8
    assert main.causes[0].lines[0].frame.startswith(f"{line}: ")


@pytest.mark.slow
def test_native_frames(tmp_path: Path) -> None:
    with busy_job("loader", tmp_path) as (job, line):
        main, *_ = threads_of(job.pid, Sampling(1.0, 20, native=True))
    frame = main.causes[0].lines[0].frame
    assert frame.startswith(f"{line}: load_batch > ")
    assert "sleep" in frame


@pytest.mark.slow
def test_other_threads(tmp_path: Path) -> None:
    with busy_job("thread", tmp_path) as (job, line):
        main, watcher, waiter = threads_of(job.pid)
    assert main.is_main
    assert watcher.name == "watcher"
    assert watcher.causes[0].lines[0].frame == f"{line}: watches"
    assert (waiter.name, waiter.waits) == ("waiter", True)
    assert not watcher.waits


@pytest.mark.slow
def test_child_processes(tmp_path: Path) -> None:
    """The line that is too slow is in the workers of a loader."""
    with busy_job("workers", tmp_path) as (job, line):
        found = threads_of(job.pid)
        alone = threads_of(job.pid, Sampling(1.0, 50, workers=False))
    workers = next(thread for thread in found if thread.workers and thread.name == "MainThread")
    assert workers.workers == 2
    assert workers.causes[0].lines[0].frame == f"{line}: decode"
    assert not any(thread.workers for thread in alone)


@pytest.mark.slow
def test_a_process_that_is_not_python() -> None:
    with subprocess.Popen(["sleep", "60"]) as job:
        try:
            until(lambda: FILES.process(f"{job.pid}/cmdline"), what="the command line of the new program")
            answer = sampled(job.pid)
        finally:
            job.kill()
    assert str(answer) == f"process {job.pid} (sleep 60): it does not run Python"


@pytest.mark.slow
def test_a_process_that_ended(tmp_path: Path) -> None:
    with busy_job("busy", tmp_path) as (job, _):
        process = look_up(FILES, job.pid)
    answer = pyspy.sample(pyspy.program(), [process], ONE_SECOND, FILES)[process.pid]
    assert str(answer) == f"{process.title}: it ended before it was sampled"


@pytest.mark.slow
def test_without_permission(tmp_path: Path) -> None:
    """As nobody, on a process of root."""
    program = (
        "import os, sys\nfrom tests.unit.profiling.test_pyspy import pyspy, sampled\n"
        "pyspy.program()\n"
        "if os.getuid() == 0:\n    os.setgid(65534); os.setuid(65534)\n"
        "print(sampled(int(sys.argv[1])))"
    )
    with busy_job("busy", tmp_path) as (job, _):
        pid = job.pid if os.getuid() == 0 else 1
        ran = subprocess.run([sys.executable, "-c", program, str(pid)], capture_output=True, text=True, check=False)
    assert "not permitted: run as root, or as its user; in a container, add the capability" in ran.stdout, ran


@pytest.mark.slow
def test_a_process_that_is_stopped(tmp_path: Path) -> None:
    """It runs nothing, but its stack can be read."""
    with busy_job("busy", tmp_path) as (job, line):
        os.kill(job.pid, signal.SIGSTOP)
        main, *_ = threads_of(job.pid)
        os.kill(job.pid, signal.SIGCONT)
    assert main.causes[0].lines[0].frame.startswith(f"{line.partition('(')[0]}(")
    assert main.causes[0].share == 1.0


def stand_in(folder: Path, body: str) -> Path:
    """Write a program that is started instead of py-spy; `$7` is the file that it shall write."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_py_spy_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "SLACK_SECONDS", 0.0)
    here = look_up(FILES, os.getpid())
    answer = pyspy.sample(stand_in(tmp_path, "exec sleep 600"), [here], Sampling(0.2), FILES, tmp_path)[here.pid]
    assert isinstance(answer, NotSampled)
    assert answer.failure is SamplingFailure.TIMEOUT
    assert [path.name for path in tmp_path.iterdir()] == ["py-spy"]


def test_py_spy_is_limited(tmp_path: Path) -> None:
    """Its priority is low, and its memory, CPU time and output are bounded."""
    waits = "until grep -q 'file size *67108864' /proc/self/limits; do sleep 0.02; done"
    nice = "while [ \"$(cut -d' ' -f19 /proc/self/stat)\" != 10 ]; do sleep 0.02; done"
    program = stand_in(tmp_path, f'{waits}; {nice}; cat /proc/self/limits > "$7"')
    here = look_up(FILES, os.getpid())
    answer = pyspy.sample(program, [here], Sampling(1.0), FILES, tmp_path)[here.pid]
    assert isinstance(answer, str), answer
    limits = {line[:26].strip(): line[26:47].strip() for line in answer.splitlines()}
    assert limits["Max file size"] == str(pyspy.MOST_OUTPUT_BYTES)
    assert limits["Max address space"] == str(pyspy.MOST_MEMORY_BYTES)
    assert limits["Max cpu time"] == "21"


def test_stacks_that_are_too_large(tmp_path: Path) -> None:
    """A job decides how deep and how many its stacks are."""
    program = stand_in(tmp_path, 'exec cat /dev/zero > "$7"')
    here = look_up(FILES, os.getpid())
    answer = pyspy.sample(program, [here], Sampling(1.0, most_bytes=2 << 20), FILES, tmp_path)[here.pid]
    assert isinstance(answer, NotSampled)
    assert (answer.failure, str(answer)) == (SamplingFailure.TOO_LARGE, f"{here.title}: its stacks exceed 2 MiB")


def test_kinds_of_failures() -> None:
    assert failure_of("No space left on device (os error 28)") is SamplingFailure.DISK
    assert failure_of("Permission denied (os error 13)") is SamplingFailure.NOT_PERMITTED
    assert failure_of("Error: Unsupported version of Python: 4.0") is SamplingFailure.UNSUPPORTED
    assert failure_of("x") is SamplingFailure.OTHER


def test_why_py_spy_failed() -> None:
    denied = "Permission Denied: Try running again with elevated permissions by going 'sudo env'"
    assert reason(denied, 0).endswith("add the capability SYS_PTRACE")
    assert reason(denied, 1).endswith("or set kernel.yama.ptrace_scope to 0 (now 1)")
    assert reason("Error: Failed to find python version from target process\n", 0) == "it does not run Python"
    assert reason("Error: Unsupported version of Python: 4.0", 0).endswith("upgrade py-spy")
    assert reason("x\nError: disk\x1b[31m\nStack backtrace:", 0) == "py-spy returned no stacks: Error: disk\ufffd[31m"
    assert reason("", 0) == "py-spy returned no stacks: no reason given"


def test_py_spy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the interpreter, in PATH, or below a folder of packages that `pip --target` made."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "scripts"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    with pytest.raises(GpuExporterError, match="py-spy, which is not installed: pip install py-spy"):
        pyspy.program()
    for folder in ("site/bin", "path", "bin"):
        program = tmp_path / folder / "py-spy"
        program.parent.mkdir(parents=True)
        program.write_text("")
        program.chmod(0o755)
        assert pyspy.program() == program


def test_processes() -> None:
    here = look_up(FILES, os.getpid(), (0, 1))
    assert (here.pid, here.uid, here.inner_pid) == (os.getpid(), os.geteuid(), os.getpid())
    assert is_alive(FILES, here)
    assert here.title == f"process {here.pid} ({here.command}) on GPUs 0, 1"
    assert not is_alive(FILES, Process(here.pid, here.started + 1, 0, "", here.pid))
    with pytest.raises(GpuExporterError, match="there is no process 4194305 here: check the PID"):
        look_up(FILES, (1 << 22) + 1)
    found = environment(FILES, os.getpid())
    assert found is not None
    assert environment(FILES, (1 << 22) + 1) is None
