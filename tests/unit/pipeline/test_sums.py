"""Sums of metrics: computed from the samples of a page, only where the source has no value of its own."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Metric
from gpu_exporter.pipeline.settings import Sums

GPU = Gpu(0, "GPU-0")
TX, RX, BOTH = Series(m.NVLINK_TX, GPU), Series(m.NVLINK_RX, GPU), Series(m.NVLINK_BOTH, GPU)
NVLINK = Sums((m.NVLINK_TX, m.NVLINK_RX, m.NVLINK_BOTH))


def added(sums: Sums, *samples: Sample) -> list[tuple[Metric, float]]:
    """Return the samples that are added."""
    found = sums.samples(samples)
    assert found[: len(samples)] == samples
    return [(series.metric, value) for series, value in found[len(samples) :]]


def test_both_directions_are_added_up() -> None:
    """Bytes per second become MB/s, without digits that are noise."""
    assert added(NVLINK, Sample(TX, 1_000_001.0), Sample(RX, 2_500_000.0)) == [(m.NVLINK_BOTH, 3.500001)]


def test_a_sum_needs_all_of_its_parts() -> None:
    """One direction alone would look like half the traffic."""
    assert added(NVLINK, Sample(TX, 1.0)) == []
    assert added(NVLINK) == []
    other = Series(m.NVLINK_RX, GPU, (("GPU_I_ID", "1"),))
    assert added(NVLINK, Sample(TX, 1.0), Sample(other, 1.0)) == []


def test_a_value_of_the_source_is_kept() -> None:
    """DCGM has this field."""
    assert added(NVLINK, Sample(TX, 1e6), Sample(RX, 1e6), Sample(BOTH, 5.0)) == []


def test_only_chosen_sums_are_computed() -> None:
    """Each in its own unit; the series is the same object each time."""
    pcie = Sums((m.PCIE_TX, m.PCIE_TX_KB))
    samples = (Sample(Series(m.PCIE_TX, GPU), 14 * m.MIB), Sample(TX, 1.0), Sample(RX, 1.0))

    assert added(pcie, *samples) == [(m.PCIE_TX_KB, 14_680.064)]
    assert pcie.samples(samples)[-1].series is pcie.samples(samples)[-1].series
    assert Sums((m.PCIE_TX,)).samples(samples) is samples


@pytest.mark.parametrize(
    ("by_source", "expected"),
    [
        ({m.NVLINK_BOTH: "needs_dcgm", m.FAN: "not_supported"}, {m.FAN: "not_supported"}),
        (
            {m.NVLINK_BOTH: "needs_dcgm", m.NVLINK_TX: "not_supported", m.NVLINK_RX: "not_supported"},
            dict.fromkeys((m.NVLINK_BOTH, m.NVLINK_TX, m.NVLINK_RX), "not_supported"),
        ),
        ({m.NVLINK_TX: "paused", m.NVLINK_RX: "paused"}, {m.NVLINK_TX: "paused", m.NVLINK_RX: "paused"}),
        ({}, {}),
    ],
    ids=["computed", "without its parts", "read by the source", "all supported"],
)
def test_a_sum_is_missing_for_the_reason_of_its_parts(
    by_source: dict[Metric, str], expected: dict[Metric, str]
) -> None:
    """`needs_dcgm` would be wrong for a GPU whose counters the driver does not support."""
    assert NVLINK.unsupported(by_source) == expected
