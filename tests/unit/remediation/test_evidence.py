"""What the answer of an exporter proves: faults with their age, for how long a node is clean, and active checks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_exporter.model.verdict import Action
from gpu_exporter.remediation import evidence as e
from gpu_exporter.remediation.evidence import Evidence, NodeFinding, ReportedFault, judge

CHECK = {"at": 50.0, "health": "healthy", "boot_id": "b1"}


def gpu(number: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a GPU as the exporter describes it."""
    about = {"gpu": number, "UUID": f"GPU-{number}", "health": "healthy", "since": 40.0, "problems": []}
    return {**about, **changes}


def problem(**changes: Any) -> dict[str, Any]:
    about = {"reason": "stalled", "health": "unhealthy", "action": "node_reboot", "what": "It hangs", "since": 70.0}
    return {**about, **changes}


def found(*gpus: dict[str, Any], degraded: bool = False, **changes: Any) -> Evidence:
    """Return what an answer at 100 s proves."""
    about = {"apiVersion": 1, "node": "n", "boot_id": "b1", "at": 100.0, "live": True, "ready": True}
    content = {**about, "expected": len(gpus), "missing": 0, "gpus": gpus, **changes}
    return judge(json.dumps(content), "n", "b1", degraded=degraded)


def faulty(*problems: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return gpu(health="unhealthy", problems=problems, **changes)


def test_a_fault() -> None:
    """With everything that a repair needs; each XID once, at most eight."""
    xids = [{"xid": number} for number in (79, 79, 31, 43, 45, 48, 61, 62, 63, 64)]
    about = {"serial": "S1", "pci_bus_id": "0000:01:00.0", "xids": xids}
    evidence = found(faulty(problem(), **about), gpu(1), expected=4)
    assert evidence == Evidence(
        NodeFinding.FAULTY,
        "b1",
        (
            ReportedFault(
                "GPU-0",
                "stalled",
                Action.NODE_REBOOT,
                30.0,
                "It hangs",
                "S1",
                "0000:01:00.0",
                (79, 31, 43, 45, 48, 61, 62, 63),
            ),
        ),
        gpus=frozenset({"GPU-0", "GPU-1"}),
        expected=4,
    )
    assert evidence.keys == (("GPU-0", "stalled"),)


@pytest.mark.parametrize(
    ("changes", "degraded", "finding"),
    [
        ({}, False, NodeFinding.FAULTY),
        ({"health": "degraded"}, False, NodeFinding.UNKNOWN),
        ({"health": "degraded"}, True, NodeFinding.FAULTY),
        ({"health": "unknown"}, True, NodeFinding.UNKNOWN),
        ({"health": "healthy"}, True, NodeFinding.UNKNOWN),
        *(({"action": action}, False, NodeFinding.FAULTY) for action in ("gpu_reset", "drain", "replace")),
        *(({"action": action}, True, NodeFinding.UNKNOWN) for action in ("none", "monitor", "restart_app")),
    ],
)
def test_what_is_a_fault(changes: Any, degraded: bool, finding: NodeFinding) -> None:
    """It is serious, and its repair concerns the node rather than the application."""
    assert found(faulty(problem(**changes)), degraded=degraded).finding is finding


@pytest.mark.parametrize(("since", "age"), [(70.0, 30.0), (None, 0.0), (130.0, 0.0)])
def test_the_age_of_a_fault(since: float | None, age: float) -> None:
    """0 if the exporter does not know it, or if it says that it lies ahead."""
    assert found(faulty(problem(since=since))).age == age
    missing = found(gpu(), missing=1, expected=2, missing_since=since)
    assert missing.faults == (ReportedFault("", "missing", Action.NODE_REBOOT, age, "1 of 2 GPUs are missing"),)


def test_the_oldest_and_the_worst_fault_count() -> None:
    faults = problem(since=90.0, action="replace"), problem(since=20.0, action="gpu_reset"), problem()
    evidence = found(faulty(*faults, UUID=""))
    assert (evidence.age, evidence.action) == (80.0, Action.REPLACE)
    assert {uuid for uuid, _ in evidence.keys} == {"gpu0"}, "a GPU without a UUID has its index"
    assert (e.unknown("gone").age, e.unknown("gone").action) == (0.0, Action.NONE)


def test_a_node_has_at_most_32_faults() -> None:
    assert len(found(faulty(*[problem(reason=str(number)) for number in range(40)])).faults) == 32


@pytest.mark.parametrize(
    ("since", "clean"), [((40.0, 10.0), 60.0), ((10.0, 95.0), 5.0), ((40.0, None), 0.0), ((40.0, 130.0), 0.0)]
)
def test_a_node_is_clean_since_its_last_gpu_is(since: tuple[float, float | None], clean: float) -> None:
    evidence = found(*(gpu(number, since=at) for number, at in enumerate(since)))
    assert evidence == Evidence(
        NodeFinding.CLEAN, "b1", clean_for=clean, gpus=frozenset({"GPU-0", "GPU-1"}), expected=2
    )


@pytest.mark.parametrize(
    ("checks", "at"),
    [
        ((CHECK, {**CHECK, "at": 45.0}), 45.0),
        ((CHECK, None), 0.0),
        ((CHECK, {**CHECK, "health": "degraded"}), 0.0),
        ((CHECK, {**CHECK, "boot_id": "b0"}), 0.0),
        ((CHECK, {"at": 50.0, "health": "healthy"}), 0.0),
    ],
)
def test_active_checks_that_were_passed(checks: tuple[Any, Any], at: float) -> None:
    """By all GPUs, on this boot."""
    assert found(*(gpu(number, active_check=check) for number, check in enumerate(checks))).checked_at == at


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"apiVersion": 0}, "the exporter speaks version 0 of /api/v1/node, not 1: upgrade both together"),
        ({"age": 60.5}, "the exporter last collected 60 s ago"),
        ({"released_until": 0.0}, "the driver is released for maintenance"),
        ({"ready": False}, "the exporter lists no GPU"),
        ({"gpus": [], "problem": "no driver"}, "no driver"),
    ],
)
def test_what_proves_nothing(changes: Any, why: str) -> None:
    evidence = found(gpu(), **changes)
    assert (evidence.finding, evidence.why) == (NodeFinding.UNKNOWN, why)


def test_an_answer_of_a_minute_ago_is_good_enough() -> None:
    assert found(gpu(), age=60.0).finding is NodeFinding.CLEAN
