"""The measured section of docs/scale.md."""

from __future__ import annotations

import json

import pytest

from benchmarks.scale_page import PAGE, known, page

FIX = "fix: run `python -m benchmarks.scale --json benchmarks/results/scale.json`"


@pytest.mark.drift
def test_page_is_up_to_date() -> None:
    """It is rendered from the committed results; other results change it."""
    text, found = PAGE.read_text(), known()
    assert page(text, found) == text, FIX
    other = json.loads(json.dumps(found))
    other[0]["load"]["rule_seconds"]["gpu-signals"] = 4711.0
    assert "4711.00 s" in page(text, other), FIX
