"""The repair of a finding and of its incident is that of the verdict on the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.faults import FATAL_XID, FAULTS, mode_of
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.headline import findings
from gpu_exporter.diagnosis.incident_words import as_dicts
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen

LABELS = {"gpu": "0", "UUID": "GPU-0", "Hostname": "node-7", "modelName": "NVIDIA H100"}


def diagnosed(reasons: Mapping[str, str]) -> list[Diagnosis]:
    """Return the diagnosis of a GPU with XID 79 and a verdict that has these reasons, each with its action."""
    samples = [
        ScrapedSample(m.UP.name, LABELS, 1.0),
        ScrapedSample(m.XID_EVENTS.name, {**LABELS, "xid": "79"}, 1.0),
        ScrapedSample(m.XID_LAST.name, {**LABELS, "xid": "79"}, 1000.0),
    ]
    samples += [
        ScrapedSample(m.HEALTH_REASON.name, {**LABELS, "reason": reason, "action": action}, 1.0)
        for reason, action in reasons.items()
    ]
    return list(diagnose(seen([Scrape(1000.0 + second, samples) for second in range(8)], {})))


@pytest.mark.parametrize(
    ("reasons", "action"),
    [
        ({"xid_79": "node_reboot"}, "drain and reboot the node"),
        ({"xid_48": "gpu_reset", "xid_79": "node_reboot"}, "drain and reboot the node"),
        ({"xid_48": "gpu_reset", "inforom_corrupt": "replace"}, "reset the GPU"),
        ({"xid_79": "something newer"}, "drain the node"),
    ],
)
def test_a_fatal_xid(reasons: Mapping[str, str], action: str) -> None:
    """If the action of the verdict is not known, that of the failure mode counts."""
    diagnoses = diagnosed(reasons)
    found = [finding for finding in findings(diagnoses[0]) if finding["name"] == FATAL_XID]
    incidents = [each for each in as_dicts(of_diagnoses(diagnoses, {})) if each["cause"] == FATAL_XID]
    assert [each["action"] for each in (*found, *incidents)] == [action, action]


def test_faults_have_failure_modes() -> None:
    names = {mode.name for mode in MODES}
    assert {mode_of(reason) for reason in ("xid_79", *(fault.reason for fault in FAULTS))} <= names
    assert mode_of("xid_79") == FATAL_XID
    assert mode_of("something newer") == ""
