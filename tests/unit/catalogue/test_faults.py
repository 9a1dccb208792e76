"""Faults: each has a documented row, an alert and XIDs, and they are consistent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.catalogue.faults import (
    DOWN,
    FABRIC,
    FAULTS,
    INFOROM,
    METRIC_NAME,
    NEWER,
    RECOVERY,
    STATES,
    Fault,
    FaultState,
    recovery_action,
)
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.catalogue.xids import load
from gpu_exporter.model.verdict import Action, Health
from tests import ROOT
from tests.support.tools import tool

KNOWN = {row.name for row in METRICS}
BY_NAME = {mode.name: mode for mode in MODES}
SEVERITY = {Health.UNHEALTHY: Severity.CRITICAL, Health.DEGRADED: Severity.WARNING}
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.reason}-{fault.action.value}")


@every_fault
def test_each_fault_has_an_alert_that_agrees(fault: Fault) -> None:
    """With the same urgency, and the same repair unless the entry says why not."""
    assert fault.mode in BY_NAME, (
        f"{fault.reason} has no alert; fix: add a FailureMode {fault.mode!r} to gpu_exporter/catalogue/failure_modes/"
        "health.py, or name an existing one in gpu_exporter/catalogue/faults.py"
    )
    mode = BY_NAME[fault.mode]
    assert mode.severity is SEVERITY[fault.health]
    assert (mode.action is fault.action) != bool(fault.why_other_action), (
        f"{fault.reason} asks for {fault.action.value}, {mode.name} for {mode.action.value}; fix: make them equal, or "
        "say in why_other_action (gpu_exporter/catalogue/faults.py) why they differ, and only then"
    )


@every_fault
def test_xids_need_no_heavier_repair_than_their_fault(fault: Fault) -> None:
    """Each XID is in the table, and the repair of the fault covers that of the XID."""
    heavier = list(Action).index
    for code in fault.xids:
        assert code in load().rows, f"fix: XID {code} of {fault.reason} is not in gpu_exporter/catalogue/xids.csv"
        assert heavier(load()[code].action) <= heavier(fault.action), code


def test_reasons_are_stable_words() -> None:
    """Alerts select on them: a reason has one action and level, unless the driver sets the action."""
    by_reason = {fault.reason: (fault.health, fault.action) for fault in FAULTS}
    several = {fault.reason for fault in FAULTS if (fault.health, fault.action) != by_reason[fault.reason]}
    assert several == {"recovery_action"}
    assert all(reason.replace("_", "").isalpha() and reason == reason.lower() for reason in by_reason)


def test_down_reasons_equal_health_reasons() -> None:
    """Except for GPUs that are down for an unknown reason."""
    assert {why: fault.reason for why, fault in DOWN.items() if why != fault.reason} == {"unknown": "no_answer"}


def test_the_driver_s_actions_have_no_gap() -> None:
    """All numbers of nvml.h from 0 (none); a larger one is an action that this version does not know."""
    assert list(RECOVERY) == list(range(1, 8))
    assert recovery_action(0) is Action.NONE
    assert [recovery_action(number) for number in RECOVERY] == [fault.action for fault in RECOVERY.values()]
    assert recovery_action(8) is NEWER.action is Action.DRAIN


@pytest.mark.parametrize("fault", [FABRIC, INFOROM], ids=lambda fault: fault.reason)
def test_each_alert_has_a_runbook_that_the_page_names(fault: Fault) -> None:
    """docs/health.md links the reason to the runbook."""
    runbook = f"runbooks/{fault.mode.lower()}.md"
    assert (ROOT / "docs" / runbook).is_file(), "fix: make generate"
    (row,) = (line for line in (ROOT / "docs/health.md").read_text().splitlines() if f"| `{fault.reason}` |" in line)
    assert f"({runbook})" in row


@pytest.mark.slow
def test_every_expression_parses(tmp_path: Path) -> None:
    """As a rule, in promtool."""
    rules = [{"record": f"state:{number}", "expr": state.promql} for number, state in enumerate(STATES)]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "states", "rules": rules}]}))
    ended = subprocess.run([tool("promtool"), "check", "rules", str(path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert f"{len(STATES)} rules found" in ended.stdout


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_every_metric_is_in_the_catalogue(state: FaultState) -> None:
    """Prometheus selects nothing for a misspelt or removed name, without an error."""
    names = set(METRIC_NAME.findall(state.promql))
    assert names
    assert names <= KNOWN
    assert {row.name for row in state.metrics} == names


def test_names_are_unique() -> None:
    """Each state is one row, and each fault has one of these rows."""
    assert len({state.name for state in STATES}) == len(STATES)
    assert {fault.state for fault in FAULTS} <= set(STATES)
