"""The measured section of docs/scale.md, and the options of a cluster."""

from __future__ import annotations

import json

import pytest

from benchmarks.scale_page import PAGE, known, page
from tests.scale import victoria_cluster

FIX = "fix: run `python -m benchmarks.scale --json benchmarks/results/scale.json`"


@pytest.mark.drift
def test_page_is_up_to_date() -> None:
    """It is rendered from the committed results; other results change it."""
    text, found = PAGE.read_text(), known()
    assert page(text, found) == text, FIX
    other = json.loads(json.dumps(found))
    other[0]["load"]["rule_seconds"]["gpu-signals"] = 4711.0
    assert "4711.00 s" in page(text, other), FIX


def test_the_options_of_a_cluster_are_those_that_are_tried() -> None:
    """By `python -m tests.scale.run cluster`."""
    commands = PAGE.read_text().replace(" \\\n ", "").splitlines()
    stores = [{"vminsert": f"store-{number}:8400", "vmselect": f"store-{number}:8401"} for number in (1, 2, 3)]

    for name, options in victoria_cluster.setup(stores).items():
        (command,) = (line.split() for line in commands if line.startswith(f"{name} "))
        assert command == [name, *options], "fix: correct the options in docs/scale.md"
