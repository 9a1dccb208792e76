"""docs/alert-quality.md shows the committed results, of the alerts of this catalogue."""

from __future__ import annotations

import json

import pytest

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Severity
from tests.operation.report import NAMES, PAGE, RESULTS, page

FIX = "fix: run `make soak`, then commit tests/operation/results and docs/alert-quality.md"


@pytest.mark.drift
def test_the_page_shows_the_results() -> None:
    assert PAGE.read_text() == page(), "fix: run `python -m tests.operation.report`"


@pytest.mark.drift
@pytest.mark.parametrize("name", NAMES)
def test_the_results_are_good(name: str) -> None:
    """No incident was missed, no page was false, and false tickets are rare. Severities are those of the catalogue."""
    result = json.loads((RESULTS / f"{name}.json").read_text())
    weeks = result["nodes"] * result["days"] / 7
    noise = {severity: 0 for severity in ("critical", "warning", "info")}
    modes = {mode.name: mode for mode in MODES}
    for row in result["alerts"]:
        noise[row["severity"]] += row["false"] + row["repeated"]
        mode = modes[row["alert"]]
        lesser = {Severity.INFO} if mode.lesser else set()
        assert Severity(row["severity"]) in {mode.severity, *lesser}, FIX
    assert not result["missed"], FIX
    assert not result["ended_early"], FIX
    assert noise["critical"] == 0, FIX
    assert noise["warning"] < weeks * 12 / 52, FIX
