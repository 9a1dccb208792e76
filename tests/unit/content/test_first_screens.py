"""How many queries a dashboard runs before someone scrolls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.panels import BOARDS, is_in_view

MOST = 20


def first_queries(board: Mapping[str, Any]) -> Iterator[str]:
    """Yield the queries of annotations that are on, and of the panels that are at least partly in view."""
    yield from (each["name"] for each in board["annotations"]["list"] if each["enable"] and "expr" in each)
    for panel in board["panels"]:
        if is_in_view(panel):
            yield from (f"{panel['title']} {target['refId']}" for target in panel["targets"])


@pytest.mark.parametrize("name", BOARDS)
def test_a_first_screen_runs_few_queries(name: str) -> None:
    """The first screen answers first; everything else waits until someone scrolls or opens a row."""
    queries = list(first_queries(BOARDS[name]))
    assert 5 <= len(queries) <= MOST, queries
