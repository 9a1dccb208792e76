"""What a decision writes to a node."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_exporter.model.verdict import Action
from gpu_exporter.remediation import patches
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.evidence import Evidence, NodeFinding, ReportedFault
from gpu_exporter.remediation.patches import repair_text
from gpu_exporter.remediation.pods import EVICT_AFTER
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb
from gpu_exporter.remediation.state import DrainPhase, RemediationState
from tests.support.json_patch import PatchFailed, patched
from tests.unit.remediation.test_drain import pod

WORN = ReportedFault("GPU-1", "sram_threshold", Action.REPLACE, 120.0, serial="S1")
LOST = ReportedFault("GPU-2", "lost", Action.NODE_REBOOT, 120.0, serial="S2")
FAULTS = (("GPU-1", "sram_threshold"), ("GPU-2", "lost"))
STATE = RemediationState(DrainPhase.CORDONED, "id", 0.0, "b2", "replace", FAULTS, 2)


def repair(*faults: ReportedFault, before: str = "", state: RemediationState = STATE) -> list[tuple[str, str]]:
    """Return serial and reason of each entry of the hand-off."""
    text = repair_text(state, Evidence(NodeFinding.FAULTY, "b2", faults), before)
    return [(gpu["serial"], gpu["reason"]) for gpu in json.loads(text)["gpus"]]


def test_a_gpu_that_needs_replacement_stays_in_the_hand_off() -> None:
    """After a reboot only another fault may be seen; whoever repairs the node must still replace the first GPU."""
    before = repair_text(STATE, Evidence(NodeFinding.FAULTY, "b1", (WORN,)))
    assert repair(LOST, before=before) == [("S2", "lost"), ("S1", "sram_threshold")]
    assert repair(WORN, LOST, before=before) == [("S1", "sram_threshold"), ("S2", "lost")]


def test_the_hand_off_of_an_earlier_fault_is_not_kept() -> None:
    """Nor is one that a person has changed to something else."""
    before = repair_text(replace(STATE, fault="earlier"), Evidence(NodeFinding.FAULTY, "b1", (WORN,)))
    assert repair(LOST, before=before) == [("S2", "lost")]
    assert repair(LOST, before="repaired on Monday") == [("S2", "lost")]


def test_the_hand_off_has_what_a_repair_needs() -> None:
    fault = replace(WORN, pci="0000:01:00.0", xids=(79, 31), words="x" * 300)
    assert json.loads(repair_text(STATE, Evidence(NodeFinding.FAULTY, "b2", (fault,)))) == {
        "fault": "id",
        "action": "replace",
        "boot_id": "b2",
        "gpus": [
            {
                "uuid": "GPU-1",
                "serial": "S1",
                "pci_bus_id": "0000:01:00.0",
                "reason": "sram_threshold",
                "action": "replace",
                "xids": [79, 31],
                "what": "x" * 200,
            }
        ],
    }


OWN = {"key": s.TAINT, "value": "true", "effect": "NoSchedule"}
OTHER = {"key": "maintenance", "effect": "NoExecute"}
MINE: dict[str, str] = {s.STATE: "old", s.REPAIR: "old", s.REPAIRED: "id"}
EVIDENCE = Evidence(NodeFinding.FAULTY, "b2", (LOST,))


def node(annotations: Any = None, labels: Any = None, **spec: Any) -> Any:
    """Return the object of a node."""
    metadata = {"name": "n", "uid": "uid", "resourceVersion": "7"}
    if annotations:
        metadata["annotations"] = annotations
    if labels:
        metadata["labels"] = labels
    return {"metadata": metadata, "spec": spec}


def written(item: Any, verb: Verb, state: RemediationState = STATE) -> tuple[Any, Any, Any]:
    """Return the specification, annotations and labels of a node after a decision."""
    decision = Decision(verb, Reason.FAULT, "", state, EVIDENCE)
    new = patched(item, patches.patch(s.read(item), decision))
    assert new["metadata"]["annotations"].pop(s.STATE) == state.text()
    return new["spec"], new["metadata"]["annotations"], new["metadata"].get("labels", {})


REPAIR = {s.REPAIR: repair_text(STATE, EVIDENCE)}


@pytest.mark.parametrize(
    ("taints", "after"),
    [
        ({}, {"taints": [OWN]}),
        ({"taints": [OTHER]}, {"taints": [OTHER, OWN]}),
        ({"taints": [OWN]}, {"taints": [OWN]}),
        ({"taints": [OWN, OTHER]}, {"taints": [OTHER, OWN]}),
    ],
)
def test_a_cordon(taints: Any, after: Any) -> None:
    """With its taint, once, beside those of others; and with labels and annotations beside those of others."""
    spec = {"unschedulable": True, **after}
    label = {s.REPAIR_LABEL: "replace"}
    assert written(node(**taints), Verb.CORDON) == (spec, REPAIR, label)
    beside = node({"a": "b"}, {"c": "d"}, **taints)
    assert written(beside, Verb.CORDON) == (spec, {"a": "b", **REPAIR}, {"c": "d", **label})


@pytest.mark.parametrize(
    ("verb", "taints", "after"),
    [
        (Verb.RETURN, [OWN], {}),
        (Verb.RETURN, [OWN, OTHER], {"taints": [OTHER]}),
        (Verb.RETURN, [OTHER], {"taints": [OTHER]}),
        (Verb.HOLD, [OWN], {"unschedulable": True}),
        (Verb.HOLD, [OTHER, OWN], {"unschedulable": True, "taints": [OTHER]}),
    ],
)
def test_the_end_of_a_cordon(verb: Verb, taints: Any, after: Any) -> None:
    """Nothing of the controller is left; a node that a person has taken over stays as this person left it."""
    labels = {s.REPAIR_LABEL: "replace", s.DRAIN_LABEL: "drained", "c": "d"}
    before = node({**MINE, "a": "b"}, labels, unschedulable=True, taints=taints)
    assert written(before, verb) == (after, {"a": "b"}, {"c": "d"})
    bare = node({s.STATE: "old"}, unschedulable=True, taints=taints)
    assert written(bare, verb) == (after, {}, {})


def test_a_further_fault_changes_only_the_hand_off() -> None:
    spec = {"unschedulable": True, "taints": [OTHER]}
    state = replace(STATE, action="node_reboot")
    after = written(node(MINE, {s.REPAIR_LABEL: "gpu-reset"}, **spec), Verb.UPDATE, state)
    assert after == (spec, {s.REPAIRED: "id", s.REPAIR: repair_text(state, EVIDENCE)}, {s.REPAIR_LABEL: "node-reboot"})


@pytest.mark.parametrize("verb", [Verb.DRAIN, Verb.DRAINED, Verb.TIMEOUT, Verb.EVICTED])
def test_a_drain_changes_only_its_progress(verb: Verb) -> None:
    spec = {"unschedulable": True, "taints": [OTHER]}
    state = replace(STATE, drain=s.DrainState(1.0, s.DrainProgress.TIMEOUT))
    annotations = {name: text for name, text in MINE.items() if name != s.STATE}
    assert written(node(MINE, {s.REPAIR_LABEL: "replace"}, **spec), verb, state) == (
        spec,
        annotations,
        {s.REPAIR_LABEL: "replace", s.DRAIN_LABEL: "timeout"},
    )


@pytest.mark.parametrize("changed", [{"uid": "other"}, {"resourceVersion": "8"}])
@pytest.mark.parametrize("kind", ["decision", "fence", "announcement"])
def test_nothing_is_written_to_what_has_changed(kind: str, changed: Any) -> None:
    """Nor to another node or pod of the same name."""
    item = node({"a": "b"})
    read = s.read(item)
    operations = {
        "decision": patches.patch(read, Decision(Verb.CORDON, Reason.FAULT, "", STATE, EVIDENCE)),
        "fence": patches.fence(read, "me"),
        "announcement": patches.announcement(pod(uid="uid", resourceVersion="7"), 0.0),
    }[kind]
    patched(item, operations)
    with pytest.raises(PatchFailed):
        patched({**item, "metadata": {**item["metadata"], **changed}}, operations)


def test_taints_that_have_changed_are_not_overwritten() -> None:
    """Even if the version is the same."""
    operations = patches.patch(s.read(node(taints=[OTHER])), Decision(Verb.CORDON, Reason.FAULT, "", STATE, EVIDENCE))
    with pytest.raises(PatchFailed, match="/spec/taints is not"):
        patched(node(taints=[OWN]), operations)


@pytest.mark.parametrize("annotations", [{}, {"a": "b"}, {s.FENCE: "earlier"}])
def test_a_fence_changes_nothing_else(annotations: Any) -> None:
    item = node(annotations, {"c": "d"}, unschedulable=True)
    after = patched(item, patches.fence(s.read(item), "me"))
    assert after["metadata"] == {**item["metadata"], "annotations": {**annotations, s.FENCE: "me"}}
    assert after["spec"] == item["spec"]


def test_a_pod_is_told_the_time_before_which_it_is_not_evicted() -> None:
    (*_, parent, last) = patches.announcement(pod(resourceVersion="7"), 1_700_000_000.0)
    assert parent == {"op": "add", "path": "/metadata/annotations", "value": {}}
    assert last["value"] == "2023-11-14T22:13:20.000000Z"
    assert last["path"] == "/metadata/annotations/" + EVICT_AFTER.replace("/", "~1")
