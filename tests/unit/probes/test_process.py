"""A child that cannot be ended, and the time limits of a check."""

from __future__ import annotations

import subprocess
import time

import pytest

from gpu_exporter.probes import process
from gpu_exporter.probes.process import Child


class Stuck:
    """A process in uninterruptible sleep: a signal does not end it."""

    stdin = stdout = None
    pid = 4711
    killed = False

    def __init__(self, *arguments: object, **options: object) -> None:
        assert options["stderr"] is subprocess.DEVNULL

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float) -> int:
        assert timeout <= process.END_SECONDS
        raise subprocess.TimeoutExpired("child", timeout)


def test_a_process_that_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed and left behind: nothing waits for it."""
    monkeypatch.setattr(subprocess, "Popen", Stuck)
    child = Child()
    assert child.answer(time.monotonic(), lambda: None) == {"error": "no answer by the deadline", "hung": True}
    assert not child.usable
    assert child.answer(time.monotonic() + 60, lambda: None)["hung"]
    assert child.close(time.monotonic()) is False
    assert child.pid == 4711
