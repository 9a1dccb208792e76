"""Rare steps that take many times as long as usual are no part of the self time, and nothing of them is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu_exporter.catalogue import job_signals
from gpu_exporter.diagnosis.training_loops import RATE_SECONDS
from gpu_exporter.model.job_message import LONG_STEPS, WAITING
from gpu_exporter.training import StepTimer
from gpu_exporter.training.recorder import ONLY_WAITING
from gpu_exporter.training.totals import MOST_PHASES, OTHER, RARE_SECONDS, StepTotals
from tests.unit.training.conftest import Time

USUAL, WAITS, LONG = 0.1, 0.02, 5.0


def step(totals: StepTotals, own: float = USUAL, waits: float = WAITS, weight: int = 1) -> int:
    """Add a step, which has this self time, all of it in a phase."""
    totals.steps += 1
    return totals.add_step(own + waits, [["forward", own], [WAITING, waits]], ONLY_WAITING, weight)


def trained(own: Callable[[int], float], steps: int) -> StepTotals:
    totals = StepTotals()
    for number in range(steps):
        step(totals, own(number))
    return totals


@pytest.mark.parametrize("at", [150, 299])
def test_a_long_step_is_set_aside(at: int) -> None:
    totals = trained(lambda number: LONG if number == at else USUAL, 300)
    assert totals.phases == pytest.approx({"forward": 299 * USUAL, WAITING: 300 * WAITS, LONG_STEPS: LONG})
    assert sum(totals.phases.values()) == pytest.approx(totals.step.sum)
    assert totals.own.count == 299
    assert totals.own.sum == pytest.approx(299 * USUAL)
    assert totals.own_squares == pytest.approx(299 * USUAL**2)
    assert totals.step.count == 300


FREQUENT: dict[str, Callable[[int], float]] = {
    "one in 20": lambda number: 1.0 if number % 20 == 19 else USUAL,
    "one in 64, every 8 s": lambda number: 2.0 if number % 64 == 63 else USUAL,
    "one in 10 of slow steps": lambda number: 50.0 if number % 10 == 9 else 5.0,
    "the first ones": lambda number: LONG if number < 4 else USUAL,
    "lengths that differ": lambda number: USUAL * (1, 3, 1, 2, 1, 6, 2)[number % 7],
}


@pytest.mark.parametrize("name", FREQUENT)
def test_frequent_long_steps_are_self_time(name: str) -> None:
    totals = trained(FREQUENT[name], 3000)
    assert LONG_STEPS not in totals.phases
    assert totals.own.count == totals.step.count


def test_steps_that_have_become_longer_are_self_time() -> None:
    """All but the first one, which nothing tells from a rare one."""
    totals = trained(lambda number: USUAL * (1 if number < 300 else 20), 600)
    assert totals.own.count == 599


def test_a_step_in_which_a_rank_waits_long_is_not_long() -> None:
    """Another rank saves a checkpoint."""
    totals = trained(lambda number: USUAL, 200)
    step(totals, waits=LONG)
    assert totals.own.count == 201
    assert totals.phases[WAITING] == pytest.approx(200 * WAITS + LONG)


def test_a_long_step_stands_for_itself_only() -> None:
    """Where one step of eight is measured, a usual one stands for the others."""
    totals = StepTotals()
    for _ in range(200):
        assert step(totals, weight=8) == 0
    assert step(totals, LONG, weight=8) == 7
    assert step(totals, weight=15) == 0
    assert totals.phases == pytest.approx({"forward": 1615 * USUAL, WAITING: 1616 * WAITS, LONG_STEPS: LONG})


def test_other_phases_leave_room_for_long_steps() -> None:
    """Names beyond the limit are added up; a long step leaves this sum, too."""
    totals = StepTotals()
    names = [f"part {number}" for number in range(MOST_PHASES + 2)]
    for number in range(200):
        own = LONG if number == 150 else USUAL
        totals.steps += 1
        totals.add_step(own, [[name, own / len(names)] for name in names], ONLY_WAITING)
    assert totals.phases[LONG_STEPS] == pytest.approx(LONG)
    assert totals.phases[OTHER] == pytest.approx(199 * 2 * USUAL / len(names))


def test_a_phase_of_a_long_step_alone_is_not_negative() -> None:
    """By rounding: the exporter would accept no message any more."""
    totals = trained(lambda number: USUAL, 200)
    totals.add_step(LONG, [["save", seconds] for seconds in (0.7, 0.1, 0.3)], ONLY_WAITING)
    assert 0.7 + 0.1 + 0.3 - 0.7 - 0.1 - 0.3 < 0.0
    assert totals.phases["save"] == 0.0


def test_the_loader_of_a_long_step_is_data(time: Time) -> None:
    timer = StepTimer("job", rank=0, world_size=2)
    timer.know_waiting()

    def batches() -> Iterator[int]:
        for number in range(200):
            time.pass_(LONG if number == 150 else 0.0)
            yield number

    for number in timer.data(batches()):
        with timer.step(), timer.phase("forward"):
            time.pass_(10 * USUAL if number == 150 else USUAL)
    message = timer.message()
    assert message["phase_seconds"] == pytest.approx({"forward": 199 * USUAL, LONG_STEPS: 10 * USUAL})
    assert message["data_seconds"] == pytest.approx(LONG)
    assert sum(message["self"]["counts"]) == 199


def test_so_few_long_steps_decide_no_verdict() -> None:
    """The mean of n equal values among many zeros is less than the square root of n standard errors above zero."""
    assert RATE_SECONDS / RARE_SECONDS < job_signals.STANDARD_ERRORS**2
