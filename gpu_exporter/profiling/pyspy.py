"""Runs py-spy, which samples the stacks of a Python process from outside, and reads what it writes."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_exporter.decoding import printable
from gpu_exporter.file_access import read
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.processes import Process, is_alive

MISSING = "stacks are sampled by py-spy, which is not installed: pip install py-spy"
# How much longer than the sampling py-spy may take: it reads symbols first.
SLACK_SECONDS = 20.0
DUMP_SECONDS = 5.0
NONE_FOUND = "no python processes"
MOST_OUTPUT_BYTES = 64 << 20
MOST_ERROR_BYTES = 64 << 10
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample: for how many seconds, how often per second, and whether also frames of C and C++.

    Native frames need the process to be stopped for each sample; without them it never is. `workers`: also sample
    child processes.
    """

    seconds: float = 5.0
    rate: int = 50
    native: bool = False
    workers: bool = True


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
    py_spy: Path, processes: Sequence[Process], sampling: Sampling, files: HostFiles
) -> Mapping[int, str | GpuExporterError]:
    """Return the folded stacks of each process, by PID, all sampled at the same time; an error where that failed."""
    with tempfile.TemporaryDirectory(prefix="gpu-exporter-") as folder:
        runs = [_Run(py_spy, process, sampling, Path(folder)) for process in processes]
        end = time.monotonic() + sampling.seconds + SLACK_SECONDS
        return {run.process.pid: run.outcome(end, files) for run in runs}


class _Run:
    """One run of py-spy, from the start on. It cannot write more than a limit."""

    def __init__(self, py_spy: Path, process: Process, sampling: Sampling, folder: Path) -> None:
        self.process, self._py_spy = process, py_spy
        self._output, self._errors = folder / f"{process.pid}.folded", folder / f"{process.pid}.errors"
        with self._errors.open("wb") as errors:
            self._running = subprocess.Popen(
                [str(py_spy), *_arguments(process, sampling, self._output)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        with suppress(ProcessLookupError):  # it has ended; outcome() says why
            resource.prlimit(self._running.pid, resource.RLIMIT_FSIZE, (MOST_OUTPUT_BYTES, MOST_OUTPUT_BYTES))

    def outcome(self, end: float, files: HostFiles) -> str | GpuExporterError:
        """Return the folded stacks, or the error, at this monotonic time at the latest."""
        try:
            code = self._running.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
            return GpuExporterError(f"{self.process.title}: py-spy did not end: use a shorter --seconds")
        try:
            content = read(self._output, MOST_OUTPUT_BYTES).decode("utf-8", "replace") if code == 0 else ""
        except OSError:
            content = ""
        if content:
            return content
        return GpuExporterError(f"{self.process.title}: {self._why(files)}")

    def _why(self, files: HostFiles) -> str:
        if not is_alive(files, self.process):
            return "it ended before it was sampled"
        try:
            text = self._errors.read_bytes()[:MOST_ERROR_BYTES].decode("utf-8", "replace")
        except OSError:
            text = ""
        if NONE_FOUND in text.lower():  # it does not say why while it looks for child processes
            text = self._one_dump()
        return reason(text, _ptrace_scope())

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


def reason(text: str, ptrace_scope: int) -> str:
    """Return what went wrong and what to do about it, from what py-spy wrote to stderr."""
    lowered = text.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered:
        scope = f", or set kernel.yama.ptrace_scope to 0 (now {ptrace_scope})" if ptrace_scope else ""
        return f"not permitted: run as root, or as its user; in a container, add the capability SYS_PTRACE{scope}"
    if "failed to find python version" in lowered or "failed to find a python" in lowered:
        return "it does not run Python"
    if "unsupported version" in lowered:
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
