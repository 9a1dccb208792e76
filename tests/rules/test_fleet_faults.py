"""The same fault on many nodes is one alert, which says what the nodes have in common, and explains theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_exporter.alerting import incidents, rules
from gpu_exporter.alerting.alertmanager import alertmanager
from gpu_exporter.alerting.groups import as_text
from gpu_exporter.catalogue import fleet_faults
from gpu_exporter.catalogue.failure_modes import FLEET_CAUSES, fleet
from gpu_exporter.diagnosis.incidents import PlacedMode
from tests.rules.promtool import BY_NAME, check
from tests.rules.test_incidents import inhibits
from tests.scale.engines import vmalert_tool

EVERY, END = 30, 60
PROMPT = ("gpu-alerts", "gpu-health-prompt")
FIRING = 'count by (cluster, cause, xid) (ALERTS{alertname="GpuFleetFault", alertstate="firing"})'
CAUSES = f"count by (alertname) ({incidents.CAUSES.record})"
XID, LOST, ECC, REMAP = ("GpuXidFatal", "79"), ("GpuLost", ""), ("GpuEccUncorrectable", ""), ("GpuRowRemapFailed", "")
# The minutes in which a node has an alert.
Times = Sequence[tuple[float, float]]


def series(name: str, labels: Mapping[str, str], times: Times = ((0, END),), value: int = 1) -> Mapping[str, str]:
    """Return a series that has a value in these minutes."""
    parts, done = [], 0
    for begin, end in times:
        first, last = (round(minute * 60 / EVERY) for minute in (begin, end))
        parts += [f"_x{first - done}"] if first > done else []
        parts.append(f"{value}x{last - first - 1}")
        done = last
    text = ", ".join(f'{label}="{each}"' for label, each in labels.items() if each)
    return {"series": f"{name}{{{text}}}", "values": " ".join(parts)}


@dataclass(frozen=True)
class Fleet:
    """A cluster: the minutes in which each of its nodes has each alert, with the code if it is an XID."""

    cluster: str
    size: int
    alerts: Mapping[tuple[str, str], Mapping[int, Times]]
    drivers: Sequence[str] = ("580.1",)
    severity: str = "critical"

    def series(self) -> Iterator[Mapping[str, str]]:
        """Yield its series."""
        yield series("cluster:nodes:count", {"cluster": self.cluster}, value=self.size)
        for node in sorted({node for times in self.alerts.values() for node in times}):
            where, driver = {"cluster": self.cluster, "node": f"n{node}"}, self.drivers[node % len(self.drivers)]
            yield series("node:hardware:info", {**where, "model": "H100", "driver_version": driver})
            yield series("node:rack:info", {**where, "rack": f"r{node // 20}"})
        kind = {"alertstate": "firing", "severity": self.severity, "domain": "health"}
        for (name, xid), times in self.alerts.items():
            for node, minutes in times.items():
                where = {"cluster": self.cluster, "node": f"n{node}", "UUID": f"GPU-{node}"}
                yield series("ALERTS", {"alertname": name, **kind, **where, "xid": xid}, minutes)


def burst(count: int, begin: float, end: float = END, first: int = 0) -> Mapping[int, Times]:
    """Return these nodes with a fault that most of them show half a minute later than the others."""
    return {node: [(begin if node % 3 == 0 else begin + 0.5, end)] for node in range(first, first + count)}


def spread(count: int, begin: float, every: float) -> Mapping[int, Times]:
    """Return these nodes with a fault that begins on one after the other."""
    return {node: [(begin + every * node, END)] for node in range(count)}


# With what follows from the fault, and other faults on one of its nodes and elsewhere.
STORM = Fleet("storm", 400, {XID: burst(40, 5), LOST: burst(40, 7), REMAP: {3: [(9, END)], 99: [(6, END)]}})
FLEETS = (
    # No label for the cluster.
    Fleet("", 400, {XID: burst(4, 5), LOST: burst(4, 7)}),
    # Two codes on two nodes each; three nodes of a hundred within eight minutes.
    Fleet("few", 100, {XID: burst(2, 5), ("GpuXidFatal", "119"): burst(2, 5, first=5), ECC: spread(3, 5, 4)}),
    # Five of a hundred within eight minutes.
    Fleet("share", 100, {ECC: spread(5, 5, 2)}),
    # Old faults, after a gap of half an hour.
    Fleet("gap", 100, {ECC: {node: [(4 * node, 15), (45, END)] for node in range(4)}}),
    # Repaired, except for two.
    Fleet("repaired", 10, {ECC: {**burst(3, 5, 30), **burst(2, 5, first=3)}}),
    Fleet("lesser", 10, {ECC: burst(5, 5)}, severity="warning"),
)
BARE, REPAIRED, SHARE = ("", *XID), ("repaired", *ECC), ("share", *ECC)
EXPECTED: Mapping[float, Sequence[tuple[str, str, str]]] = {
    5.0: (),
    6.0: (BARE, REPAIRED),
    12.5: (BARE, REPAIRED),
    13.5: (BARE, REPAIRED, SHARE),
    # Ten minutes after fewer than three nodes have it, which Prometheus sees five minutes after their last samples.
    44.0: (BARE, REPAIRED, SHARE),
    46.0: (BARE, SHARE),
    END - 1: (BARE, SHARE),
}


@dataclass(frozen=True)
class Case:
    """Clusters, and what expressions and annotations are at some minutes."""

    name: str
    fleets: Sequence[Fleet]
    expressions: Sequence[Mapping[str, Any]] = ()
    alerts: Sequence[Mapping[str, Any]] = ()

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        return {
            "name": self.name,
            "interval": f"{EVERY}s",
            "input_series": [each for fleet in self.fleets for each in fleet.series()],
            "promql_expr_test": list(self.expressions),
            "alert_rule_test": list(self.alerts),
        }


def samples(expression: str, minute: float, found: Mapping[Any, float], *names: str) -> Mapping[str, Any]:
    """Return what an expression is at this minute; `found` has the values of these labels and the sample."""
    texts = [", ".join(f'{name}="{text}"' for name, text in zip(names, key, strict=True) if text) for key in found]
    expected = [{"labels": f"{{{text}}}", "value": value} for text, value in zip(texts, found.values(), strict=True)]
    return {"expr": expression, "eval_time": f"{minute * 60:.0f}s", "exp_samples": expected}


def only(folder: Path, *groups: str) -> Sequence[Path]:
    """Write the rules of these groups, and return their file."""
    path = folder / "only.yaml"
    path.write_text(as_text(group for group in rules.groups({}) if group.name in groups))
    return [path]


def test_many_nodes_are_one_fault(tmp_path: Path) -> None:
    """As long as three nodes have it."""
    expressions = [
        samples(FIRING, minute, dict.fromkeys(found, 1.0), "cluster", "cause", "xid")
        for minute, found in EXPECTED.items()
    ]
    check(tmp_path, [Case("fleets", FLEETS, expressions)], rules=only(tmp_path, *PROMPT), interval=f"{EVERY}s")


def test_it_explains_the_alerts_of_its_nodes(tmp_path: Path) -> None:
    """And what follows from these; an unrelated fault on one of the nodes is an incident of its own."""
    found = {("GpuFleetFault",): 1.0, ("GpuRowRemapFailed",): 2.0}
    of_fleet = samples(FIRING, 10, {("storm", *XID): 1.0}, "cluster", "cause", "xid")
    case = Case("storm", [STORM], [of_fleet, samples(CAUSES, 10, found, "alertname")])
    check(tmp_path, [case], rules=only(tmp_path, *PROMPT, "gpu-incidents"), interval=f"{EVERY}s")


def annotated(summary: str, common: str, nodes: str, labels: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the alert with these annotations, in promtool's format."""
    (mode,) = fleet.MODES
    fixed = {name: text for name, text in rules.alert(mode, {})["annotations"].items() if name not in mode.annotations}
    board = f"/d/gpu-fleet?var-cluster={labels.get('cluster', '$__all')}"
    annotations = {**fixed, "dashboard_url": board, "summary": summary, "common": common, "nodes": nodes}
    labels = {"severity": "critical", "domain": "health", "action": "none", **labels}
    alerts = [{"exp_labels": labels, "exp_annotations": annotations}]
    return {"eval_time": "480s", "alertname": "GpuFleetFault", "exp_alerts": alerts}


