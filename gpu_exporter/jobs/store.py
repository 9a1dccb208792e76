"""The cumulative values of each rank, from its messages, and the samples made of them.

Pure: times and senders are arguments.

A process that is started again begins at 0. What its predecessor reached is added, so that no counter goes backwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.gpu_models import peak
from gpu_exporter.jobs.message import Message, Sums
from gpu_exporter.jobs.places import PROFILE, SenderPlace
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.job_message import HISTOGRAM, KEYS, MOST_PHASES, STEP_BUCKETS
from gpu_exporter.model.metric import Labels, Metric

# More digits would only be noise that every scrape transfers.
DIGITS = 6


class RankSeries:
    """The series of one rank; each is the same object in all snapshots."""

    def __init__(self, key: RankKey, gpu: Gpu) -> None:
        self.gpu = gpu
        instance = key.place.instance
        self._model = f"{gpu.model} MIG {dict(instance).get(PROFILE, '')}" if instance else gpu.model
        self._labels: Labels = (("job_id", key.job_id), ("rank", str(key.rank)), *instance)
        self._series: dict[tuple[Metric, Labels, str], Series] = {}

    def samples(self, state: LoopState) -> tuple[Sample, ...]:
        """Return the samples of this state."""
        return tuple(self._samples(state))

    def _samples(self, state: LoopState) -> Iterator[Sample]:
        totals, message = state.totals(), state.message
        for (name, part), value in totals.items():
            key = KEYS[name]
            if key.kind != HISTOGRAM:
                label = ((key.label, part),) if key.label else ()
                yield self._sample(m.JOB_SENT[name], round(value, DIGITS), label)
            elif part == "sum":
                yield from self._histogram(m.JOB_SENT[name], name, totals)
        if state.stepped_at is not None:
            yield self._sample(m.JOB_STEPPED_AT, round(state.stepped_at, 3))
        yield self._sample(m.JOB_STARTED_AT, round(state.started_at, 3))
        yield self._sample(m.JOB_RESTARTS, state.past.processes)
        for metric in m.JOB_NOW:
            yield self._sample(metric, ("activity", message.activity) in metric.labels)
        highest = peak(self._model, message.dtype)
        if highest is not None:
            yield self._sample(m.JOB_PEAK, highest)
        facts = {
            "world_size": str(message.world_size),
            "dtype": message.dtype,
            "pod_uid": message.pod_uid,
            "verified": str(state.sender.verified).lower(),
        }
        yield self._sample(m.JOB_RANK_INFO, 1, tuple((label, text) for label, text in facts.items() if text))

    def _histogram(self, metric: Metric, name: str, totals: Sums) -> Iterator[Sample]:
        edges = (*map(repr, STEP_BUCKETS), "+Inf")
        below = list(accumulate(totals[name, str(bucket)] for bucket in range(len(edges))))
        for edge, count in zip(edges, below, strict=True):
            yield self._sample(metric, count, (("le", edge),), "_bucket")
        yield self._sample(metric, round(totals[name, "sum"], DIGITS), (), "_sum")
        yield self._sample(metric, below[-1], (), "_count")

    def _sample(self, metric: Metric, value: float, labels: Labels = (), part: str = "") -> Sample:
        key = (metric, labels, part)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(metric, self.gpu, self._labels + labels, part)
        return Sample(series, value)


# A rank that sent nothing for this time has no series. Its sums are kept for longer, because restarts take minutes.
SILENT_SECONDS, FORGET_SECONDS = 30.0, 3600.0
MOST_RANKS, MOST_RANKS_OF_USER, MOST_RANKS_OF_PROCESS = 128, 64, 4
MOST_JOBS, MOST_JOBS_OF_USER = 32, 16
MOST_ENDED = 8
# Another process may succeed one that was silent for as long: two messages are missing. It starts after its
# predecessor has ended, but their clocks and messages may be late by so much.
SUCCEED_SECONDS, LATE_SECONDS = 2.5, 5.0
# Sums of seconds may differ by rounding.
ROUNDING = 1e-3


class Accepted(Enum):
    """What became of a message: values of the label `result`."""

    ACCEPTED = "accepted"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    VERSION = "version"
    UNKNOWN_GPU = "unknown_gpu"
    OTHER_SENDER = "other_sender"
    OLD_ATTEMPT = "old_attempt"
    OVERLAP = "overlap"
    BACKWARDS = "backwards"
    LIMIT = "limit"


class Sender(NamedTuple):
    """Who sent a message: the user and the process (0 if it is not visible from here) as the kernel knows them, and the
    place. `verified`: the driver lists the process, its parent or its child there; otherwise the sender says so."""

    uid: int
    pid: int
    place: SenderPlace
    verified: bool


class RankKey(NamedTuple):
    """Identifies a rank of a job on a GPU or MIG instance."""

    job_id: str
    rank: int
    place: SenderPlace


@dataclass(frozen=True, slots=True)
class PastRank:
    """The ended processes of a rank: their sums, the attempts of the last ones, their seconds, and their number."""

    sums: Sums = field(default_factory=dict)
    attempts: tuple[str, ...] = ()
    seconds: float = 0.0
    processes: int = 0


@dataclass(frozen=True, slots=True)
class LoopState:
    """The state of a rank. `last` are the sums of the process that runs.

    `began` is the monotonic time at which its first process started, and `started_at` the same in unix time. `heard_at`
    is the monotonic time of the last message, `stepped_at` the unix time of the last step, None before the first one.
    """

    message: Message
    sender: Sender
    began: float
    started_at: float
    heard_at: float
    stepped_at: float | None
    last: Sums
    past: PastRank = PastRank()

    def totals(self) -> Sums:
        """Return the sums of all processes of this rank."""
        return _added(self.past.sums, self.last)

    def ended(self) -> PastRank:
        """Return the past once the process that runs has ended."""
        attempts = (*self.past.attempts, self.message.attempt)[-MOST_ENDED:]
        return PastRank(self.totals(), attempts, self.past.seconds + self.message.elapsed, self.past.processes + 1)


class RankStore:
    """The state of all ranks, within limits for the node and for each user."""

    def __init__(self) -> None:
        self._ranks: dict[RankKey, LoopState] = {}

    def take(self, message: Message, sender: Sender, now: float, at: float) -> Accepted:
        """Add a message that was received at `now` (monotonic seconds), which is `at` in unix time."""
        key = RankKey(message.job_id, message.rank, sender.place)
        before = self._ranks.get(key)
        if before is not None and not _may_continue(before, message, sender, now):
            return Accepted.OTHER_SENDER
        if before is not None and before.sender.uid != sender.uid:
            del self._ranks[key]
            before = None
        if before is None:
            if not self._has_room(key, sender, now):
                return Accepted.LIMIT
            before = self._moved(key, message, sender)
        state = advance(before, message, sender, now, at)
        if isinstance(state, Accepted):
            return state
        self._ranks[key] = state
        return Accepted.ACCEPTED

    def forget(self, now: float) -> None:
        """Forget the ranks that have been silent for long."""
        self._ranks = {key: state for key, state in self._ranks.items() if now - state.heard_at <= FORGET_SECONDS}

    def shown(self, now: float) -> Iterator[tuple[RankKey, LoopState]]:
        """Yield the ranks that sent a message lately."""
        return ((key, state) for key, state in self._ranks.items() if now - state.heard_at <= SILENT_SECONDS)

    def _moved(self, key: RankKey, message: Message, sender: Sender) -> LoopState | None:
        """Return and remove the state of the same process on another GPU, where it was before the driver listed it."""
        for other, state in self._ranks.items():
            same = other[:2] == key[:2] and state.message.attempt == message.attempt
            if same and state.sender.uid == sender.uid and sender.verified and not state.sender.verified:
                return self._ranks.pop(other)
        return None

    def _has_room(self, key: RankKey, sender: Sender, now: float) -> bool:
        """Return whether a rank may be added.

        One that is silent makes room, and for a process on a GPU one that only declares a GPU.
        """
        while (full := self._full(key, sender)) is not None:
            states = {other: self._ranks[other] for other in full}
            leaving = [
                other
                for other, state in states.items()
                if now - state.heard_at > SILENT_SECONDS or (sender.verified and not state.sender.verified)
            ]
            if not leaving:
                return False
            del self._ranks[min(leaving, key=lambda other: states[other].heard_at)]
        return True

    def _full(self, key: RankKey, sender: Sender) -> list[RankKey] | None:
        """Return the ranks of which one must go before this one is added; None if there is room."""
        of_user = {other: state for other, state in self._ranks.items() if state.sender.uid == sender.uid}
        of_process = [other for other, state in of_user.items() if sender.pid and state.sender.pid == sender.pid]
        if len(of_process) >= MOST_RANKS_OF_PROCESS:
            return of_process
        if _is_full(of_user, key, MOST_RANKS_OF_USER, MOST_JOBS_OF_USER):
            return list(of_user)
        return list(self._ranks) if _is_full(self._ranks, key, MOST_RANKS, MOST_JOBS) else None


def _is_full(ranks: Collection[RankKey], key: RankKey, most: int, most_jobs: int) -> bool:
    jobs = {other.job_id for other in ranks}
    return len(ranks) >= most or (key.job_id not in jobs and len(jobs) >= most_jobs)


def _may_continue(before: LoopState, message: Message, sender: Sender, now: float) -> bool:
    """Return whether this sender may send for a rank, or take it over.

    While a rank sends, another user may not, unless only the other user's process is on the GPU. Nor may another
    process without proof, where the present one is on the GPU.
    """
    if now - before.heard_at > SILENT_SECONDS:
        return True
    if before.sender.uid != sender.uid:
        return sender.verified and not before.sender.verified
    return sender.verified or not before.sender.verified or message.attempt == before.message.attempt


def advance(before: LoopState | None, message: Message, sender: Sender, now: float, at: float) -> LoopState | Accepted:
    """Return the state after a message, or why the message is not accepted."""
    stepped_at = at - message.since_step if message.sums["steps", ""] else None
    if before is None:
        began, started_at = now - message.elapsed, at - message.elapsed
        return LoopState(message, sender, began, started_at, now, stepped_at, message.sums)
    if message.attempt in before.past.attempts:
        return Accepted.OLD_ATTEMPT
    if message.attempt == before.message.attempt:
        state: LoopState | Accepted = _continued(before, message, stepped_at)
    elif _may_succeed(before, message, sender, now):
        stepped_at = stepped_at or before.stepped_at
        state = replace(before, stepped_at=stepped_at, last=message.sums, past=before.ended())
    else:
        return Accepted.OVERLAP
    if isinstance(state, Accepted):
        return state
    state = replace(state, message=message, sender=sender, heard_at=now)
    return Accepted.LIMIT if _phases(state.totals()) > 2 * MOST_PHASES else state


def _continued(before: LoopState, message: Message, stepped_at: float | None) -> LoopState | Accepted:
    """Return the state with further sums of the same process, or why not."""
    if any(message.sums[key] < value - ROUNDING for key, value in before.last.items() if key in message.sums):
        return Accepted.BACKWARDS
    last = {**before.last, **{key: max(value, before.last.get(key, 0.0)) for key, value in message.sums.items()}}
    if message.sums["steps", ""] == before.last["steps", ""]:
        stepped_at = before.stepped_at  # so that the time of one step does not vary by the transmission
    return replace(before, stepped_at=stepped_at, last=last)


def _may_succeed(before: LoopState, message: Message, sender: Sender, now: float) -> bool:
    """Return whether a process may succeed the one before.

    A sender that makes up processes would otherwise raise the sums with each of them, and take the place of the one
    that runs. All processes of a rank together cannot have run for longer than the time since the first one started.
    """
    is_same_process = bool(sender.pid) and sender.pid == before.sender.pid
    is_over = is_same_process or now - before.heard_at >= SUCCEED_SECONDS
    seconds = before.ended().seconds + message.elapsed
    return is_over and seconds <= now - before.began + LATE_SECONDS


def _added(left: Sums, right: Sums) -> Mapping[tuple[str, str], float]:
    return {**left, **{key: left.get(key, 0.0) + value for key, value in right.items()}} if left else right


def _phases(sums: Sums) -> int:
    return sum(name == "phase_seconds" for name, _ in sums)
