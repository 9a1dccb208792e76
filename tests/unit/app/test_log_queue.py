"""Log lines go through the queue in order; if it is full, they are dropped, counted and reported."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fcntl import F_SETPIPE_SZ, fcntl
from queue import SimpleQueue

import pytest

from gpu_exporter.app.log_queue import QUEUED_LINES, LogQueue
from gpu_exporter.cli import logs
from gpu_exporter.remediation import announce
from tests.support.tools import LIMIT, until


@dataclass
class Pipe:
    """The pipe that a queue writes to, and a logger that uses the queue."""

    reader: int
    writer: int

    def logger(self, lines: int) -> tuple[LogQueue, logging.Logger]:
        """A queue of this length, and a logger of its own."""
        queue, logger = LogQueue(self.writer, lines), logging.Logger("test")
        logger.addHandler(queue)
        return queue, logger

    def read(self) -> str:
        """Return what can be read now."""
        return os.read(self.reader, 1 << 20).decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe of 4 KiB."""
    reader, writer = os.pipe()
    fcntl(writer, F_SETPIPE_SZ, 4096)
    yield Pipe(reader, writer)
    os.close(reader)  # ends a write that hangs


def test_lines_come_in_order(pipe: Pipe) -> None:
    """Also when there are many at once, and with the values that they were logged with."""
    queue, logger = pipe.logger(100)
    values = [0]
    for number in range(50):
        values[0] = number
        logger.info("line %s", values)
    assert queue.drain(10)
    assert pipe.read().splitlines() == [f"line [{number}]" for number in range(50)]
    assert queue.dropped == 0


def test_a_traceback_is_written(pipe: Pipe) -> None:
    """After its line."""
    queue, logger = pipe.logger(100)
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("it failed")
    assert queue.drain(10)
    said = pipe.read().splitlines()
    assert (said[0], said[1], said[-1]) == ("it failed", "Traceback (most recent call last):", "KeyError: 'x'")


def test_lines_that_find_no_room_are_counted(pipe: Pipe) -> None:
    """Logging never waits; as soon as there is room again, one line says how many are missing."""
    queue, logger = pipe.logger(10)
    logger.info("x" * 8192)
    until(lambda: queue.queue.empty(), what="a write that hangs")
    for number in range(25):
        logger.info("line %d", number)
    assert queue.dropped == 15
    assert not queue.drain(0.01)
    said = ""

    def complete() -> bool:
        nonlocal said
        said += pipe.read()
        return said.endswith("line 9\n")

    until(complete, what="all that was queued")
    assert said.splitlines()[1] == "15 log lines were dropped because stderr was not read in time"
    assert [line for line in said.splitlines() if line.startswith("line")] == [f"line {n}" for n in range(10)]


def test_failed_lines_are_counted(pipe: Pipe) -> None:
    """A line that cannot be formatted or written is lost, without a traceback."""
    queue, logger = pipe.logger(10)
    logger.info("%d", "text")
    assert queue.dropped == 1
    os.close(pipe.reader)
    logger.info("the pipe is not open")
    until(lambda: queue.dropped > 1, what="a drop")
    pipe.reader = os.open(os.devnull, os.O_RDONLY)


UNCAUGHT = """
import threading, warnings
from gpu_exporter.cli.logs import configure

lines = configure("info", "json")
class Broken:
    def __del__(self): raise KeyError("in a destructor")
thread = threading.Thread(target=lambda: {}["in a thread"], name="worker")
thread.start()
thread.join()
Broken()
warnings.warn("in a library")
lines.drain(10)
"""


def test_uncaught_errors_are_logged() -> None:
    """Python itself would print them to stderr, and block until they are read."""
    ran = subprocess.run([sys.executable, "-c", UNCAUGHT], capture_output=True, text=True, timeout=LIMIT, check=True)
    lines = ran.stderr.splitlines()
    assert all(line.startswith('{"time": ') for line in lines)
    for part in ("thread worker: unexpected error", "in a destructor", "in a library"):
        assert sum(part in line for line in lines) == 1


def test_a_destructor_may_log_at_any_time(pipe: Pipe) -> None:
    """Also while its own thread adds a line: the queue must be reentrant."""
    queue, logger = pipe.logger(100)
    assert type(queue.queue) is SimpleQueue
    logger.info("a line")
    assert queue.drain(10)


def test_a_broken_stderr_counts_each_line_once(pipe: Pipe) -> None:
    """The report about lost lines is lost, too, and is not one of them."""
    queue, logger = pipe.logger(10)
    os.close(pipe.reader)
    for _ in range(3):
        logger.info("a line")
        assert queue.drain(10)
    assert queue.dropped == 3
    pipe.reader = os.open(os.devnull, os.O_RDONLY)


def test_decisions_of_the_controller_never_wait_for_a_reader(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a line of JSON on stdout, as is the number of those that were lost."""
    with os.fdopen(pipe.writer, "w", closefd=False) as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        queue = logs.write_decisions()
    try:
        for number in range(2 * QUEUED_LINES):
            announce.write_line(json.dumps({"number": number, "text": "%s" * 50}))
        assert queue.dropped > 0
        text = ""
        while not text.endswith("}\n") or '"dropped"' not in text:
            text += pipe.read()
    finally:
        logs.decisions.removeHandler(queue)
        logs.decisions.propagate = True
        logs.decisions.setLevel(logging.NOTSET)
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0] == {"number": 0, "text": "%s" * 50}
    assert 0 < next(line["dropped"] for line in lines if "dropped" in line) < QUEUED_LINES
