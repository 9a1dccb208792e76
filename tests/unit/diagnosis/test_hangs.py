"""A recorded job that hangs is named by `diagnose` from a few seconds; no other job is.

Jobs of two and four ranks on H100s and H200s, that wait with messages of 4 KiB to 1 GiB and each protocol of NCCL.
`tests/rules/test_hangs.py` tests the alert.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from tests.support import phases
from tests.support.table import table_test
from tests.support.truth import TRUTH

pytestmark = pytest.mark.slow
STALL = "GpuCollectiveStall"
SOON = 60.0
PHASES = [(path, phase) for path in TRUTH if "_x2_" in path.name or "_x4_" in path.name for phase in TRUTH[path]]


def hangs(phase: str) -> bool:
    return phase.startswith("hang")


@table_test("path, phase", PHASES, lambda path, phase: f"{path.name} {phase}")
def test_diagnose_names_hangs_and_nothing_else(path: Path, phase: str) -> None:
    assert phases.seconds(path, phase) < SOON

    found = phases.diagnoses(path, phase)

    assert [STALL in {match.mode.name for match in of_gpu.matches} for of_gpu in found] == [hangs(phase)] * len(found)


@table_test("path, phase", PHASES, lambda path, phase: f"{path.name} {phase}")
def test_the_default_fields_of_dcgm_exporter_show_the_same_hangs(path: Path, phase: str) -> None:
    found = diagnose(seen([with_default_fields(each) for each in phases.scrapes(path, phase)], {}, job="job"))

    assert [STALL in {match.mode.name for match in of_gpu.matches} for of_gpu in found] == [hangs(phase)] * len(found)


def with_default_fields(scrape: Scrape) -> Scrape:
    """Return the samples that dcgm-exporter has by default: of NVLink, both directions together."""
    traffic = [each for each in scrape.samples if each.name in (m.NVLINK_TX.name, m.NVLINK_RX.name)]
    both: dict[str, ScrapedSample] = {}
    for each in traffic:
        before = both.get(each.labels["UUID"])
        sum_of_both = (before.value if before else 0.0) + each.value / 1e6
        both[each.labels["UUID"]] = ScrapedSample(m.NVLINK_BOTH.name, each.labels, sum_of_both)
    return Scrape(scrape.at, [*(each for each in scrape.samples if each.name in DEFAULT_FIELDS), *both.values()])


@pytest.mark.parametrize("model", ["h100", "h200"])
def test_every_kind_of_hang_was_recorded(model: str) -> None:
    recorded = {phase for path, phase in PHASES if hangs(phase) and path.name.startswith(f"{model}_x2_phases")}

    sizes, protocols = ("4k", "1m", "64m", "1g"), ("1m_LL", "1m_LL128", "1m_Simple")
    assert recorded == {f"hang_{kind}" for kind in (*sizes, *protocols, "gather", "receive", "crossed")}
