"""Runs py-spy, which samples the stacks of a Python process from outside, and reads what it writes."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from math import ceil
from pathlib import Path

from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import read
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.processes import Process, is_alive

MISSING = "stacks are sampled by py-spy, which is not installed: pip install py-spy"
# How much longer than the sampling py-spy may take: it reads symbols first.
SLACK_SECONDS = 20.0
DUMP_SECONDS = 5.0
NONE_FOUND = "no python processes"
SCRATCH_PREFIX = "gpu-exporter-"
MOST_OUTPUT_BYTES = 64 << 20
MOST_ERROR_BYTES = 64 << 10
# py-spy gives way to the jobs of the node. Of a Python it maps the interpreter; with native frames, every library.
NICENESS = 10
MOST_MEMORY_BYTES = 4 << 30
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


class SamplingFailure(Enum):
    """Why a process was not sampled. `value` is the label `reason` of the metric."""

    NOT_PERMITTED = "not_permitted"
    NOT_PYTHON = "not_python"
    UNSUPPORTED = "unsupported_python"
    ENDED = "process_ended"
    TIMEOUT = "timeout"
    OTHER_PROFILER = "other_profiler"
    AVOIDED = "avoided"
    TOO_LARGE = "too_large"
    DISK = "disk"
    SAMPLER = "sampler_unreachable"
    OTHER = "other"


class NotSampled(GpuExporterError):
    """A process has no stacks: why, in one line and by kind."""

    def __init__(self, message: str, failure: SamplingFailure) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample: for how many seconds, how often per second, and whether also frames of C and C++.

    Native frames need the process to be stopped for each sample; without them it never is. `workers`: also sample
    child processes. `most_bytes`: how much py-spy may write about a process.
    """

    seconds: float = 5.0
    rate: int = 50
    native: bool = False
    workers: bool = True
    most_bytes: int = MOST_OUTPUT_BYTES


def program() -> Path:
    """Return the py-spy program: beside this interpreter, in PATH, or in a folder of packages.

    Raises GpuExporterError if there is none.
    """
    folders = [Path(sys.prefix) / "bin", Path(sysconfig.get_path("scripts"))]
    candidates = [folder / "py-spy" for folder in folders]
    if in_path := shutil.which("py-spy"):
        candidates.append(Path(in_path))
    candidates += [Path(entry) / "bin" / "py-spy" for entry in sys.path if entry]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise GpuExporterError(MISSING)


def sample(
    py_spy: Path, processes: Sequence[Process], sampling: Sampling, files: HostFiles, scratch: Path | None = None
) -> Mapping[int, str | NotSampled]:
    """Return the folded stacks of each process, by PID, all sampled at the same time; an error where that failed.

    py-spy writes below the folder `scratch`; None for the system's. Raises OSError if that is not possible.
    """
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=scratch) as folder:
        runs = [_Run(py_spy, process, sampling, Path(folder)) for process in processes]
        end = time.monotonic() + sampling.seconds + SLACK_SECONDS
        return {run.process.pid: run.outcome(end, files) for run in runs}


