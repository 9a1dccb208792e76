"""The answer of /api/v1/node between an exporter and a controller, of which one is older."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from gpu_exporter.active_checks.history import FoundHistory, Run
from gpu_exporter.app import api
from gpu_exporter.app.api import Since
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.node_answer import NodeAnswer
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Action, Health, Problem, Unknown, Verdict
from gpu_exporter.remediation.evidence import Evidence, NodeFinding, ReportedFault, judge
from gpu_exporter.version import __version__

GPUS = Gpu(0, "GPU-0", "0000:01:00.0", model="H100", info=(("serial", "S0"),)), Gpu(1, "GPU-1", "0000:02:00.0")
HANGS = Problem(m.UP, 0, "a driver call does not return", Action.NODE_REBOOT, "stalled")
STATE = Snapshot(
    100.0,
    "nvml",
    (Sample(Series(m.EXPECTED), 3), Sample(Series(m.RELEASED_UNTIL), 500.5)),
    (GpuStatus(GPUS[0], up=False, reason="stalled"), GpuStatus(GPUS[1], up=True)),
    verdicts=(Verdict(GPUS[0], (HANGS,)), Verdict(GPUS[1], (), (Unknown("ECC", "not_supported", harmless=True),))),
)
XID = {"at": 90.0, "uuid": "GPU-0", "xid": 119, "name": "gsp", "kind": "hardware", "action": "reset", "message": "x"}
SLOW = FoundHistory("slow", Health.DEGRADED, Action.GPU_RESET, "the memory is slow")
CHECK = Run(80.0, 2, Health.DEGRADED, boot_id="boot", values={"bf16": 9e14}, problems=[SLOW])

# What an exporter of version 0.2 sends for this state. Never change it: controllers read such answers for years. A new
# key belongs into the test that compares it, and an answer without it must be read.
VERSION_0_2 = (
    f'{{"apiVersion": 1, "version": "{__version__}", "node": "n", "boot_id": "boot", "at": 100.0, "age": 1.5, '
    '"source": "nvml", "live": true, "ready": false, "problem": "one is missing", "expected": 3, "missing": 1, '
    '"missing_since": 100.0, "released_until": 500.5, "gpus": [{"gpu": 0, "UUID": "GPU-0", "modelName": "H100", '
    '"health": "unhealthy", "action": "node_reboot", "problems": [{"reason": "stalled", "health": "unhealthy", '
    '"action": "node_reboot", "what": "a driver call does not return", "metric": "gpu_up", "value": 0, '
    '"since": 100.0}], "unknown": [], "up": false, "reason": "stalled", "since": 100.0, "serial": "S0", '
    '"pci_bus_id": "0000:01:00.0", "xids": [{"at": 90.0, "xid": 119, "name": "gsp", "kind": "hardware", '
    '"action": "reset"}], "active_check": {"at": 80.0, "level": 2, "health": "degraded", "boot_id": "boot", '
    '"rates": {"bf16": 900000000000000.0}, "problems": [{"reason": "slow", "health": "degraded", '
    '"action": "gpu_reset", "what": "the memory is slow"}]}}, {"gpu": 1, "UUID": "GPU-1", "modelName": "", '
    '"health": "healthy", "action": "none", "problems": [], "unknown": [{"what": "ECC", "why": "not_supported", '
    '"harmless": true}], "up": true, "reason": "", "since": 100.0, "serial": "", "pci_bus_id": "0000:02:00.0", '
    '"xids": [], "active_check": null}]}'
)
FAULT = ReportedFault(
    "GPU-0", "stalled", Action.NODE_REBOOT, 0.0, "a driver call does not return", "S0", "0000:01:00.0", (119,)
)
MISSING = ReportedFault("", "missing", Action.NODE_REBOOT, 0.0, "1 of 3 GPUs are missing")
PROVES = Evidence(NodeFinding.FAULTY, "boot", (FAULT, MISSING), gpus=frozenset({"GPU-0", "GPU-1"}), expected=3)


@pytest.fixture
def answer() -> dict[str, Any]:
    """Return that answer, while the driver is not released."""
    return {**json.loads(VERSION_0_2), "released_until": None}


def found(answer: dict[str, Any]) -> Evidence:
    return judge(json.dumps(answer), "n", "boot", degraded=False)


def typed(value: Any, kind: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each object of an answer with its type, the answer first."""
    if is_typeddict(kind):
        yield value, kind
        for key, part in get_type_hints(kind).items():
            yield from typed(value.get(key), part)
    elif isinstance(kind, UnionType) and value is not None:
        yield from typed(value, get_args(kind)[0])
    elif get_origin(kind) is list:
        for item in value or ():
            yield from typed(item, get_args(kind)[0])


