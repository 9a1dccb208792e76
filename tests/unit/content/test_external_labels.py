"""Queries of dashboards, and rules, on a store whose series have an external label, such as Thanos' `tenant_id`.

An aggregation drops that label. Where its result is combined with series that have it, they must be matched by named
labels, or else what should be one row is two, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from promql_parser import AggModifierType, AggregateExpr, BinaryExpr, Call, LabelModifierType, NumberLiteral

from tests.rules.needed import rule_groups
from tests.rules.promtool import RULES
from tests.support.panels import BOARDS, expressions, filled

VARIABLES = {"cluster": "c", "node": "n", "gpu": "0", "namespace": "ns", "workload": "w", "pod": "p"}
# They keep the labels of what they choose.
CHOOSING = ("topk", "bottomk")
SETS = ("and", "unless")
WITHOUT_LABELS = ("scalar", "time", "vector", "absent")


def dropped(node: Any) -> bool | None:
    """Return whether a result lacks the external label; None if it has no labels at all."""
    if isinstance(node, AggregateExpr) and str(node.op) not in CHOOSING:
        by = node.modifier is None or node.modifier.type == AggModifierType.By
        return True if by else dropped(node.expr)
    if isinstance(node, BinaryExpr):
        left, right = dropped(node.lhs), dropped(node.rhs)
        if left is None or right is None:
            return right if left is None else left
        matching = node.modifier.matching if node.modifier else None
        card = str(node.modifier and node.modifier.card)
        if str(node.op) in (*SETS, "or") or "ManyToOne" in card:
            return left
        if "OneToMany" in card:
            return right
        return (matching is not None and matching.type == LabelModifierType.Include) or left or right
    if isinstance(node, Call):
        if node.func.name in WITHOUT_LABELS:
            return None
        return next((found for each in node.args if (found := dropped(each)) is not None), None)
    if isinstance(node, NumberLiteral):
        return None
    return dropped(node.expr) if hasattr(node, "expr") else False


def mixed(node: Any, *, merged: bool = False) -> Iterator[Any]:
    """Yield what combines series with and without the label. `merged`: an aggregation makes one of two rows."""
    if isinstance(node, AggregateExpr):
        yield from mixed(node.expr, merged=str(node.op) in ("max", "min", "group"))
    elif isinstance(node, BinaryExpr):
        named = node.modifier is not None and node.modifier.matching is not None
        sides = {dropped(node.lhs), dropped(node.rhs)}
        if sides == {True, False} and not named and not (merged and str(node.op) == "or"):
            yield node
        yield from mixed(node.lhs, merged=merged and not (named and str(node.op) not in (*SETS, "or")))
        yield from mixed(node.rhs, merged=str(node.op) in SETS or (merged and not named))
    else:
        for each in getattr(node, "args", None) or [getattr(node, "expr", None)]:
            if each is not None and not isinstance(each, str):
                yield from mixed(each, merged=merged)


@pytest.mark.parametrize("name", BOARDS)
def test_an_external_label_changes_nothing(name: str) -> None:
    """Aggregations and other series are matched by named labels."""
    for text in expressions(BOARDS[name]):
        for node in mixed(promql_parser.parse(filled(text, VARIABLES))):
            raise AssertionError(f"match by named labels: {node.prettify()}")


# Two kinds of rows that are never the same: GPUs and their instances, GPUs that are down and nodes that lack some.
UNLIKE = ("gpu:device_parts:info", "GpuLost")


def test_an_external_label_changes_no_rule() -> None:
    """Also if a ruler adds it to what it records."""
    for group in rule_groups(tuple(RULES)):
        for rule in group["rules"]:
            name = rule.get("record") or rule["alert"]
            for node in mixed(promql_parser.parse(rule["expr"])):
                assert name in UNLIKE, f"{name}: match by named labels: {node.prettify()}"


@pytest.mark.parametrize(
    ("query", "is_mixed"),
    [
        ("max by (node) (a) or 0 * b", True),
        ("max by (node) (a) or on (node) 0 * b", False),
        ("max by (node) (max by (node) (a) or 0 * b)", False),
        ("count(max by (node) (a) or 0 * b)", True),
        ("max by (node) (a) / b", True),
        ("a - on (node) b or 0 * a", True),
        ("a / b or 2 * a > 1", False),
        ("(max by (node) (a) - on (node) group_right () b) / b", False),
    ],
)
def test_what_is_mixed(query: str, is_mixed: bool) -> None:
    assert bool(list(mixed(promql_parser.parse(query)))) is is_mixed
