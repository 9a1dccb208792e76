"""Ranks keep their sums across restarts, within limits."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.jobs.message import decode
from gpu_exporter.jobs.store import (
    FORGET_SECONDS,
    MOST_JOBS,
    MOST_PER_USER,
    MOST_RANKS,
    SILENT_SECONDS,
    RankStore,
    Result,
    Sender,
)
from tests.support.job_sender import encoded, message

GPU = Sender(1000, "GPU-1", verified=True)
CLAIMED = Sender(1000, "GPU-1", verified=False)


def take(store: RankStore, sender: Sender = GPU, now: float = 0.0, **changes: Any) -> Result:
    return store.take(decode(encoded(message(**changes))), sender, now, 1000 + now)


def steps(store: RankStore, now: float = 0.0) -> dict[tuple[str, int, str], float]:
    return {key: state.totals()["steps", ""] for key, state in store.shown(now)}


def test_sums_continue_when_the_process_is_started_again() -> None:
    store = RankStore()
    assert take(store, steps=5) is take(store, steps=8) is Result.ACCEPTED
    assert take(store, attempt="b", steps=2) is Result.ACCEPTED
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 10}
    assert take(store, attempt="c", steps=1) is Result.ACCEPTED
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 11}


def test_the_start_is_that_of_the_first_process() -> None:
    """Goodput is the time in steps of all processes, since the first one started."""
    store = RankStore()
    take(store, now=10, steps=5, elapsed=7)
    take(store, now=100, attempt="b", steps=2, elapsed=3)
    ((_, state),) = store.shown(100)
    assert (state.started_at, state.restarts) == (1003, 1)


def test_an_ended_process_cannot_come_back() -> None:
    """Two processes that say they are the same rank would otherwise add their sums again and again."""
    store = RankStore()
    take(store, steps=5)
    take(store, attempt="b", steps=2)
    assert take(store, attempt="a", steps=6) is Result.OLD_ATTEMPT
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 7}


def test_sums_that_go_backwards_are_rejected() -> None:
    store = RankStore()
    take(store, steps=5)
    assert take(store, steps=4) is Result.BACKWARDS
    assert take(store, steps=5, data_seconds=0.0) is Result.BACKWARDS
    assert take(store, steps=5) is Result.ACCEPTED
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 5}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=30))
def test_no_sum_ever_goes_backwards(messages: list[tuple[str, int]]) -> None:
    store, before = RankStore(), dict[tuple[str, str], float]()
    for attempt, done in messages:
        take(store, attempt=attempt, steps=done)
        ((_, state),) = store.shown(0)
        totals = dict(state.totals())
        assert all(totals[key] >= value for key, value in before.items())
        before = totals


def test_the_time_of_a_step_does_not_change_until_the_next_step() -> None:
    store = RankStore()
    take(store, now=0, steps=1, since_step=1)
    take(store, now=2, steps=1, since_step=3.01)
    assert [state.stepped_at for _, state in store.shown(2)] == [999]
    take(store, now=3, steps=2, since_step=0.5)
    assert [state.stepped_at for _, state in store.shown(3)] == [1002.5]
    other = RankStore()
    take(other, steps=0)
    assert [state.stepped_at for _, state in other.shown(0)] == [None]


def test_a_silent_rank_is_not_shown_and_continues_later() -> None:
    store = RankStore()
    take(store, steps=5)
    later = SILENT_SECONDS + 1
    assert steps(store, later) == {}
    store.forget(later)
    assert take(store, now=later, attempt="b", steps=1) is Result.ACCEPTED
    assert steps(store, later) == {("llm-7b", 0, "GPU-1"): 6}
    much_later = later + FORGET_SECONDS + 1
    store.forget(much_later)
    take(store, now=much_later, attempt="c", steps=1)
    assert steps(store, much_later) == {("llm-7b", 0, "GPU-1"): 1}


def test_another_user_cannot_write_to_a_rank() -> None:
    store = RankStore()
    take(store, steps=5)
    assert take(store, Sender(1001, "GPU-1", verified=True), steps=9) is Result.OTHER_SENDER
    assert take(store, Sender(1001, "GPU-1", verified=False), steps=9) is Result.OTHER_SENDER
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 5}
    later = SILENT_SECONDS + 1
    assert take(store, Sender(1001, "GPU-1", verified=True), later, steps=1) is Result.ACCEPTED
    assert steps(store, later) == {("llm-7b", 0, "GPU-1"): 1}


def test_another_process_needs_proof_where_the_first_one_has_it() -> None:
    """All containers of a node often run as root, so the user alone proves little."""
    store = RankStore()
    take(store, steps=5)
    assert take(store, CLAIMED, attempt="b", steps=1) is Result.OTHER_SENDER
    assert take(store, CLAIMED, steps=6) is Result.ACCEPTED  # the driver need not list it at all times
    assert take(store, GPU, attempt="b", steps=1) is Result.ACCEPTED
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 7}


def test_a_process_on_the_gpu_displaces_a_claim_of_another_user() -> None:
    store = RankStore()
    take(store, Sender(1001, "GPU-1", verified=False), steps=9)
    assert take(store, GPU, steps=2) is Result.ACCEPTED
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 2}


def test_a_rank_moves_to_the_gpu_where_the_driver_lists_it() -> None:
    store = RankStore()
    take(store, CLAIMED._replace(uuid="GPU-2"), steps=2)
    take(store, GPU, steps=3)
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 3}


def test_jobs_ranks_and_ranks_of_a_user_are_limited() -> None:
    store = RankStore()
    results = [take(store, CLAIMED, job_id=f"job-{n}") for n in range(10_000)]
    assert results.count(Result.ACCEPTED) == MOST_JOBS
    assert results.count(Result.LIMIT) == 10_000 - MOST_JOBS

    store = RankStore()
    results = [take(store, CLAIMED, rank=n, world_size=1000) for n in range(1000)]
    assert results.count(Result.ACCEPTED) == MOST_PER_USER

    store = RankStore()
    results = [take(store, CLAIMED._replace(uid=n), rank=n, world_size=1000) for n in range(1000)]
    assert results.count(Result.ACCEPTED) == MOST_RANKS


def test_a_process_on_a_gpu_finds_room_although_others_claim_everything() -> None:
    store = RankStore()
    for n in range(1000):
        take(store, CLAIMED, job_id=f"job-{n}")
    assert take(store, GPU, job_id="real") is Result.ACCEPTED
    assert ("real", 0, "GPU-1") in steps(store)
    assert len(steps(store)) == MOST_JOBS


def test_phases_of_all_processes_of_a_rank_are_limited() -> None:
    store = RankStore()
    results = [take(store, attempt=str(n), phase_seconds={f"{n}-{i}": 1 for i in range(16)}) for n in range(4)]
    assert results == [Result.ACCEPTED, Result.ACCEPTED, Result.LIMIT, Result.LIMIT]
