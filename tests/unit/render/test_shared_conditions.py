"""Conditions that several rules use are recorded once, before the rules that read them."""

from __future__ import annotations

import re

import yaml

from gpu_exporter.catalogue import promql
from gpu_exporter.catalogue.conditions import And, Compare, Or, Over, Unless, shared
from gpu_exporter.catalogue.signals import SM_ACTIVE, UTIL
from gpu_exporter.render.rules import rules


def test_named_conditions_are_read_by_name() -> None:
    """Their definition is that of the unnamed condition."""
    low, high = Compare(Over(SM_ACTIVE), "<", 0.1), Compare(Over(UTIL), ">", 0.9)
    inner = And(high, low, name="odd")
    outer = Unless(Or(inner, high), inner, name="odder")

    assert promql.condition(inner, {}) == "gpu:odd:holds"
    assert promql.definition(inner, {}) == promql.condition(And(high, low), {})
    assert promql.definition(outer, {}).splitlines()[-1] == "gpu:odd:holds"
    assert dict.fromkeys(shared(And(outer, low))) == dict.fromkeys((inner, outer))


def test_rules_read_only_earlier_records() -> None:
    """Within a group."""
    for group in yaml.safe_load(rules.recording())["groups"]:
        names = [rule["record"] for rule in group["rules"]]
        for place, rule in enumerate(group["rules"]):
            late = set(re.findall(r"[\w]+:[\w:]+", rule["expr"])) & set(names[place:])
            assert not late, f"{rule['record']} reads {late}, which is recorded later"
