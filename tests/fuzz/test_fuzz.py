"""Mutated inputs for every parser of untrusted input: a short `make fuzz`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz.harness import Parser, Target, run
from tests.fuzz.targets import TARGETS
from tests.support.tools import is_long

INPUTS = 50 if is_long() else 20


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_mutated_inputs(target: Target, tmp_path: Path) -> None:
    """No traceback, no hang, no growth of memory, no exit code that means a finding."""
    result = run(target, tmp_path, INPUTS, seed=1)
    assert result.inputs == INPUTS
    for number, failure in enumerate(result.failures.values()):
        path = tmp_path / f"failure-{number}"
        path.write_bytes(failure.content)
        print(f"{failure.what}; python -m tests.fuzz {target.name} --file {path}")
    assert [failure.what for failure in result.failures.values()] == []


def _crash(content: bytes) -> Iterable[str]:
    raise KeyError("x")


def _two_lines(content: bytes) -> Iterable[str]:
    raise ValueError("one\ntwo")


def _escape(content: bytes) -> Iterable[str]:
    return ["\x1b[2J"]


def _busy(content: bytes) -> Iterable[str]:
    end = time.process_time() + 1.1
    while time.process_time() < end:
        pass
    return ()


@pytest.mark.parametrize(
    ("take", "inputs", "kind"),
    [
        (_crash, 5, "KeyError in test_fuzz.py"),
        (_two_lines, 5, "a message has several lines"),
        (_escape, 5, "a message has control characters"),
        (_busy, 1, ("took ", "no end within ")),
    ],
)
def test_failures_are_reported(take: object, inputs: int, kind: str | tuple[str, ...], tmp_path: Path) -> None:
    """A parser that crashes, prints escapes or takes long is reported with an input."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Parser]:
        yield Parser(take)  # type: ignore[arg-type]

    result = run(Target("x", lambda: [b"valid"], opened, (ValueError,)), tmp_path, inputs, seed=1)
    assert any(failure.what.startswith(kind) for failure in result.failures.values())


def test_memory_that_grows_is_reported(tmp_path: Path) -> None:
    """A parser that keeps its input is reported, too."""
    kept = []

    def take(content: bytes) -> Iterable[str]:
        kept.append(b"x" * 500_000)
        return ()

    @contextmanager
    def opened(folder: Path) -> Iterator[Parser]:
        yield Parser(take)

    result = run(Target("x", lambda: [b"valid"], opened), tmp_path, 200, seed=1)
    assert any("memory in use grew" in failure.what for failure in result.failures.values())
