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
def test_the_results_are_good() -> None:
    """No incident was missed, no page was false, and false tickets are rare. Severities are those of the catalogue."""
    modes = {mode.name: mode for mode in MODES}
    for path in RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        false = dict.fromkeys(("critical", "warning", "info"), 0)
        for row in result["alerts"]:
            false[row["severity"]] += row["false"]
            mode = modes[row["alert"]]
            lesser = {Severity.INFO} if mode.lesser else set()
            assert Severity(row["severity"]) in {mode.severity, *lesser}, FIX
        assert (path.stem in NAMES, result["missed"], result["ended_early"], false["critical"]) == (True, [], [], 0), (
            FIX
        )
        node_months = result["nodes"] * result["days"] / 7 * 12 / 52
        assert false["warning"] < node_months, FIX
