"""A release that is built from the files of this working tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_exporter.version import __version__
from tests import ROOT
from tests.support.shared import made_once

COMMITTED = (
    *("Makefile", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE", ".gitignore", "compose.yaml"),
    *("gpu_exporter", "release", "helm", "dashboards", "deploy"),
)
TIME = 1_700_000_000


def run(command: list[str], folder: Path, umask: int = 0o022, **environment: str) -> str:
    """Run a command without the settings of these tests; on failure, show its output.

    pip does not compile what it installs, most of which is never imported.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "MAKE", "GIT"))}
    found = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PIP_NO_COMPILE": "1", **environment},
        umask=umask,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def make(target: str, folder: Path, umask: int = 0o022, made: Sequence[str] = (), **environment: str) -> None:
    """Make a target with the packages of these tests, also if setup.cfg is newer than their installation.

    The targets of `made` are not made again.
    """
    old = [word for each in (f"{sys.prefix}/dev", *made) for word in ("--old-file", each)]
    run(["make", *old, f"VENV={sys.prefix}", target], folder, umask, **environment)


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit: the files of this working tree."""
    return made_once(tmp_path_factory, "origin", _commit)


def copy_committed(folder: Path) -> None:
    """Copy the files of this working tree from which packages are built."""
    folder.mkdir(exist_ok=True)
    for name in COMMITTED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)


def _commit(folder: Path) -> None:
    copy_committed(folder)
    date = {f"GIT_{role}_DATE": f"{TIME} +0000" for role in ("AUTHOR", "COMMITTER")}
    person = ["-c", "user.name=Tester", "-c", "user.email=tester@example.invalid"]
    run(["git", "init", "--quiet"], folder)
    run(["git", "add", "."], folder)
    run(["git", *person, "commit", "--quiet", "--message", "All"], folder, 0o022, **date)


@pytest.fixture(scope="session")
def built(origin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which the packages were built."""

    def build(folder: Path) -> None:
        run(["git", "clone", "--quiet", str(origin), "one"], folder)
        make("bundle", folder / "one")
        make("chart", folder / "one")

    return made_once(tmp_path_factory, "built", build) / "one"


@pytest.fixture(scope="session")
def index(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and everything that it needs, so that pip asks no registry."""
    (wheel,) = (built / "dist").glob("*.whl")
    download = [sys.executable, "-m", "pip", "--quiet", "download", "--dest", ".", str(wheel)]
    return made_once(tmp_path_factory, "index", lambda folder: run(download, folder))


@pytest.fixture(scope="session")
def installed(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which the wheel was installed by its name."""

    def install(folder: Path) -> None:
        venv.create(folder, with_pip=False)
        pip(folder, "install", "--no-index", "--find-links", str(index), f"gpu-exporter=={__version__}")

    return made_once(tmp_path_factory, "installed", install)


def pip(environment: Path, *arguments: str) -> str:
    """Run pip for this environment."""
    python = str(environment / "bin/python")
    return run([sys.executable, "-m", "pip", "--quiet", "--python", python, *arguments], environment)
