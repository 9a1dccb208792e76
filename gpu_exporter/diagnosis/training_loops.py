"""What training loops say about their ranks on one node -> the signals of the failure modes of training loops. Pure.

`alerting/training_jobs.py` records the same of all nodes. There, rates are of five minutes; here, they are of the last
20 seconds and ten steps, or of five minutes if that is shorter, or if steps differ much. What compares with hours is
unknown before.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import sqrt
from typing import NamedTuple, TypeVar

from gpu_exporter.catalogue import job_signals as j
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.loops import RANK_ENDED, STALLED, STRAGGLER
from gpu_exporter.conditions.averages import mean, median
from gpu_exporter.conditions.evaluate import Device, Points
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Leaf, Over
from gpu_exporter.diagnosis.scrape import ByName, DeviceKey, key_of, plausible
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.job_message import LONG_STEPS, LONGEST_PHASE, ON_GPU, STEP_BUCKETS, TRAINING, WAITING

# The window of the recorded rates.
RATE_SECONDS = 300.0
# A rate is of at least so many seconds, and steps with a self time, if there are as many within RATE_SECONDS; of fewer
# than ENOUGH steps, there is none. Points are kept as often as PACE.
LEAST_SECONDS, USUAL_STEPS, ENOUGH, PACE = 20.0, 10.0, 3.0, 5.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
# A share of the hour before is noted once a minute; those of six hours are kept.
HOURS_KEPT = 360
# A rank has ended once it is missing for as many scrapes, and for so many seconds.
MISSED_SCRAPES, MISSED_SECONDS = 3, 5.0

# Name and part of a sum, as a rank sends it; the part is a phase, an activity, or the edge of a bucket.
Sum = tuple[str, str]
SECONDS: Sum = ("", "")
_STEP_SUM, _STEP_COUNT = (f"{m.JOB_STEP}_sum", ""), (f"{m.JOB_STEP}_count", "")
_SELF_SUM, _SELF_COUNT = (f"{m.JOB_SELF}_sum", ""), (f"{m.JOB_SELF}_count", "")
_SELF_SQUARES: Sum = (m.JOB_SELF_SQUARES.name, "")
_BUCKET = f"{m.JOB_STEP}_bucket"
# Each bucket of the steps, and the longest step in it; above the last edge, that is unknown.
_EDGES = (*(((_BUCKET, repr(edge)), edge) for edge in STEP_BUCKETS), ((_BUCKET, "+Inf"), STEP_BUCKETS[-1]))
_PARTS = {
    m.JOB_PHASE.name: "phase",
    m.JOB_ACTIVITY.name: "activity",
    m.JOB_NOW[0].name: "activity",
    _BUCKET: "le",
    m.JOB_RANK_INFO.name: "clock",
}
_STEPPED, _ENDED = (m.JOB_STEPPED_AT.name, ""), (m.JOB_ENDED_AT.name, "")
_RESTARTS, _LOADER = (m.JOB_RESTARTS.name, ""), (m.JOB_DATA.name, "")
# What speed is counted in: the first that a loop counts.
_AMOUNTS = tuple((metric.name, "") for metric in (m.JOB_TOKENS, m.JOB_SAMPLES, m.JOB_STEPS))
_TRAINS = (m.JOB_ACTIVITY.name, TRAINING)
_WAITS, _LONG = (m.JOB_PHASE.name, WAITING), (m.JOB_PHASE.name, LONG_STEPS)
_TIMED_ON_GPU = (m.JOB_RANK_INFO.name, ON_GPU)
_PAUSES = tuple((m.JOB_ACTIVITY.name, activity) for activity in j.PAUSES)
FAMILIES = (
    m.JOB_ENDED_AT.name,
    m.JOB_STEPPED_AT.name,
    m.JOB_RESTARTS.name,
    m.JOB_DATA.name,
    m.JOB_SELF_SQUARES.name,
    *(name for name, _ in (_STEP_SUM, _STEP_COUNT, _SELF_SUM, _SELF_COUNT, *_AMOUNTS)),
    *_PARTS,
)


class RankLabels(NamedTuple):
    """What identifies a rank in scrapes."""

    device: DeviceKey
    job_id: str
    rank: str


def _own(before: Mapping[Sum, float], after: Mapping[Sum, float]) -> float | None:
    own, owns = (after.get(key, 0.0) - before.get(key, 0.0) for key in (_SELF_SUM, _SELF_COUNT))
    return own / owns if owns > 0 else None


@dataclass(slots=True)
class RankHistory:
    """The sums of a rank in the last minutes. `longest` are the upper bounds of its longest steps, with their times.

    `ended_at` is the time of its last message, if it has ended while others of its job train.
    """

    points: deque[tuple[float, Mapping[Sum, float]]] = field(default_factory=deque)
    at: float = 0.0
    every: float = 0.0
    now: Mapping[Sum, float] = field(default_factory=dict)
    longest: list[tuple[float, float]] = field(default_factory=list)
    ended_at: float | None = None

    def take(self, at: float, sums: Mapping[Sum, float]) -> None:
        """Add what a scrape says."""
        self._note_longest(at, sums)
        self._seen(at)
        self.now, self.ended_at = sums, None
        if not self.points or at - self.points[-1][0] >= PACE:
            kept = {key: value for key, value in sums.items() if key[0] != _BUCKET}
            self.points.append((at, kept))
        while self.points[0][0] < at - RATE_SECONDS - PACE:
            self.points.popleft()

    def end(self, at: float, ended_at: float) -> None:
        """Note a scrape that says when the rank has ended."""
        self._seen(at)
        self.ended_at = ended_at

    def _seen(self, at: float) -> None:
        self.every, self.at = at - self.at if self.at else 0.0, at

    def _note_longest(self, at: float, sums: Mapping[Sum, float]) -> None:
        """Note the highest bucket in which a step ended since the scrape before; at first, of all steps so far."""
        below, highest = 0.0, 0.0
        for key, edge in _EDGES:
            grown = sums.get(key, 0.0) - self.now.get(key, 0.0)
            if grown > below:
                highest, below = edge, grown
        self.longest = [each for each in self.longest if each[0] > at - 6 * HOUR and each[1] > highest]
        if highest:
            self.longest.append((at, highest))

    def grown(self, least: float) -> Mapping[Sum, float]:
        """Return by how much sums have grown in the last seconds, `least` or more, with their number as SECONDS; empty
        if there are too few steps."""
        seconds = steps = 0.0
        before: Mapping[Sum, float] = {}
        # Self time is measured in some of the steps only.
        counted = _SELF_COUNT if _SELF_COUNT in self.now else _STEP_COUNT
        for at, before in reversed(self.points):
            seconds, steps = self.at - at, self.now.get(_STEP_COUNT, 0.0) - before.get(_STEP_COUNT, 0.0)
            if seconds >= least and self.now.get(counted, 0.0) - before.get(counted, 0.0) >= USUAL_STEPS:
                break
        if seconds <= 0 or steps < ENOUGH:
            return {}
        grown = {key: value - before.get(key, 0.0) for key, value in self.now.items() if key[0] != _BUCKET}
        return {SECONDS: seconds, **grown}

    def halves(self, seconds: float) -> tuple[float, ...]:
        """Return the mean self times of both halves of the last seconds; empty if steps with one are missing in one."""
        begin, middle = (
            next((each for each in self.points if each[0] > self.at - ago - PACE / 2), (0.0, self.now))
            for ago in (seconds, seconds / 2)
        )
        found = [_own(begin[1], middle[1]), _own(middle[1], self.now)]
        known = tuple(each for each in found if each is not None)
        return known if len(known) == len(found) else ()


@dataclass(slots=True)
class JobHistory:
    """What the ranks of a job reached together, once a minute: for what compares with hours and a day.

    `hours` are the shares of time of the hour before, by activity, and `usual` is the usual speed.
    """

    ranks: frozenset[RankLabels] = frozenset()
    sums: deque[tuple[float, Mapping[Sum, float]]] = field(default_factory=deque)
    hours: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=HOURS_KEPT))
    speeds: deque[tuple[float, float]] = field(default_factory=deque)
    usual: float | None = None
    steps: deque[tuple[float, float]] = field(default_factory=deque)
    paused_at: float = 0.0

    def take(self, at: float, ranks: Mapping[RankLabels, RankHistory]) -> None:
        """Add the sums of the ranks, if a minute is over. Other ranks than before begin a new history of sums."""
        if any(_pauses(rank) for rank in ranks.values()):
            self.paused_at = at
        if self.sums and at < self.sums[-1][0] + MINUTE and self.ranks == ranks.keys():
            return
        if self.ranks != ranks.keys():
            self.ranks = frozenset(ranks)
            self.sums.clear()
            self.hours.clear()
        keys = {*_AMOUNTS, _TRAINS, *_PAUSES, _STEP_SUM, _STEP_COUNT}
        histories = ranks.values()
        totals = {key: mean([each.now.get(key, 0.0) for each in histories]) for key in keys}
        before = _since(self.sums, at - RATE_SECONDS)
        self.sums.append((at, totals))
        begun, first = next(each for each in self.sums if each[0] >= at - HOUR - MINUTE / 2)
        if begun <= at - HOUR + MINUTE:
            self.hours.append({key[1]: (totals[key] - first[key]) / (at - begun) for key in (_TRAINS, *_PAUSES)})
        if before is not None:
            grown = {key: totals[key] - before[key] for key in keys}
            amount = next((grown[key] for key in _AMOUNTS if totals[key] > 0), 0.0)
            if grown[_TRAINS] > 0 and amount > 0:
                self.speeds.append((at, amount / grown[_TRAINS]))
            if grown[_STEP_COUNT] > 0:
                self.steps.append((at, grown[_STEP_SUM] / grown[_STEP_COUNT]))
        for points, kept in ((self.sums, HOUR + 2 * MINUTE), (self.speeds, DAY + HOUR / 2), (self.steps, HOUR)):
            while points and points[0][0] < at - kept:
                points.popleft()
        past = [speed for t, speed in self.speeds if t <= at - HOUR / 2]
        self.usual = median(past) if len(past) >= 60 else None

    def speed(self, at: float) -> tuple[float, float] | None:
        """Return the speed over 15 minutes and over five, as shares of the usual one; None if that is unknown."""
        lately = [speed for t, speed in islice(reversed(self.speeds), 16) if t > at - 15 * MINUTE]
        if not self.usual or not lately or self.speeds[-1][0] < at - 2 * MINUTE:
            return None
        return mean(lately) / self.usual, self.speeds[-1][1] / self.usual

    def lost(self) -> Mapping[str, float]:
        """Return the share of time that was lost by activity, as `job:lost:ratio`; empty in the first hour.

        It is of the last hour, that of pauses the mean of six hours.
        """
        if not self.hours:
            return {}
        pauses = {activity: mean([each[activity] for each in self.hours]) for activity in j.PAUSES}
        return {**pauses, "other": 1 - sum(self.hours[-1].values())}


def _since(points: Iterable[tuple[float, Mapping[Sum, float]]], at: float) -> Mapping[Sum, float] | None:
    """Return the newest point that is not newer than a time."""
    found = None
    for t, sums in points:
        if t > at:
            break
        found = sums
    return found


def _pauses(rank: RankHistory) -> bool:
    return any(rank.now.get((m.JOB_NOW[0].name, activity)) == 1 for activity in j.PAUSES)


class RankMeans(NamedTuple):
    """What the ranks of a job are compared by: seconds of a step, those of it without waiting for other ranks
    (None if unknown), the share of the time in pauses, and the seconds of a step in which the GPU waits for other
    ranks, with those of rare long steps (None if unknown, as where the CPU measures). `is_brief`: for less than
    LEAST_SECONDS, or nearly so long. `halves`: the self times of both halves of this time; None if it is long.
    `error` is the standard error of the mean `own`; 0 if it is unknown."""

    step: float
    own: float | None
    paused: float
    waiting: float | None = None
    is_brief: bool = False
    halves: tuple[float, ...] | None = None
    error: float = 0.0


class RankNow(NamedTuple):
    """A rank that is there: what it did lately, None if too few steps say so, and how many steps it has completed."""

    labels: RankLabels
    means: RankMeans | None
    steps: float


@dataclass(slots=True)
class LoopSignals:
    """The signals of training loops by device, and what else they say about a failure mode of a device, by its name."""

    now: float
    ranks: list[RankNow] = field(default_factory=list)
    signals: dict[Signal, dict[Device, Points]] = field(default_factory=lambda: defaultdict(dict))
    evidence: dict[tuple[DeviceKey, str], dict[Leaf, float]] = field(default_factory=dict)

    def add(self, signal: Signal, key: RankLabels, value: float) -> bool:
        """Add the value of a rank, unless another one on its device has a higher value; return whether it was added."""
        before = self.signals[signal].get(key.device)
        if before is not None and before[0][1] >= value:
            return False
        self.signals[signal][key.device] = [(self.now, value)]
        return True

    def tell(self, mode: str, key: RankLabels, rank: RankHistory, phases: Mapping[str, float] | None = None) -> None:
        """Add which rank is on a device, how often it was restarted, and by how many seconds its phases are longer."""
        evidence: dict[Leaf, float] = {Over(j.RANK): float(key.rank) if key.rank.isdecimal() else 0.0}
        if restarts := rank.now.get(_RESTARTS):
            evidence[Over(j.RESTARTS)] = restarts
        for phase, seconds in (phases or {}).items():
            name = printable(phase, LONGEST_PHASE).replace("{", "{{").replace("}", "}}")
            words = f"its phase {name} takes {{}} longer in each step"
            evidence[Over(Signal("job_phase_excess", "seconds", "", (), plain=words))] = seconds
        self.evidence[key.device, mode] = evidence


class LoopReader:
    """Keeps what ranks say in scrapes as they come (in order of time)."""

    def __init__(self) -> None:
        self._ranks: dict[RankLabels, RankHistory] = {}
        self._jobs: dict[tuple[str, ...], JobHistory] = {}
        # The labels of the last scrape by their identity: those of the next one are often the same objects.
        self._read: Mapping[int, tuple[Mapping[str, str], RankLabels]] = {}

    def take(self, at: float, by_name: ByName) -> None:
        """Add a scrape."""
        sums: dict[RankLabels, dict[Sum, float]] = defaultdict(dict)
        read: dict[int, tuple[Mapping[str, str], RankLabels]] = {}
        for name in FAMILIES:
            part = _PARTS.get(name, "")
            for sample in by_name.get(name, ()):
                labels = sample.labels
                known = self._read.get(id(labels))
                if known is None or known[0] is not labels:
                    known = labels, _rank_labels(labels)
                read[id(labels)] = known
                if plausible(sample.value):
                    sums[known[1]][name, labels.get(part, "")] = sample.value
        self._read = read
        for key, of_rank in sums.items():
            rank = self._ranks.setdefault(key, RankHistory())
            if _ENDED in of_rank:
                rank.end(at, of_rank[_ENDED])
            else:
                rank.take(at, of_rank)

    def signals(self, now: float, job_of: Callable[[DeviceKey], tuple[str, ...]]) -> LoopSignals:
        """Return the signals of the ranks that are there; devices of which `job_of` returns the same are of one job."""
        self._ranks = {key: rank for key, rank in self._ranks.items() if rank.at > now - HOUR}
        found = LoopSignals(now)
        by_job: dict[tuple[str, ...], dict[RankLabels, RankHistory]] = defaultdict(dict)
        for key, rank in self._ranks.items():
            if not _is_there(rank, now):
                continue
            if rank.ended_at is not None:
                found.add(j.ENDED_AGE, key, now - rank.ended_at)
                found.tell(RANK_ENDED, key, rank)
            else:
                by_job[(*job_of(key.device), key.job_id)][key] = rank
        for job, ranks in by_job.items():
            history = self._jobs.setdefault(job, JobHistory())
            history.take(now, ranks)
            _judge_ranks(found, ranks)
            _judge_job(found, history, ranks)
        self._jobs = {job: each for job, each in self._jobs.items() if job in by_job or each.sums[-1][0] > now - HOUR}
        return found


def _rank_labels(labels: Mapping[str, str]) -> RankLabels:
    return RankLabels(key_of(labels, per_instance=True), labels.get("job_id", ""), labels.get("rank", ""))


def _is_there(rank: RankHistory, now: float) -> bool:
    return now - rank.at <= max(MISSED_SECONDS, MISSED_SCRAPES * rank.every)


def _usual(values: Sequence[float]) -> float | None:
    """Return the value that a rank should have: the median of all ranks, or the lowest of a few."""
    return median(values) if len(values) >= j.FEW_RANKS else min(values) if len(values) > 1 else None


class SelfTime(NamedTuple):
    """By how much the self time of a rank exceeds the usual one, how far it may do so by chance, and how much of a step
    a rank may wait because others pause: shares of a step, which takes `step` seconds."""

    excess: float
    margin: float
    pause_wait: float
    step: float

    @property
    def is_beyond(self) -> bool:
        """Whether it is longer than by chance."""
        return self.excess > max(self.margin, j.LEAST_EXCESS)

    def signals(self) -> Mapping[Signal, float]:
        """Return the values of the signals by which a failure mode judges a rank."""
        return {j.SELF_EXCESS: self.excess, j.SELF_MARGIN: self.margin, j.PAUSE_WAIT: self.pause_wait}


Key = TypeVar("Key", bound=Hashable)


def self_times(ranks: Mapping[Key, RankMeans]) -> dict[Key, SelfTime]:
    """Compare the ranks of a job with each other; empty if fewer than two have a self time.

    A few slow steps make no straggler: what counts is the excess of the half of the time in which it is lower.
    """
    own = {key: rank.own for key, rank in ranks.items() if rank.own is not None}
    usual = _usual(list(own.values()))
    step = median([rank.step for rank in ranks.values()]) if ranks else 0.0
    if usual is None or step <= 0:
        return {}
    is_brief, is_launch_bound = any(rank.is_brief for rank in ranks.values()), _is_launch_bound(ranks.values())
    if is_brief and (is_launch_bound or len(own) < len(ranks)):
        return {}  # those that are known first would be compared with each other
    halves = _halves(ranks)
    excess = {key: value - usual for key, value in own.items()}
    few = j.SHARE_OF_FEW * usual
    deviation = j.DEVIATION_OF_MEDIANS * median([abs(each) for each in excess.values()])
    by_chance = j.DEVIATIONS * (deviation + j.LEAST_SHARE * usual) if len(own) >= j.FEW_RANKS else few
    margin = max(few, by_chance) if is_launch_bound else by_chance
    alone = None if is_launch_bound is not False or halves is None else _outlier(own, step)
    if alone is not None and all(_outlier(of_half, step) == alone for of_half in halves or ()):
        margin = min(by_chance, _next_margin(excess.values(), step))
    for of_half in halves or ():
        usual_of_half = _usual(list(of_half.values())) or 0.0
        excess = {key: min(more, of_half[key] - usual_of_half) for key, more in excess.items()}
    paused = [rank.paused for rank in ranks.values()]
    spread = max(paused) - min(paused)
    pause_wait = spread / (1 - spread) if spread < 1 else 1e9
    margins = {key: max(margin, j.STANDARD_ERRORS * ranks[key].error) for key in excess}
    return {key: SelfTime(more / step, margins[key] / step, pause_wait, step) for key, more in excess.items()}


def _halves(ranks: Mapping[Key, RankMeans]) -> Sequence[Mapping[Key, float]] | None:
    """Return the self times of the ranks in both halves of the time; none if it is long, None if some are unknown."""
    measured = {key: rank.halves for key, rank in ranks.items() if rank.own is not None}
    if not any(each is not None for each in measured.values()):
        return ()
    known = {key: each for key, each in measured.items() if each}
    if len(known) < len(measured):
        return None
    return [{key: each[half] for key, each in known.items()} for half in (0, 1)]


def _next_margin(values: Iterable[float], step: float) -> float:
    """Return the value above which the longest self time stands out from the others, by the next one."""
    others = sorted(values)[:-1]
    return others[-1] + max(j.STANDS_OUT * (others[-1] - others[0]), j.LEAST_EXCESS * step)


def _outlier(own: Mapping[Key, float], step: float) -> Key | None:
    """Return the rank whose self time stands out, if there is one."""
    longest = max(own, key=lambda key: own[key])
    return longest if own[longest] > _next_margin(own.values(), step) else None


def _is_launch_bound(ranks: Iterable[RankMeans]) -> bool | None:
    """Return whether the CPUs of a job are its limit; None if no waiting is known."""
    sums = [
        (rank.own + rank.waiting) / rank.step
        for rank in ranks
        if rank.own is not None and rank.waiting is not None and rank.step > 0
    ]
    return median(sums) > j.LAUNCH_BOUND if sums else None


def _judge_ranks(found: LoopSignals, ranks: Mapping[RankLabels, RankHistory]) -> None:
    """Add how the ranks of a job compare with each other."""
    grown, means = _lately(ranks, LEAST_SECONDS)
    compared = self_times(means)
    if any(_differs(rank) for rank in means.values()) and not any(each.is_beyond for each in compared.values()):
        grown, means = _lately(ranks, RATE_SECONDS)
        compared = self_times(means)
    found.ranks += (RankNow(key, means.get(key), rank.now.get(_STEP_COUNT, 0.0)) for key, rank in ranks.items())
    for key, self_time in compared.items():
        if found.add(j.SELF_EXCESS, key, self_time.excess):
            for signal, value in self_time.signals().items():
                found.signals[signal][key.device] = [(found.now, value)]
            found.tell(STRAGGLER, key, ranks[key], _phase_excess(key, grown))


def _lately(
    ranks: Mapping[RankLabels, RankHistory], seconds: float
) -> tuple[Mapping[RankLabels, Mapping[Sum, float]], Mapping[RankLabels, RankMeans]]:
    """Return by how much the sums of ranks have grown in the last seconds, and what they are compared by."""
    grown = {key: growth for key, rank in ranks.items() if (growth := rank.grown(seconds))}
    return grown, {key: _means(growth, ranks[key]) for key, growth in grown.items() if _STEP_SUM in growth}


def _differs(rank: RankMeans) -> bool:
    """Return whether the steps of a rank differ so much that the mean of a few says little."""
    return rank.own is not None and j.STANDARD_ERRORS * rank.error > j.SHARE_OF_FEW * rank.own


def _means(growth: Mapping[Sum, float], rank: RankHistory) -> RankMeans:
    is_brief = growth[SECONDS] <= LEAST_SECONDS - PACE
    waiting = growth.get(_WAITS) if _TIMED_ON_GPU in rank.now else None
    if waiting is not None:
        waiting += growth.get(_LONG, 0.0)
    enough = USUAL_STEPS if is_brief else ENOUGH
    known = growth.get(_SELF_COUNT, 0.0) >= enough and _SELF_SUM in growth
    return RankMeans(
        growth[_STEP_SUM] / growth[_STEP_COUNT],
        growth[_SELF_SUM] / growth[_SELF_COUNT] if known else None,
        sum(growth.get(key, 0.0) for key in _PAUSES) / growth[SECONDS],
        None if waiting is None else waiting / growth[_STEP_COUNT],
        is_brief,
        rank.halves(growth[SECONDS]),
        _error(growth),
    )


def _error(growth: Mapping[Sum, float]) -> float:
    """Return the standard error of the mean self time; 0 if it is unknown."""
    count, squares = growth.get(_SELF_COUNT, 0.0), growth.get(_SELF_SQUARES)
    if count < ENOUGH or squares is None:
        return 0.0
    variance = squares / count - (growth.get(_SELF_SUM, 0.0) / count) ** 2
    return sqrt(max(variance, 0.0) / (count - 1))


def _phase_excess(key: RankLabels, grown: Mapping[RankLabels, Mapping[Sum, float]]) -> Mapping[str, float]:
    """Return the phase of a rank that exceeds the usual one most, with the seconds of a step; none if no phase does."""
    by_rank = {other: dict(_phases(growth)) for other, growth in grown.items()}
    excess = {}
    for phase, seconds in by_rank[key].items():
        usual = _usual([phases[phase] for phases in by_rank.values() if phase in phases])
        if usual is not None and seconds > usual:
            excess[phase] = seconds - usual
    longest = max(excess, key=excess.__getitem__, default=None)
    return {longest: excess[longest]} if longest is not None else {}


def _phases(growth: Mapping[Sum, float]) -> Iterator[tuple[str, float]]:
    """Yield the mean time of a step by phase; `data` is the data loader. A rank that waits longer is not slow."""
    for (name, part), seconds in growth.items():
        if name == m.JOB_PHASE.name and part not in (WAITING, LONG_STEPS):
            yield part, seconds / growth[_STEP_COUNT]
    if _LOADER in growth:
        yield "data", growth[_LOADER] / growth[_STEP_COUNT]


def _judge_job(found: LoopSignals, history: JobHistory, ranks: Mapping[RankLabels, RankHistory]) -> None:
    """Add what is true of a job to the devices of all its ranks."""
    values = dict(_of_job(found.now, history, ranks))
    for key, rank in ranks.items():
        for signal, value in values.items():
            if found.add(signal, key, value) and signal is j.STANDSTILL:
                found.tell(STALLED, key, rank)


def _of_job(now: float, history: JobHistory, ranks: Mapping[RankLabels, RankHistory]) -> Iterator[tuple[Signal, float]]:
    """Yield the signals of a job."""
    since = [rank.at - rank.now[_STEPPED] for rank in ranks.values() if _STEPPED in rank.now]
    if since:
        pause = [now - history.paused_at] if now - history.paused_at <= HOUR else []
        yield j.STANDSTILL, min(*since, *pause, float("inf"))
        longest = max((edge for rank in ranks.values() for _, edge in rank.longest), default=0.0)
        yield j.STALL_LIMIT, max(j.STALL_SECONDS + j.STALL_STEPS * _typical_step(history, ranks), longest)
    if speed := history.speed(now):
        yield j.SPEED, speed[0]
        yield j.SPEED_NOW, speed[1]
    if lost := history.lost():
        yield j.LOST_OTHER, lost["other"]
        yield j.LOST_PAUSES, max(lost[activity] for activity in j.PAUSES)


def _typical_step(history: JobHistory, ranks: Mapping[RankLabels, RankHistory]) -> float:
    """Return the median step of the last hour, or the mean of all steps so far."""
    if history.steps:
        return median([seconds for _, seconds in history.steps])
    seconds, steps = (sum(rank.now.get(key, 0.0) for rank in ranks.values()) for key in (_STEP_SUM, _STEP_COUNT))
    return seconds / steps if steps else 0.0
