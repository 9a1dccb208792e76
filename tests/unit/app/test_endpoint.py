"""When a page is too old to be served, and the response then."""

from __future__ import annotations

import re
import time

import pytest

from gpu_exporter.app.endpoint import EXPIRY_INTERVALS, EXPIRY_SECONDS, NodeHealth
from gpu_exporter.pipeline.pages import NO_METRICS_YET, Page, Pages

STARTED = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the monotonic time, which the test sets."""
    now = [STARTED]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("interval", "expires"), [(0.1, EXPIRY_SECONDS), (1.0, EXPIRY_SECONDS), (60.0, EXPIRY_INTERVALS * 60.0)]
)
def test_a_page_expires(clock: list[float], interval: float, expires: float) -> None:
    """After three intervals, but not before a few seconds; until there is a new page."""
    pages = Pages()
    health = NodeHealth(interval, pages)
    assert health.liveness_problem() == health.readiness_problem() == NO_METRICS_YET
    pages.publish(Page([]))
    clock[0] = STARTED + expires
    assert health.liveness_problem() == ""
    clock[0] += 1
    assert re.fullmatch(r"no new metrics since \S+Z, \d+ s ago: the collection loop hangs", health.liveness_problem())
    assert health.readiness_problem() == health.liveness_problem()
    pages.publish(Page([]))
    assert health.liveness_problem() == ""


def test_a_page_that_cannot_be_made_says_why(clock: list[float]) -> None:
    """With the error of the collection loop, if there is one."""
    pages = Pages()
    pages.publish(Page([]))
    clock[0] += 2 * EXPIRY_SECONDS
    assert NodeHealth(1.0, pages, lambda: "it fails").liveness_problem().endswith(": it fails")
