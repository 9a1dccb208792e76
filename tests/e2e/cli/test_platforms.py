"""Platforms without Linux's modules and calls: no command crashes for want of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RECORDINGS, Serve, run

# As on Windows, as far as Linux can simulate it.
WITHOUT = """
import os, platform, sys
for name in ("geteuid", "getuid", "getgid", "uname", "fork", "sysconf"):
    delattr(os, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
platform.system = lambda: "Windows"
platform.machine = lambda: "AMD64"
"""
REPLAY = ("--source", "replay", "--recording", str(RECORDINGS / "h200_workloads.jsonl.gz"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python without them."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    return {"PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}


@pytest.mark.parametrize("arguments", [("--help",), ("metrics",), ("once", *REPLAY), ("doctor", *REPLAY)])
def test_commands(elsewhere: dict[str, str], arguments: tuple[str, ...]) -> None:
    """They work."""
    ended = run(*arguments, env=elsewhere)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout


def test_doctor_names_the_platform(elsewhere: dict[str, str]) -> None:
    """Without a driver, it names the platform and what does not work on it."""
    (Path(elsewhere["LD_LIBRARY_PATH"]) / "libnvidia-ml.so.1").write_bytes(b"")
    ended = run("doctor", env=elsewhere)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "Windows: not tested" in ended.stdout
    assert "FAIL" in ended.stdout


def test_serve(elsewhere: dict[str, str], serve: Serve) -> None:
    """A recording is served."""
    exporter = serve(*REPLAY, env=elsewhere)
    assert exporter.until(lambda page: bool(page.values("DCGM_FI_PROF_SM_ACTIVE", gpu="0")))