DIFFERENT = Fleet("mixed", 50, {ECC: burst(24, 5)}, drivers=("580.1", "570.2"))
CASES = (
    Case(
        "same",
        [Fleet("", 400, {XID: burst(3, 5)})],
        alerts=[
            annotated(
                "XID 79 on 3 of 400 nodes within 10 min; driver 580.1: is there a common cause?",
                "Driver 580.1. GPU H100. Rack r0. ",
                "n0, n1, n2",
                {"cause": XID[0], "xid": "79"},
            )
        ],
    ),
    # Neither the driver nor the rack, and twenty of the nodes.
    Case(
        "different",
        [DIFFERENT],
        alerts=[
            annotated(
                "GpuEccUncorrectable on 24 of 50 nodes within 10 min: is there a common cause?",
                "GPU H100. ",
                ", ".join(sorted(f"n{node}" for node in range(24))[:20]),
                {"cluster": "mixed", "cause": ECC[0]},
            )
        ],
    ),
)


def test_what_the_nodes_have_in_common(tmp_path: Path) -> None:
    """In the annotations, which query it."""
    check(tmp_path, CASES, rules=only(tmp_path, *PROMPT), interval=f"{EVERY}s")


def test_vmalert_says_the_same(tmp_path: Path) -> None:
    """It has the templates, too."""
    (rules_of,) = only(tmp_path, *PROMPT)
    content = dict(CASES[0].rendered())
    content["metricsql_expr_test"] = content.pop("promql_expr_test")
    content["alert_rule_test"] = [{**each, "groupname": PROMPT[-1]} for each in content["alert_rule_test"]]
    done = vmalert_tool(tmp_path, rules_of, content)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


