"""Runs mutated inputs through a target, and reports forbidden behaviour.

An input may be accepted, or rejected with an error of a documented type: one line of at most 500 characters without
control characters, within a second. Memory must not grow, and a command that rejects its input must not exit with a
code that means that something was found.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.mutate import mutated
from tests.support.outputs import CONTROLS

MOST_SECONDS = 1.0
# A loaded machine may pause this process, so a second counts only if the CPU was busy; this always counts.
HANG_SECONDS = 10.0
MOST_CHARACTERS = 500
MOST_GROWTH = 20 << 20
# Different failures of a target that are reported.
MOST_FAILURES = 10


@dataclass(frozen=True)
class Command:
    """A command that reads the same input, and its exit codes that mean that something was found."""

    arguments: Sequence[str]
    findings: frozenset[int]


@dataclass(frozen=True)
class Parser:
    """Parses one input and returns the texts that a person would read. `process` is the one whose memory counts."""

    take: Callable[[bytes], Iterable[str]]
    commands: Sequence[Command] = ()
    process: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Target:
    """A parser of untrusted input: valid inputs, and the errors that it may raise.

    Longer inputs than `longest` bytes are cut: tests of their own have the few inputs that are slow only when huge.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    open: Callable[[Path], AbstractContextManager[Parser]]
    errors: tuple[type[Exception], ...] = ()
    tokens: Sequence[bytes] = ()
    longest: int = 64 << 10
    packed: Callable[[Random, bytes], bytes] = lambda _, content: content


@dataclass(frozen=True)
class Failure:
    """An input that caused forbidden behaviour."""

    what: str
    content: bytes


@dataclass
class Result:
    """The outcome of a target's inputs. `growth` is that of the memory in use, `peak` of its maximum, in bytes."""

    inputs: int = 0
    rejected: int = 0
    seconds: float = 0.0
    growth: int = 0
    peak: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)

    def add(self, kind: str, what: str, content: bytes) -> None:
        """Keep the smallest input of each kind of failure."""
        known = self.failures.get(kind)
        if len(content) < len(known.content) if known else len(self.failures) < MOST_FAILURES:
            self.failures[kind] = Failure(what, content)


class _Hang(BaseException):
    """The time of an input is over."""