def test_the_exporter_sends_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 101.5)
    since = Since()
    since.take(STATE)
    sent = api.node("n", "boot", STATE, since, [XID], "one is missing", {"GPU-0": CHECK}.get).body
    assert sent.decode() == VERSION_0_2


def test_the_type_has_every_key(answer: dict[str, Any]) -> None:
    """And the answer every key of the type, but those that problems of active checks do not have."""
    for value, kind in typed(answer, NodeAnswer):
        of_check = {"metric", "value", "since"} if value.get("reason") == "slow" else set()
        assert value.keys() == get_type_hints(kind).keys() - of_check, kind.__name__


def test_what_the_answer_proves(answer: dict[str, Any]) -> None:
    assert found(answer) == PROVES
    assert "released" in judge(VERSION_0_2, "n", "boot", degraded=False).why


def test_a_newer_controller_reads_an_older_exporter(answer: dict[str, Any]) -> None:
    """Without any of the keys that need not be there, the fault is the same; without another key, nothing is proven."""
    for place, (whole, kind) in enumerate(typed(answer, NodeAnswer)):
        for key in whole:
            older = copy.deepcopy(answer)
            del [value for value, _ in typed(older, NodeAnswer)][place][key]
            evidence, name = found(older), f"{kind.__name__}.{key}"
            if key in kind.__required_keys__:
                assert evidence.finding is NodeFinding.UNKNOWN, name
                assert f"missing required field `{key}`" in evidence.why, name
            else:
                lost = whole is answer["gpus"][0] and key == "problems"
                assert evidence.finding is NodeFinding.FAULTY, name
                assert [fault.reason for fault in evidence.faults] == ["stalled", "missing"][lost:], name


def test_without_all_that_need_not_be_there(answer: dict[str, Any]) -> None:
    least = copy.deepcopy(answer)
    for value, kind in list(typed(least, NodeAnswer)):
        for key in kind.__optional_keys__ & value.keys() - {"problems"}:
            del value[key]
    bare = ReportedFault("gpu0", "stalled", Action.NODE_REBOOT, 0.0)
    assert found(least) == replace(PROVES, faults=(bare, MISSING), gpus=frozenset({""}))


def test_an_older_controller_reads_a_newer_exporter(answer: dict[str, Any]) -> None:
    """It ignores keys that it does not know, in every object."""
    for value, _ in list(typed(answer, NodeAnswer)):
        value |= {"new": {"key": [1, None]}, "newer": "x"}
    assert found(answer) == PROVES


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"reason": "on_fire"}, (replace(FAULT, reason="on_fire"), MISSING)),
        ({"action": "call_the_fire_brigade"}, (MISSING,)),
        ({"health": "burning"}, (MISSING,)),
    ],
)
def test_a_problem_that_an_older_controller_does_not_know(
    answer: dict[str, Any], changes: dict[str, str], faults: tuple[ReportedFault, ...]
) -> None:
    """It acts on no action or health that it does not know, but still on others of the node."""
    answer["gpus"][0]["problems"][0] |= changes
    assert found(answer) == replace(PROVES, faults=faults)


def test_states_that_an_older_controller_does_not_know(answer: dict[str, Any]) -> None:
    """They are not healthy: such a node is neither faulty nor clean."""
    answer |= {"missing": 0, "ready": True}
    answer["gpus"][0] |= {"health": "bur\nning" + "!" * 99, "action": "extinguish", "problems": [], "reason": "fire"}
    answer["gpus"][0]["active_check"] |= {"health": "burnt"}
    answer["gpus"][0]["xids"][0] |= {"kind": "fire", "action": "extinguish"}
    evidence = found(answer)
    assert (evidence.finding, evidence.why) == (NodeFinding.UNKNOWN, f"GPU 0 is bur ning{'!' * 31}…")
    answer["gpus"][0]["health"] = "healthy"
    evidence = found(answer)
    assert (evidence.finding, evidence.checked_at) == (NodeFinding.CLEAN, 0.0)
