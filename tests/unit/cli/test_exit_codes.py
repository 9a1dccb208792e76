"""Wrong usage ends every command with 2, also where the command itself finds it; other errors do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_exporter.cli.group import execute

WRONG = (
    "once --source replay --recording no_such_recording",
    "once --source nvml --recording x",
    "once --source simulated --faults bogus",
    "once --source simulated --inject Nope:1",
    "top --once",
    "check --active --source simulated",
    "profile --url foo://x",
    "release --url foo://x",
    "serve --source simulated --job-reports x",
)


def code(monkeypatch: pytest.MonkeyPatch, line: str) -> int:
    """Return the exit code of a command line."""
    monkeypatch.setattr(sys, "argv", ["gpu-exporter", *line.split()])
    return execute(debug=True)[0]


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    assert code(monkeypatch, line) == 2


def test_other_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A metric or a file that does not exist is no mistake in an option; nor is what a file contains."""
    faulty, gone = tmp_path / "dashboard.json", tmp_path / "gone"
    faulty.write_text("{")
    assert code(monkeypatch, "metrics no-such-metric") == 1
    assert code(monkeypatch, f"rewrite {faulty}") == 1
    assert code(monkeypatch, f"rewrite {gone}") == 1