class _Run:
    """One run of py-spy, from the start on. It cannot write more than a limit."""

    def __init__(self, py_spy: Path, process: Process, sampling: Sampling, folder: Path) -> None:
        self.process, self._py_spy, self._sampling = process, py_spy, sampling
        self._output, self._errors = folder / f"{process.pid}.folded", folder / f"{process.pid}.errors"
        with self._errors.open("wb") as errors:
            self._running = subprocess.Popen(
                [str(py_spy), *_arguments(process, sampling, self._output)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        with suppress(ProcessLookupError):  # it has ended; outcome() says why
            _limit(self._running.pid, sampling)

    def outcome(self, end: float, files: HostFiles) -> str | NotSampled:
        """Return the folded stacks, or the error, at this monotonic time at the latest."""
        try:
            code = self._running.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
            return NotSampled(
                f"{self.process.title}: py-spy did not end: use a shorter --seconds", SamplingFailure.TIMEOUT
            )
        try:
            content = read(self._output, MOST_OUTPUT_BYTES).decode("utf-8", "replace") if code == 0 else ""
        except OSError:
            content = ""
        if content:
            return content
        if code == -signal.SIGXFSZ:
            most = self._sampling.most_bytes >> 20
            return NotSampled(f"{self.process.title}: its stacks exceed {most} MiB", SamplingFailure.TOO_LARGE)
        if not is_alive(files, self.process):
            return NotSampled(f"{self.process.title}: it ended before it was sampled", SamplingFailure.ENDED)
        text = self._said()
        return NotSampled(f"{self.process.title}: {reason(text, _ptrace_scope())}", failure_of(text))

    def _said(self) -> str:
        """Return what py-spy wrote to stderr."""
        try:
            text = self._errors.read_bytes()[:MOST_ERROR_BYTES].decode("utf-8", "replace")
        except OSError:
            text = ""
        if NONE_FOUND in text.lower():  # it does not say why while it looks for child processes
            text = self._one_dump()
        return text

    def _one_dump(self) -> str:
        """Return what py-spy writes to stderr when it shall print the stacks of the process alone, once."""
        command = [str(self._py_spy), "dump", "--pid", str(self.process.pid), "--nonblocking"]
        try:
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DUMP_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return ""
        return ran.stderr[:MOST_ERROR_BYTES].decode("utf-8", "replace")


def _limit(pid: int, sampling: Sampling) -> None:
    """Limit what a py-spy that has just started may use."""
    limits = {resource.RLIMIT_FSIZE: sampling.most_bytes, resource.RLIMIT_CPU: ceil(sampling.seconds + SLACK_SECONDS)}
    if not sampling.native:
        limits[resource.RLIMIT_AS] = MOST_MEMORY_BYTES
    for limit, most in limits.items():
        resource.prlimit(pid, limit, (most, most))
    os.setpriority(os.PRIO_PROCESS, pid, NICENESS)


def failure_of(text: str) -> SamplingFailure:
    """Return what went wrong, from what py-spy wrote to stderr."""
    lowered = text.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered:
        return SamplingFailure.NOT_PERMITTED
    if "failed to find python version" in lowered or "failed to find a python" in lowered:
        return SamplingFailure.NOT_PYTHON
    if "unsupported version" in lowered:
        return SamplingFailure.UNSUPPORTED
    return SamplingFailure.DISK if "no space left" in lowered else SamplingFailure.OTHER


def reason(text: str, ptrace_scope: int) -> str:
    """Return what went wrong and what to do about it, from what py-spy wrote to stderr."""
    failure = failure_of(text)
    if failure is SamplingFailure.NOT_PERMITTED:
        scope = f", or set kernel.yama.ptrace_scope to 0 (now {ptrace_scope})" if ptrace_scope else ""
        return f"not permitted: run as root, or as its user; in a container, add the capability SYS_PTRACE{scope}"
    if failure is SamplingFailure.NOT_PYTHON:
        return "it does not run Python"
    if failure is SamplingFailure.UNSUPPORTED:
        return "py-spy does not know its version of Python: upgrade py-spy"
    line = next((line for line in text.splitlines() if line.lower().startswith(("error", "caused by"))), "")
    return f"py-spy returned no stacks: {printable(line or 'no reason given', 160)}"


def _ptrace_scope() -> int:
    try:
        return int(PTRACE_SCOPE.read_text())
    except (OSError, ValueError):
        return 0


def _arguments(process: Process, sampling: Sampling, output: Path) -> list[str]:
    # With native frames, py-spy cannot read a process that runs on.
    how = "--native" if sampling.native else "--nonblocking"
    return [
        "record",
        *("--pid", str(process.pid), "--format", "raw", "--output", str(output)),
        *("--duration", str(max(1, round(sampling.seconds))), "--rate", str(sampling.rate)),
        *("--threads", "--idle", "--full-filenames", how, *(["--subprocesses"] if sampling.workers else [])),
    ]
