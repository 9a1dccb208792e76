"""The three kinds of reports in Chromium: readable by everybody, on a phone, and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import expect

from gpu_exporter.cli.trace import trace_command
from gpu_exporter.profiling import html_page
from tests import ROOT
from tests.conftest import run
from tests.page.conftest import OpenTab
from tests.unit.profiling.test_reports import profile

TRACE = ROOT / "tests" / "data" / "pytorch_trace_slow_loader.json.gz"
SIXTEEN = ("--source", "simulated", "--gpus", "16", "--inject", "GpuStragglerSlow:3,GpuXidFatal:5", "--for", "3s")


def of_trace(file: Path) -> None:
    """Write the report on a trace."""
    result = CliRunner().invoke(trace_command, ["analyze", str(TRACE), "--report", str(file)])
    assert result.exit_code == 0, result.output


def of_diagnosis(file: Path) -> None:
    """Write the report on 16 GPUs, of which one is a straggler and one has a fatal XID."""
    result = run("diagnose", *SIXTEEN, "--report", str(file))
    assert result.returncode == 1, result.stderr


def of_profile(file: Path) -> None:
    """Write the report on the stacks of two processes."""
    file.write_text(html_page.page([profile(), profile(8)]))


# What writes a report, what it says first, and its first flame graph.
REPORTS = {
    "trace": (of_trace, "data-loading-bound", "Idle time of rank 0 by stack"),
    "diagnosis": (of_diagnosis, "2 incidents: 1 critical, 1 warning", ""),
    "profile": (of_profile, "Where the time of the host went", "Stacks of the main thread"),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report(tab: OpenTab, tmp_path: Path, kind: str) -> None:
    """What is most important is on the first screen of a phone, and nothing is wider. In both colour schemes, axe-core
    finds no violation; flame graphs name their frames, and the keyboard reaches what scrolls."""
    write: Callable[[Path], None]
    (write, first, flames), file = REPORTS[kind], tmp_path / "report.html"
    write(file)
    opened = tab(viewport={"width": 390, "height": 844})
    page = opened.page
    page.goto(file.as_uri())
    expect(page.locator("h1, h2, .verdict").filter(has_text=first).first).to_be_in_viewport()
    if flames:
        expect(page.get_by_role("img", name=flames).first).to_be_visible()
        assert page.locator(".flame g title", has_text="(").count()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert opened.violations() == []
    page.keyboard.press("Tab")
    expect(page.locator("main :focus")).to_be_visible()
