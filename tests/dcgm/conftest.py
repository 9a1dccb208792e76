"""The contract suite runs against the fake host engine, or unchanged against a real DCGM.

    DCGM_BINDINGS=/usr/share/datacenter-gpu-manager-4/bindings/python3 DCGM_HOSTENGINE=localhost:5555 \\
        python -m pytest tests/dcgm

`DCGM_HOSTENGINE` is host:port, the path of a Unix socket, or `embedded`. `DCGM_HOSTENGINE_COMMAND` starts a host
engine in the foreground: then it is started here, and killed, stopped and started again by those tests that do so.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from gpu_exporter.io.user_text import Hostengine, hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.dcgm import source as source_module
from gpu_exporter.sources.dcgm.source import DcgmSource
from tests.support.fakes.hostengine import BINDINGS, FakeHostengine
from tests.support.tools import LIMIT

WHICH = os.environ.get("DCGM_HOSTENGINE", "")
COMMAND = os.environ.get("DCGM_HOSTENGINE_COMMAND", "")
# These states cannot be caused in a real DCGM; and one process cannot load two sets of bindings.
collect_ignore = ["test_failures.py"] if WHICH else []


class Engine(Protocol):
    """A host engine that a test may kill, stop and start."""

    def start(self) -> None:
        """Start it, and wait until it listens."""

    def kill(self) -> None:
        """Kill it."""

    def signal(self, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT."""


class RealEngine:
    """nv-hostengine, started by `DCGM_HOSTENGINE_COMMAND`."""

    def __init__(self, to: Hostengine, folder: Path) -> None:
        self._to, self._folder = to, folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(shlex.split(COMMAND), stdout=subprocess.DEVNULL)
        source, end = DcgmSource(self._to, self._folder), time.monotonic() + LIMIT
        while True:
            try:
                source.open()
                break
            except SourceLost:
                assert time.monotonic() < end, f"{COMMAND} does not listen"
                time.sleep(0.2)
        source.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that stop the host engine or compare it with a driver where that is impossible."""
    out = set()
    if WHICH and not COMMAND:
        out.add("ends_engine")
    if not WHICH or not Path("/dev/nvidia0").exists():
        out.add("beside_a_driver")
    left_out = [item for item in items if out & {mark.name for mark in item.iter_markers()}]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def bindings() -> Path:
    """Return the directory of the bindings."""
    return Path(os.environ.get("DCGM_BINDINGS", BINDINGS))


@pytest.fixture(scope="session")
def engine(bindings: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hostengine, Engine | None]]:
    """The host engine's address, and its process if tests may stop it."""
    if not WHICH:
        fake = FakeHostengine(tmp_path_factory.mktemp("engine"), gpus=2)
        fake.start()
        yield hostengine(fake.address), fake
        fake.kill()
        return
    to = Hostengine() if WHICH == "embedded" else hostengine(WHICH)
    if not COMMAND:
        yield to, None
        return
    real = RealEngine(to, bindings)
    real.start()
    yield to, real
    real.kill()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls take as long as a busy machine needs. Tests of a host engine that hangs set the deadline of a read."""
    monkeypatch.setattr(source_module, "READ_SECONDS", LIMIT)
    monkeypatch.setattr(source_module, "ATTACH_SECONDS", LIMIT)


@pytest.fixture
def source(engine: tuple[Hostengine, Engine | None], bindings: Path) -> Iterator[DcgmSource]:
    """A source that is not open yet and samples every half second."""
    made = DcgmSource(engine[0], bindings)
    made.sample_every(0.5)
    yield made
    made.close()
