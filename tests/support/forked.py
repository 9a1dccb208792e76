"""Runs gpu-exporter in a fork of a process that has already imported it: a new process takes ten times the CPU time."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

from gpu_exporter.cli.commands import SUMMARIES
from gpu_exporter.cli.main import main

# Imported before the forks.
PRELOADED = (
    __name__,
    "gpu_exporter.cli.group",
    *(f"gpu_exporter.cli.{name}" for name in SUMMARIES),
    "gpu_exporter.doctor.nics",
    "gpu_exporter.diagnosis.remote_scrapes",
    "gpu_exporter.diagnosis.request",
    "gpu_exporter.app.run",
    "gpu_exporter.live_page.thread",
    "gpu_exporter.sources.nvml.source",
    "gpu_exporter.sources.simulated.source",
    "gpu_exporter.io.yaml_decoding",
    "msgspec",
    "tornado.platform.asyncio",
)
FOLDERS, DRIVER = "LD_LIBRARY_PATH", "libnvidia-ml.so.1"
# Read by the dynamic linker or by Python, and only when a process begins.
OF_NEW_PROCESSES = ("LD_", "PYTHON", "MALLOC_", "COVERAGE_", "LC_", "LANG")


def possible(environment: Mapping[str, str]) -> bool:
    """Return whether a fork runs with this environment as a new process does.

    A driver's library in LD_LIBRARY_PATH is loaded into the fork. Only a new process finds one that comes later, or
    another one after it has closed the first.
    """
    changed = {name for name, _ in environment.items() ^ os.environ.items()} - {FOLDERS}
    return not any(name.startswith(OF_NEW_PROCESSES) for name in changed)


class Started:
    """gpu-exporter in a fork that runs on, with the methods of `Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> None:
        self._process = _server().Process(target=_child, args=(list(arguments), dict(environment), out, err))
        self._process.start()
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("gpu-exporter", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


def run(arguments: Sequence[str], environment: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run gpu-exporter until it exits. Raises `TimeoutExpired` after a number of seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _server().Process(target=_child, args=(list(arguments), dict(environment), out, err))
        process.start()
        process.join(timeout)
        if (code := process.exitcode) is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout, out.read_text(), err.read_text())
        process.close()
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())


@cache
def _server() -> ForkServerContext:
    """Return the context whose processes are forks of a server without threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _child(arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    for path, number in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    for folder in filter(None, environment.get(FOLDERS, "").split(os.pathsep)):
        with suppress(OSError):  # none, or a damaged one
            ctypes.CDLL(str(Path(folder, DRIVER)))  # found by its name from now on
            break
    sys.argv = ["gpu-exporter", *arguments]
    main()
