"""The PrometheusRule of the chart equals alerts/, and each limit and mode in it can be changed by name."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from gpu_exporter.alerting import allocation, rules
from gpu_exporter.alerting.levels import RuleLevel
from gpu_exporter.alerting.limits import user_limits
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, Severity
from gpu_exporter.conditions.tree import Limit
from tests.support import chart
from tests.support.chart import CHART, SETS, kind, objects

pytestmark = pytest.mark.slow

GENERATE = "fix: run `make generate`"

ROOT = CHART.parent.parent


@cache
def committed() -> list[Mapping[str, Any]]:
    """Return the groups of alerts/*.yaml."""
    names = ("recording", *(domain.value for domain in Domain))
    return [group for name in names for group in groups_of((ROOT / f"alerts/{name}.yaml").read_text())]


def groups_of(text: str) -> list[Mapping[str, Any]]:
    """Return the groups of a file of rules."""
    groups: list[Mapping[str, Any]] = yaml.load(text, Loader=yaml.CSafeLoader)["groups"]
    return groups


@pytest.mark.drift
def test_rules_are_those_of_alerts() -> None:
    """Word for word, templates of Prometheus included."""
    assert chart.rules({})["groups"] == committed(), GENERATE
    assert "{{ $labels.node }}" in json.dumps(chart.rules({})), GENERATE
    assert "$(" not in json.dumps(chart.rules({})), GENERATE


def _changed(limit: Limit, factor: float) -> float:
    """Return another value, which stays a share."""
    share = limit.unit == "ratio" and limit.value < 1
    return round(limit.value / factor if share else limit.value * factor, 4) + 0.0001


def test_every_limit_is_in_the_rules() -> None:
    """With all limits changed, the rules are those that Python renders with these numbers."""
    chance = random.Random(7)
    limits = {each.name: _changed(each, chance.uniform(1.1, 3)) for each in user_limits()}
    limits["heldMemory"] = 123456789012
    expected = [rules.recording(limits), *(rules.alerts(each, limits) for each in Domain)]
    found = chart.rules({"prometheusRule": {"limits": limits}})["groups"]
    assert found == [group for text in expected for group in groups_of(text)]
    assert found != committed()
    text = (CHART / "files/rules.yaml").read_text()
    for name in limits:
        assert f"$({name})" in text, f"{name} changes nothing"


def alerts(groups: list[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_every_mode_can_be_changed() -> None:
    """Severity, hold and keep of a mode change by its name, and nothing else."""
    other = {Severity.CRITICAL: "info", Severity.WARNING: "critical", Severity.INFO: "warning"}
    modes = {each.name: {"severity": other[each.severity], "hold": "77s", "keep": "78s"} for each in MODES}
    before, after = alerts(committed()), alerts(chart.rules({"prometheusRule": {"modes": modes}})["groups"])
    for mode in MODES:
        labels = {**before[mode.name]["labels"], "severity": other[mode.severity]}
        assert after[mode.name] == {**before[mode.name], "labels": labels, "for": "77s", "keep_firing_for": "78s"}
    none = {each.name: {"hold": "0s", "keep": "0m"} for each in MODES}
    for rule in alerts(chart.rules({"prometheusRule": {"modes": none}})["groups"]).values():
        assert "for" not in rule
        assert "keep_firing_for" not in rule


@pytest.mark.parametrize("bit", range(len(MODES).bit_length()))
def test_every_mode_has_a_switch(bit: int) -> None:
    """Each has its own: no two failure modes are off in the same set of cases."""
    off = {mode.name for number, mode in enumerate(MODES, 1) if number >> bit & 1}
    found = alerts(chart.rules({"prometheusRule": {"modes": {name: {"enabled": False} for name in off}}})["groups"])
    assert {each.name for each in MODES} - set(found) == off


def test_a_domain_without_modes_has_no_group() -> None:
    """A group without rules is left out."""
    off = {each.name: {"enabled": False} for each in MODES if each.domain is Domain.COST}
    names = [group["name"] for group in chart.rules({"prometheusRule": {"modes": off}})["groups"]]
    assert "gpu-cost" not in names
    assert "gpu-health" in names


@pytest.mark.parametrize("level", list(RuleLevel))
def test_rules_of_a_level(level: RuleLevel) -> None:
    """Also with limits and without a domain."""
    found = chart.rules({"prometheusRule": {"level": level.value}})["groups"]
    assert found == groups_of(rules.level_rules(level))
    values = {"level": level.value, "domains": ["health", "cost"], "limits": {"usdPerGpuHour": 7.25}}
    some = rules.level_rules(level, {"usdPerGpuHour": 7.25}, [Domain.HEALTH, Domain.COST])
    assert chart.rules({"prometheusRule": values})["groups"] == groups_of(some)


def test_rules_of_some_domains() -> None:
    """Their alerts with what these need; all domains if an older release had no such value, none if there are none."""
    found = chart.rules({"prometheusRule": {"domains": ["health"]}})["groups"]
    expected = [rules.recording({}, [Domain.HEALTH]), rules.alerts(Domain.HEALTH)]
    assert found == [group for text in expected for group in groups_of(text)]
    assert chart.rules({"prometheusRule": {"domains": None}})["groups"] == committed()
    assert not chart.rules({"prometheusRule": {"domains": []}})["groups"]


def test_settings_of_all_alerts() -> None:
    """Additional labels never replace those of the rules. Links can be changed."""
    found = alerts(chart.groups(objects(SETS["overridden"])))
    assert found["GpuLost"]["labels"] == {
        "severity": "warning",
        "domain": "health",
        "action": "node_reboot",
        "team": "gpu",
    }
    assert (found["GpuLost"]["for"], found["GpuLost"]["keep_firing_for"]) == ("10m", "5m")
    assert "GpuFakeLoad" not in found
    assert found["GpuLost"]["annotations"]["runbook_url"] == "https://runbooks.example/gpu/gpulost.md"
    assert found["GpuLost"]["annotations"]["dashboard_url"].startswith("https://grafana.example/d/gpu-gpu?")
    assert not any("links" in each["annotations"] for each in found.values())
    page = "https://gpus.example/{{ $labels.node }}/#{{ $labels.UUID }}{{ with $labels.GPU_I_ID }}/{{ . }}{{ end }}"
    assert found["GpuDataLoadingBound"]["annotations"]["page_url"] == page
    assert "page_url" not in found["GpuExporterDown"]["annotations"]
    groups = chart.groups(objects(SETS["overridden"]))[:-1]
    own = {group["name"]: group.get("interval") for group in committed()}
    for group in groups:  # what is counted or added up needs its own interval
        expected = own[group["name"]] if group["name"] in rules.OWN_INTERVAL else "30s"
        assert group["interval"] == expected, group["name"]


@pytest.mark.parametrize("lost", ["limits", "modes"])
def test_values_of_an_older_release(lost: str) -> None:
    """`helm upgrade --reuse-values` has no values for new limits and modes."""
    assert chart.rules({"prometheusRule": {lost: None}})["groups"] == committed()
    one = {"limits": {"busySm": None}, "modes": {"GpuLost": None}}[lost]
    assert chart.rules({"prometheusRule": {lost: one}})["groups"] == committed()


def expressions(rendered: chart.Values) -> str:
    """Return the expressions of all rules with these values."""
    return "\n".join(rule["expr"] for group in chart.rules(rendered)["groups"] for rule in group["rules"])


def test_own_rules_are_added_as_they_are() -> None:
    """After those of the chart, with their own interval and labels."""
    (own,) = chart.groups(objects(SETS["overridden"]))[-1:]
    assert own == SETS["overridden"]["prometheusRule"]["additionalRules"][0]


def test_resource_names_reach_the_rules() -> None:
    """As kube-state-metrics spells them."""
    default = allocation.RESOURCES
    before, after = (
        expressions({"attribution": {"resourceNames": names}}) for names in ([], ["example.com/MIG-1g.10gb", "a.b/c"])
    )
    assert before.count(default) > 1
    assert after == before.replace(default, f"{default}|example_com_MIG_1g_10gb|a_b_c")


def test_resource_names_reach_the_remediation() -> None:
    """The controller and the rules count the same resources as GPUs."""
    names = ["volcano.sh/vgpu-number"]
    for given, expected in ([], None), (names, names):
        made = objects({"remediation": {"enabled": True}, "attribution": {"resourceNames": given}})
        (text,) = (
            each["data"]["remediation.yaml"] for each in kind(made, "ConfigMap") if "remediation.yaml" in each["data"]
        )
        assert yaml.safe_load(text).get("gpu_resources") == expected


def test_trusted_proxies_reach_the_remediation() -> None:
    for given, expected in ([], None), (["10.0.0.0/8"], ["10.0.0.0/8"]):
        made = objects({"remediation": {"enabled": True}, "web": {"trustedProxies": given}})
        (text,) = (
            each["data"]["remediation.yaml"] for each in kind(made, "ConfigMap") if "remediation.yaml" in each["data"]
        )
        assert yaml.safe_load(text).get("web_trusted_proxies") == expected


def test_tolerated_taints_reach_the_rules() -> None:
    """With their dots as dots; an older release has the default."""
    default = f'key!~"{allocation.TOLERATED}"'
    before = expressions({})
    assert before.count(default) == 1
    taints = {"prometheusRule": {"toleratedTaints": ["a.b/c", "d"]}}
    assert expressions(taints) == before.replace(default, 'key!~"a[.]b/c|d"')
    assert expressions({"prometheusRule": {"toleratedTaints": []}}) == before.replace(default, 'key!~""')
    assert expressions({"prometheusRule": {"toleratedTaints": None}}) == before


def test_a_limit_may_be_0() -> None:
    """Helm treats 0 as empty."""
    found = chart.rules({"prometheusRule": {"limits": {"usdPerKwh": 0}}})["groups"]
    (rule,) = (
        each for group in found for each in group["rules"] if each.get("record") == "workload:electricity:usd_per_hour"
    )
    assert rule["expr"].endswith("* 0")
