"""Runs gpu-exporter in a fork of a process that has already imported it, in a tenth of the time of a new process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

from gpu_exporter.cli.main import main

# Imported before the forks.
PRELOADED = (__name__, "gpu_exporter.cli.group", "gpu_exporter.cli.commands", "gpu_exporter.serving.run")
# Read by the dynamic linker or by Python, and only when a process begins.
OF_NEW_PROCESSES = ("LD_", "PYTHON", "MALLOC_", "COVERAGE_", "LC_", "LANG")


def possible(environment: Mapping[str, str]) -> bool:
    """Return whether a fork runs with this environment as a new process does."""
    changed = {name for name, _ in environment.items() ^ os.environ.items()}
    return not any(name.startswith(OF_NEW_PROCESSES) for name in changed)


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
    sys.argv = ["gpu-exporter", *arguments]
    main()
