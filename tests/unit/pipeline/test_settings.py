"""Intervals: how often the loop ticks, how often it makes a page, and which metrics a source reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Metric
from gpu_exporter.pipeline.settings import CollectionSettings, make_plan


@pytest.mark.parametrize(
    ("interval", "high_resolution", "step", "steps_per_page", "short", "deadline"),
    [
        (1.0, False, 1.0, 1, False, 1.0),
        (1.0, True, 0.1, 10, False, 1.0),
        (15.0, False, 15.0, 1, False, 15.0),
        (15.0, True, 0.1, 150, False, 15.0),
        (0.2, False, 0.2, 5, True, 1.0),
        (0.25, True, 0.125, 8, True, 1.0),
        (0.1, True, 0.1, 10, True, 1.0),
        (0.05, True, 0.05, 20, True, 1.0),
    ],
)
def test_steps_and_pages(
    interval: float, high_resolution: bool, step: float, steps_per_page: int, short: bool, deadline: float
) -> None:
    """A page per interval, at least one per second; steps are not shorter than GPM allows."""
    settings = CollectionSettings(interval, high_resolution=high_resolution)

    assert settings.step == pytest.approx(step)
    assert settings.steps_per_page == steps_per_page
    assert settings.short_intervals is short
    assert settings.deadline == deadline


def test_a_plan_selects_what_a_source_has() -> None:
    """The loop computes histograms of means and dcgm-exporter's counts; it reads the mask that it counts."""
    plan = make_plan((m.SM_ACTIVE, m.SM_SHARES, m.EXP_CLOCK_COUNT), CollectionSettings(), xids_reported=True)

    assert plan.metrics == (m.SM_ACTIVE, m.CLOCK_EVENTS)
    assert plan.histograms == {m.SM_ACTIVE: [m.SM_SHARES]}
    assert plan.counts.clock == {m.EXP_CLOCK_COUNT}


@pytest.mark.parametrize(
    ("interval", "lost"),
    [(1.0, ()), (2.0, ()), (3.0, (m.ENERGY_SAMPLED,)), (15.0, (m.GPU_UTIL_SECONDS, m.ENERGY_SAMPLED))],
)
def test_samples_that_the_driver_would_overwrite(interval: float, lost: Sequence[Metric]) -> None:
    """They are not integrated, and the plan has the reason; the gauge of the same quantity is read."""
    rows = (m.GPU_UTIL, m.GPU_UTIL_SECONDS, m.ENERGY_SAMPLED)
    plan = make_plan(rows, CollectionSettings(interval), xids_reported=True)

    assert plan.not_read == dict.fromkeys(lost, "interval_too_long")
    assert set(plan.metrics) == set(rows) - set(lost)
