"""A child that cannot be ended, answers that come late, and the time limits of a check."""

from __future__ import annotations

import io
import os
import subprocess
import time

import pytest

from gpu_exporter.probes import process
from gpu_exporter.probes.process import Child, end_all


class Stuck:
    """A process in uninterruptible sleep: a signal does not end it."""

    stdin = None
    pid = 4711
    killed = False

    def __init__(self, *arguments: object, **options: object) -> None:
        assert options["stderr"] is subprocess.DEVNULL
        reader, self.writer = os.pipe()
        self.stdout = io.FileIO(reader)

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float) -> int:
        assert timeout <= process.END_SECONDS
        raise subprocess.TimeoutExpired("child", timeout)


@pytest.mark.parametrize("allowed", [0.0, process.HANG_SECONDS])
def test_a_process_that_cannot_be_ended(monkeypatch: pytest.MonkeyPatch, allowed: float) -> None:
    """It is killed and left behind. The GPU hangs only if it had enough time for an answer."""
    monkeypatch.setattr(subprocess, "Popen", Stuck)
    child = Child()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    child.ask({"do": "open"})
    monkeypatch.setattr(time, "monotonic", lambda: now + allowed)
    answer = child.answer(now, lambda: None)
    fix = "" if allowed else ": use a longer --timeout"
    assert answer == {"error": f"no answer by the deadline{fix}", "hung": allowed > 0}
    assert not child.usable
    assert child.answer(now + 60, lambda: None) == answer
    assert [left.pid for left in end_all([child], now)] == [4711]


def test_an_answer_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that came while another GPU was waited for counts, also after the deadline."""
    stuck = Stuck(stderr=subprocess.DEVNULL)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: stuck)
    child = Child()
    os.write(stuck.writer, b'{"value": 1.0}\n')
    assert child.answer(time.monotonic() - 1, lambda: None) == {"value": 1.0}
    assert child.usable
    child.finish()


@pytest.mark.parametrize(
    ("command", "error", "crashed"),
    [
        ("kill -9 $$", "was ended by signal 9", False),
        ("kill -11 $$", "was ended by signal 11", True),
        ("exit 1", "ended with exit code 1", False),
    ],
)
def test_how_it_ends(monkeypatch: pytest.MonkeyPatch, command: str, error: str, crashed: bool) -> None:
    """Only a signal that a failure of the driver raises says something about the GPU."""
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: popen(["/bin/sh", "-c", command], **options))
    child = Child()
    answer = child.answer(time.monotonic() + 60, lambda: None)
    assert answer["error"] == f"the process of the check {error}"
    assert answer.get("crashed", False) is crashed
    assert end_all([child], time.monotonic() + 60) == []
