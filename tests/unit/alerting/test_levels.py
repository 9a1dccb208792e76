"""Two levels of rules: a shard needs only its own nodes, and the level above only what shards forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from gpu_exporter.alerting import levels, rules
from gpu_exporter.alerting.groups import Groups, RuleGroup
from gpu_exporter.catalogue.failure_modes.mode import Domain
from tests import ROOT
from tests.support.promql import nodes

GROUPS = rules.groups({})
LEVELS = levels.split(GROUPS)
# A node's own: no series with one of these labels is on two shards. Constants of models are the same on all.
OF_NODE = {"UUID", "instance", "node"}
CONSTANTS = "model:"
# Scraped by the Prometheus above: kube-state-metrics, the remediation controller, inference servers.
OF_CLUSTER = ("kube_", "gpu_remediation_", "vllm:", "sglang:", "tgi_", "nv_inference_")


def names(group: RuleGroup) -> list[tuple[str, str]]:
    """Return the rules of a group by name and expression."""
    return [(rule.get("record") or rule["alert"], rule["expr"]) for rule in group.rules]


def parsed(groups: Groups) -> Iterator[tuple[str, Any]]:
    """Yield the name of each rule and its expression."""
    for group in groups:
        for name, text in names(group):
            yield name, promql_parser.parse(text)


def test_a_shard_compares_nothing_of_two_nodes() -> None:
    """Each aggregation keeps a label of the node, and each match is on one."""
    for name, expression in parsed(LEVELS.shard):
        for node in nodes(expression):
            modifier = getattr(node, "modifier", None)
            if isinstance(node, promql_parser.AggregateExpr):
                assert modifier is not None, name
                labels = set(modifier.labels)
                kept = labels & OF_NODE if modifier.type == promql_parser.AggModifierType.By else not labels & OF_NODE
                assert kept, f"{name}: {node.prettify()}"
            if isinstance(node, promql_parser.BinaryExpr) and modifier is not None and modifier.matching is not None:
                labels = set(modifier.matching.labels)
                constant = not any(isinstance(each, promql_parser.VectorSelector) for each in nodes(node.rhs))
                if constant or node.rhs.prettify().startswith(CONSTANTS):
                    continue
                on = modifier.matching.type == promql_parser.LabelModifierType.Include
                assert labels & OF_NODE if on else not labels & OF_NODE, f"{name}: {node.prettify()}"


def test_the_level_above_reads_only_recorded_series() -> None:
    """Those that shards forward, its own, its alerts, and those of exporters of the cluster."""
    own = {name for group in LEVELS.above for name, _ in names(group)}
    readable = own | set(LEVELS.forwarded) | {"ALERTS", "ALERTS_FOR_STATE"}
    for name, expression in parsed(LEVELS.above):
        for node in nodes(expression):
            if isinstance(node, promql_parser.VectorSelector):
                read = node.name or node.prettify().partition('~"')[2]
                assert read in readable or read == "ALERTS" or read.startswith(OF_CLUSTER), f"{name} reads {read}"


def test_both_levels_have_all_rules() -> None:
    """Once each, with the same alerts. Shards also record parts of ranks."""
    every = {name for group in GROUPS for name, _ in names(group)}
    shard, above = ({name for group in groups for name, _ in names(group)} for groups in (LEVELS.shard, LEVELS.above))
    assert not shard & above
    assert shard | above >= every
    assert all(name.startswith("rank:") for name in (shard | above) - every)
    assert {"GpuLost", "GpuThermalThrottling", "gpu:tensor_achieved:ratio"} <= shard
    assert {"GpuStragglerSlow", "GpuCollectiveStall", "GpuJobStalled", "GpuAllocationFragmented"} <= above


def test_forwarded_series_are_recorded_by_shards() -> None:
    """The configuration keeps exactly these."""
    recorded = {name for group in LEVELS.shard for name, _ in names(group)}
    assert set(LEVELS.forwarded) <= recorded
    content = yaml.safe_load((ROOT / "alerts/examples/remote_write.yaml").read_text())
    (keep,) = content["remote_write"][0]["write_relabel_configs"]
    assert keep["regex"].split("|") == list(LEVELS.forwarded)


@pytest.mark.parametrize("domain", list(Domain))
def test_a_level_can_have_some_domains(domain: Domain) -> None:
    """Then it has only their alerts."""
    for level in levels.RuleLevel:
        groups = yaml.safe_load(rules.level_rules(level, domains=[domain]))["groups"]
        found = {rule["labels"]["domain"] for group in groups for rule in group["rules"] if "alert" in rule}
        assert found <= {domain.value}
