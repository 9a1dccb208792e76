"""No column of a table is cut off, on screens of the usual widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from content.dashboards.queries import NAME_OF_CLUSTER
from tests.support.panels import BOARDS, panels

SCREENS = (1280, 1600, 1920)
# Pixels around the grid of panels, with the scroll bar of the page; between two panels; and inside of a panel with its
# borders and a scroll bar.
PAGE, GAP, PANEL = 2 * 16 + 8, 8, 2 + 8
# Columns without a width share what the others leave, and are no narrower than `minWidth`. No column is narrower than
# `LEAST`. Source: `computeColWidths` and `COLUMN` of Grafana's TableNG; its older tables have the same defaults.
DEFAULT, LEAST = 150, 50
# The mean width of a letter in a header, and the padding of a cell. What to do may be cut off: the cell shows the rest
# when someone points to it.
LETTER, PADDING = 6.6, 12
TABLES = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in panels(board)
    if panel["type"] == "table"
]


def columns(panel: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the columns of a table, with the properties of each: also that of the cluster, if there are several."""
    (organised,) = (each["options"] for each in panel["transformations"] if each["id"] == "organize")
    properties: dict[str, dict[str, Any]] = {}
    for override in panel["fieldConfig"]["overrides"]:
        found = {each["id"]: each.get("value") for each in override["properties"]}
        properties.setdefault(override["matcher"]["options"], {}).update(found)
    for field in organised["includeByName"]:
        name = organised["renameByName"].get(field, field)
        if not properties.get(name, {}).get("custom.hidden"):
            yield name, properties.get(name, {})


def widths(panel: Mapping[str, Any], available: float) -> Mapping[str, float]:
    """Return the width of each column in a panel with so much space, as Grafana computes it."""
    found = dict(columns(panel))
    fixed = {name: each["custom.width"] for name, each in found.items() if each.get("custom.width")}
    rest = (available - sum(fixed.values())) / max(1, len(found) - len(fixed))
    return {
        name: max(LEAST, fixed.get(name) or max(each.get("custom.minWidth", DEFAULT), rest))
        for name, each in found.items()
    }


def space(panel: Mapping[str, Any], screen: int) -> float:
    """Return how much space the columns of a panel have on a screen."""
    columns_of_grid: int = panel["gridPos"]["w"]
    return (screen - PAGE + GAP) / 24 * columns_of_grid - GAP - PANEL


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("panel", TABLES)
def test_columns_fit(panel: Mapping[str, Any], screen: int) -> None:
    available = space(panel, screen)
    found = widths(panel, available)
    assert sum(found.values()) <= available + 0.01, f"{sum(found.values()):.0f} of {available:.0f} px: {found}"


@pytest.mark.parametrize("panel", TABLES)
def test_titles_of_columns_fit(panel: Mapping[str, Any]) -> None:
    found = widths(panel, space(panel, min(SCREENS)))
    cut = {name: width for name, width in found.items() if len(name) * LETTER + PADDING > width}
    assert not cut


@pytest.mark.parametrize("panel", TABLES)
def test_a_single_cluster_is_no_column(panel: Mapping[str, Any]) -> None:
    """A query adds the label only if there are several; the one that rows are merged by has no column."""
    shown = next(each["options"] for each in panel["transformations"] if each["id"] == "organize")["includeByName"]
    assert "cluster" not in shown
    adding = [target for target in panel["targets"] if NAME_OF_CLUSTER in target["expr"]]
    assert len(adding) == (NAME_OF_CLUSTER in shown)


def test_too_wide_a_table_is_detected() -> None:
    panel = {
        "gridPos": {"w": 12},
        "transformations": [
            {"id": "organize", "options": {"includeByName": dict.fromkeys("abcde", True), "renameByName": {}}}
        ],
        "fieldConfig": {"overrides": []},
    }
    assert sum(widths(panel, space(panel, 1280)).values()) > space(panel, 1280)
    assert sum(widths(panel, space(panel, 1920)).values()) == pytest.approx(space(panel, 1920))
