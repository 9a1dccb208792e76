"""A decision about a node -> one JSON patch that carries it out as a whole. Pure.

Everything of a decision is one write, so no crash leaves half of it behind. It tests UID and version of the node: if
anything about the node has changed since it was read, nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypedDict

from gpu_exporter.io.decoding import json_as
from gpu_exporter.kubernetes.writer import Operation
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.evidence import Evidence
from gpu_exporter.remediation.ledger import add, escaped, stamp
from gpu_exporter.remediation.pods import EVICT_AFTER, NodePod
from gpu_exporter.remediation.reconcile import Decision, Verb
from gpu_exporter.remediation.state import RemediationState, WatchedNode

MOST_WORDS = 200


def patch(node: WatchedNode, decision: Decision) -> Sequence[Operation]:
    """Return the patch for a decision about the node as it was read."""
    state = decision.state
    assert state is not None, decision
    annotations: dict[str, str | None] = {s.STATE: state.text()}
    labels: dict[str, str | None] = {s.DRAIN_LABEL: state.drain.progress.value if state.drain else None}
    operations = _tests(node)
    if decision.verb in (Verb.CORDON, Verb.UPDATE):
        annotations[s.REPAIR] = repair_text(state, decision.evidence, node.annotations.get(s.REPAIR, ""))
        labels[s.REPAIR_LABEL] = state.action.replace("_", "-")
    elif decision.verb in (Verb.RETURN, Verb.HOLD):
        annotations |= {s.REPAIR: None, s.REPAIRED: None}
        labels[s.REPAIR_LABEL] = None
    if decision.verb is Verb.CORDON:
        operations.append(add("/spec/unschedulable", True))
        operations += _taints(node, [*_others(node), {"key": s.TAINT, "value": "true", "effect": "NoSchedule"}])
    elif decision.verb is Verb.RETURN:
        operations.append({"op": "remove", "path": "/spec/unschedulable"})
        operations += _taints(node, _others(node))
    elif decision.verb is Verb.HOLD:
        operations += _taints(node, _others(node))
    return [
        *operations,
        *_entries("/metadata/annotations", node.annotations, annotations),
        *_entries("/metadata/labels", node.labels, labels),
    ]


def fence(node: WatchedNode, by: str) -> Sequence[Operation]:
    """Return a patch that only changes the node's version, so that every write based on an older one fails."""
    return [*_tests(node), *_entries("/metadata/annotations", node.annotations, {s.FENCE: by})]


def announcement(pod: NodePod, at: float) -> Sequence[Operation]:
    """Return a patch that tells a pod not to expect its eviction before the unix time `at`."""
    tests = _unchanged(pod.uid, pod.version)
    return [*tests, *_entries("/metadata/annotations", pod.annotations, {EVICT_AFTER: stamp(at)})]


class _Repair(TypedDict):
    """The annotation REPAIR, as far as it is read."""

    fault: str
    gpus: list[dict[str, Any]]


def repair_text(state: RemediationState, evidence: Evidence, before: str = "") -> str:
    """Return what has to be repaired, for people and repair systems, as in the annotation REPAIR.

    `before` is that annotation now: what it says about other faults of this cordon is kept, because a reboot may hide
    them, and their GPUs still need the repair.
    """
    gpus: list[dict[str, Any]] = [
        {
            "uuid": fault.uuid,
            "serial": fault.serial,
            "pci_bus_id": fault.pci,
            "reason": fault.reason,
            "action": fault.action.value,
            "xids": list(fault.xids),
            "what": fault.words[:MOST_WORDS],
        }
        for fault in evidence.faults
    ]
    gpus += _earlier(state, evidence, before)
    content = {"fault": state.fault, "action": state.action, "boot_id": state.boot, "gpus": gpus}
    return json.dumps(content, separators=(",", ":"))


def _earlier(state: RemediationState, evidence: Evidence, before: str) -> list[dict[str, Any]]:
    """Return the entries of other faults of the same cordon. What cannot be read is dropped."""
    try:
        repair = json_as(_Repair, before or "{}")
    except ValueError:
        return []
    others = set(state.faults) - set(evidence.keys) if repair["fault"] == state.fault else set()
    return [gpu for gpu in repair["gpus"] if (gpu.get("uuid"), gpu.get("reason")) in others]


def _tests(node: WatchedNode) -> list[Operation]:
    return _unchanged(node.uid, node.version)


def _unchanged(uid: str, version: str) -> list[Operation]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
    ]


def _others(node: WatchedNode) -> list[Any]:
    return [taint for taint in node.taints if taint.get("key") != s.TAINT]


def _taints(node: WatchedNode, taints: list[Any]) -> list[Operation]:
    """Return the operations that set the taints. The list is replaced as a whole, after a test of the present one."""
    if list(node.taints) == taints:
        return []
    if not node.taints:
        return [add("/spec/taints", taints)]
    test: Operation = {"op": "test", "path": "/spec/taints", "value": list(node.taints)}
    change: Operation = add("/spec/taints", taints) if taints else {"op": "remove", "path": "/spec/taints"}
    return [test, change]


def _entries(path: str, present: Any, wanted: dict[str, str | None]) -> list[Operation]:
    """Return the operations that set entries of a mapping, or remove those that are None."""
    operations: list[Operation] = []
    if not present and any(value is not None for value in wanted.values()):
        operations.append(add(path, {}))
    for key, value in wanted.items():
        if value is not None:
            operations.append(add(f"{path}/{escaped(key)}", value))
        elif key in present:
            operations.append({"op": "remove", "path": f"{path}/{escaped(key)}"})
    return operations
