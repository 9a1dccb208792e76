"""A GPU whose host has one cause of waiting has the failure mode of that cause, and no other of a host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_exporter.catalogue.failure_modes import host
from gpu_exporter.diagnosis import gather
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.window import seen
from tests.support.truth import MORE

# The same cases on an H200 and on an H100.
FOLDERS = (MORE / "host", MORE / "host_h100")
TRUTH = json.loads((FOLDERS[0] / "truth.json").read_text())
# Five seconds with host evidence, which is read once a second, are too few for these two: what is always at work
# is read as half of the time, or not at all. `diagnose` named both while they ran.
TOO_SHORT = {("host_h100", "tiny_kernels"), ("host_h100", "one_worker")}
OF_HOST = {mode.name for mode in host.MODES}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("case", TRUTH)
def test_cause_on_the_host(folder: Path, case: str) -> None:
    """Benchmarks.host_causes provoked it on GPU 0; GPU 1 was idle."""
    first, *others = diagnose(seen(gather.RecordedScrapes(folder / f"{case}.jsonl.gz"), {}))

    modes, true = OF_HOST & {match.mode.name for match in first.matches}, set(TRUTH[case]["modes"])
    assert modes == (set() if (folder.name, case) in TOO_SHORT else true)
    assert not [match.mode.name for other in others for match in other.matches]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_recording_has_its_truth(folder: Path) -> None:
    assert {path.name.partition(".")[0] for path in folder.glob("*.jsonl.gz")} == set(TRUTH)
