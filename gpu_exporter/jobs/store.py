"""The cumulative values of each rank, from its messages. Pure: times and senders are arguments.

A process that is started again begins at 0. What its predecessor reached is added, so that no counter goes backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from gpu_exporter.jobs.message import MOST_PHASES, Message, Sums

# A rank that sent nothing for this time has no series. Its sums are kept for longer, because restarts take minutes.
SILENT_SECONDS, FORGET_SECONDS = 30.0, 3600.0
MOST_RANKS, MOST_JOBS, MOST_PER_USER = 128, 32, 64
MOST_ENDED = 8
# Sums of seconds may differ by rounding.
ROUNDING = 1e-3


class Result(Enum):
    """What became of a message: values of the label `result`."""

    ACCEPTED = "accepted"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    VERSION = "version"
    UNKNOWN_GPU = "unknown_gpu"
    OTHER_SENDER = "other_sender"
    OLD_ATTEMPT = "old_attempt"
    BACKWARDS = "backwards"
    LIMIT = "limit"


class Sender(NamedTuple):
    """Who sent a message: the user as the kernel knows it, and the UUID of the GPU. `verified`: the driver lists the
    process on this GPU; otherwise, the sender only declared it."""

    uid: int
    uuid: str
    verified: bool


class RankKey(NamedTuple):
    """Identifies a rank of a job on a GPU."""

    job_id: str
    rank: int
    uuid: str


@dataclass(frozen=True, slots=True)
class RankState:
    """The state of a rank. `offset` are the sums of its ended processes, `last` those of the process that runs.

    `heard_at` is the monotonic time of the last message. Unix times: `started_at` of the start of the first process,
    `stepped_at` of the last step, None before the first one.
    """

    message: Message
    sender: Sender
    heard_at: float
    started_at: float
    stepped_at: float | None
    last: Sums
    offset: Sums = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    restarts: int = 0

    def totals(self) -> Sums:
        """Return the sums of all processes of this rank."""
        return _added(self.offset, self.last)


class RankStore:
    """The state of all ranks, within limits for the node and for each user."""

    def __init__(self) -> None:
        self._ranks: dict[RankKey, RankState] = {}

    def take(self, message: Message, sender: Sender, now: float, at: float) -> Result:
        """Add a message that was received at `now` (monotonic seconds), which is `at` in unix time."""
        key = RankKey(message.job_id, message.rank, sender.uuid)
        before = self._ranks.get(key)
        if before is not None and not _may_continue(before, message, sender, now):
            return Result.OTHER_SENDER
        if before is not None and before.sender.uid != sender.uid:
            del self._ranks[key]
            before = None
        if before is None:
            if not self._has_room(key, sender):
                return Result.LIMIT
            before = self._moved(key, message, sender)
        state = advance(before, message, sender, now, at)
        if isinstance(state, Result):
            return state
        self._ranks[key] = state
        return Result.ACCEPTED

    def forget(self, now: float) -> None:
        """Forget the ranks that have been silent for long."""
        self._ranks = {key: state for key, state in self._ranks.items() if now - state.heard_at <= FORGET_SECONDS}

    def shown(self, now: float) -> Iterator[tuple[RankKey, RankState]]:
        """Yield the ranks that sent a message lately."""
        return ((key, state) for key, state in self._ranks.items() if now - state.heard_at <= SILENT_SECONDS)

    def _moved(self, key: RankKey, message: Message, sender: Sender) -> RankState | None:
        """Return and remove the state of the same process on another GPU, where it was before the driver listed it."""
        for other, state in self._ranks.items():
            same = other[:2] == key[:2] and state.message.attempt == message.attempt
            if same and state.sender.uid == sender.uid and sender.verified and not state.sender.verified:
                return self._ranks.pop(other)
        return None

    def _has_room(self, key: RankKey, sender: Sender) -> bool:
        """Return whether a rank may be added. For a process on a GPU, one that only declares a GPU makes room."""
        while (full := self._full(key, sender)) is not None:
            claimed = [other for other in full if not self._ranks[other].sender.verified] if sender.verified else []
            if not claimed:
                return False
            del self._ranks[min(claimed, key=lambda other: self._ranks[other].heard_at)]
        return True

    def _full(self, key: RankKey, sender: Sender) -> list[RankKey] | None:
        """Return the ranks of which one must go before this one is added; None if there is room."""
        of_user = [other for other, state in self._ranks.items() if state.sender.uid == sender.uid]
        if len(of_user) >= MOST_PER_USER:
            return of_user
        jobs = {other.job_id for other in self._ranks}
        if len(self._ranks) >= MOST_RANKS or (key.job_id not in jobs and len(jobs) >= MOST_JOBS):
            return list(self._ranks)
        return None


def _may_continue(before: RankState, message: Message, sender: Sender, now: float) -> bool:
    """Return whether this sender may send for a rank, or take it over.

    While a rank sends, another user may not, unless only the other user's process is on the GPU. Nor may another
    process without proof, where the present one is on the GPU.
    """
    if now - before.heard_at > SILENT_SECONDS:
        return True
    if before.sender.uid != sender.uid:
        return sender.verified and not before.sender.verified
    return sender.verified or not before.sender.verified or message.attempt == before.message.attempt


def advance(before: RankState | None, message: Message, sender: Sender, now: float, at: float) -> RankState | Result:
    """Return the state after a message, or why the message is not accepted."""
    stepped_at = at - message.since_step if message.sums["steps", ""] else None
    if before is None:
        return RankState(message, sender, now, at - message.elapsed, stepped_at, message.sums)
    if message.attempt in before.ended:
        return Result.OLD_ATTEMPT
    if message.attempt != before.message.attempt:
        ended = (*before.ended, before.message.attempt)[-MOST_ENDED:]
        offset = before.totals()
        if _phases(_added(offset, message.sums)) > 2 * MOST_PHASES:
            return Result.LIMIT
        return RankState(
            message,
            sender,
            now,
            before.started_at,
            stepped_at or before.stepped_at,
            message.sums,
            offset,
            ended,
            before.restarts + 1,
        )
    if any(message.sums[key] < value - ROUNDING for key, value in before.last.items() if key in message.sums):
        return Result.BACKWARDS
    last = {**before.last, **{key: max(value, before.last.get(key, 0.0)) for key, value in message.sums.items()}}
    if _phases(_added(before.offset, last)) > 2 * MOST_PHASES:
        return Result.LIMIT
    if message.sums["steps", ""] == before.last["steps", ""]:
        stepped_at = before.stepped_at  # so that the time of one step does not vary by the transmission
    return replace(before, message=message, sender=sender, heard_at=now, stepped_at=stepped_at, last=last)


def _added(left: Sums, right: Sums) -> Mapping[tuple[str, str], float]:
    return {**left, **{key: left.get(key, 0.0) + value for key, value in right.items()}} if left else right


def _phases(sums: Sums) -> int:
    return sum(name == "phase_seconds" for name, _ in sums)
