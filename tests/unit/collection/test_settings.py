"""Intervals: how often the clock ticks, how often a page is made, and which metrics a source is asked for."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.collection.settings import CollectionSettings, make_plan


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
    """A page at each interval, but at least one a second; parts of an interval are no shorter than GPM can be read."""
    settings = CollectionSettings(interval, high_resolution=high_resolution)

    assert settings.step == pytest.approx(step)
    assert settings.steps_per_page == steps_per_page
    assert settings.short_intervals is short
    assert settings.deadline == deadline


def test_a_plan_asks_for_what_a_source_has() -> None:
    """Histograms of means and dcgm-exporter's counts are made here; the mask that is counted is read."""
    plan = make_plan((m.SM_ACTIVE, m.SM_SHARES, m.EXP_CLOCK_COUNT), CollectionSettings(), xids_reported=True)

    assert plan.metrics == (m.SM_ACTIVE, m.CLOCK_EVENTS)
    assert plan.histograms == {m.SM_ACTIVE: [m.SM_SHARES]}
    assert plan.counts.clock == {m.EXP_CLOCK_COUNT}