class _Messages(logging.Handler):
    """Collects what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def run(target: Target, folder: Path, inputs: int, seed: int) -> Result:
    """Run a number of mutated inputs. The same seed makes the same inputs."""
    seeds = target.seeds()

    def made() -> Iterator[bytes]:
        for number in range(inputs):
            rng = Random(f"{seed}/{target.name}/{number}")
            yield target.packed(rng, mutated(rng, seeds, target.tokens, target.longest))

    return run_inputs(target, folder, seeds, made())


def run_inputs(target: Target, folder: Path, valid: Sequence[bytes], contents: Iterable[bytes]) -> Result:
    """Run these inputs, after valid ones, which must be accepted."""
    result, begin = Result(), time.monotonic()
    try:
        _run(target, folder, valid, contents, result)
    except AssertionError as error:  # an unknown input left the target in a bad state
        result.add("end", f"after all inputs: {error}", b"")
    result.seconds = time.monotonic() - begin
    return result


def _run(target: Target, folder: Path, valid: Sequence[bytes], contents: Iterable[bytes], result: Result) -> None:
    with target.open(folder) as parser, _logged() as messages:
        for content in valid:
            if why := _take(target, parser, content, messages, result):
                result.add("valid", f"a valid input was rejected: {why}", content)
        memory: _Memory | None = None
        commands = 0
        for content in contents:
            result.inputs += 1
            if result.inputs >= 100 and memory is None:  # by now everything is imported and cached
                memory = _Memory(parser.process)
            if _take(target, parser, content, messages, result):
                result.rejected += 1
                if parser.commands and commands * 500 < result.inputs:
                    _try_command(parser.commands[commands % len(parser.commands)], content, result)
                    commands += 1
        if memory:
            result.growth, result.peak = memory.growth()
        for what, size in (("memory in use", result.growth), ("memory at its peak", result.peak)):
            if size > MOST_GROWTH:
                result.add(what, f"{what} grew by {size >> 20} MiB", b"")


def _take(
    target: Target, parser: Parser, content: bytes, messages: _Messages, result: Result, *, again: bool = False
) -> str:
    """Parse one input and check the result. Return why it was rejected, or nothing.

    The first inputs also import and fill caches, and a machine may stop: what is slow must be slow `again`.
    """
    messages.records.clear()
    rejected, texts = "", list[str]()
    begin, busy = time.monotonic(), time.process_time()
    try:
        with _alarm():
            texts += parser.take(content)
    except target.errors as error:
        rejected = str(error) or "an error without a message"
        texts.append(rejected)
    except _Hang as error:
        if not again:
            return _take(target, parser, content, messages, result, again=True)
        what = f"no end within {HANG_SECONDS:g} s, {_place(error)}"
        result.add(what, what, content)
        return what
    except Exception as error:  # noqa: BLE001 - a parser must raise nothing but what it documents
        what = f"{type(error).__name__} {_place(error)}"
        result.add(what, f"{what}: {str(error)[:200]!r}", content)
        return what
    seconds, cpu = time.monotonic() - begin, time.process_time() - busy
    if min(seconds, cpu) > MOST_SECONDS:
        if not again:
            return _take(target, parser, content, messages, result, again=True)
        result.add("slow", f"took {seconds:.1f} s, {cpu:.1f} s of CPU", content)
    for record in messages.records:
        texts.append(record.getMessage())
        if record.exc_info:
            result.add("logged", f"a traceback was logged: {record.getMessage()!r}", content)
    for text in texts:
        if wrong := problem(text):
            result.add(wrong, f"a message {wrong}: {text[:200]!r}", content)
    return rejected


def problem(text: str) -> str:
    """Return what is wrong with a message, or nothing."""
    if "\n" in text:
        return "has several lines"
    if any(unicodedata.category(char) in CONTROLS for char in text):
        return "has control characters"
    return f"has more than {MOST_CHARACTERS} characters" if len(text) > MOST_CHARACTERS else ""


def _place(error: BaseException) -> str:
    """Return the last line of the product in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "gpu_exporter/" in frame.filename] or frames
    return f"in {Path(own[-1].filename).name}, line {own[-1].lineno} ({own[-1].name})"


def _try_command(command: Command, content: bytes, result: Result) -> None:
    """Run a command on the input that was just rejected."""
    whole = [sys.executable, "-m", "gpu_exporter", *command.arguments]
    ran = subprocess.run(whole, capture_output=True, timeout=60, check=False)
    name = command.arguments[0]
    if ran.returncode in command.findings:
        result.add(f"{name} found", f"`{name}` exits with {ran.returncode}, which means a finding", content)
    if b"Traceback" in ran.stderr:
        result.add(f"{name} traceback", f"`{name}` prints a traceback", content)


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise _Hang in the block when its time is over."""

    def over(*_: object) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _logged() -> Iterator[_Messages]:
    messages, root = _Messages(), logging.getLogger("gpu_exporter")
    level, propagate = root.level, root.propagate
    root.addHandler(messages)
    root.setLevel(logging.INFO)
    root.propagate = False
    try:
        yield messages
    finally:
        root.removeHandler(messages)
        root.setLevel(level)
        root.propagate = propagate


class _Memory:
    """The memory of a process since now."""

    def __init__(self, process: int) -> None:
        self._process = process
        gc.collect()
        with suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text("5")  # resets the peak
        self._begin = self._now()

    def _now(self) -> tuple[int, int]:
        lines = Path(f"/proc/{self._process}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["VmRSS"].split()[0]) << 10, int(fields["VmHWM"].split()[0]) << 10

    def growth(self) -> tuple[int, int]:
        """Return by how many bytes the memory in use and its peak exceed the memory in use at the beginning."""
        gc.collect()
        used, peak = self._now()
        return used - self._begin[0], peak - self._begin[0]
