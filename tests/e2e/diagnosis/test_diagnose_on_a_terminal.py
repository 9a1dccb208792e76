"""`gpu-exporter diagnose` on a terminal: progress, colour and width; piped, it stays plain text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import command, run
from tests.support.terminal import Terminal

ARGUMENTS = ("diagnose", "--source", "simulated", "--gpus", "2", "--inject", "GpuStragglerSlow:1", "--for", "2s")
CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r(?!\n)")
Diagnose = Callable[..., Terminal]


@pytest.fixture
def diagnose() -> Iterator[Diagnose]:
    """Start `gpu-exporter diagnose` in a terminal."""
    started: list[Terminal] = []

    def start(*, env: dict[str, str], columns: int = 80) -> Terminal:
        started.append(Terminal(command(*ARGUMENTS), size=(columns, 50), env=env))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_on_a_terminal(diagnose: Diagnose, env: dict[str, str], coloured: bool) -> None:
    """The output fits the terminal, and shows that it works while it collects."""
    terminal = diagnose(env=env, columns=72)
    assert terminal.end() == 1
    raw = terminal.screen.raw
    assert "Watching the GPUs" in raw
    assert ("\x1b" in raw) == (env != {"TERM": "dumb"})
    assert bool(re.search(r"\x1b\[3[0-9]m", raw)) == coloured
    report = CODE.sub("", raw).split("Watched simulated GPUs")[1]
    assert max(map(len, report.splitlines())) <= 72
    assert "GpuStragglerSlow (warning): " in report
    assert "runbook: " in report


def test_piped() -> None:
    """No codes, no progress, one line for each statement."""
    result = run(*ARGUMENTS, env={"TERM": "xterm-256color"})
    assert "\x1b" not in result.stdout + result.stderr
    assert result.stderr == ""
    assert any(line.startswith("    -> ") and len(line) > 200 for line in result.stdout.splitlines())
