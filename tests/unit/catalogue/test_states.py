"""States: each expression is PromQL, on metrics that exist."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.states import NAMES, STATES, State, rows_of
from tests.support.tools import tool

KNOWN = {row.name for row in METRICS}


@pytest.mark.slow
def test_every_expression_parses(tmp_path: Path) -> None:
    """promtool reads them all as rules."""
    rules = [{"record": f"state:{number}", "expr": state.promql} for number, state in enumerate(STATES)]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "states", "rules": rules}]}))
    ended = subprocess.run([tool("promtool"), "check", "rules", str(path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert f"{len(STATES)} rules found" in ended.stdout


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_every_metric_is_in_the_catalogue(state: State) -> None:
    """A name that was mistyped, or went, finds nothing in Prometheus and says nothing."""
    names = set(NAMES.findall(state.promql))
    assert names
    assert names <= KNOWN
    assert {row.name for row in rows_of(state)} == names


def test_names_are_unique() -> None:
    """Each state is one row."""
    assert len({state.name for state in STATES}) == len(STATES)
