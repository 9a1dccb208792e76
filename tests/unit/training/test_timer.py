"""What a loop measures: step time, self time, phases, activities, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from inspect import signature
from typing import Any

import pytest

from gpu_exporter.model.job_message import ACTIVITIES, AMOUNTS, KEYS, STEP_BUCKETS
from gpu_exporter.training import StepTimer
from gpu_exporter.training.recorder import MOST_MARKS
from gpu_exporter.training.totals import MOST_PHASES
from tests.unit.training.conftest import Time

OPTIONAL = {name for name, key in KEYS.items() if key.may_miss}


def loader(time: Time, seconds: float, batches: int = 2) -> Iterator[int]:
    for batch in range(batches):
        time.pass_(seconds)
        yield batch


def run(timer: StepTimer, time: Time, *, waiting: float = 0.0) -> None:
    """Two steps of 1 s: 0.1 s data, 0.2 s forward, 0.5 s backward with waiting, 0.15 s optimizer, 0.05 s the rest."""
    for _ in timer.data(loader(time, 0.1)):
        with timer.step(tokens=100, samples=4, flops=1e9):
            with timer.phase("forward"):
                time.pass_(0.2)
            with timer.phase("backward"):
                time.pass_(0.5 - waiting)
                if waiting:
                    with timer.waiting():
                        time.pass_(waiting)
            with timer.phase("optimizer"):
                time.pass_(0.15)
        time.pass_(0.05)  # part of the next step


def test_a_step_has_everything_since_the_last_one(time: Time) -> None:
    timer = StepTimer("job")
    run(timer, time)
    message = timer.message()
    assert message["steps"] == 2
    assert message["step"]["sum"] == pytest.approx(0.95 + 1.0)  # nothing is before the first step
    assert message["activity_seconds"]["training"] == message["step"]["sum"]
    assert message["data_seconds"] == pytest.approx(0.2)
    assert message["phase_seconds"] == pytest.approx({"forward": 0.4, "backward": 1.0, "optimizer": 0.3})
    assert (message["tokens"], message["samples"], message["flops"]) == (200, 8, 2e9)
    assert message["since_step"] == pytest.approx(0.05)
    assert message["elapsed"] == pytest.approx(2.0)


@pytest.mark.drift
def test_a_step_takes_the_amounts_of_a_message() -> None:
    assert tuple(signature(StepTimer.step).parameters)[1:] == AMOUNTS, (
        "fix: give StepTimer.step in gpu_exporter/training/timer.py the AMOUNTS of gpu_exporter/model/job_message.py,"
        " and Step in gpu_exporter/training/sections.py an attribute for each"
    )


def test_a_message_has_the_keys_of_the_contract(time: Time) -> None:
    timer = StepTimer("job", dtype="bf16", uuid="GPU-1")
    required = KEYS.keys() - OPTIONAL
    assert required <= timer.message().keys() <= KEYS.keys()
    run(timer, time, waiting=0.1)
    with timer.step(**dict.fromkeys(AMOUNTS, 1.0)):
        pass
    assert timer.message().keys() == KEYS.keys() - {"pod_uid", "clock"}
    assert len(timer.message()["step"]["counts"]) == len(STEP_BUCKETS) + 1


def test_waiting_is_no_self_time_and_no_backward(time: Time) -> None:
    timer = StepTimer("job", rank=0, world_size=4)
    run(timer, time, waiting=0.4)
    message = timer.message()
    assert message["self"]["sum"] == pytest.approx(1.95 - 0.8)
    assert message["phase_seconds"]["backward"] == pytest.approx(0.2)
    assert message["phase_seconds"]["waiting"] == pytest.approx(0.8)


def test_self_time_is_left_out_while_waiting_is_unknown(time: Time) -> None:
    """Among several ranks, a step time is no self time. A single rank never waits."""
    several, alone = StepTimer("job", rank=1, world_size=2), StepTimer("job")
    for timer in (several, alone):
        run(timer, time)
    assert "self" not in several.message()
    assert "self_seconds" not in several.summary()
    assert alone.message()["self"] == alone.message()["step"]


def test_phases_with_collectives(time: Time) -> None:
    timer = StepTimer("job", rank=1, world_size=2)
    timer.mark_collectives("backward")
    run(timer, time)
    assert timer.message()["self"]["sum"] == pytest.approx(1.95 - 1.0)


@pytest.mark.parametrize("inside", [True, False])
def test_an_activity_is_no_part_of_a_step(time: Time, inside: bool) -> None:
    timer = StepTimer("job")
    for _ in range(2):
        with timer.step(), timer.phase("forward"):
            time.pass_(0.1)
            if inside:
                with timer.checkpoint():
                    time.pass_(5.0)
        if not inside:
            with timer.evaluation():
                for _ in timer.data(loader(time, 1.0)):
                    with timer.phase("forward"):
                        time.pass_(1.5)
    message = timer.message()
    activity = "checkpoint" if inside else "evaluation"
    assert message["step"]["sum"] == pytest.approx(0.2)
    assert message["phase_seconds"] == pytest.approx({"forward": 0.2})
    assert message["data_seconds"] == 0
    assert message["activity_seconds"][activity] == pytest.approx(10.0)
    assert message["activity"] == "training"


def test_an_activity_that_is_not_over_counts_already(time: Time) -> None:
    timer = StepTimer("job")
    with timer.checkpoint():
        time.pass_(3.0)
        with timer.evaluation():
            time.pass_(2.0)
            message = timer.message()
    assert message["activity"] == "evaluation"
    assert message["activity_seconds"]["checkpoint"] == pytest.approx(3.0)
    assert message["activity_seconds"]["evaluation"] == pytest.approx(2.0)


def test_steps_of_the_warm_up_have_no_times(time: Time) -> None:
    """They count, and the next step begins after the warm-up."""
    timer = StepTimer("job")
    for seconds in (0.1, 30.0, 0.1):
        if seconds > 1:
            with timer.compile(), timer.step(tokens=1):
                time.pass_(seconds)
        else:
            with timer.step(tokens=1):
                time.pass_(seconds)
    message = timer.message()
    assert (message["steps"], sum(message["step"]["counts"]), message["tokens"]) == (3, 2, 3)
    assert message["step"]["sum"] == pytest.approx(0.2)
    assert message["activity_seconds"]["compile"] == pytest.approx(30.0)


def test_a_step_that_fails_does_not_count(time: Time) -> None:
    timer = StepTimer("job")
    with pytest.raises(RuntimeError), timer.step(tokens=5):
        raise RuntimeError("out of memory")
    assert (timer.message()["steps"], timer.totals.amounts["tokens"]) == (0, 0)


def test_amounts_that_are_known_later_and_those_that_make_no_sense(time: Time) -> None:
    timer = StepTimer("job")
    with timer.step() as step:
        step.tokens = 7
    with timer.step(tokens=float("nan"), samples=-3):
        pass
    with timer.step(tokens=type("Tensor", (), {"is_cuda": True})(), samples=float("inf")):
        pass
    assert timer.totals.amounts["tokens"] == 7
    assert "samples" not in timer.message()


def test_names_of_phases_are_bounded(time: Time) -> None:
    timer = StepTimer("job", rank=0, world_size=2)
    with timer.step():
        for number in range(100):
            with timer.phase(f"{number} {'x' * 500}"):
                time.pass_(0.1)
        with timer.waiting():
            time.pass_(1.0)
    phases = timer.message()["phase_seconds"]
    assert len(phases) <= 26
    assert max(map(len, phases)) <= 48
    assert sum(phases.values()) == pytest.approx(11.0)
    assert timer.message()["self"]["sum"] == pytest.approx(10.0)


def test_the_object_of_a_phase_is_kept(time: Time) -> None:
    """For as many names as a message has."""
    timer = StepTimer("job")
    assert timer.phase("forward") is timer.phase("forward")
    names = [str(number) for number in range(MOST_PHASES)]
    assert [timer.phase(name) is timer.phase(name) for name in names] == [True] * (MOST_PHASES - 1) + [False]


def test_a_phase_beyond_its_step(time: Time) -> None:
    """Mistakes in a loop never raise: the step has no such phase."""
    timer = StepTimer("job")
    phase = timer.phase("forward")
    with timer.step():
        phase.__enter__()
        time.pass_(1.0)
    phase.__exit__()
    phase.__exit__()
    with timer.step(), timer.phase("backward"):
        time.pass_(1.0)
    assert timer.message()["phase_seconds"] == pytest.approx({"backward": 1.0})


def test_a_loop_without_steps_keeps_nothing(time: Time) -> None:
    timer = StepTimer("job")
    for _ in range(10_000):
        with timer.phase("forward"):
            time.pass_(0.1)
    assert len(timer.recorder._marks) <= 2 * MOST_MARKS


def test_the_loader_keeps_its_length_and_attributes(time: Time) -> None:
    class Batches(list[int]):
        sampler = "distributed"

    data: Any = StepTimer("job").data(Batches([1, 2, 3]))
    assert copy(data).sampler == "distributed"
    assert (len(data), data.sampler, list(data), list(data)) == (3, "distributed", [1, 2, 3], [1, 2, 3])


def test_the_summary_is_flat_numbers(time: Time) -> None:
    timer = StepTimer("job")
    assert timer.summary() == {"steps": 0, "elapsed_seconds": 0}
    run(timer, time)
    with timer.evaluation():
        time.pass_(2.0)
    summary = timer.summary()
    assert (summary["step_seconds"], summary["step_seconds_max"]) == pytest.approx((0.975, 1.0))
    assert summary["data_share"] == pytest.approx(0.2 / 1.95)
    assert summary["tokens_per_second"] == pytest.approx(200 / 1.95)
    assert summary["phase_seconds/forward"] == pytest.approx(0.2)
    assert summary["goodput"] == pytest.approx(1.95 / 4.0)
    assert summary["evaluation_seconds"] == pytest.approx(2.0)
    activities = {key for key in summary if key in {f"{activity}_seconds" for activity in ACTIVITIES}}
    assert activities == {"evaluation_seconds"}  # none that took no time


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 4, "world_size": 4}, "rank 4 of 4 ranks: ranks count from 0 to world_size - 1"),
        ({"rank": -1}, "rank -1 of 1 ranks: ranks count from 0 to world_size - 1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StepTimer("job", **arguments)


def test_an_unknown_activity() -> None:
    with pytest.raises(ValueError, match="'lunch': use one of training, evaluation, checkpoint, compile"):
        StepTimer("job").activity("lunch")
