"""A GPU whose host has one cause of waiting has the failure mode of that cause, and no other of a host."""

from __future__ import annotations

import json

import pytest

from gpu_exporter.catalogue.failure_modes import host
from gpu_exporter.diagnosis import gather
from gpu_exporter.diagnosis.judge import diagnose
from gpu_exporter.diagnosis.window import seen
from tests.support.truth import MORE

FOLDER = MORE / "host"
TRUTH = json.loads((FOLDER / "truth.json").read_text())
OF_HOST = {mode.name for mode in host.MODES}


@pytest.mark.parametrize("case", TRUTH)
def test_cause_on_the_host(case: str) -> None:
    """Benchmarks.host_causes provoked it on GPU 0; GPU 1 was idle."""
    first, *others = diagnose(seen(gather.RecordedScrapes(FOLDER / f"{case}.jsonl.gz"), {}))

    assert OF_HOST & {match.mode.name for match in first.matches} == set(TRUTH[case]["modes"])
    assert not [match.mode.name for other in others for match in other.matches]


def test_every_recording_has_its_truth() -> None:
    assert {path.name.partition(".")[0] for path in FOLDER.glob("*.jsonl.gz")} == set(TRUTH)
