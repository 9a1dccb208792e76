"""Wrong usage ends every command with 2, also where the command itself finds it; other errors do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import run

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


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage(line: str) -> None:
    assert run(*line.split()).returncode == 2


def test_other_errors(tmp_path: Path) -> None:
    """A metric or a file that does not exist is no mistake in an option; nor is what a file contains."""
    faulty = tmp_path / "dashboard.json"
    faulty.write_text("{")
    assert run("metrics", "no-such-metric").returncode == 1
    assert run("rewrite", str(faulty)).returncode == 1
    assert run("rewrite", str(tmp_path / "gone")).returncode == 1
