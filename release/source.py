"""The last commit of this repository, as files and as a time."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from gpu_exporter.version import __version__
from release.archive import unpack

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return the output of git; exit if it fails, after its own message."""
    ran = subprocess.run(["git", "-C", str(root), *arguments], stdout=subprocess.PIPE, text=True)
    if ran.returncode:
        sys.exit(f"git {arguments[0]} failed")
    return ran.stdout.strip()


def commit_time(root: Path = ROOT) -> int:
    """Return the unix time of the last commit."""
    return int(git("log", "-1", "--format=%ct", root=root))


def wheel() -> Path:
    """Return the wheel of this version in dist/."""
    found = [*DIST.glob(f"*-{__version__}-py3-none-any.whl")]
    if len(found) != 1:
        sys.exit(f"dist/ has {len(found)} wheels of {__version__}: remove dist/, and run `make wheel`")
    return found[0]


def checkout(folder: Path, root: Path = ROOT) -> None:
    """Write the files of the last commit into a folder, without local changes, which are named on stderr."""
    if changed := git("status", "--short", "--untracked-files=no", root=root):
        print(f"left out, because it is not committed:\n{changed}", file=sys.stderr)
    archive = subprocess.run(["git", "-C", str(root), "archive", "HEAD"], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        unpack(files, folder)
