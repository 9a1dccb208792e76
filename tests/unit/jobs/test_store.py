"""Ranks keep their sums across restarts, within limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.jobs.message import MOST_TEXT, decode
from gpu_exporter.jobs.places import SenderPlace
from gpu_exporter.jobs.store import (
    FORGET_SECONDS,
    LATE_SECONDS,
    OF_NODE,
    OF_NODE_UNVERIFIED,
    OF_PROCESS,
    OF_USER,
    OF_USER_UNVERIFIED,
    RANK_SERIES,
    SILENT_SECONDS,
    SUCCEED_SECONDS,
    Accepted,
    PastRank,
    RankKey,
    RankStore,
    Sender,
    Use,
)
from gpu_exporter.model.job_message import LONGEST_PHASE, MOST_PHASES
from tests.support.job_sender import encoded, message

PLACE = SenderPlace("GPU-1")
GPU = Sender(1000, 41, PLACE, verified=True)
CLAIMED = Sender(1000, 0, PLACE, verified=False)
MOVED = CLAIMED._replace(place=SenderPlace("GPU-2"))
ACCEPTED = Accepted.ACCEPTED
OTHER_PROCESS = GPU._replace(pid=42)
# Long enough for any process in these tests to have run.
LATER = 60.0


def take(store: RankStore, sender: Sender = GPU, now: float = 0.0, **changes: Any) -> Accepted:
    return store.take(decode(encoded(message(**changes))), sender, now, 1000 + now)


def steps(store: RankStore, now: float = 0.0) -> dict[tuple[str, int, str], float]:
    return {(key.job_id, key.rank, key.place.uuid): state.totals()["steps", ""] for key, state in store.shown(now)}


def test_sums_continue_when_the_process_is_started_again() -> None:
    store = RankStore()
    assert take(store, steps=5) is take(store, steps=8) is Accepted.ACCEPTED
    assert take(store, OTHER_PROCESS, LATER, attempt="b", steps=2) is Accepted.ACCEPTED
    assert steps(store, LATER) == {("llm-7b", 0, "GPU-1"): 10}
    assert take(store, OTHER_PROCESS, 2 * LATER, attempt="c", steps=1) is Accepted.ACCEPTED
    assert steps(store, 2 * LATER) == {("llm-7b", 0, "GPU-1"): 11}


def test_a_process_succeeds_one_that_is_silent() -> None:
    """A sender that makes up processes would otherwise take the place of the one that runs."""
    store = RankStore()
    take(store, now=100, steps=5)
    soon, late = 100 + SUCCEED_SECONDS - 0.1, 100 + SUCCEED_SECONDS
    assert take(store, OTHER_PROCESS, soon, attempt="b", steps=1) is Accepted.OVERLAP
    assert take(store, CLAIMED._replace(pid=42), soon, attempt="b", steps=1) is Accepted.OTHER_SENDER
    assert take(store, GPU, soon, attempt="b", steps=1) is Accepted.ACCEPTED  # a new timer in the same process
    assert take(store, OTHER_PROCESS, late + SUCCEED_SECONDS, attempt="c", steps=1) is Accepted.ACCEPTED


def test_a_process_of_which_nothing_is_known_succeeds_one_that_is_silent() -> None:
    """PID 0 is any process that is not visible."""
    store = RankStore()
    take(store, CLAIMED, now=100, steps=5)
    assert take(store, CLAIMED, 101, attempt="b", steps=1) is Accepted.OVERLAP
    assert take(store, CLAIMED, 104, attempt="b", steps=1) is Accepted.ACCEPTED


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 400)), max_size=40))
def test_made_up_processes_do_not_raise_the_time_beyond_the_clock(messages: list[tuple[float, int]]) -> None:
    """Whatever a sender says about its processes, they cannot have trained for longer than the time that passed."""
    store, now = RankStore(), 1000.0
    take(store, now=now, steps=0, elapsed=0)
    for number, (pause, done) in enumerate(messages):
        now += pause
        take(store, now=now, attempt=str(number), steps=done)
        ((_, state),) = store.shown(0.0)
        assert state.totals()["activity_seconds", "training"] <= now - 1000 + LATE_SECONDS


def test_the_start_is_that_of_the_first_process() -> None:
    """Goodput is the time in steps of all processes, since the first one started."""
    store = RankStore()
    take(store, now=10, steps=5, elapsed=7)
    take(store, now=100, attempt="b", steps=2, elapsed=3)
    ((_, state),) = store.shown(100)
    assert (state.started_at, state.past.processes) == (1003, 1)


def test_an_ended_process_cannot_come_back() -> None:
    """Two processes that say they are the same rank would otherwise add their sums again and again."""
    store = RankStore()
    take(store, steps=5)
    take(store, now=LATER, attempt="b", steps=2)
    assert take(store, now=2 * LATER, attempt="a", steps=6) is Accepted.OLD_ATTEMPT
    assert steps(store, LATER) == {("llm-7b", 0, "GPU-1"): 7}


def test_sums_that_go_backwards_are_rejected() -> None:
    store = RankStore()
    take(store, steps=5)
    assert take(store, steps=4) is Accepted.BACKWARDS
    assert take(store, steps=5, data_seconds=0.0) is Accepted.BACKWARDS
    assert take(store, steps=5) is Accepted.ACCEPTED
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 5}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=30))
def test_no_sum_ever_goes_backwards(messages: list[tuple[str, int]]) -> None:
    store, before = RankStore(), dict[tuple[str, str], float]()
    for number, (attempt, done) in enumerate(messages):
        now = 20.0 * number
        take(store, now=now, attempt=attempt, steps=done)
        ((_, state),) = store.shown(0.0)
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
    assert take(store, now=later, attempt="b", steps=1) is Accepted.ACCEPTED
    assert steps(store, later) == {("llm-7b", 0, "GPU-1"): 6}
    much_later = later + FORGET_SECONDS + 1
    store.forget(much_later)
    take(store, now=much_later, attempt="c", steps=1)
    assert steps(store, much_later) == {("llm-7b", 0, "GPU-1"): 1}


def ended(store: RankStore, now: float) -> list[int]:
    return [key.rank for key in store.ended(now)]


def test_a_rank_ends_while_others_train() -> None:
    """One that closed its connection after some seconds, one that only is silent later; nobody if the job is over."""
    store = RankStore()
    for rank in range(3):
        take(store, world_size=3, rank=rank, attempt=f"of-{rank}")
    store.close("of-2")
    for now in (2.0, 4.0, 6.0, 20.0, 31.0):
        take(store, world_size=3, now=now, rank=0, attempt="of-0", steps=10 + int(now))
        assert ended(store, now) == {2.0: [], 4.0: [], 6.0: [2], 20.0: [2], 31.0: [1, 2]}[now]
    take(store, world_size=3, now=32.0, rank=2, attempt="successor")
    assert ended(store, 32.0) == [1]
    take(store, world_size=3, now=33.0, rank=0, attempt="of-0", steps=50, activity="checkpoint")
    take(store, world_size=3, now=33.0, rank=2, attempt="successor", activity="checkpoint")
    assert ended(store, 33.0) == []


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(
    ("ranks", "sizes", "gone"),
    [
        ([0, 1, 2], [3, 3, 3], []),
        ([0], [1], []),
        ([0, 1, 2], [4, 4, 4], [3]),  # it does not come back
    ],
)
def test_a_job_that_is_started_again_with_fewer_ranks(
    closes: bool, ranks: list[int], sizes: list[int], gone: list[int]
) -> None:
    """Those that it has no more are gone on purpose."""
    store = RankStore()
    for rank in range(4):
        take(store, world_size=4, rank=rank, attempt=f"first-{rank}")
        if closes:
            store.close(f"first-{rank}")
    for now in (50.0, 60.0, 70.0):
        for rank, size in zip(ranks, sizes, strict=True):
            take(store, world_size=size, rank=rank, now=now, attempt=f"second-{rank}", elapsed=now - 40)
    assert ended(store, 70.0) == gone
    assert {(key.rank, state.past.processes) for key, state in store.shown(70.0)} == {(rank, 1) for rank in ranks}


def test_ranks_that_do_not_know_how_many_they_are_may_end() -> None:
    """Each states another number, and none of them was started again."""
    store = RankStore()
    for now in (0.0, 20.0, 40.0):
        for rank in range(3 if now else 4):
            take(
                store,
                world_size=rank + 1,
                rank=rank,
                now=now,
                attempt=f"of-{rank}",
                steps=10 + int(now),
                elapsed=now + 100,
            )
    assert ended(store, 40.0) == [3]


@pytest.mark.parametrize("resumes", [True, False])
def test_a_job_that_was_stopped(resumes: bool) -> None:
    """Its ranks resume one after another: none of them has ended while others train, but one that does not resume."""
    store = RankStore()
    for rank in range(3):
        take(store, world_size=3, rank=rank, attempt=f"of-{rank}")
    for now in (45.0, 46.0, 47.0, 51.0):
        for rank in (0, 1, 2) if resumes and now > 46 else (0, 1):
            take(store, world_size=3, now=now, rank=rank, attempt=f"of-{rank}", steps=10 + int(now))
        assert ended(store, now) == ([2] if now == 51 and not resumes else [])


def test_a_loop_that_has_ended_does_not_stand_still() -> None:
    """Its sums are shown for a while, the time of its last step for the seconds in which it may connect again."""
    store = RankStore()
    take(store)
    store.close("a")
    shown = [[state.stepped_at is None for _, state in store.shown(now)] for now in (4.0, 6.0, 29.0, 31.0)]
    assert shown == [[False], [True], [True], []]


def test_ranks_that_end_together_have_not_ended_while_others_train() -> None:
    store = RankStore()
    for rank in range(3):
        take(store, world_size=3, now=rank / 2, rank=rank, attempt=f"of-{rank}")
        store.close(f"of-{rank}")
    assert [ended(store, now / 2) for now in range(100)] == [[]] * 100


def test_another_user_cannot_write_to_a_rank() -> None:
    store = RankStore()
    take(store, steps=5)
    assert take(store, GPU._replace(uid=1001), steps=9) is Accepted.OTHER_SENDER
    assert take(store, CLAIMED._replace(uid=1001), steps=9) is Accepted.OTHER_SENDER
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 5}
    later = SILENT_SECONDS + 1
    assert take(store, GPU._replace(uid=1001), later, steps=1) is Accepted.ACCEPTED
    assert steps(store, later) == {("llm-7b", 0, "GPU-1"): 1}


def test_another_process_needs_proof_where_the_first_one_has_it() -> None:
    """All containers of a node often run as root, so the user alone proves little."""
    store = RankStore()
    take(store, steps=5)
    assert take(store, CLAIMED, attempt="b", steps=1) is Accepted.OTHER_SENDER
    assert take(store, CLAIMED, steps=6) is Accepted.ACCEPTED  # the driver need not list it at all times
    assert take(store, GPU, 3, attempt="b", steps=1) is Accepted.ACCEPTED
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 7}


def test_a_process_on_the_gpu_displaces_a_claim_of_another_user() -> None:
    store = RankStore()
    take(store, CLAIMED._replace(uid=1001), steps=9)
    assert take(store, GPU, steps=2) is Accepted.ACCEPTED
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 2}


def test_a_rank_moves_to_the_gpu_where_the_driver_lists_it() -> None:
    store = RankStore()
    take(store, CLAIMED._replace(place=SenderPlace("GPU-2")), steps=2)
    take(store, GPU, steps=3)
    assert steps(store) == {("llm-7b", 0, "GPU-1"): 3}


# Use two phases each.
SERIES = RANK_SERIES + 2
VISIBLE = [GPU._replace(pid=pid) for pid in range(100, 1100)]


@pytest.mark.parametrize(
    ("senders", "is_job", "accepted"),
    [
        ([CLAIMED] * 1000, True, OF_USER_UNVERIFIED.jobs),
        ([CLAIMED] * 1000, False, OF_USER_UNVERIFIED.series // SERIES),
        (VISIBLE, True, OF_USER.jobs),
        (VISIBLE, False, OF_USER.series // SERIES),
        ([CLAIMED._replace(uid=uid) for uid in range(1000)], True, OF_NODE_UNVERIFIED.jobs),
        ([CLAIMED._replace(uid=uid) for uid in range(1000)], False, OF_NODE_UNVERIFIED.jobs),
        ([CLAIMED._replace(uid=uid % 8) for uid in range(1000)], False, OF_NODE_UNVERIFIED.series // SERIES),
        ([GPU._replace(uid=uid % 8, pid=uid) for uid in range(1000)], False, OF_NODE.series // SERIES),
    ],
    ids=["jobs of a user", "ranks", "verified jobs", "verified ranks", "jobs", "users", "ranks of users", "all"],
)
def test_jobs_and_ranks_of_a_user_and_of_all_are_limited(senders: list[Sender], is_job: bool, accepted: int) -> None:
    store = RankStore()
    for number, sender in enumerate(senders):
        changes = {"job_id": f"job-{number}"} if is_job else {"rank": number, "world_size": 1000}
        assert take(store, sender, **changes) in (Accepted.ACCEPTED, Accepted.LIMIT)
    assert len(steps(store)) == accepted


def test_a_process_is_few_ranks() -> None:
    """Otherwise one process of a user could use up the ranks and jobs of all of them. Those that ended make room."""
    store = RankStore()
    results = [take(store, job_id=f"job-{n}") for n in range(100)]
    assert results.count(Accepted.ACCEPTED) == OF_PROCESS.ranks
    assert take(store, OTHER_PROCESS, job_id="other") is Accepted.ACCEPTED
    assert take(store, now=SILENT_SECONDS + 1, job_id="later") is Accepted.ACCEPTED
    assert ("later", 0, "GPU-1") in steps(store, SILENT_SECONDS + 1)


def test_a_process_on_a_gpu_finds_room_although_others_claim_everything() -> None:
    store = RankStore()
    for n in range(1000):
        take(store, CLAIMED._replace(uid=n), job_id=f"job-{n}")
    assert take(store, GPU, job_id="real") is Accepted.ACCEPTED
    assert ("real", 0, "GPU-1") in steps(store)
    assert len(steps(store)) == OF_NODE.jobs


def test_ranks_on_two_instances_of_a_gpu_are_two() -> None:
    store = RankStore()
    for number in "12":
        take(store, GPU._replace(place=SenderPlace("GPU-1", (("GPU_I_ID", number),))), attempt=number)
    assert [key for key, _ in store.shown(0)] == [
        RankKey("llm-7b", 0, SenderPlace("GPU-1", (("GPU_I_ID", number),))) for number in "12"
    ]


Q32 = tuple(f"q{n}" for n in range(MOST_PHASES))


@pytest.mark.parametrize(
    ("before", "sender", "sent", "shown", "shortened"),
    [
        ((), GPU, Q32, set(Q32), 0),
        ((), GPU, ("x" * LONGEST_PHASE, "y" * (LONGEST_PHASE + 1), "z"), {"x" * LONGEST_PHASE, "z"}, 1),
        ((), GPU, ("\u0444" * LONGEST_PHASE,), {"\u0444" * LONGEST_PHASE}, 0),
        ([(OTHER_PROCESS, Q32)], GPU, Q32, set(Q32), 0),
        ([(OTHER_PROCESS, Q32[1:])], GPU, ("a", "b", *Q32[2:4]), {"a", *Q32[2:4]}, 1),
        ([(OTHER_PROCESS, Q32[:16]), (GPU._replace(pid=43), Q32[16:])], GPU, ("a", "q7"), {"q7"}, 1),
        ([(OTHER_PROCESS._replace(uid=1001), Q32)], GPU, ("a",), {"a"}, 0),
        ([(CLAIMED, Q32)], GPU, ("a",), {"a"}, 0),
        ([(GPU, Q32)], CLAIMED, ("a", "q7"), {"q7"}, 1),
    ],
    ids=["32", "long", "characters", "shared", "33", "two ranks", "another user", "verified", "unverified"],
)
def test_the_ranks_of_a_job_share_names_of_phases(
    before: list[tuple[Sender, tuple[str, ...]]], sender: Sender, sent: tuple[str, ...], shown: set[str], shortened: int
) -> None:
    """A phase that does not fit is dropped; everything else of the message is used."""
    store = RankStore()
    for number, (other, phases) in enumerate(before):
        assert take(store, other, rank=number, world_size=9, phase_seconds=dict.fromkeys(phases, 1)) is ACCEPTED
    assert take(store, sender, rank=8, world_size=9, steps=5, phase_seconds=dict.fromkeys(sent, 1)) is ACCEPTED
    ((_, state),) = (rank for rank in store.shown(0.0) if rank[0].rank == 8)
    assert {part for name, part in state.totals() if name == "phase_seconds"} == shown == state.phases
    assert (state.totals()["steps", ""], store.shortened) == (5, shortened)


def test_phases_of_all_processes_of_a_rank_are_limited() -> None:
    store = RankStore()
    for number in range(4):
        phases = {f"{number}-{n}": 1 for n in range(20)}
        assert take(store, now=LATER * number, attempt=str(number), phase_seconds=phases) is ACCEPTED
    ((_, state),) = store.shown(3 * LATER)
    assert state.phases == {*(f"0-{n}" for n in range(20)), *(f"1-{n}" for n in range(12))}
    assert store.shortened == 3


def test_a_phase_that_was_dropped_is_taken_once_there_is_room() -> None:
    store = RankStore()
    take(store, OTHER_PROCESS, rank=1, phase_seconds=dict.fromkeys(Q32, 1))
    take(store, phase_seconds={"a": 1})
    store.forget(FORGET_SECONDS + 1)
    take(store, now=FORGET_SECONDS + 1, phase_seconds={"a": 2})
    ((key, state),) = store.shown(FORGET_SECONDS + 1)
    assert (key.rank, set(state.phases), store.shortened) == (0, {"a"}, 1)


ATTACK = {"job_id": '"' * MOST_TEXT, "phase_seconds": {'"' * (LONGEST_PHASE - 2) + f"{n:2}": 1 for n in range(32)}}


def attack(store: RankStore, users: Iterable[int], *, verified: bool, now: float = 0.0) -> None:
    """Let 16 processes of each user send for four ranks with the longest names."""
    for uid in users:
        for number in range(64):
            sender = Sender(uid, 100 + number // 4, PLACE, verified)
            take(store, sender, now, **{**ATTACK, "job_id": f"{number // 4:128}"}, rank=number, world_size=64)


@pytest.mark.parametrize(
    ("users", "verified", "most"),
    [
        ([1], False, OF_USER_UNVERIFIED),
        ([1], True, OF_USER),
        (range(8), False, OF_NODE_UNVERIFIED),
        (range(8), True, OF_NODE),
    ],
)
def test_users_are_limited_in_series_and_bytes(users: Iterable[int], verified: bool, most: Use) -> None:
    """What they use is most of the limit."""
    store = RankStore()
    attack(store, users, verified=verified)
    used = [state.use for _, state in store.shown(0)]
    series, size = sum(use.series for use in used), sum(use.bytes for use in used)
    assert series <= most.series
    assert 0.9 * most.bytes < size <= most.bytes


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("attacker", [False, True])
def test_attackers_leave_room_for_others(verified: bool, attacker: bool) -> None:
    """Eight ranks of another user have all their phases, unless all attackers are verified and this user is not."""
    store = RankStore()
    attack(store, range(1, 5), verified=attacker)
    for number in range(8):
        sender = Sender(7, 1 + number, PLACE, verified)
        phases = dict.fromkeys(Q32[:20], 1)
        take(store, sender, job_id="honest", rank=number, world_size=8, phase_seconds=phases)
    attack(store, range(1, 5), verified=attacker)
    kept = [state for key, state in store.shown(0) if key.job_id == "honest" and len(state.phases) == 20]
    assert len(kept) == (0 if attacker and not verified else 8)


def test_the_same_user_finds_room_for_verified_ranks() -> None:
    """Containers often run as root."""
    store = RankStore()
    attack(store, [0], verified=False)
    for number in range(40):
        assert take(store, Sender(0, 1000 + number, PLACE, True), rank=number, world_size=40) is ACCEPTED
    assert sum(state.sender.verified for _, state in store.shown(0)) == 40


def test_a_rank_that_does_not_fit_removes_none() -> None:
    """Although silent ranks would make room for a part of it."""
    store = RankStore()
    take(store, CLAIMED, job_id="silent", now=-40)
    for number in range(15):
        take(store, CLAIMED, job_id=f"job-{number}")
    for number in range(200):
        take(store, CLAIMED, rank=number, world_size=1000, job_id="job-0")
    before = dict(store._ranks)
    assert take(store, CLAIMED, job_id="new") is Accepted.LIMIT
    assert store._ranks == before


def test_a_rank_that_moves_needs_no_further_room() -> None:
    """Its sums are kept, and so are all other ranks of a process that may not have more."""
    store = RankStore()
    for number in range(4):
        take(store, MOVED._replace(pid=41), job_id=f"job-{number}", steps=2)
    assert take(store, GPU, job_id="job-0", steps=3) is ACCEPTED
    assert steps(store) == {("job-0", 0, "GPU-1"): 3, **{(f"job-{n}", 0, "GPU-2"): 2 for n in (1, 2, 3)}}


def test_the_times() -> None:
    """docs/jobs.md names them."""
    assert (SILENT_SECONDS, FORGET_SECONDS, SUCCEED_SECONDS, LATE_SECONDS) == (30.0, 3600.0, 2.5, 5.0)


def test_how_long_a_rank_is_shown_and_kept() -> None:
    """Both ends belong to it."""
    store = RankStore()
    take(store, now=10, steps=5)
    assert len(steps(store, 40)) == 1
    assert steps(store, 40.5) == {}
    store.forget(3610)
    assert take(store, now=3610, attempt="b", steps=1) is Accepted.ACCEPTED
    assert steps(store, 3610) == {("llm-7b", 0, "GPU-1"): 6}


@pytest.mark.parametrize(
    ("before", "after", "changes", "moved"),
    [
        (MOVED, GPU, {}, True),
        (MOVED, GPU, {"attempt": "b"}, False),
        (MOVED, GPU, {"rank": 1}, False),
        (MOVED, GPU, {"job_id": "other"}, False),
        (MOVED._replace(uid=1001), GPU, {}, False),
        (MOVED, CLAIMED, {}, False),
        (MOVED._replace(verified=True), GPU, {}, False),
    ],
)
def test_only_the_same_process_takes_its_sums_along(
    before: Sender, after: Sender, changes: dict[str, Any], moved: bool
) -> None:
    """From a place that it only declared to the one where the driver lists it."""
    store = RankStore()
    for other in ("x", "y"):
        take(store, before._replace(uid=7), job_id=other)
    take(store, before, steps=2)
    assert take(store, after, steps=3, **changes) is Accepted.ACCEPTED
    assert len(steps(store)) == (3 if moved else 4)
    assert (("llm-7b", 0, "GPU-2") in steps(store)) is not moved


@pytest.mark.parametrize(
    ("sender", "now", "attempt", "result"),
    [
        (GPU._replace(uid=1001), 30.0, "a", Accepted.OTHER_SENDER),
        (GPU._replace(uid=1001), 30.5, "a", Accepted.ACCEPTED),
        (CLAIMED, 30.0, "b", Accepted.OTHER_SENDER),
        (CLAIMED, 30.5, "b", Accepted.ACCEPTED),
    ],
)
def test_a_rank_belongs_to_its_sender_for_thirty_seconds(
    sender: Sender, now: float, attempt: str, result: Accepted
) -> None:
    store = RankStore()
    take(store, steps=5)
    assert take(store, sender, now, attempt=attempt, steps=1) is result


def test_the_longest_silent_rank_makes_room() -> None:
    """Only one, and only once it is silent, or for a process on the GPU."""
    store = RankStore()
    for number, now in enumerate((3.0, 1.0, 2.0, 4.0)):
        assert take(store, now=now, job_id=f"job-{number}") is Accepted.ACCEPTED
    assert take(store, now=31.0, job_id="new") is Accepted.LIMIT
    assert take(store, now=31.5, job_id="new") is Accepted.ACCEPTED
    assert {job for job, _, _ in steps(store, 4.0)} == {"job-0", "job-2", "job-3", "new"}


def test_a_process_of_another_user_leaves_no_room() -> None:
    """PIDs of two users are never the same process; PID 0 is none."""
    store = RankStore()
    for number in range(4):
        take(store, job_id=f"job-{number}")
    assert take(store, GPU._replace(uid=1001), job_id="other") is Accepted.ACCEPTED
    store = RankStore()
    results = [take(store, GPU._replace(pid=0), job_id=f"job-{number}") for number in range(5)]
    assert results == [Accepted.ACCEPTED] * 5


def test_another_rank_of_a_job_needs_no_room_for_a_job() -> None:
    store = RankStore()
    for number in range(16):
        take(store, CLAIMED, job_id=f"job-{number}")
    assert take(store, CLAIMED, job_id="new") is Accepted.LIMIT
    assert take(store, CLAIMED, job_id="job-3", rank=1) is Accepted.ACCEPTED


def test_the_last_eight_processes_cannot_come_back() -> None:
    store = RankStore()
    for number in range(10):
        assert take(store, now=LATER * number, attempt=str(number), steps=0, elapsed=1) is Accepted.ACCEPTED
    ((_, state),) = store.shown(LATER * 9)
    assert state.past == PastRank(state.past.sums, tuple("12345678"), 9.0, 9)
    assert take(store, now=LATER * 10, attempt="1", steps=0) is Accepted.OLD_ATTEMPT
    assert take(store, now=LATER * 10, attempt="0", steps=0, elapsed=1) is Accepted.ACCEPTED


@pytest.mark.parametrize(
    ("pause", "elapsed", "result"),
    [
        (2.5, 7.5, Accepted.ACCEPTED),
        (2.5, 7.75, Accepted.OVERLAP),
        (2.25, 1.0, Accepted.OVERLAP),
        (10.0, 15.0, Accepted.ACCEPTED),
        (10.0, 15.25, Accepted.OVERLAP),
    ],
)
def test_processes_cannot_have_run_for_longer_than_the_time(pause: float, elapsed: float, result: Accepted) -> None:
    """The first one ran for a second before its message, and clocks may be 5 s late."""
    store = RankStore()
    take(store, now=100.0, steps=0, elapsed=1.0)
    after = take(store, OTHER_PROCESS, 100.0 + pause, attempt="b", steps=0, elapsed=elapsed)
    assert after is result


def test_sums_may_differ_by_rounding() -> None:
    """By a millisecond; the higher one is kept, as is a sum that is not sent any more."""
    store = RankStore()
    take(store, steps=4, data_seconds=1.0)
    assert take(store, steps=4, data_seconds=0.9985) is Accepted.BACKWARDS
    assert take(store, steps=4, data_seconds=0.9995, phase_seconds={"waiting": 1.0}) is Accepted.ACCEPTED
    ((_, state),) = store.shown(0.0)
    assert state.totals()["data_seconds", ""] == 1.0
    assert state.totals()["phase_seconds", "forward"] == 0.5
    assert state.totals()["phase_seconds", "waiting"] == 1.0


def test_the_last_step_is_that_of_the_process_before_until_there_is_one() -> None:
    store = RankStore()
    take(store, steps=4, since_step=2.0)
    take(store, now=LATER, attempt="b", steps=0, since_step=50.0)
    assert [state.stepped_at for _, state in store.shown(LATER)] == [998.0]
    take(store, now=LATER + 1, attempt="b", steps=1, since_step=0.5)
    assert [state.stepped_at for _, state in store.shown(LATER + 1)] == [1060.5]


def test_sums_of_ended_processes_are_kept_by_part() -> None:
    """Also those that the new process has not, and the other way round."""
    store = RankStore()
    take(store, steps=4, phase_seconds={"old": 1.0, "both": 2.0})
    take(store, now=LATER, attempt="b", steps=1, phase_seconds={"both": 3.0, "new": 4.0})
    ((_, state),) = store.shown(LATER)
    phases = {part: value for (name, part), value in state.totals().items() if name == "phase_seconds"}
    assert phases == {"old": 1.0, "both": 5.0, "new": 4.0}
    assert state.heard_at == LATER
    assert state.began == -2.0
    assert state.message.attempt == "b"
