"""Rules for vmalert: the same as for Prometheus, each evaluated when queries see what it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError
from typing import Any

import promql_parser
import pytest

from gpu_exporter.alerting import rules, vmalert
from gpu_exporter.alerting.groups import Rule, RuleGroup
from gpu_exporter.catalogue.failure_modes import FLEET_CAUSES
from gpu_exporter.catalogue.failure_modes.fleet import FAULTS
from tests.support.promql import nodes

GROUPS = rules.groups({})
CHAINED = vmalert.chained(GROUPS)
SECONDS = {"5s": 5, "10s": 10, "30s": 30, "1m": 60, "2m": 120, "1h": 3600}
# An interval of the slow groups.
EVALUATION = 60


@dataclass(frozen=True, slots=True)
class Timed:
    """A rule, and when it is evaluated: its interval and offset in seconds."""

    rule: Rule
    interval: int
    offset: int


def timed() -> Iterator[Timed]:
    """Yield all rules in the order of their groups."""
    for group in CHAINED:
        for rule in group.rules:
            yield Timed(rule, SECONDS[group.interval], int(group.options["eval_offset"].removesuffix("s")))


def selects(selector: Any, rule: Rule) -> bool:
    """Return whether a selector selects a series that a rule records."""
    if selector.name != rule["record"]:
        return False
    found = {each.name: each.value for each in selector.matchers.matchers if each.op == promql_parser.MatchOp.Equal}
    return all(rule.get("labels", {}).get(label, value) == value for label, value in found.items())


def latencies() -> Iterator[tuple[Timed, int]]:
    """Yield each rule and how long, in seconds, a change takes from the first rule that reads it through its chain."""
    recorded: dict[str, list[tuple[Timed, int]]] = {}
    for each in timed():
        latency = 0
        for node in nodes(promql_parser.parse(each.rule["expr"])):
            if isinstance(node, promql_parser.VectorSelector):
                for source, before in recorded.get(node.name or "", ()):
                    if selects(node, source.rule):
                        interval = min(each.interval, source.interval)
                        age = (each.offset - source.offset) % interval
                        latency = max(latency, before + age + (0 if age >= vmalert.STEP else interval))
        if "record" in each.rule:
            recorded.setdefault(each.rule["record"], []).append((each, latency))
        yield each, latency


def test_the_rules_are_those_of_prometheus() -> None:
    """Each once, at its own interval. Groups without one are evaluated every 30 s."""

    def of(groups: list[RuleGroup]) -> list[tuple[str, str]]:
        return sorted((group.interval or "30s", repr(rule)) for group in groups for rule in group.rules)

    assert of(list(CHAINED)) == of(list(GROUPS))
    assert len({group.name for group in CHAINED}) == len(CHAINED)
    assert all(int(group.options["eval_offset"][:-1]) < SECONDS[group.interval] for group in CHAINED)


def test_a_group_reads_only_groups_before_it() -> None:
    """With every rule that records a series which it selects."""
    place = {id(rule): number for number, group in enumerate(CHAINED) for rule in group.rules}
    recording = [rule for group in CHAINED for rule in group.rules if "record" in rule]
    read = 0
    for rule in (rule for group in CHAINED for rule in group.rules):
        for node in nodes(promql_parser.parse(rule["expr"])):
            if isinstance(node, promql_parser.VectorSelector):
                sources = [place[id(other)] for other in recording if selects(node, other)]
                read += len(sources)
                assert all(source < place[id(rule)] for source in sources), (rule, node.name)
    assert read > len(recording)


def test_a_fault_of_the_fleet_is_known_before_its_nodes_notify() -> None:
    """Alertmanager waits for 30 s from when the alert of a node fires; its series is visible a step later."""
    chain = ("incident:all:alerts", FAULTS, "GpuFleetFault")
    steps = {each.rule.get("record") or each.rule["alert"]: each for each in timed()}
    for name in FLEET_CAUSES:
        now = steps[name].offset
        for link in chain:
            now += vmalert.STEP
            now += (steps[link].offset - now) % steps[link].interval
        assert now - steps[name].offset < 30, name


def test_a_change_passes_all_rules_in_two_evaluations() -> None:
    """A chain of rules in one group of alerts/*.yaml would take an evaluation for each step in vmalert."""
    found: Mapping[str, int] = {each.rule["alert"]: late for each, late in latencies() if "alert" in each.rule}
    assert found["GpuCollectiveStall"] > EVALUATION  # the longest chain
    assert max(found.values()) < 2 * EVALUATION


def test_a_rule_may_read_its_own_series_with_another_label() -> None:
    """But not one that it records, directly or not."""
    first = {"record": "a:b:c", "expr": "up", "labels": {"cause": "x"}}
    second = {"record": "a:b:c", "expr": 'a:b:c{cause="x"} + 1', "labels": {"cause": "y"}}
    alert = {"alert": "A", "expr": 'sum(a:b:c{cause=~"x|y"})'}
    assert vmalert.levelled([("30s", second), ("30s", first)]) == [2, 1]
    assert vmalert.levelled([("30s", first), ("30s", second), ("30s", alert)]) == [1, 2, 3]
    with pytest.raises(CycleError):
        vmalert.levelled([("30s", {**second, "expr": "sum(a:b:c)"}), ("30s", first)])
