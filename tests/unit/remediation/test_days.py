"""A day of operation with nine faults: each cordon and each drain has a reason, and none exceeds the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.remediation_days import report
from tests.support.remediation_days import GUARDED, POOL, STORM, Days

pytestmark = pytest.mark.slow


def test_a_day() -> None:
    """Chores of people, exporters and controllers are no reason. `make soak` runs thirty days with twenty faults."""
    days = Days(1, 1.0, 9)
    days.run()
    days.check_settled()
    assert days.unjustified == []
    calm = [each for each in days.incidents if not each.storm]
    assert all(each.cordoned for each in calm)
    assert all(each.cordoned and each.cordoned - each.began < 100 for each in calm if not each.waited_for)
    assert any(each.drained for each in calm)
    assert all(each.timed_out for each in calm if each.node in GUARDED)
    storm = [each for each in days.incidents if each.storm]
    assert len(storm) == STORM
    assert sum(each.cordoned is None for each in storm) >= STORM - 1
    assert "cordoned without or before a confirmed fault: 0" in report(days)


def test_the_days_find_a_controller_that_is_too_quick() -> None:
    """Errors that come and go within a minute are no reason."""
    days = Days(1, 0.5, 0, replace(POOL, confirm="1s"))
    days.run()
    assert days.unjustified
