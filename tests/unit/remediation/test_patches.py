"""What a decision writes to a node."""

from __future__ import annotations

import json
from dataclasses import replace

from gpu_exporter.model.verdict import Action
from gpu_exporter.remediation.evidence import Evidence, Fault, Finding
from gpu_exporter.remediation.patches import repair_text
from gpu_exporter.remediation.state import Phase, State

WORN = Fault("GPU-1", "sram_threshold", Action.REPLACE, 120.0, serial="S1")
LOST = Fault("GPU-2", "lost", Action.NODE_REBOOT, 120.0, serial="S2")
FAULTS = (("GPU-1", "sram_threshold"), ("GPU-2", "lost"))
STATE = State(Phase.CORDONED, "id", 0.0, "b2", "replace", FAULTS, 2)


def repair(*faults: Fault, before: str = "", state: State = STATE) -> list[tuple[str, str]]:
    """Return serial and reason of each entry of the hand-off."""
    text = repair_text(state, Evidence(Finding.FAULTY, "b2", faults), before)
    return [(gpu["serial"], gpu["reason"]) for gpu in json.loads(text)["gpus"]]


def test_a_gpu_that_needs_replacement_stays_in_the_hand_off() -> None:
    """After a reboot only another fault may be seen; whoever repairs the node must still replace the first GPU."""
    before = repair_text(STATE, Evidence(Finding.FAULTY, "b1", (WORN,)))
    assert repair(LOST, before=before) == [("S2", "lost"), ("S1", "sram_threshold")]
    assert repair(WORN, LOST, before=before) == [("S1", "sram_threshold"), ("S2", "lost")]


def test_the_hand_off_of_an_earlier_fault_is_not_kept() -> None:
    """Nor is one that a person has changed to something else."""
    before = repair_text(replace(STATE, fault="earlier"), Evidence(Finding.FAULTY, "b1", (WORN,)))
    assert repair(LOST, before=before) == [("S2", "lost")]
    assert repair(LOST, before="repaired on Monday") == [("S2", "lost")]
