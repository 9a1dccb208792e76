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


@pytest.mark.parametrize("share", [0.1, 0.3, 2.0])
def test_what_collectives_copy_is_no_loading(share: float) -> None:
    """Recorded jobs with FSDP2 move 9 to 25 % of their NVLink traffic over PCIe; launch-bound, twice as much."""
    rank = {**LAUNCHES, m.PCIE_RX: share * NVLINK}
    assert {each.bottleneck.name for each in judged([rank] * 4) if each.bottleneck} == {"host-bound"}


def test_copies_without_collectives_are_loading() -> None:
    rank = {**LAUNCHES, m.PCIE_RX: NVLINK, m.NVLINK_TX: 0.0, m.NVLINK_RX: 0.0}
    assert {each.bottleneck.name for each in judged([rank] * 4) if each.bottleneck} == {"data-loading-bound"}


@pytest.mark.parametrize("share", [0.1, 0.3, 2.0])
def test_ranks_that_are_launch_bound_have_no_starved_straggler(share: float) -> None:
    """The last rank to launch has the idlest engine; whether it waits for the others or they for it is not known."""
    usual = {**LAUNCHES, m.GR_ENGINE_ACTIVE: 0.9, m.SM_ACTIVE: 0.25, m.PCIE_RX: share * NVLINK}
    assert starved([{**usual, m.GR_ENGINE_ACTIVE: 0.5}, usual, usual, usual]) == set()


def starved(ranks: Sequence[Mapping[Metric, float]]) -> set[str]:
    """Return the ranks that are called starved stragglers."""
    return {
        each.identity.gpu
        for each in judged(ranks)
        if any(match.mode.name == "GpuStragglerStarved" for match in each.matches)
    }


# Measured on four H100s: DDP with 48 small layers, 11 ms per step. The ranks are alike; the fourth launches last.
OF_DDP = {m.NVLINK_TX: 1.5e10, m.NVLINK_RX: 1.5e10, m.PCIE_TX: 2.3e8, m.PCIE_RX: 3.4e9}
LAUNCHED_LAST = [
    {**LAUNCHES, **OF_DDP, m.GR_ENGINE_ACTIVE: engine, m.SM_ACTIVE: sm, m.DRAM_ACTIVE: dram, m.TENSOR_ACTIVE: 0.15}
    for engine, sm, dram in ((0.998, 0.371, 0.112), (0.949, 0.347, 0.101), (0.978, 0.314, 0.1), (0.812, 0.243, 0.105))
]


def test_the_order_of_launches_makes_no_straggler() -> None:
    assert starved(LAUNCHED_LAST) == set()


def test_tiny_kernels_tell_only_which_rank_launches_last() -> None:
    """Measured on two H200s: FSDP2 with 48 layers of 256. The CPU of rank 0 needs a fifth longer; no loader is slow."""
    of_fsdp = {**LAUNCHES, m.TENSOR_ACTIVE: 3e-5, m.DRAM_ACTIVE: 8e-5, m.NVLINK_TX: 2.5e8, m.NVLINK_RX: 2.5e8}
    last = {**of_fsdp, m.GR_ENGINE_ACTIVE: 0.026, m.SM_ACTIVE: 0.0025, m.PCIE_RX: 1.2e7, m.PCIE_TX: 1.6e6}
    other = {**of_fsdp, m.GR_ENGINE_ACTIVE: 0.998, m.SM_ACTIVE: 0.167, m.PCIE_RX: 1.3e10, m.PCIE_TX: 9e8}
    assert starved([last, other]) == set()


@pytest.mark.parametrize(
    ("engine", "sm"),
    [pytest.param(0.4, 0.15, id="small kernels, most of the time idle"), pytest.param(0.7, 0.6, id="large kernels")],
)
def test_a_rank_that_is_idle_for_other_reasons_is_a_straggler(engine: float, sm: float) -> None:
    ranks = [{**each, m.GR_ENGINE_ACTIVE: 0.97} for each in LAUNCHED_LAST]
    ranks[3] |= {m.GR_ENGINE_ACTIVE: engine, m.SM_ACTIVE: sm}
    assert starved(ranks) == {"3"}
