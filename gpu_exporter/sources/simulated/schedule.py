"""Seed -> who does what when: jobs that start, train, save, end, and the idle time between them.

Durations are chosen, not recorded: they compress hours of a cluster into minutes, so that a short look sees everything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import cos, pi, sin
from random import Random
from typing import NamedTuple

from gpu_exporter.sources.simulated.workload import Activity, Workloads

# A schedule is played over and over, so that any time can be looked up and none be kept.
PERIOD_SECONDS = 7200.0
NODES_A_JOB = (1, 1, 1, 2, 2, 4, 8)
GAP, WARM_UP, TRAIN, HOLD, STEP = (20.0, 60.0), (5.0, 15.0), (30.0, 90.0), (2.0, 6.0), (0.8, 2.5)
ROUNDS = (3, 10)
# Of the jobs of one node; those of several always work together.
TOGETHER_SHARE = 0.6
# What a swing is made of: the step of the job, which all ranks share, the wander of a GPU, and how GPUs differ.
SHARED, OWN, BIAS = 0.75, 0.15, 0.10
WANDER_SECONDS = (5.0, 20.0)


class Segment(NamedTuple):
    """One activity of all GPUs of a job. `steps` whole sines fit into its `seconds`, so their integral over it is 0.

    `joules` is what a GPU used since the schedule's beginning: by the middle of its power, and by the swing of it.
    """

    start: float
    seconds: float
    activity: Activity
    steps: int
    phase: float
    joules: tuple[float, float]


class Part(NamedTuple):
    """The part of a segment that a window covers, from `begin` to `end`, in seconds of the segment."""

    segment: Segment
    begin: float
    end: float


class Temper:
    """How one GPU differs from the other ranks of its job. Deterministic by `seed`."""

    def __init__(self, seed: str) -> None:
        rng = Random(seed)
        self.bias = BIAS * rng.uniform(-1, 1)
        self._wander = rng.uniform(*WANDER_SECONDS)
        self._phase = rng.uniform(0, 2 * pi)

    def swing(self, part: Part) -> float:
        """Where between -1 and 1 the GPU is: the mean over a part of a segment, which may be an instant."""
        (_, seconds, _, steps, phase, _), begin, end = part
        turns = max(1, round(seconds / self._wander))
        return (
            SHARED * _sine(steps, seconds, phase, begin, end)
            + OWN * _sine(turns, seconds, self._phase, begin, end)
            + self.bias
        )


def _sine(turns: int, seconds: float, phase: float, begin: float, end: float) -> float:
    """The mean from begin to end of a sine that makes that many turns in these seconds."""
    speed = 2 * pi * turns / seconds
    if speed * (end - begin) < 1e-3:
        return sin(speed * end + phase)
    return (cos(speed * begin + phase) - cos(speed * end + phase)) / (speed * (end - begin))


class Schedule:
    """What the GPUs of some nodes do, at any time from 0 on."""

    def __init__(self, seed: str, workloads: Workloads, *, nodes: int, gpus: int) -> None:
        rng = Random(seed)
        together = 0.0 if gpus == 1 else 1.0 if nodes > 1 else TOGETHER_SHARE
        self._segments: list[Segment] = []
        at, joules = 0.0, (0.0, 0.0)
        for activity, seconds, step in _jobs(rng, workloads, together):
            turns, phase = max(1, round(seconds / step)), rng.uniform(0, 2 * pi)
            self._segments.append(Segment(at, seconds, activity, turns, phase, joules))
            middle, swing = workloads.power(activity)
            at, joules = at + seconds, (joules[0] + middle * seconds, joules[1] + swing * seconds)
        self._starts = [segment.start for segment in self._segments]
        self._period, self._joules = at, joules
        self._offset = rng.uniform(0, at)
        self._workloads = workloads

    def at(self, t: float) -> Part:
        """The instant t."""
        local = (t + self._offset) % self._period
        segment = self._segments[bisect_right(self._starts, local) - 1]
        return Part(segment, local - segment.start, local - segment.start)

    def between(self, begin: float, end: float) -> Iterator[Part]:
        """The parts of segments from begin to end, in order."""
        local = (begin + self._offset) % self._period
        index, left = bisect_right(self._starts, local) - 1, end - begin
        while left > 0:
            segment = self._segments[index]
            first = local - segment.start
            last = min(segment.seconds, first + left)
            yield Part(segment, first, last)
            left -= last - first
            if last < segment.seconds:
                return
            index = (index + 1) % len(self._segments)
            local = self._segments[index].start

    def joules(self, t: float, temper: Temper) -> float:
        """What a GPU of this temper has used until t: the integral of its power. Only differences mean anything."""
        loops = (t + self._offset) // self._period
        segment, _, now = self.at(t)
        middle, swing = self._workloads.power(segment.activity)
        return (
            loops * (self._joules[0] + temper.bias * self._joules[1])
            + segment.joules[0]
            + temper.bias * segment.joules[1]
            + now * (middle + swing * temper.swing(Part(segment, 0.0, now)))
        )


def _jobs(rng: Random, workloads: Workloads, together: float) -> Iterator[tuple[Activity, float, float]]:
    """Activities with their seconds and the seconds of a step, for about a period.

    `together` is the share of jobs whose GPUs work on one thing, and talk to each other over NVLink.
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
    """The number of the block that each node belongs to. The nodes of a block run the same jobs."""
    rng, found = Random(f"{seed}/blocks"), list[int]()
    block = 0
    while len(found) < nodes:
        found += [block] * rng.choice(NODES_A_JOB)
        block += 1
    return found[:nodes]
