"""Starts fake jobs with a profiler (`fakes/kineto_job.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import ROOT

PROGRAM = ROOT / "tests/support/fakes/kineto_job.py"
SLOW_LOADER = ROOT / "tests/data/pytorch_trace_slow_loader.json.gz"


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder whose path is short enough for the sockets of libkineto, whose names are long."""
    with TemporaryDirectory(prefix="kineto-", dir="/tmp") as name:
        yield Path(name)


@contextmanager
def jobs(
    *behaviours: str, folder: Path, trace: Path = SLOW_LOADER, env: Mapping[str, str] | None = None
) -> Iterator[Sequence[subprocess.Popen[str]]]:
    """Start one job for each behaviour, whose socket and traces are in `folder`, and kill them at the end."""
    environment = {
        **os.environ,
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(folder),
        "KINETO_ONDEMAND_TRACE_DIR": str(folder),
        **(env or {}),
    }
    running = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), behaviour, str(trace)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for behaviour in behaviours
    ]
    try:
        for job in running:
            assert job.stdout
            assert job.stdout.readline() == "ready\n"
        yield running
    finally:
        for job in running:
            job.kill()
            job.wait()
            assert job.stdout
            job.stdout.close()


def traces_in(folder: Path) -> list[str]:
    """Return the names of the traces that are left in a folder."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("gpu-exporter-"))
