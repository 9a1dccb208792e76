"""What is read from the objects of nodes and pods, with everything that may be absent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_exporter.kubernetes.writer import FIELD_MANAGER
from gpu_exporter.remediation import pods
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.pods import NodePod
from gpu_exporter.remediation.settings import DrainSettings
from gpu_exporter.remediation.state import DrainPhase, DrainProgress, Gang, NodePast, RemediationState, WatchedNode
from tests.unit.remediation.test_reconcile import CORDONED, NODE, NOW, STATE

FULL = replace(
    STATE,
    history=(NodePast(1.0, 2.0, ("lost",)),),
    drain=s.DrainState(NOW, DrainProgress.TIMEOUT, Gang("team", "job-name", "bert", ("r0", "r1"))),
)


def test_a_node() -> None:
    item: Any = {
        "metadata": {
            "name": "n",
            "uid": "uid",
            "resourceVersion": "7",
            "labels": {"pool": "a"},
            "annotations": {s.STATE: FULL.text(), "other": "x"},
        },
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "nodeInfo": {"bootID": "b1"},
            "capacity": {"cpu": "1", "nvidia.com/mig-1g.5gb": "1"},
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}],
        },
    }
    assert s.read(item) == WatchedNode(
        "n",
        "uid",
        "7",
        "b1",
        {"pool": "a"},
        {s.STATE: FULL.text(), "other": "x"},
        unschedulable=True,
        foreign=False,
        ready=True,
        has_gpus=True,
        taints=({"key": "k", "effect": "NoSchedule"},),
        state=FULL,
    )


@pytest.mark.parametrize(
    "item",
    [
        {},
        {
            "metadata": {"labels": None, "annotations": None, "managedFields": None},
            "spec": {"taints": None},
            "status": {"capacity": None, "conditions": None},
        },
    ],
)
def test_an_empty_node(item: Any) -> None:
    assert s.read(item) == WatchedNode(
        "", "", "", "", {}, {}, unschedulable=False, foreign=False, ready=True, has_gpus=False
    )


@pytest.mark.parametrize(("status", "ready"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_node_that_is_not_ready(status: str, ready: bool) -> None:
    conditions = [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": status}]
    assert s.read({"status": {"conditions": conditions}}).ready is ready  # type: ignore[typeddict-item]


@pytest.mark.parametrize("text", ["", "{}", "[]", FULL.text().replace('"cordoned"', '"gone"')])
def test_a_state_that_cannot_be_read(text: str) -> None:
    found = s.read({"metadata": {"annotations": {s.STATE: text}}})
    assert found.state is None
    assert found.unreadable
    assert not found.cordoned


def test_a_state_without_the_optional_keys() -> None:
    """An earlier version of the controller may have written it."""
    text = '{"phase":"held","fault":"id","at":1,"boot":"b1","action":"replace","faults":[["GPU-1","lost"]]}'
    state = s.read({"metadata": {"annotations": {s.STATE: text}}}).state
    assert state == RemediationState(DrainPhase.HELD, "id", 1.0, "b1", "replace", (("GPU-1", "lost"),), 0, (), None)


def field(manager: str, name: str = "f:unschedulable") -> Any:
    return {"manager": manager, "fieldsV1": {"f:spec": {name: {}}}}


@pytest.mark.parametrize(
    ("fields", "foreign"),
    [
        ([], False),
        ([field(FIELD_MANAGER)], False),
        ([field("kubectl-cordon")], True),
        ([field("kubectl-cordon"), field(FIELD_MANAGER)], False),
        ([field("kubectl", "f:taints")], False),
        ([{"fieldsV1": {"f:spec": {"f:unschedulable": {}}}}], True),
        ([{"manager": "kubectl"}, {"manager": "kubectl", "fieldsV1": {}}, {"fieldsV1": {"f:spec": None}}], False),
    ],
)
def test_who_cordoned_a_node(fields: Any, foreign: bool) -> None:
    """By the field managers, of which one that shares the field with the controller does no harm."""
    assert s.read({"metadata": {"managedFields": fields}}).foreign is foreign


@pytest.mark.parametrize(
    ("node", "cordoned", "out"),
    [
        (NODE, False, False),
        (CORDONED, True, True),
        (replace(CORDONED, unschedulable=False), True, True),
        (replace(NODE, unschedulable=True), False, True),
        (replace(NODE, ready=False), False, True),
        (replace(NODE, state=replace(STATE, phase=DrainPhase.HELD)), False, False),
        (replace(NODE, state=replace(STATE, phase=DrainPhase.RETURNED)), False, False),
    ],
)
def test_nodes_out_of_service(node: WatchedNode, cordoned: bool, out: bool) -> None:
    assert (node.cordoned, node.out_of_service) == (cordoned, out)


def test_a_cordon_that_ends_becomes_history() -> None:
    """Without its drain; of many, the last eight are kept."""
    state: RemediationState = replace(FULL, faults=(("GPU-1", "lost"), ("GPU-2", "lost"), ("GPU-1", "stalled")))
    ended = state.ended(DrainPhase.HELD, NOW)
    assert (ended.phase, ended.drain) == (DrainPhase.HELD, None)
    assert ended.history == (NodePast(1.0, 2.0, ("lost",)), NodePast(STATE.at, NOW, ("lost", "stalled")))
    for _ in range(20):
        ended = ended.ended(DrainPhase.RETURNED, NOW)
    assert len(ended.history) == 8
    assert ended.history[-1] == NodePast(STATE.at, NOW, ("lost", "stalled"))


@pytest.mark.parametrize(("ago", "seconds"), [(7 * 86400.0 - 1, 1800.0), (7 * 86400.0, 900.0)])
def test_a_return_counts_for_a_week(ago: float, seconds: float) -> None:
    assert s.clean_seconds(900.0, (NodePast(0.0, NOW - ago, ()),), NOW) == seconds


def test_who_wants_more_than_a_day_gets_it() -> None:
    assert s.clean_seconds(2 * 86400.0, (NodePast(0.0, NOW, ()),), NOW) == 2 * 86400.0


def test_a_pod() -> None:
    item: Any = {
        "metadata": {
            "namespace": "team",
            "name": "p",
            "uid": "u",
            "resourceVersion": "3",
            "labels": {"app": "web"},
            "annotations": {"a": "b"},
            "ownerReferences": [{"kind": "Other"}, {"kind": "Job", "controller": True}],
            "deletionTimestamp": "now",
        },
        "spec": {
            "nodeName": "n",
            "priority": 7,
            "containers": [{"resources": {"limits": None}}, {"resources": {"limits": {"nvidia.com/gpu": "2"}}}],
            "resourceClaims": [{"name": "gpu"}],
        },
        "status": {"phase": "Failed"},
    }
    assert pods.read(item) == NodePod(
        "team", "p", "u", "3", "n", {"app": "web"}, {"a": "b"}, "Job", 7, True, True, True, True
    )


@pytest.mark.parametrize(
    "item",
    [
        {},
        {
            "metadata": {"labels": None, "annotations": None, "ownerReferences": None},
            "spec": {"containers": None, "initContainers": None, "priority": None, "resourceClaims": None},
        },
    ],
)
def test_an_empty_pod(item: Any) -> None:
    assert pods.read(item) == NodePod("", "", "", "", "", {}, {}, "", 0, False, False, False, False)


@pytest.mark.parametrize(("phase", "ended"), [("Succeeded", True), ("Failed", True), ("Running", False)])
def test_pods_that_have_ended(phase: str, ended: bool) -> None:
    assert pods.read({"status": {"phase": phase}}).ended is ended


POD = pods.read({"metadata": {"namespace": "team", "name": "p"}})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, 0.0), ("90s", 90.0), ("30m", 1800.0), ("31m", 1800.0), ("soon", 1800.0), ("", 1800.0)],
)
def test_the_time_that_a_pod_asks_for(text: str | None, seconds: float) -> None:
    """At most half an hour, which is also what a typing error gets."""
    annotations = {} if text is None else {pods.CHECKPOINT: text}
    assert replace(POD, annotations=annotations).checkpoint_seconds(DrainSettings()) == seconds


@pytest.mark.parametrize(
    ("after", "notified", "waits"),
    [
        ("2023-11-14T22:14:49Z", True, True),  # 89 s after NOW: clocks may differ by a second
        ("2023-11-14T22:14:48.9Z", False, True),
        ("2023-11-14T22:13:20.1Z", False, True),
        ("2023-11-14T22:13:20Z", False, False),
        ("", False, False),
    ],
)
def test_a_pod_that_was_told(after: str, notified: bool, waits: bool) -> None:
    """At NOW, in a drain that began then."""
    pod = replace(POD, annotations={pods.CHECKPOINT: "90s", **({pods.EVICT_AFTER: after} if after else {})})
    assert (pod.is_notified(NOW, DrainSettings()), pod.waits(DrainSettings(), NOW)) == (notified, waits)
    indifferent = replace(pod, annotations={pods.EVICT_AFTER: after})
    assert (indifferent.is_notified(NOW, DrainSettings()), indifferent.waits(DrainSettings(), NOW)) == (True, False)


@pytest.mark.parametrize(
    ("priority", "protected"), [(1_000_000_000, ""), (1_000_000_001, "pod team/p has the priority 1000000001")]
)
def test_pods_of_the_system_are_protected(priority: int, protected: str) -> None:
    pod = replace(POD, owner="Job", priority=priority)
    assert pods.protection(pod, DrainSettings(), "gpu") == protected


def test_selectors_of_disruption_budgets_name_values() -> None:
    """Of a label that the pod lacks, too."""
    for operator, missing, other, same in (
        ("In", False, False, True),
        ("NotIn", True, True, False),
        ("Exists", False, True, True),
        ("DoesNotExist", True, False, False),
    ):
        expression: Any = {"key": "app", "operator": operator, "values": ["web"]}
        budget: Any = {"spec": {"selector": {"matchExpressions": [expression]}}}
        assert [pods.selects(budget, labels) for labels in ({}, {"app": "db"}, {"app": "web"})] == [
            missing,
            other,
            same,
        ]
    both: Any = {"spec": {"selector": {"matchLabels": {"a": "1", "b": "2"}, "matchExpressions": None}}}
    assert pods.selects(both, {"a": "1", "b": "2"})
    assert not pods.selects(both, {"a": "1", "b": "3"})
    assert not pods.selects({}, {})
