"""When each job starts, trains, saves and ends, by seed, and the idle time between jobs.

Durations are chosen, not recorded: hours of a cluster are compressed into minutes, so that everything happens soon. The
GPUs of a node share workloads, schedule and time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import cos, inf, pi, sin
from random import Random
from typing import NamedTuple

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.simulated import faults as script
from gpu_exporter.sources.simulated.faults import ScriptedFault
from gpu_exporter.sources.simulated.workload import SimulatedActivity, Workloads

# A schedule repeats, so that any time can be looked up without a history.
PERIOD_SECONDS = 7200.0
NODES_A_JOB = (1, 1, 1, 2, 2, 4, 8)
GAP, WARM_UP, TRAIN, HOLD, STEP = (20.0, 60.0), (5.0, 15.0), (30.0, 90.0), (2.0, 6.0), (0.8, 2.5)
ROUNDS = (3, 10)
# The share of single-node jobs whose GPUs work together. Jobs of several nodes always do.
TOGETHER_SHARE = 0.6
# The parts of a swing: the steps of the job, which all ranks share, the slow drift of a GPU, and its constant bias.
SHARED, WANDER, BIAS = 0.75, 0.15, 0.10
WANDER_SECONDS = (5.0, 20.0)


class Segment(NamedTuple):
    """One activity of all GPUs of a job. `steps` whole sines fit into its `seconds`, so their integral over it is 0."""

    start: float
    seconds: float
    activity: SimulatedActivity
    steps: int
    phase: float


class SegmentPart(NamedTuple):
    """The part of a segment from `begin` to `end`, in seconds since the start of the segment."""

    segment: Segment
    begin: float
    end: float


class GpuVariation:
    """How one GPU differs from the other ranks of its job. The same `seed` gives the same variation."""

    def __init__(self, seed: str) -> None:
        rng = Random(seed)
        self.bias = BIAS * rng.uniform(-1, 1)
        self._wander = rng.uniform(*WANDER_SECONDS)
        self._phase = rng.uniform(0, 2 * pi)

    def swing(self, part: SegmentPart) -> float:
        """Return the mean swing, from -1 to 1, over a part of a segment, which may be an instant."""
        (_, seconds, _, steps, phase), begin, end = part
        sines = max(1, round(seconds / self._wander))
        return (
            SHARED * _sine(steps, seconds, phase, begin, end)
            + WANDER * _sine(sines, seconds, self._phase, begin, end)
            + self.bias
        )


def _sine(sines: int, seconds: float, phase: float, begin: float, end: float) -> float:
    """Return the mean from `begin` to `end` of a sine with this number of periods in `seconds`."""
    speed = 2 * pi * sines / seconds
    if speed * (end - begin) < 1e-3:
        return sin(speed * end + phase)
    return (cos(speed * begin + phase) - cos(speed * end + phase)) / (speed * (end - begin))


class JobSchedule:
    """The activities of the GPUs of a block of nodes, at any time from 0 on.

    With `only`, this is their activity at all times, and there are no jobs.
    """

    def __init__(
        self, seed: str, workloads: Workloads, *, nodes: int, gpus: int, only: SimulatedActivity | None = None
    ) -> None:
        rng = Random(seed)
        together = 0.0 if gpus == 1 else 1.0 if nodes > 1 else TOGETHER_SHARE
        self._segments: list[Segment] = []
        at = 0.0
        jobs = ((only, PERIOD_SECONDS, max(STEP)),) if only else _jobs(rng, workloads, together)
        for activity, seconds, step in jobs:
            sines, phase = max(1, round(seconds / step)), rng.uniform(0, 2 * pi)
            self._segments.append(Segment(at, seconds, activity, sines, phase))
            at += seconds
        self._starts = [segment.start for segment in self._segments]
        self._period = at
        self._integrals: dict[int, Sequence[tuple[float, float]]] = {}
        self._offset = rng.uniform(0, at)
        self._workloads, self._only = workloads, only

    def part_at(self, t: float) -> SegmentPart:
        """Return the part of a segment at the instant t."""
        local = (t + self._offset) % self._period
        segment = self._segments[self._index(local)]
        return SegmentPart(segment, local - segment.start, local - segment.start)

    def _index(self, local: float) -> int:
        """Return the index of the segment at this time of a loop."""
        return bisect_right(self._starts, local) - 1

    def running_from(self, t: float) -> float:
        """Return the first time from t on at which a job runs; infinity if there is no job."""
        for part in self.parts(t, t + self._period) if self._only is None else ():
            if part.segment.activity is not self._workloads.idle:
                return t
            t += part.end - part.begin
        return inf

    def parts(self, begin: float, end: float) -> Iterator[SegmentPart]:
        """Yield the parts of segments from `begin` to `end`, in order."""
        local = (begin + self._offset) % self._period
        index, left = self._index(local), end - begin
        while left > 0:
            segment = self._segments[index]
            first = local - segment.start
            last = min(segment.seconds, first + left)
            yield SegmentPart(segment, first, last)
            left -= last - first
            if last < segment.seconds:
                return
            index = (index + 1) % len(self._segments)
            local = self._segments[index].start

    def integral(self, row: int, t: float, variation: GpuVariation) -> float:
        """Return the integral of a row of the workloads until t, on a GPU of this variation. Use only differences."""
        before = self._integrals.get(row)
        if before is None:
            before = self._integrals[row] = list(self._integrate(row))
        (middle, swing), (loop_middle, loop_swing) = before[self._index((t + self._offset) % self._period)], before[-1]
        segment, _, now = self.part_at(t)
        return (
            (t + self._offset) // self._period * (loop_middle + variation.bias * loop_swing)
            + middle
            + variation.bias * swing
            + now
            * (
                segment.activity.mid[row]
                + segment.activity.swing[row] * variation.swing(SegmentPart(segment, 0.0, now))
            )
        )

    def _integrate(self, row: int) -> Iterator[tuple[float, float]]:
        """Yield the integrals of the middle of a row and of its swing before each segment, and of all segments."""
        middle = swing = 0.0
        yield middle, swing
        for segment in self._segments:
            middle += segment.activity.mid[row] * segment.seconds
            swing += segment.activity.swing[row] * segment.seconds
            yield middle, swing


def _jobs(rng: Random, workloads: Workloads, together: float) -> Iterator[tuple[SimulatedActivity, float, float]]:
    """Yield activities, their seconds and the seconds of a step, for about one period.

    `together` is the share of jobs whose GPUs train one model and communicate over NVLink.
    """
    planned = 0.0
    while planned < PERIOD_SECONDS:
        kind = workloads.together if rng.random() < together else rng.choice(workloads.alone)
        step = rng.uniform(*STEP)
        plan = [
            (workloads.idle, rng.uniform(*GAP)),
            (kind.load, kind.copy_seconds),
            (kind.warm_up, rng.uniform(*WARM_UP)),
        ]
        for _ in range(rng.randint(*ROUNDS)):
            plan += [
                (kind.train, rng.uniform(*TRAIN)),
                (kind.save, kind.copy_seconds),
                (kind.hold, rng.uniform(*HOLD)),
            ]
        for activity, seconds in plan:
            planned += seconds
            yield activity, seconds, step


def blocks(nodes: int, seed: int) -> list[int]:
    """Return the block number of each node. The nodes of a block run the same jobs."""
    rng, numbers = Random(f"{seed}/blocks"), list[int]()
    block = 0
    while len(numbers) < nodes:
        numbers += [block] * rng.choice(NODES_A_JOB)
        block += 1
    return numbers[:nodes]


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node. `clock` returns the seconds since the start of the fleet. Nodes with the same jobs share `schedule`.

    `idle` is the schedule of GPUs that a pod does not use, `free` that of GPUs without a pod. `reloads` are the
    scripted faults that reload the driver of this node.
    """

    name: str
    gpus: int
    seed: int
    workloads: Workloads
    schedule: JobSchedule
    idle: JobSchedule
    free: JobSchedule
    reloads: tuple[ScriptedFault, ...]
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def now(self) -> float:
        """Return the seconds since the start. Raises SourceLost while the driver is reloaded."""
        now = self.clock()
        if script.last_end(self.reloads, script.RELOAD, now) > now:
            raise SourceLost(f"{self.name}: the driver is being reloaded, as --faults or --inject says", "reloaded")
        return now

    def loaded_at(self, now: float) -> float:
        """Return when the driver was last loaded."""
        return max((fault.end for fault in self.reloads if fault.end <= now), default=0.0)
