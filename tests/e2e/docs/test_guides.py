"""Every command of the guides runs, in the order of the page, and prints what the page says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest

from gpu_exporter.version import __version__
from tests import ROOT
from tests.support.fakes.driver import FakeDriver
from tests.support.guides import BLOCK, END, FOLDER, blocks, not_printed, of_language, script
from tests.support.tools import BUNDLED, PATIENCE, free_port

FIX = "fix: correct the guide in docs/guides, or what it describes"
INSTALL = FOLDER / "README.md"
GUIDES = sorted(path for path in FOLDER.glob("*.md") if path != INSTALL)
DIAGNOSE = ROOT / "docs" / "diagnose.md"
PAGES = [*GUIDES, INSTALL, ROOT / "docs" / "comparison.md"]
# A number as a link to the measurement from which it was copied.
COPIED = re.compile(r"\[(?P<number>\d[^\]]*)\]\((?P<page>[\w./-]+\.md)(?:#(?P<anchor>[\w-]+))?\)")
# By default, Yama lets only ancestors read the memory of a process; the profiler of the guide is a sibling.
TRACEABLE = "import ctypes\nctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)\n"


def folder(tmp_path: Path) -> Path:
    """Return a folder with what a checkout contains after the installation."""
    made = tmp_path / "checkout"
    made.mkdir()
    for path in ROOT.iterdir():
        if path.name[0] != "." and path.name not in ("build", "dist"):
            (made / path.name).symlink_to(path)
    (made / "build").mkdir()
    return made


def run(commands: str, where: Path, **environment: str) -> str:
    """Run a script of bash, and return what it printed; fails if it fails."""
    process = subprocess.Popen(
        ["bash", "-c", commands],
        cwd=where,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=60 * PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{output}\n{errors}\n{FIX}"
    return output


@pytest.mark.drift
@pytest.mark.parametrize("guide", [*GUIDES, DIAGNOSE], ids=lambda guide: guide.stem)
def test_commands(guide: Path, tmp_path: Path, driver: FakeDriver) -> None:
    """On a machine without a GPU; what needs one has a fake driver."""
    (tmp_path / "sitecustomize.py").write_text(TRACEABLE)
    port = free_port()
    output = run(
        script(blocks(guide), port, driver.environment),
        folder(tmp_path),
        PATH=f"{Path(sys.executable).parent}:{BUNDLED}:{os.environ['PATH']}",
        PYTHONPATH=str(tmp_path),
        GPU_EXPORTER_ADDRESS=f"127.0.0.1:{port}",
    )
    parts = output.split(f"{END}\n")
    assert len(parts) == len(blocks(guide)) + 1, FIX
    for block, printed in zip(blocks(guide), parts, strict=False):
        assert not_printed(block, printed) == [], f"{block.commands}\n{printed}\n{FIX}"


def test_install(tmp_path: Path) -> None:
    """In a copy of what git tracks, with a new environment."""
    copy = tmp_path / "checkout"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if name.startswith(("gpu_exporter/", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    for name in ("alerts", "compose.yaml", "dashboards", "deploy", "docs", "helm"):
        (copy / name).symlink_to(ROOT / name)  # to which links of gpu_exporter/bundled lead
    output = run(script(blocks(INSTALL), 9400, {}), copy)
    assert f"gpu-exporter, version {__version__}\n" in output
    assert (copy / "build").is_dir()


@pytest.mark.drift
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_copied_numbers(page: Path) -> None:
    """A number that links its measurement is in that section."""
    for copied in COPIED.finditer(BLOCK.sub("", page.read_text("utf-8"))):
        section = _section((page.parent / copied["page"]).read_text("utf-8"), copied["anchor"])
        assert re.search(rf"(?<![\d.]){re.escape(copied['number'])}(?!\d)", section), f"{copied[0]}: {FIX}"


def _section(text: str, anchor: str | None) -> str:
    """Return the section with an anchor, with lines joined; the whole page without one."""
    parts = re.split(r"^(#+ .+)$", text, flags=re.MULTILINE)
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        if anchor == re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).replace(" ", "-"):
            return " ".join(body.split())
    assert not anchor, f"no section {anchor}: {FIX}"
    return " ".join(text.split())


@pytest.mark.drift
def test_code_and_queries() -> None:
    """Python of the guides is code of the example, and PromQL is valid."""
    example = (ROOT / "examples" / "slow_loader.py").read_text("utf-8").splitlines()
    for guide in GUIDES:
        for text in of_language(guide, "python"):
            assert [line for line in text.splitlines() if line not in example] == [], FIX
        for text in of_language(guide, "promql"):
            for query in text.splitlines():
                promql_parser.parse(query)
        known = {"sh", "text", "python", "promql"}
        assert {match["language"] for match in BLOCK.finditer(guide.read_text("utf-8"))} <= known, FIX
