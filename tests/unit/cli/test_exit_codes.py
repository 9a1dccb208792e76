"""Wrong usage ends every command with 2, also where the command itself finds it; other errors do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpu_exporter.cli.group import execute

WRONG = (
    "once --source replay --recording GONE",
    "once --source replay --recording no_such_recording",
    "once --source nvml --recording x",
    "once --source simulated --faults bogus",
    "once --source simulated --inject Nope:1",
    "top --once",
    "top --once --recording GONE",
    "events --kernel-log GONE",
    "record --source simulated --duration 1s --out GONE/file",
    "check --source replay --recording GONE",
    "check --active --source simulated",
    "profile --url foo://x",
    "release --url foo://x",
    "serve --source replay --recording GONE",
    "serve --source simulated --web.config.file GONE",
    "serve --source simulated --collectors GONE",
    "serve --source simulated --job-reports x",
    "rewrite GONE",
    "sampler --socket GONE/socket",
    "remediate --config GONE",
    "trace top GONE",
    "doctor --source replay --recording GONE",
)


def code(monkeypatch: pytest.MonkeyPatch, line: str, gone: Path) -> int:
    """Return the exit code of a command line; GONE stands for a file that does not exist."""
    monkeypatch.setattr(sys, "argv", ["gpu-exporter", *line.replace("GONE", str(gone)).split()])
    return execute(debug=True)[0]


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str) -> None:
    assert code(monkeypatch, line, tmp_path / "gone") == 2


def test_other_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A metric that does not exist is no mistake in an option, and a file that is faulty exists."""
    faulty = tmp_path / "dashboard.json"
    faulty.write_text("{")
    assert code(monkeypatch, "metrics no-such-metric", tmp_path) == 1
    assert code(monkeypatch, f"rewrite {faulty}", tmp_path) == 1
