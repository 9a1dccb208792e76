"""docs/scale.md is what the benchmark measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.scale_page import PAGE, known, page

FIX = "fix: run `python -m benchmarks.scale --json benchmarks/results/scale.json`"


@pytest.mark.drift
def test_the_page_is_what_was_measured() -> None:
    """And whatever else is measured, is on it."""
    text, found = PAGE.read_text(), known()
    assert page(text, found) == text, FIX
    other = json.loads(json.dumps(found))
    other[0]["load"]["rule_seconds"]["gpu-signals"] = 4711.0
    assert "4711.00 s" in page(text, other), FIX
