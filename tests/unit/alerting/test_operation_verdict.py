"""How `tests/operation` counts incidents, and judges them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.operation.fleet import Fleet, Truth
from tests.operation.verdict import Firing, Verdict, incidents_of
from tests.rules.series import Generation

FATAL, LOST, STALL = "GpuXidFatal", "GpuLost", "GpuCollectiveStall"


def firing(name: str, start: float, end: float, gpu: int = 0, node: str = "n", severity: str = "critical") -> Firing:
    """Return an alert on a GPU, which all ranks of one job use."""
    labels = {"node": node, "gpu": str(gpu), "UUID": f"GPU-{node}-{gpu}", "namespace": "ml", "workload": "llm"}
    key = {"alertname": name, "severity": severity, **labels}
    return Firing(name, severity, node, str(gpu), start, end, tuple(sorted(key.items())))


def stall(gpu: int, start: float, end: float, node: str = "n") -> Firing:
    return firing(STALL, start, end, gpu, node, "warning")


@pytest.mark.parametrize(
    ("alerts", "expected"),
    [
        ([firing(FATAL, 0, 90), firing(LOST, 10, 60)], [(FATAL, 0, 90)]),
        # Before its cause, and after it.
        ([firing(LOST, 0, 90), firing(FATAL, 10, 60)], [(LOST, 0, 10), (FATAL, 10, 60), (LOST, 60, 90)]),
        ([firing(FATAL, 0, 90), firing(LOST, 10, 60, gpu=1)], [(FATAL, 0, 90), (LOST, 10, 60)]),
        # The same cause on two GPUs of a node, and of a job.
        ([firing(FATAL, 0, 90), firing(FATAL, 10, 99, gpu=1)], [(FATAL, 0, 99)]),
        ([stall(0, 0, 90), stall(1, 0, 90, "m")], [(STALL, 0, 90)]),
        ([firing(FATAL, 0, 90), firing(FATAL, 100, 120)], [(FATAL, 0, 90), (FATAL, 100, 120)]),
    ],
    ids=["effect", "longer effect", "another GPU", "node", "job", "again"],
)
def test_incidents_of(alerts: Sequence[Firing], expected: Sequence[tuple[str, float, float]]) -> None:
    assert [(each.name, each.start, each.end) for each in incidents_of(alerts)] == expected


def test_an_incident_is_as_urgent_as_its_alerts() -> None:
    slow = firing("GpuThermalThrottling", 0, 90, severity="info")
    (found,) = incidents_of([slow, firing("GpuStragglerSlow", 10, 50, severity="warning")])
    assert (found.name, found.severity) == ("GpuThermalThrottling", "warning")


def test_the_verdict_judges_alerts_incidents_and_notifications() -> None:
    """A fault that begins before the part that is judged is right, and need not be found."""
    fleet = Fleet(4000)
    fleet.node("n", 2, Generation.GPU_EXPORTER)
    fleet.truths = [
        Truth("before", "n", frozenset({1}), 5, 50, (STALL,)),
        Truth("fault", "n", frozenset({0}), 100, 200, (FATAL,), (LOST,), 5.0),
    ]
    fleet.cut(10, 4000)
    alerts = [
        stall(1, 450, 900),
        firing(FATAL, 3060, 4000),
        firing(LOST, 3060, 3600),
        firing(FATAL, 4500, 5000),
        firing("GpuPowerOscillation", 9000, 9100, severity="info"),
    ]

    verdict = Verdict(fleet, alerts)

    assert verdict.missed == []
    assert {name: delay for _, name, delay in verdict.detections} == {FATAL: 60.0}
    critical = [part.counts("critical") for part in (verdict.alerts, verdict.incidents, verdict.notifications)]
    assert critical[0] == {"all": 3, "right": 2, "repeated": 1, "false": 0}
    assert critical[1:] == [{"all": 2, "right": 1, "repeated": 1, "false": 0}] * 2
    assert [part.counts("info")["false"] for part in (verdict.incidents, verdict.notifications)] == [1, 0]
    assert [each.name for of_fault in verdict.injected.values() for each in of_fault] == [FATAL, FATAL]
