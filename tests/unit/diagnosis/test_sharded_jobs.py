"""A launch-bound job whose collectives move data over PCIe, as those of FSDP do, loads no data and has no straggler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from gpu_exporter.model.metric import Metric

NVLINK = 2e10
LAUNCHES: Mapping[Metric, float] = {
    m.GR_ENGINE_ACTIVE: 0.5,
    m.SM_ACTIVE: 0.2,
    m.TENSOR_ACTIVE: 0.02,
    m.DRAM_ACTIVE: 0.03,
    m.NVLINK_TX: NVLINK / 2,
    m.NVLINK_RX: NVLINK / 2,
    m.PCIE_TX: 1e8,
    m.PCIE_GEN: 5.0,
    m.PCIE_WIDTH: 16.0,
}


def judged(ranks: Sequence[Mapping[Metric, float]]) -> Sequence[Diagnosis]:
    """Return the diagnoses of the ranks of a job with these values."""
    samples = [
        ScrapedSample(metric.name, {"UUID": f"GPU-{rank}", "gpu": str(rank), **dict(metric.labels)}, value)
        for rank, values in enumerate(ranks)
        for metric, value in values.items()
    ]
    return diagnose(seen([Scrape(1.7e9 + at, samples) for at in range(30)], {}, job="fsdp"))


@pytest.mark.parametrize(("share", "name"), [(0.1, "host-bound"), (0.3, "data-loading-bound")])
def test_what_collectives_copy_is_no_loading(share: float, name: str) -> None:
    """Recorded jobs with FSDP2 move 9 to 11 % of their NVLink traffic over PCIe."""
    rank = {**LAUNCHES, m.PCIE_RX: share * NVLINK}
    assert {each.bottleneck.name for each in judged([rank] * 4) if each.bottleneck} == {name}


@pytest.mark.parametrize(("share", "starved"), [(0.1, set()), (0.3, {"0"})])
def test_ranks_that_are_launch_bound_have_no_starved_straggler(share: float, starved: set[str]) -> None:
    """The last rank to launch has the idlest engine; whether it waits for the others or they for it is not known."""
    usual = {**LAUNCHES, m.GR_ENGINE_ACTIVE: 0.9, m.SM_ACTIVE: 0.25, m.PCIE_RX: share * NVLINK}
    ranks = [{**usual, m.GR_ENGINE_ACTIVE: 0.5}, usual, usual, usual]
    found = {
        each.identity.gpu
        for each in judged(ranks)
        if any(match.mode.name == "GpuStragglerStarved" for match in each.matches)
    }
    assert found == starved
