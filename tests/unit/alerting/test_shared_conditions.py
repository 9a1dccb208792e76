"""Conditions that several rules use are recorded once, before the rules that read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from gpu_exporter.alerting import rules
from gpu_exporter.catalogue.signals import SM_ACTIVE, UTIL
from gpu_exporter.conditions import promql
from gpu_exporter.conditions.tree import And, Compare, Or, Over, Unless, shared


def test_named_conditions_are_read_by_name() -> None:
    """Their definition is that of the unnamed condition."""
    low, high = Compare(Over(SM_ACTIVE), "<", 0.1), Compare(Over(UTIL), ">", 0.9)
    inner = And(high, low, name="odd")
    outer = Unless(Or(inner, high), inner, name="odder")

    assert promql.condition(inner, {}) == "gpu:odd:holds"
    assert promql.definition(inner, {}) == promql.condition(And(high, low), {})
    assert promql.definition(outer, {}).splitlines()[-1] == "gpu:odd:holds"
    assert dict.fromkeys(shared(And(outer, low))) == dict.fromkeys((inner, outer))


def _labels(rule: Mapping[str, Any]) -> str:
    return "".join(f'{{{name}="{value}"}}' for name, value in rule.get("labels", {}).items())


def test_rules_read_only_earlier_records() -> None:
    """Within a group."""
    for group in yaml.safe_load(rules.recording())["groups"]:
        # Rules of one name differ in a label; the expressions name it.
        names = [rule["record"] + _labels(rule) for rule in group["rules"]]
        for place, rule in enumerate(group["rules"]):
            late = set(re.findall(r'[\w]+:[\w:]+(?:\{cause="\w+"\})?', rule["expr"])) & set(names[place:])
            assert not late, f"{rule['record']} reads {late}, which is recorded later"
