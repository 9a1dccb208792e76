"""Which expressions can have a result without some series."""

from __future__ import annotations

import pytest

from content.docs.liveness import can_have_result, dead_records, queries
from gpu_exporter.alerting.groups import RuleGroup


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("alive", True),
        ("dead", False),
        ('alive{label="dead"}', True),
        ("rate(dead[5m])", False),
        ("dead or alive", True),
        ("alive and dead", False),
        ("alive unless dead", True),
        ("dead unless alive", False),
        ("alive unless dead and dead", False),
        ("alive > 0.5 and (dead or alive offset 2m)", True),
        ("alive * on (dead) group_left (dead) alive", True),
        ("sum by (dead) (alive) / alive", True),
        ("clamp_max(alive, dead)", False),
        ("alive + (dead or 0 * alive)", True),
        ("absent(dead) or dead", True),
        ('label_replace(vector(1), "dead", "dead", "", "")', True),
        ("histogram_quantile(0.5, rate(dead[5m]))", False),
        ("alive == bool 1", True),
    ],
)
def test_can_have_result(expression: str, expected: bool) -> None:
    """Of an `or`, one side is enough, and what follows `unless` is not needed."""
    assert can_have_result(expression, "dead".__eq__) is expected


def test_dead_records() -> None:
    """A record is dead if no rule for it can have a result, also through other records."""
    rules = [("first", "dead"), ("second", "first + 1"), ("third", "second or alive"), ("first", "second and dead")]
    group = RuleGroup("group", [{"record": record, "expr": expression} for record, expression in rules])

    assert list(dead_records([group], {"dead"})) == ["first", "second"]


def test_queries() -> None:
    """Also of panels in collapsed rows; texts have none."""
    inner = {"title": "inner", "targets": [{"expr": "a"}, {"expr": "b"}, {"refId": "C"}]}
    board = {"panels": [{"title": "row", "panels": [inner]}, {"title": "text"}, {"title": "x", "targets": []}]}

    assert list(queries(board)) == [("inner", ["a", "b"])]
