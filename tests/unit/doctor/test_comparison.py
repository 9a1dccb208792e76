"""Two sources side by side: which values count as equal, and what is reported of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.doctor import comparison
from gpu_exporter.doctor.comparison import (
    TOLERANCES,
    Agreement,
    Comparison,
    Side,
    as_dict,
    compared,
    compares,
    lines,
)
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Kind, Metric, Pace
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.source import Device, Source
from gpu_exporter.pipeline.renderer import number
from tests import ROOT

GPU = Gpu(0, "GPU-0", "00000000:06:00.0", "NVIDIA H200", "nvidia0", "580.159.04", (("serial", "1"),))


def side(values: dict[Metric, Sequence[float]], gpu: Gpu = GPU, every: float = 1.0) -> Side:
    """Return a source that has shown these values, one tick after the other.

    The comparison begins after the first tick, so the first value of a gauge is repeated.
    """
    found = Side("x")
    series = {metric: Series(metric, gpu) for metric in values}
    ticks = [[*ticks[: metric.kind is Kind.GAUGE], *ticks] for metric, ticks in values.items()]
    for at, now in enumerate(zip(*ticks, strict=True)):
        samples = tuple(Sample(each, value) for each, value in zip(series.values(), now, strict=True))
        found.add(Snapshot(at, "x", samples, (GpuStatus(gpu, True),)), at * every)
        if at == 0:
            found.begin()
    if not ticks:
        found.add(Snapshot(0, "x", (), (GpuStatus(gpu, True),)), 0.0)
    return found


def only_row(
    metric: Metric, a: Sequence[float], b: Sequence[float]
) -> tuple[str, float | None, float | None, Agreement]:
    """Return the comparison of two series of values of one metric."""
    (row,) = compared(side({metric: a}), side({metric: b}), 3).metrics
    return row.how, row.a, row.b, row.agreement


SAME, DIFFERS = Agreement.SAME, Agreement.DIFFERS


@pytest.mark.parametrize(
    ("metric", "a", "b", "how", "shown", "agreement"),
    [
        (m.POWER, (600, 620, 640), (610, 620, 630), "mean", (620, 620), SAME),
        (m.POWER, (100, 100, 100), (109, 109, 109), "mean", (100, 109), SAME),  # 10 W
        (m.POWER, (600, 600, 600), (640, 640, 640), "mean", (600, 640), DIFFERS),  # more than 5 %
        (m.POWER_LIMIT, (700, 700), (690, 690), "constant", (700, 690), DIFFERS),
        (m.MAX_SM_CLOCK, (1980, 1980), (1980, 1980), "constant", (1980, 1980), SAME),
        (m.MAX_SM_CLOCK, (1980, 1980), (1975, 1975), "constant", (1980, 1975), DIFFERS),
        (m.SM_ACTIVE, (0.1, 0.5, 0.9), (0.3, 0.8, 0.91), "mean", (0.9, 0.91), SAME),  # means of the window
        (m.SM_ACTIVE, (0.9, 0.9), (0.8, 0.8), "mean", (0.9, 0.8), DIFFERS),
        (m.GPU_TEMP, (40, 41), (42, 42), "mean", (40.5, 42), SAME),
        (m.CLOCK_EVENTS, (4, 1), (1, 1), "state", (1, 1), SAME),
        (m.PSTATE, (0, 0, 2), (2, 0, 0), "state", (2, 0), SAME),  # both have both states
        (m.PSTATE, (0, 0), (2, 2), "state", (0, 2), DIFFERS),
        (m.ECC_DBE_VOL, (2, 2), (2, 2), "level", (2, 2), SAME),
        (m.ECC_DBE_VOL, (2, 2), (2, 3), "level", (2, 3), DIFFERS),
        # 600 W, read every tick and every other tick: the same rise per second
        (m.ENERGY_JOULES, (600, 1200, 1800, 2400), (0, 0, 1200, 1200), "rise per second", (600, 600), SAME),
        (m.ENERGY_JOULES, (5, 5, 5), (9, 9, 9), "rise per second", (0, 0), SAME),  # starting values may differ
        (m.ENERGY_JOULES, (600, 1200), (700, 1400), "rise per second", (600, 700), SAME),  # read every 15 s: too short
        (m.ENERGY_JOULES, range(0, 60_000, 600), range(0, 100_000, 1000), "rise per second", (600, 1000), DIFFERS),
    ],
)
def test_comparison_by_kind(
    metric: Metric,
    a: Sequence[float],
    b: Sequence[float],
    how: str,
    shown: tuple[float, float],
    agreement: Agreement,
) -> None:
    """Means of gauges, rises of flows, levels of counts, states that both had, constants."""
    assert only_row(metric, a, b)[0] == how
    assert only_row(metric, a, b)[1:3] == pytest.approx(shown)
    assert only_row(metric, a, b)[3] is agreement


def test_metrics_of_one_source_are_no_difference() -> None:
    """They are shown with their value."""
    result = compared(side({m.POWER: (1, 1), m.GPU_TEMP: (40, 40)}), side({m.POWER: (1, 1), m.FAN: (30, 30)}), 1)

    assert {row.metric: row.agreement for row in result.metrics} == {
        m.POWER: SAME,
        m.GPU_TEMP: Agreement.ONLY_A,
        m.FAN: Agreement.ONLY_B,
    }
    assert not result.differs


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (GPU, []),
        (replace(GPU, pci_bus_id="00000000:06:00.0".lower(), info=()), []),
        (replace(GPU, model="H200", index=1), [("gpu", "0", "1"), ("modelName", "NVIDIA H200", "H200")]),
        (replace(GPU, info=(("serial", "2"), ("brand", "x"))), [("serial", "1", "2")]),
        (replace(GPU, driver=""), []),
    ],
)
def test_gpu_identity(other: Gpu, found: list[tuple[str, str, str]]) -> None:
    """GPUs are matched by UUID; details that one source lacks are no difference."""
    result = compared(side({m.POWER: (1, 1)}), side({m.POWER: (1, 1)}, other), 1)

    assert sorted((each.what, each.a, each.b) for each in result.identities) == found
    assert result.differs == bool(found)


def test_a_gpu_of_one_source() -> None:
    """It is one difference, not one per metric."""
    result = compared(side({m.POWER: (1, 1)}), side({m.POWER: (1, 1)}, Gpu(0, "GPU-1")), 1)

    assert [(each.uuid, each.what, each.a, each.b) for each in result.identities] == [
        ("GPU-0", "is there", "yes", "no"),
        ("GPU-1", "is there", "no", "yes"),
    ]
    assert (result.metrics, result.gpus, result.differs) == ((), 0, True)
    assert list(lines(result))[2:4] == ["differs: GPU-0 exists only in a", "differs: GPU-1 exists only in b"]


@pytest.mark.drift
def test_units_with_noise_have_a_tolerance() -> None:
    """Units of exact counts need none."""
    units = {row.unit for row in m.METRICS if compares(row) and row.pace is not Pace.STATIC}
    counted = {"errors", "rows", "pages", "replays", "processes", "counts", "gpus"}

    assert units - set(TOLERANCES) - m.STATE_UNITS == counted, (
        "fix: add the unit to gpu_exporter/doctor/comparison.py; a unit of whole numbers needs none"
    )


def test_a_table_ends_with_the_differences() -> None:
    """One line per metric and GPU, and one sentence."""
    result = compared(
        side({m.POWER: (600, 600), m.GPU_TEMP: (40, 40), m.FAN: (1, 1)}),
        side({m.POWER: (700, 700), m.GPU_TEMP: (40, 40)}, replace(GPU, model="H200")),
        2,
    )
    text = list(lines(result))

    assert text[0] == "a: x, b: x; 1 GPU in both, 2 s"
    assert [line.split()[0:2] + line.split()[-1:] for line in text[2:5]] == [
        ["0", "DCGM_FI_DEV_GPU_TEMP", "same"],
        ["0", "DCGM_FI_DEV_FAN_SPEED", "a"],
        ["0", "DCGM_FI_DEV_POWER_USAGE", "differs"],
    ]
    assert text[5:] == [
        "differs: modelName of GPU-0 is NVIDIA H200 in a and H200 in b",
        "1 the same, 1 only in a, 0 only in b, 1 differ",
    ]
    assert as_dict(result)["metrics"][0] == {
        "gpu": 0,
        "UUID": "GPU-0",
        "metric": "DCGM_FI_DEV_POWER_USAGE",
        "unit": "watts",
        "compared": "mean",
        "a": 600,
        "b": 700,
        "difference": 100,
        "tolerance": 35.0,
        "verdict": "differs",
    }


@pytest.mark.drift
def test_the_page_has_every_tolerance() -> None:
    """Each has a row with its reason."""
    page = (ROOT / "docs" / "compare.md").read_text()
    rows = [f"| {unit} | {each.share:.0%} | {number(each.least)} | {each.why} |" for unit, each in TOLERANCES.items()]

    assert [row for row in rows if row not in page] == [], "fix: add the rows to docs/compare.md"


class Fixed(Source, Device):
    """A source of one GPU with constant values, read by the real loop."""

    name, description, live = "fixed", "", False

    def __init__(self, values: dict[Metric, float], gpus: int = 1) -> None:
        self.gpu, self.values, self.gpus = GPU, values, gpus

    def count(self) -> int:
        return self.gpus

    def attach(self, index: int, metrics: Sequence[Metric]) -> Fixed:
        self.series = {Series(metric, GPU): value for metric, value in self.values.items() if metric in metrics}
        return self

    def read(self, paces: frozenset[Pace]) -> Reading:
        return Reading(time.monotonic(), self.series, 1.0)


def watched(a: Fixed, b: Fixed) -> Comparison:
    """Read both sources by the real loop."""
    result, clean = comparison.compare_sources(("a", a), ("b", b), [m.POWER, m.SM_ACTIVE, m.ENERGY], 0.5)
    assert clean
    return result


def test_sources_are_read_over_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By collection loops, as in `serve`."""
    monkeypatch.setattr(comparison, "INTERVAL_SECONDS", 0.1)
    result = watched(Fixed({m.POWER: 600.0, m.SM_ACTIVE: 0.5}), Fixed({m.POWER: 700.0, m.ENERGY: 1.0}))

    assert {row.metric: (row.a, row.b, row.agreement) for row in result.metrics} == {
        m.POWER: (600.0, 700.0, DIFFERS),
        m.SM_ACTIVE: (0.5, None, Agreement.ONLY_A),
        m.ENERGY: (None, 0.0, Agreement.ONLY_B),
    }


@pytest.mark.parametrize("pair", [lambda bad, good: (bad, good), lambda bad, good: (good, bad)])
def test_a_source_without_a_gpu_is_an_error(
    pair: Callable[[Fixed, Fixed], tuple[Fixed, Fixed]],
) -> None:
    """On either side."""
    with pytest.raises(SourceLost, match="lists no GPU"):
        watched(*pair(Fixed({}, gpus=0), Fixed({m.POWER: 1.0})))
