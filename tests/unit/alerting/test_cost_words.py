"""What the cost of an incident includes is said in the same words wherever it is explained."""

from __future__ import annotations

import re

import pytest

from gpu_exporter.alerting.incidents import COST_INCLUDES
from tests import ROOT

PLACES = ("docs/diagnose.md", "docs/signals.md", "dashboards/fleet.json", "dashboards/cost.json")


@pytest.mark.parametrize("place", PLACES)
def test_what_a_cost_includes(place: str) -> None:
    text = re.sub(r"\s+", " ", (ROOT / place).read_text())
    assert COST_INCLUDES in text
    assert len(re.findall("before the incident began", text)) == text.count(COST_INCLUDES)
