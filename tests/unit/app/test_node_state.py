"""The answer of /api/v1/node, and since when a GPU has its verdict."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from gpu_exporter.active_checks.history import Run
from gpu_exporter.app import api
from gpu_exporter.app.api import Since
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Action, Health, Problem, Verdict
from gpu_exporter.remediation import evidence
from gpu_exporter.remediation.evidence import NodeFinding

GPU = Gpu(0, "GPU-0", "00000000:01:00.0", info=(("serial", "S0"),))
HEALTHY = Snapshot(100.0, "nvml", (Sample(Series(m.EXPECTED), 1),), (GpuStatus(GPU, True),), verdicts=(Verdict(GPU),))
HANGS = Problem(m.UP, 0, "a driver call does not return", Action.NODE_REBOOT, "stalled")
FAULTY = replace(HEALTHY, at=200.0, verdicts=(Verdict(GPU, (HANGS,)),))
CHECK = Run(90.0, 2, Health.HEALTHY, boot_id="boot", values={"bf16": 9e14})
XID = {"at": 150.0, "uuid": "GPU-0", "xid": 119, "name": "gsp", "kind": "hardware", "action": "reset", "message": "x"}


def text(snapshot: Snapshot, since: Since) -> str:
    """Return the answer for a snapshot."""
    return api.node("n", "boot", snapshot, since, [XID], "", {"GPU-0": CHECK}.get).body.decode()


def test_a_verdict_keeps_its_time_until_it_changes() -> None:
    since = Since()
    for at, snapshot in ((100, HEALTHY), (150, HEALTHY), (200, FAULTY), (250, FAULTY)):
        since.take(replace(snapshot, at=float(at)))
    (gpu,) = json.loads(text(FAULTY, since))["gpus"]
    assert (gpu["since"], gpu["problems"][0]["since"]) == (200.0, 200.0)
    since.take(replace(HEALTHY, at=300.0))
    assert json.loads(text(HEALTHY, since))["gpus"][0]["since"] == 300.0


def test_a_missing_gpu_has_a_time() -> None:
    since = Since()
    missing = replace(HEALTHY, samples=(Sample(Series(m.EXPECTED), 2),))
    since.take(missing)
    since.take(replace(missing, at=160.0))
    answer = json.loads(text(missing, since))
    assert (answer["missing"], answer["missing_since"]) == (1, 100.0)


def test_the_controller_reads_what_the_exporter_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends of the interface agree: identity, age, XIDs, and that a release says nothing."""
    since = Since()
    since.take(HEALTHY)
    monkeypatch.setattr(time, "time", lambda: 161.0)
    found = evidence.judge(text(replace(HEALTHY, at=160.0), since), "n", "boot", degraded=False)
    assert (found.finding, found.clean_for, found.gpus) == (NodeFinding.CLEAN, 60.0, frozenset({"GPU-0"}))
    assert found.checked_at == 90.0
    since.take(FAULTY)
    monkeypatch.setattr(time, "time", lambda: 231.0)
    (fault,) = evidence.judge(text(replace(FAULTY, at=230.0), since), "n", "boot", degraded=False).faults
    assert (fault.reason, fault.age, fault.serial, fault.xids) == ("stalled", 30.0, "S0", (119,))
    monkeypatch.setattr(time, "time", lambda: 101.0)
    released = replace(HEALTHY, samples=(*HEALTHY.samples, Sample(Series(m.RELEASED_UNTIL), 500.0)))
    assert "released" in evidence.judge(text(released, since), "n", "boot", degraded=False).why
