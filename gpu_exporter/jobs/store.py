"""The cumulative values of each rank, from its messages, and the samples made of them.

Pure: times and senders are arguments.

A process that is started again begins at 0. What its predecessor reached is added, so that no counter goes backwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from math import inf
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.gpu_models import BY_NAME, model_of, peak
from gpu_exporter.jobs.message import MOST_TEXT, Message, Sums
from gpu_exporter.jobs.places import PROFILE, SenderPlace
from gpu_exporter.jobs.shares import Claim, yielding
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.job_message import (
    ACTIVITIES,
    AMOUNT,
    HISTOGRAM,
    KEYS,
    LONGEST_PHASE,
    MOST_PHASES,
    STEP_BUCKETS,
    SUM,
    TRAINING,
)
from gpu_exporter.model.metric import Labels, Metric

# More digits would only be noise that every scrape transfers.
DIGITS = 6


class RankSeries:
    """The series of one rank; each is the same object in all snapshots."""

    def __init__(self, key: RankKey, gpu: Gpu) -> None:
        self.gpu = gpu
        instance = key.place.instance
        of_slice = f"{gpu.model} MIG {dict(instance).get(PROFILE, '')}"
        self._model = BY_NAME.get(of_slice) if instance else model_of(gpu)
        self._labels: Labels = (("job_id", key.job_id), ("rank", str(key.rank)), *instance)
        self._series: dict[tuple[Metric, Labels, str], Series] = {}
        self._info = Series(m.JOB_RANK_INFO)

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
            "clock": message.clock,
            "pod_uid": message.pod_uid,
            "verified": str(state.sender.verified).lower(),
        }
        labels = self._labels + tuple((label, text) for label, text in facts.items() if text)
        if self._info.labels != labels:  # a sender can change them with every message, so only the last ones are kept
            self._info = Series(m.JOB_RANK_INFO, self.gpu, labels)
        yield Sample(self._info, 1)

    def ended(self, at: float) -> Sample:
        """Return the sample of a rank whose last message came at this unix time."""
        return self._sample(m.JOB_ENDED_AT, round(at, 3))

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
MOST_ENDED = 8
# Another process may succeed one that was silent for as long: two messages are missing. It starts after its
# predecessor has ended, but their clocks and messages may be late by so much.
SUCCEED_SECONDS, LATE_SECONDS = 2.5, 5.0
# Sums of seconds may differ by rounding.
ROUNDING = 1e-3


class Use(NamedTuple):
    """What ranks use of the limits: jobs, ranks, series, and bytes of the page."""

    jobs: float
    ranks: float
    series: float
    bytes: float


NOTHING = Use(0, 0, 0, 0)


# Of which those whose senders are not verified may use less. 16 ranks with all phases fit into the share of a user, and
# if they are verified, the ranks of 56 MIG instances do.
OF_NODE, OF_NODE_UNVERIFIED = Use(32, 128, 6144, 1280 << 10), Use(32, 128, 3072, 640 << 10)
OF_USER, OF_USER_UNVERIFIED = Use(16, 64, 4096, 768 << 10), Use(16, 64, 1536, 320 << 10)
OF_PROCESS = Use(inf, 4, inf, inf)
_JOBS = Use._fields.index("jobs")

PHASE = "phase_seconds"
# The series of a rank without those of its phases, if it has all of them.
_SERIES = {SUM: 1, AMOUNT: 1, HISTOGRAM: len(STEP_BUCKETS) + 3}
RANK_SERIES = sum(_SERIES.get(key.kind, 0) for key in KEYS.values()) + len(ACTIVITIES) + len(m.JOB_NOW) + 5
# The most bytes of a line without the texts of its sender, as a mean, and of those that only gpu_job_rank_info has.
LINE_BYTES, INFO_BYTES = 144, 8 * MOST_TEXT


def rank_use(key: RankKey, phases: Collection[str]) -> Use:
    """Return what a rank uses with these phases. The bytes are an upper bound."""
    instance = sum(len(name) + len(text) + 4 for name, text in key.place.instance)
    line = LINE_BYTES + _page_bytes(key.job_id) + len(str(key.rank)) + instance
    series = RANK_SERIES + len(phases)
    return Use(1, 1, series, series * line + INFO_BYTES + sum(map(_page_bytes, phases)))


def _page_bytes(text: str) -> int:
    """Return the bytes of a label's value on the page, where quotes and backslashes are escaped."""
    return len(text.encode()) + text.count('"') + text.count("\\")


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
    `phases` are those of which it has sums, and `use` is what they and the rank use of the limits. `is_closed`: the
    process has closed its connection after its last message. `resumed_at` is the monotonic time of the first message
    after the last silence, None if there was none.
    """

    message: Message
    sender: Sender
    began: float
    started_at: float
    heard_at: float
    stepped_at: float | None
    last: Sums
    past: PastRank = PastRank()
    phases: frozenset[str] = frozenset()
    use: Use = NOTHING
    is_closed: bool = False
    resumed_at: float | None = None

    def totals(self) -> Sums:
        """Return the sums of all processes of this rank."""
        return _added(self.past.sums, self.last)

    def ended(self) -> PastRank:
        """Return the past once the process that runs has ended."""
        attempts = (*self.past.attempts, self.message.attempt)[-MOST_ENDED:]
        return PastRank(self.totals(), attempts, self.past.seconds + self.message.elapsed, self.past.processes + 1)


class RankStore:
    """The state of all ranks, within limits for the node and for each user.

    `shortened` counts messages that were accepted without some of their phases.
    """

    def __init__(self) -> None:
        self.shortened = 0
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
            moved = self._moved(key, message, sender)
            before = self._ranks.pop(moved) if moved else None
            phases = before.phases if before else frozenset()
            if not self._make_room(key, sender, rank_use(key, phases), now):
                if moved and before:
                    self._ranks[moved] = before
                return Accepted.LIMIT
        elif before.last.keys() >= message.sums.keys():  # nearly all messages
            return self._advance(key, before, message, sender, now, at)
        else:
            phases = before.phases
        sent = [part for name, part in message.sums if name == PHASE]
        phases = self._fitting(key, sender, phases, sent, now)
        if dropped := {(PHASE, part) for part in sent if part not in phases}:
            message = replace(message, sums={key: value for key, value in message.sums.items() if key not in dropped})
        result = self._advance(key, before, message, sender, now, at)
        if result is Accepted.ACCEPTED:
            self._ranks[key] = replace(self._ranks[key], phases=phases, use=rank_use(key, phases))
            self.shortened += bool(dropped)
        return result

    def forget(self, now: float) -> None:
        """Forget the ranks that have been silent for long."""
        self._ranks = {key: state for key, state in self._ranks.items() if now - state.heard_at <= FORGET_SECONDS}

    def close(self, attempt: str) -> None:
        """Note that a process has closed its connection, as it does when it ends."""
        for key, state in self._ranks.items():
            if state.message.attempt == attempt:
                self._ranks[key] = replace(state, is_closed=True)

    def ended(self, now: float) -> Mapping[RankKey, LoopState]:
        """Return the ranks that have ended or send nothing, while others of their job train.

        If the job was started again with fewer ranks, those that are gone since then are not among them.
        """
        gone = {key: state for key, state in self._ranks.items() if _is_gone(state, now)}
        if not gone:
            return gone
        training: dict[tuple[int, str], list[LoopState]] = defaultdict(list)
        for key, state in self._ranks.items():
            if (
                not state.is_closed
                and state.message.activity == TRAINING
                and now - state.heard_at <= LATE_SECONDS
                # The ranks of a job that was stopped do not all resume at once.
                and (state.resumed_at is None or now - state.resumed_at >= LATE_SECONDS)
            ):
                training[_job(key, state)].append(state)
        return {
            key: state
            for key, state in gone.items()
            if not all(_is_of_smaller_run(other, state) for other in training[_job(key, state)])
        }

    def shown(self, now: float) -> Iterator[tuple[RankKey, LoopState]]:
        """Yield the ranks that sent a message lately. One that has ended has no last step, so it is not stalled."""
        for key, state in self._ranks.items():
            if now - state.heard_at <= SILENT_SECONDS:
                yield key, replace(state, stepped_at=None) if _is_gone(state, now) else state

    def _advance(
        self, key: RankKey, before: LoopState | None, message: Message, sender: Sender, now: float, at: float
    ) -> Accepted:
        state = advance(before, message, sender, now, at)
        if isinstance(state, Accepted):
            return state
        self._ranks[key] = state
        return Accepted.ACCEPTED

    def _moved(self, key: RankKey, message: Message, sender: Sender) -> RankKey | None:
        """Return the same process on another GPU, where it was before the driver listed it."""
        for other, state in self._ranks.items():
            same = other[:2] == key[:2] and state.message.attempt == message.attempt
            if same and state.sender.uid == sender.uid and sender.verified and not state.sender.verified:
                return other
        return None

    def _fitting(
        self, key: RankKey, sender: Sender, phases: frozenset[str], sent: Iterable[str], now: float
    ) -> frozenset[str]:
        """Return the phases of a rank, with those that it sent and that fit: their names are short, the ranks of its
        job have few names together, and there is room for the series."""
        uid, verified = sender.uid, sender.verified
        of_job = phases.union(
            *(
                state.phases
                for other, state in self._ranks.items()
                if _job(other, state) == (uid, key.job_id) and state.sender.verified >= verified
            )
        )
        for name in sent:
            if name in phases or len(name) > LONGEST_PHASE or len(of_job | {name}) > MOST_PHASES:
                continue
            if not self._make_room(key, sender, rank_use(key, phases | {name}), now):
                break
            phases |= {name}
            of_job |= {name}
        return phases

    def _make_room(self, key: RankKey, sender: Sender, use: Use, now: float) -> bool:
        """Return whether a rank may use so much, for which others may be removed; if it may not, none are.

        One that is silent makes room, then for a process on a GPU one that only declares a GPU, then one of the user
        that uses most.
        """
        ranks = {other: state for other, state in self._ranks.items() if other != key}
        for most, counts in _limits(sender):
            while True:
                counted = {other: state for other, state in ranks.items() if counts(state)}
                measure = _exceeded(counted, key, sender, use, most)
                if measure is None:
                    break
                leaving = _leaving(counted, measure, sender, use, now)
                if not leaving:
                    return False
                for other in leaving:
                    del ranks[other]
        if len(ranks) < len(self._ranks) - (key in self._ranks):
            self._ranks = {other: state for other, state in self._ranks.items() if other == key or other in ranks}
        return True


def _is_gone(state: LoopState, now: float) -> bool:
    """Return whether a rank has ended. Those of a job that is over end within seconds of each other."""
    return now - state.heard_at > (LATE_SECONDS if state.is_closed else SILENT_SECONDS)


def _is_of_smaller_run(rank: LoopState, gone: LoopState) -> bool:
    """Return whether a rank was started after another one was gone, in a run with fewer ranks.

    Fewer ranks alone do not tell: where no launcher says how many there are, each rank states another number.
    """
    started = rank.heard_at - rank.message.elapsed
    return started > gone.heard_at and rank.message.world_size < gone.message.world_size


def _limits(sender: Sender) -> Iterator[tuple[Use, Callable[[LoopState], bool]]]:
    """Yield the limits for a sender, each with the ranks that count."""
    if sender.pid:
        yield OF_PROCESS, lambda state: state.sender[:2] == sender[:2]
    if not sender.verified:
        yield OF_USER_UNVERIFIED, lambda state: state.sender.uid == sender.uid and not state.sender.verified
    yield OF_USER, lambda state: state.sender.uid == sender.uid
    if not sender.verified:
        yield OF_NODE_UNVERIFIED, lambda state: not state.sender.verified
    yield OF_NODE, lambda state: True


def _job(key: RankKey, state: LoopState) -> tuple[int, str]:
    return state.sender.uid, key.job_id


def _exceeded(ranks: Mapping[RankKey, LoopState], key: RankKey, sender: Sender, use: Use, most: Use) -> int | None:
    """Return the first limit that these ranks and a further one exceed, as its place in Use."""
    jobs = {(sender.uid, key.job_id), *(_job(other, state) for other, state in ranks.items())}
    used = Use(
        len(jobs),
        len(ranks) + 1,
        sum(state.use.series for state in ranks.values()) + use.series,
        sum(state.use.bytes for state in ranks.values()) + use.bytes,
    )
    return next((measure for measure, limit in enumerate(most) if used[measure] > limit), None)


def _leaving(
    ranks: Mapping[RankKey, LoopState], measure: int, sender: Sender, use: Use, now: float
) -> Collection[RankKey]:
    """Return the ranks that make room for this sender at a limit: all of a job where jobs are limited, else one."""
    together: dict[object, list[RankKey]] = {}
    for other, state in ranks.items():
        together.setdefault(_job(other, state) if measure == _JOBS else other, []).append(other)
    groups = list(reversed(together.values()))
    heard = [max(ranks[other].heard_at for other in group) for group in groups]
    longest = min(range(len(groups)), key=heard.__getitem__, default=None)
    if longest is not None and now - heard[longest] > SILENT_SECONDS:
        return groups[longest]
    claims = [
        Claim(
            ranks[group[0]].sender.uid,
            any(ranks[other].sender.verified for other in group),
            1 if measure == _JOBS else sum(ranks[other].use[measure] for other in group),
        )
        for group in groups
    ]
    index = yielding(claims, Claim(sender.uid, sender.verified, use[measure]))
    return [] if index is None else groups[index]


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
    resumed_at = now if now - before.heard_at > SILENT_SECONDS else before.resumed_at
    return replace(state, message=message, sender=sender, heard_at=now, is_closed=False, resumed_at=resumed_at)


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
