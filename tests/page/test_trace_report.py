"""The report on traces in Chromium: readable by everybody, on a phone, and without anything from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import expect

from gpu_exporter.cli.trace import trace_command
from tests import ROOT
from tests.page.conftest import OpenTab

TRACE = ROOT / "tests" / "data" / "pytorch_trace_slow_loader.json.gz"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report(tab: OpenTab, tmp_path: Path, scheme: str) -> None:
    """axe-core finds no violation, nothing is wider than a phone, and flame graphs name their frames."""
    file = tmp_path / "report.html"
    result = CliRunner().invoke(trace_command, ["analyze", str(TRACE), "--report", str(file)])
    assert result.exit_code == 0, result.output
    opened = tab(color_scheme=scheme, viewport={"width": 390, "height": 844})
    page = opened.page
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", name="data-loading-bound")).to_be_visible()
    expect(page.get_by_role("img", name="Idle time of rank 0 by stack")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert (
        page.locator(".flame g title", has_text="go:").count() + page.locator(".flame g title", has_text="go").count()
    )
    assert opened.violations() == []
