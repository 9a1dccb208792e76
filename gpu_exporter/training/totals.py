"""The sums that a message contains, and the summary made of them. Pure."""

from __future__ import annotations

from bisect import bisect_left

from gpu_exporter.model.job_message import (
    ACTIVITIES,
    AMOUNTS,
    LONG_STEPS,
    ON_GPU,
    STEP_BUCKETS,
    TRAINING,
    VERSION,
    WAITING,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

# Names of phases become labels, and a message has a limited size. Further names are added up as `other`. The exporter
# takes 32 of all ranks of a job on a node, `waiting` and `other` included.
MOST_PHASES = 24
OTHER = "other"
# A step is long if its self time is above so many times the typical one, which follows the median by this factor in
# each step: with a checkpoint of seconds in it, the mean of minutes would say little.
LONG_TIMES, FOLLOWS = 4, 1.05
# Long steps are rare if there is at most one in so many seconds, and in so many steps; after many of them, so many
# times as long passes until one is rare again. No verdict is lost with so few: they are 30 in the five minutes that are
# compared. A mean that n such steps raise is less than the square root of n standard errors above the others, and a
# straggler has to be six above.
RARE_SECONDS, RARE_STEPS, MOST_DEBT = 10.0, 20, 6
# A usual step takes the CPU up to so many times as long as its shortest ones.
USUAL_TO_SHORTEST = 4 / 3


def amount(value: float) -> float:
    """Return an amount of a step; 0 for one that makes no sense, and for a tensor on a GPU, for which it would wait."""
    if type(value) is not int and type(value) is not float:
        value = 0.0 if getattr(value, "is_cuda", False) else float(value)
    return value if 0 < value < float("inf") else 0


class StepHistogram:
    """Counts times, in seconds, by the bounds of STEP_BUCKETS; as in Prometheus, a bound belongs to its bucket."""

    __slots__ = ("counts", "most", "sum")

    def __init__(self) -> None:
        self.sum, self.most = 0.0, 0.0
        self.counts = [0] * (len(STEP_BUCKETS) + 1)

    def add(self, seconds: float) -> None:
        """Count a time."""
        self.sum += seconds
        if seconds > self.most:
            self.most = seconds
        self.counts[bisect_left(STEP_BUCKETS, seconds)] += 1

    @property
    def count(self) -> int:
        """How many times were counted."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean, 0 if nothing was counted."""
        return self.sum / self.count if self.count else 0.0


class StepTotals:
    """Sums since the timer was created; times in seconds.

    `own` has the self times, and only of steps whose waiting is known; `own_squares` is the sum of their squares. Those
    of rare long steps are in the phase `long_steps` instead.
    `phases` do not overlap: time in a nested phase is not part of the outer one.
    """

    __slots__ = (
        "_rare_at",
        "_typical",
        "activities",
        "amounts",
        "data",
        "own",
        "own_squares",
        "phases",
        "step",
        "steps",
    )

    def __init__(self) -> None:
        self.steps = 0
        self.step, self.own = StepHistogram(), StepHistogram()
        self.data = self.own_squares = 0.0
        self.activities = dict.fromkeys(ACTIVITIES, 0.0)
        self.phases: dict[str, float] = {}
        self.amounts = dict.fromkeys(AMOUNTS, 0.0)
        # The typical self time, and from how many seconds of training on a long step is rare.
        self._typical, self._rare_at = 0.0, RARE_SECONDS

    def add_step(
        self,
        seconds: float,
        phases: Iterable[Sequence[Any]],
        waits: frozenset[str] | None,
        weight: int = 1,
        cpu: float = 0.0,
        is_ahead: bool = False,
        data: float = 0.0,
    ) -> int:
        """Add a step, `data` seconds of which were in the loader. Return for how many steps others have to stand.

        `waits` are the phases in which it waited for other ranks, None if that is unknown.

        `phases`, pairs of name and seconds, stand for those of `weight` steps; 0 if they were not measured. A long step
        stands for itself only.

        `cpu` are the seconds that the CPU needs for a short step; a rank waits for others only for what is left. That
        counts unless the CPU is more than a step ahead of a GPU that has more to do than itself.
        """
        waiting = 0.0
        sums = self.phases
        for name, measured in phases:
            part = measured if measured > 0 else 0.0  # marks on different streams may be in another order
            if name in sums:
                sums[name] += part * weight
            else:
                self._add_phase(name, part * weight)
            if waits is not None and name in waits:
                waiting += part
        self.step.add(seconds)
        self.activities[TRAINING] += seconds
        if waits is None or not weight:
            return 0
        own = seconds - waiting
        if cpu > own or not is_ahead:
            own = max(own, min(USUAL_TO_SHORTEST * cpu, seconds))
        typical = self._typical
        if own > LONG_TIMES * typical and typical and self._is_rare(seconds):
            self._set_aside(phases, waits, weight, max(seconds - waiting - data, 0.0))
            return weight - 1
        self._typical = (typical * FOLLOWS or own) if own > typical else typical / FOLLOWS
        self.own.add(own)
        self.own_squares += own * own
        return 0

    def _is_rare(self, seconds: float) -> bool:
        """Return whether a long step is rare, which was just added."""
        ended = self.activities[TRAINING]
        between = max(RARE_SECONDS, RARE_STEPS * ended / (self.steps + 1))
        rare_at = self._rare_at
        self._rare_at = min(max(rare_at, ended) + between, ended + MOST_DEBT * between)
        return ended - seconds >= rare_at and self.steps >= RARE_STEPS

    def _set_aside(self, phases: Iterable[Sequence[Any]], waits: frozenset[str], weight: int, seconds: float) -> None:
        """Move the phases of a step that were just added, but for its waiting, to those of long steps."""
        sums = self.phases
        for name, measured in phases:
            part = max(measured, 0.0)
            moved, key = part * weight - (part if name in waits else 0.0), name if name in sums else OTHER
            sums[key] = max(sums[key] - moved, 0.0)  # rounding must not make it negative
        self._add_phase(LONG_STEPS, seconds)

    def _add_phase(self, name: str, seconds: float) -> None:
        if len(self.phases) >= MOST_PHASES and name not in (WAITING, LONG_STEPS):
            name = OTHER
        self.phases[name] = self.phases.get(name, 0.0) + seconds

    def summary(self, elapsed: float) -> dict[str, float]:
        """Return means per step and shares, `elapsed` seconds after the timer was created.

        A value that is unknown has no entry. Goodput is the share of the elapsed time that was spent in training steps.
        """
        steps, trained = self.step.count, self.activities[TRAINING]
        found: dict[str, float] = {"steps": self.steps, "elapsed_seconds": elapsed}
        if elapsed:
            found["goodput"] = min(trained / elapsed, 1.0)
        if not steps:
            return found
        found |= {"step_seconds": self.step.mean, "step_seconds_max": self.step.most}
        if self.own.count:
            found["self_seconds"] = self.own.mean
        if trained:
            found["data_share"] = min(self.data / trained, 1.0)
            found |= {f"{name}_per_second": sum / trained for name, sum in self.amounts.items() if sum}
        found |= {f"phase_seconds/{name}": seconds / steps for name, seconds in self.phases.items()}
        others = {name: seconds for name, seconds in self.activities.items() if name != TRAINING and seconds}
        return found | {f"{name}_seconds": seconds for name, seconds in others.items()}


if TYPE_CHECKING:
    from typing import Any

    from gpu_exporter.training.launcher import JobPlace


class TimerState:
    """The moment of a message: times in seconds, and what the rank does since `activity_seconds`."""

    __slots__ = ("activity", "activity_seconds", "elapsed", "since_step")

    def __init__(self, elapsed: float, since_step: float, activity: str, activity_seconds: float) -> None:
        self.elapsed, self.since_step = elapsed, since_step
        self.activity, self.activity_seconds = activity, activity_seconds


def message(
    place: JobPlace,
    attempt: str,
    state: TimerState,
    totals: StepTotals,
    *,
    uuid: str = "",
    dtype: str = "",
    on_gpu: bool = False,
) -> dict[str, Any]:
    """Return the message. An activity that is not over counts already; training counts when a step ends."""
    activities = dict(totals.activities)
    if state.activity != TRAINING:
        activities[state.activity] += state.activity_seconds
    optional = {
        "uuid": uuid,
        "pod_uid": place.pod_uid,
        "dtype": dtype,
        "clock": ON_GPU if on_gpu else "",
        "self": _histogram(totals.own) if totals.own.count else None,
        "self_squares": totals.own_squares,
        **totals.amounts,
    }
    return {
        "version": VERSION,
        "job_id": place.job_id,
        "attempt": attempt,
        "rank": place.rank,
        "world_size": place.world_size,
        "activity": state.activity,
        "elapsed": state.elapsed,
        "since_step": state.since_step,
        "steps": totals.steps,
        "step": _histogram(totals.step),
        "data_seconds": totals.data,
        "activity_seconds": activities,
        "phase_seconds": dict(totals.phases),
        **{key: value for key, value in optional.items() if value},
    }


def _histogram(histogram: StepHistogram) -> dict[str, Any]:
    return {"sum": histogram.sum, "counts": list(histogram.counts)}
