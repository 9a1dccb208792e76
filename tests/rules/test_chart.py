"""The chart's PrometheusRule in promtool: the tests of alerts/, and the effect of changed values."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue.failure_modes import EFFECTS
from tests.rules import promtool
from tests.rules.needed import rule_groups
from tests.rules.promtool import BY_NAME, COARSE, RULES, Case, Expect, check, firing, never_fired, now_firing, promtools
from tests.rules.series import Device, Generation, injected, minutes, rank
from tests.rules.test_allocation import GPU, Node, Pod, check_cluster, cluster
from tests.rules.test_modes import lasts
from tests.support import chart
from tests.support.incidents import in_incident_of


def use(values: chart.Values, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Make promtool read the rules that the chart renders with these values."""
    file = folder / "prometheusrule.yaml"
    file.write_text(json.dumps(chart.rules(values)))
    patch.setattr(promtool, "RULES", [file])
    return file


def test_it_is_linted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = use({}, tmp_path, monkeypatch)
    for program in promtools():
        found = subprocess.run(
            [program, "check", "rules", "--lint=all", "--lint-fatal", file], capture_output=True, text=True
        )
        assert found.returncode == 0, found.stdout + found.stderr


def test_its_rules_are_those_of_alerts() -> None:
    """So that the other tests of rules are tests of the chart, too."""
    groups = {group["name"]: group for group in rule_groups(tuple(RULES))}

    assert {group["name"]: group for group in chart.rules({})["groups"]} == groups


CHANGED = {
    "limits": {"starvedGap": 0.99},
    "modes": {"GpuThermalThrottling": {"severity": "critical", "hold": "20m"}, "GpuPowerBrake": {"enabled": False}},
}


def throttled(length: float) -> Case:
    """Return a GPU that is too hot for some minutes, and one that its power supply throttles."""
    modes = {"hot": BY_NAME["GpuThermalThrottling"], "braked": BY_NAME["GpuPowerBrake"]}
    devices = [
        Device(name, 0, [minutes(10), injected(length, mode.inject)], Generation.GPU_EXPORTER, rank(name))
        for name, mode in modes.items()
    ]
    return Case("throttled", devices, [])


@pytest.mark.parametrize(
    ("changes", "length", "hot", "braked"),
    [
        ({}, 12, "warning", True),
        ({}, 3, "", False),
        (CHANGED, 12, "", False),
        (CHANGED, 30, "critical", False),
    ],
)
def test_severity_hold_and_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, Any], length: float, hot: str, braked: bool
) -> None:
    """Of a failure mode, changed by values."""
    use({"prometheusRule": changes}, tmp_path, monkeypatch)
    asked = throttled(length)
    implied = "|".join(EFFECTS["GpuThermalThrottling"])
    alert = 'group by (alertname, severity) (ALERTS{{alertstate="firing", node="{}", alertname!~"{}"}})'
    expected = [
        Expect(
            alert.format("hot", implied), [({"alertname": "GpuThermalThrottling", "severity": hot}, 1.0)] if hot else []
        ),
        Expect(
            alert.format("braked", implied),
            [({"alertname": "GpuPowerBrake", "severity": "warning"}, 1.0)] if braked else [],
        ),
    ]
    check(tmp_path, [Case(asked.name, asked.devices, expected)])


def test_gpus_with_another_resource_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count, and taints that their pods tolerate leave them free."""
    values: chart.Values = {
        "attribution": {"resourceNames": ["example.com/gpu.small"]},
        "prometheusRule": {"toleratedTaints": ["example.com/team"]},
    }
    use(values, tmp_path, monkeypatch)
    small = "example_com_gpu_small"
    parts = cluster(
        Node("a", 8, resource=small, taints=[("example.com/team", "NoSchedule")]),
        Node("b", 4, resource="example_com_gpuxsmall"),
        Node("c", 4, taints=[("nvidia.com/gpu", "NoSchedule")]),
        Pod("p", [3], "a", resource=small),
    )
    free = [({"node": "a", "resource": small}, 5.0), ({"node": "c", "resource": GPU}, 0.0)]
    check_cluster(tmp_path, parts, Expect("sum by (node, resource) (node:free:count)", free))


@pytest.mark.parametrize(("limit", "fires"), [(None, True), (3e11, False)])
def test_changed_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None, fires: bool) -> None:
    """An idle GPU that nobody was allocated, with 20 GiB in use, counts as hoarded, unless the limit is higher."""
    use({"prometheusRule": {"limits": {"heldMemory": limit} if limit else {}}}, tmp_path, monkeypatch)
    mode = BY_NAME["GpuAllocatedIdle"]
    story = [minutes(15), injected(lasts(mode), mode.inject)]
    found = [
        now_firing("idle", f', alertname="{mode.name}"', firing("idle", [mode.name] if fires else [])),
        never_fired("idle", in_incident_of(mode)),
    ]
    check(tmp_path, [Case("idle", [Device("idle", 0, story, Generation.GPU_EXPORTER)], found)], interval=COARSE)
