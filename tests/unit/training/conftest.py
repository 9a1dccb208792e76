"""Fixtures: a clock that the test advances, and a receiver like the exporter's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_exporter.model.job_message import SOCKET_VARIABLE
from gpu_exporter.training import sections, timer
from gpu_exporter.training.clocks import HostClock
from tests.support.job_socket import JobSocket


class Time:
    """The time of a loop, in seconds. `pass_` lets some pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    for module in (sections, timer):
        monkeypatch.setattr(module, "perf_counter", clock)
    monkeypatch.setattr(HostClock, "mark", staticmethod(clock))
    return clock


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        SOCKET_VARIABLE,
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "SLURM_JOB_ID",
        "POD_UID",
        "CUDA_VISIBLE_DEVICES",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def job_socket(tmp_path: Path) -> Iterator[JobSocket]:
    with JobSocket(tmp_path / "jobs.sock") as receiver:
        yield receiver
