"""A child that cannot be ended, answers that come late, and the time limits of a check."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpu_exporter.active_checks import process
from gpu_exporter.active_checks.process import Child, end_all


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


class Talks(Stuck):
    """A process that answers and can be ended; it notes what it is sent and when it is killed."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.command, self.options = arguments[0], options
        reader, writer = os.pipe()
        self.stdin = io.FileIO(writer, "w")  # type: ignore[assignment]
        self.received = io.FileIO(reader)
        self.code: int | None = 0
        self.waited: list[float] = []

    def wait(self, timeout: float) -> int:
        self.waited.append(timeout)
        if self.code is None:
            raise subprocess.TimeoutExpired("child", timeout)
        return self.code

    def says(self, text: bytes) -> None:
        os.write(self.writer, text)

    def close(self) -> None:
        """Close both ends of all pipes."""
        for file in (self.stdin, self.received, self.stdout):
            file.close()  # type: ignore[union-attr]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Talks]]:
    """Return the processes that children start from now on."""
    made: list[Talks] = []

    def popen(*arguments: object, **options: object) -> Talks:
        made.append(Talks(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    yield made
    for running in made:
        running.close()


@pytest.fixture
def talks(started: list[Talks]) -> tuple[Child, Talks]:
    """Return a child with the process that it has started."""
    return Child(), started[0]


def test_how_it_is_started(talks: tuple[Child, Talks]) -> None:
    """With the packages of this process, and devices in the order of their bus ids."""
    _, running = talks
    assert running.command == [sys.executable, "-m", "gpu_exporter.active_checks.child"]
    env = running.options["env"]
    assert isinstance(env, dict)
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["PYTHONPATH"].split(os.pathsep) == [os.path.abspath(entry) for entry in sys.path if entry]
    assert env["PATH"] == os.environ["PATH"]
    assert running.options["stdin"] == running.options["stdout"] == subprocess.PIPE


def test_a_conversation(talks: tuple[Child, Talks]) -> None:
    """Answers are lines; what has come of the next one waits."""
    child, running = talks
    child.ask({"do": "open"})
    child.ask({"do": "fp32"})
    assert running.received.read(1000) == b'{"do": "open"}\n{"do": "fp32"}\n'
    running.says(b'{}\n{"val')
    end, ticks = time.monotonic() + 60, list[int]()
    assert child.answer(end, lambda: None) == {}

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 1:
            running.says(b'ue": 1}\n')

    assert child.answer(end, tick) == {"value": 1}
    assert ticks
    assert child.usable
    assert not running.killed


def test_an_answer_that_ends_the_context(talks: tuple[Child, Talks]) -> None:
    """The process is killed, and every later answer is the same."""
    child, running = talks
    running.says(b'{"error": "x", "lost": true}\n{"value": 1}\n')
    for _ in range(2):
        assert child.answer(time.monotonic() + 60, lambda: None) == {"error": "x", "lost": True}
        assert (child.usable, running.killed) == (False, True)
    child.ask({"do": "open"})
    running.stdin.close()  # type: ignore[attr-defined]
    assert running.received.read(10) == b""


@pytest.mark.parametrize(("extra", "ended"), [(0, True), (-1, False)])
def test_an_answer_without_end(talks: tuple[Child, Talks], extra: int, *, ended: bool) -> None:
    """It is bounded: a driver that prints garbage must not fill the memory."""
    child, running = talks
    child._buffer = b"x" * (process.MOST_ANSWER_BYTES + extra - 1)
    running.says(b"x")
    running.code = None
    answer = child.answer(time.monotonic() + (60 if ended else -1), lambda: None)
    closed = {"error": "the process of the check closed its output", "crashed": True}
    assert (answer == closed) is ended
    assert running.killed


@pytest.mark.parametrize(
    ("seconds", "late", "hung"),
    [
        (0.0, process.HANG_SECONDS, True),
        (0.0, process.HANG_SECONDS - 0.1, False),
        (30.0, 34.9, False),
        (30.0, 35.0, True),
    ],
)
def test_when_a_gpu_hangs(
    talks: tuple[Child, Talks], monkeypatch: pytest.MonkeyPatch, seconds: float, late: float, *, hung: bool
) -> None:
    """Not before it has had the time that it needs by design, and some more."""
    child, _ = talks
    now = [1000.0]
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    child.ask({"do": "x", **({"seconds": seconds} if seconds else {})})
    now[0] += late
    assert child.answer(now[0], lambda: None)["hung"] is hung


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV, signal.SIGBUS]
)
def test_signals(talks: tuple[Child, Talks], number: int) -> None:
    """Who needs memory, or stops the check, says nothing about the GPU."""
    child, running = talks
    os.close(running.writer)
    running.code = -number
    answer = child.answer(time.monotonic() + 60, lambda: None)
    assert answer["crashed"] is (number in (signal.SIGSEGV, signal.SIGBUS))
    assert 0 <= running.waited[0] <= process.END_SECONDS


def test_children_end_together(started: list[Talks], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that do not end in time are killed, and then have a moment."""
    children = [Child() for _ in range(3)]
    started[1].code = started[2].code = None
    monkeypatch.setattr(started[1], "kill", lambda: setattr(started[1], "code", -9))
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    assert end_all(children, 1003.0) == [children[2]]
    assert [running.waited for running in started] == [[3.0], [3.0, process.END_SECONDS], [3.0, process.END_SECONDS]]
    assert [running.killed for running in started] == [False, False, True]
    assert all(running.stdin.closed and running.stdout.closed for running in started)  # type: ignore[attr-defined]