LIMITS = (int(fleet_faults.NODES.value), fleet_faults.SHARE.value)


@pytest.mark.parametrize(
    ("began", "total", "expected"),
    [
        ([0, 60, 120], 1000, True),
        ([0, 60, 121], 1000, False),
        ([0, 60, 121], 60, True),
        ([0, 60, 121], 61, False),
        ([0, 0], 2, False),
        ([300, 0, 410, 420], 1000, True),
    ],
)
def test_the_rule(began: Sequence[float], total: int, expected: bool) -> None:
    """Three nodes within two minutes, or three nodes and a twentieth of all."""
    assert fleet_faults.is_of_fleet(began, total, *LIMITS) is expected


@pytest.mark.parametrize(
    ("cluster", "name", "xid", "silent"),
    [
        ("c", "GpuXidFatal", "79", True),
        ("c", "GpuXidFatal", "119", False),
        ("c", "GpuEccUncorrectable", "", False),
        ("d", "GpuXidFatal", "79", False),
        ("", "GpuXidFatal", "79", False),
    ],
)
def test_alertmanager_silences_only_this_fault(cluster: str, name: str, xid: str, silent: bool) -> None:
    """Not another fault on the same node, and not the same fault in another cluster."""
    source = PlacedMode(BY_NAME["GpuFleetFault"], {"cluster": "c", "cause": "GpuXidFatal", "xid": "79"})
    target = PlacedMode(BY_NAME[name], {"cluster": cluster, "node": "n1", "UUID": "GPU-1", "xid": xid})
    assert any(inhibits(rule, [source], target) for rule in yaml.safe_load(alertmanager())["inhibit_rules"]) is silent


def test_critical_faults_of_nodes_count() -> None:
    """Those of the health of a GPU."""
    assert list(FLEET_CAUSES) == [LOST[0], XID[0], ECC[0], REMAP[0], "GpuRecoveryActionRequired"]
