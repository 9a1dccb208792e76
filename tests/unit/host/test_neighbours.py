"""The processes that compete for the CPUs of another one."""

from pathlib import Path

import pytest

from gpu_exporter.host.neighbours import neighbours
from tests.support.fakes.procfs import FakeHost, Task


def test_the_busiest_on_the_same_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither itself, nor what runs elsewhere, sleeps, or has just replaced another process."""
    host = FakeHost(tmp_path)
    host.add(Task(100, affinity="2-3", on_cpu=2))
    busy, busier = host.add(Task(200, b"old\n(job)", on_cpu=3)), host.add(Task(201, on_cpu=2))
    elsewhere, asleep = host.add(Task(202, on_cpu=5)), host.add(Task(203, on_cpu=2))

    def work() -> None:
        for task, seconds in ((busy, 5.0), (busier, 9.0), (elsewhere, 9.0), (asleep, 0.0)):
            task.run(seconds)
        host.write()

    monkeypatch.setattr("gpu_exporter.host.neighbours.time.sleep", lambda seconds: work())
    found = neighbours(host.files, 100)

    assert [(each.pid, each.name) for each in found] == [(201, "python"), (200, "old (job)")]


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    """It ended while it was watched."""
    assert neighbours(FakeHost(tmp_path).files, 100, 0.0) == []
