"""Which metrics are proven on hardware, and which are not."""

import json
from pathlib import Path

import pytest

from gpu_exporter.catalogue.hardware import H200, seen_on
from gpu_exporter.catalogue.metrics import BY_KEY, METRICS, selected
from gpu_exporter.model.metric import Buffered, Call, FieldValue, Gpm, Kind, LinkSum, Metric, MetricSet
from gpu_exporter.sources.recording.format import load
from tests.conftest import RECORDINGS, run
from tests.support.fakes.driver import FakeDriver

CORRECT = "fix: correct H200 in gpu_exporter/catalogue/hardware.py"
DELETE = "fix: delete the answer of the row that is gone from gpu_exporter/catalogue/hardware.py"

FULL = selected(MetricSet.FULL)


@pytest.mark.slow
@pytest.mark.drift
def test_the_fake_driver_has_all_metrics_of_an_h200(tmp_path: Path) -> None:
    """Every metric that was read on an H200 has a value from the fake driver, too."""
    page = json.loads(run("once", "--metrics", "full", "--json", env=FakeDriver(tmp_path).environment).stdout)
    answered = {name.partition("{")[0] for name in page["gpus"][0]["samples"]}
    expected = {f"{row.name}_count" if row.edges else row.name for row in FULL if seen_on(row)}
    assert expected - answered == set(), (
        "fix: give the fake H200 in tests/support/fakes/driver.py the value that a real one gave"
    )


@pytest.mark.drift
@pytest.mark.parametrize("recording", ["h200_workloads", "h200_x2_ddp"])
def test_recorded_metrics_are_proven(recording: str) -> None:
    """The packaged recordings are of real H200s."""
    recorded = {key for columns in load(RECORDINGS / f"{recording}.jsonl.gz").columns.values() for key in columns}
    assert [key for key in recorded if "H200" not in seen_on(BY_KEY[key])] == [], (
        "fix: add what the recording has to H200 in gpu_exporter/catalogue/hardware.py"
    )


@pytest.mark.drift
def test_metrics_that_an_h200_lacks() -> None:
    """Fans, retired pages, and places where it counts no errors."""
    not_seen = {row.name for row in FULL if not seen_on(row)}
    assert not_seen >= {
        "DCGM_FI_DEV_FAN_SPEED",
        "DCGM_FI_DEV_RETIRED_SBE",
        "DCGM_FI_DEV_RETIRED_DBE",
        "DCGM_FI_DEV_RETIRED_PENDING",
    }, CORRECT
    assert len([name for name in not_seen if "_ECC_" in name]) == 24, CORRECT


@pytest.mark.drift
def test_every_proof_has_a_row() -> None:
    """No proof is left of a row that was removed."""
    calls = {f"{row.nvml.name}({','.join(map(str, row.nvml.args))})" for row in FULL if isinstance(row.nvml, Call)}
    calls |= {f"Samples({row.nvml.id})" for row in FULL if isinstance(row.nvml, Buffered)}
    fields = {row.nvml.id for row in FULL if isinstance(row.nvml, FieldValue | LinkSum)}
    gpm = {row.nvml.id for row in FULL if isinstance(row.nvml, Gpm)}
    assert calls >= H200.calls, DELETE
    assert fields >= H200.fields, DELETE
    assert gpm >= H200.gpm, DELETE


def test_new_rows_are_not_proven() -> None:
    """A row that is added is unproven; an integral is as proven as its mean."""
    assert seen_on(Metric("gpu_new", Kind.GAUGE, "ratio", "New.", nvml=Call("JpgUtilization", pick=0))) == ()
    made = {row: row.integral_of or row.histogram_of for row in METRICS}
    assert all(seen_on(row) == seen_on(of) for row, of in made.items() if of)
