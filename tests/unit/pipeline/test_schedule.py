"""Paces: everything is read at first, then each pace at its own period, spread over GPUs."""

from __future__ import annotations

import pytest

from gpu_exporter.model.metric import Pace
from gpu_exporter.pipeline.worker import SPREAD, ReadSchedule

ALL = frozenset(Pace)


def read(schedule: ReadSchedule, seconds: int, interval: float = 1.0) -> dict[Pace, list[int]]:
    """Read once a second; return at which seconds each pace was due."""
    due: dict[Pace, list[int]] = {pace: [] for pace in Pace}
    for second in range(seconds):
        for pace in schedule.take_due(second, interval):
            due[pace].append(second)
    return due


def test_everything_is_due_at_first() -> None:
    """And again with a new handle."""
    schedule = ReadSchedule(3)
    assert schedule.take_due(0.0, 1.0) == ALL
    assert schedule.take_due(1.0, 1.0) == {Pace.FAST}
    schedule.reset()
    assert schedule.take_due(2.0, 1.0) == ALL


@pytest.mark.parametrize(
    ("index", "steady", "slow"),
    [
        (0, [0, 5, 10, 15], [0, 15]),
        (4, [0, 2, 7, 12, 17], [0, 7]),  # half a period early, and then every period
        (SPREAD, [0, 5, 10, 15], [0, 15]),
    ],
)
def test_periods_are_spread_over_gpus(index: int, steady: list[int], slow: list[int]) -> None:
    due = read(ReadSchedule(index), 19)

    assert due[Pace.FAST] == list(range(19))
    assert (due[Pace.STEADY], due[Pace.SLOW]) == (steady, slow)


@pytest.mark.parametrize(("early", "due"), [(0.0, True), (0.5, True), (0.6, False)])
def test_half_an_interval_early_is_on_time(early: float, due: bool) -> None:
    """Otherwise a tick that comes a little early would cost another interval."""
    schedule = ReadSchedule(0)
    schedule.take_due(0.0, 1.0)

    assert (Pace.STEADY in schedule.take_due(Pace.STEADY.value - early, 1.0)) is due


@pytest.mark.parametrize(
    ("pace", "again"), [(Pace.FAST, 101), (Pace.STEADY, 105), (Pace.SLOW, 115), (Pace.RARE, 115), (Pace.STATIC, 115)]
)
def test_a_failed_read_is_repeated_soon(pace: Pace, again: int) -> None:
    """After the period of a slow pace at most, however long its own is."""
    schedule = ReadSchedule(0)
    schedule.take_due(100.0, 1.0)
    schedule.retry_soon({pace}, 100.0)
    second = next(second for second in range(101, 4000) if pace in schedule.take_due(second, 1.0))

    assert second == again


def test_a_field_that_fails_for_good_is_read_once_a_period() -> None:
    """A read that succeeds in between allows further retries."""
    schedule = ReadSchedule(0)
    reads: list[int] = []
    for second in range(600):
        due = schedule.take_due(second, 1.0)
        works = second == 285
        if Pace.RARE in due:
            reads.append(second)
        schedule.retry_soon(due & {Pace.RARE} if not works else (), second)
        schedule.retry_soon((), second)  # a read between two pages

    assert reads == [0, 15, 30, 45, 105, 165, 225, 285, 345, 360, 375, 390, 450, 510, 570]
