"""How long a GPU computed, communicated and copied: lengths of unions, per GPU and per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_exporter.traces.idle import HostTimes
from gpu_exporter.traces.intervals import Intervals, clipped, length, subtract, union
from gpu_exporter.traces.kernel_classes import short_name
from gpu_exporter.traces.model import UNKNOWN, DeviceEvents, DeviceKind, Trace, TraceStep, distinct
from gpu_exporter.traces.operators import EventClasses
from gpu_exporter.traces.result import Kernels, StepTime

NS = 1e9


@dataclass(frozen=True)
class DeviceTimes:
    """The events of one GPU, and the unions of each kind. The span is from the first start to the last end."""

    events: DeviceEvents
    busy: Intervals
    compute: Intervals  # with memsets, which the SMs execute
    communication: Intervals
    copies: Intervals

    @property
    def start(self) -> int:
        return int(self.busy[0][0])

    @property
    def end(self) -> int:
        return int(self.busy[1][-1])

    @property
    def span(self) -> int:
        """ns"""
        return self.end - self.start

    def exposed_communication(self, start: int, end: int) -> int:
        """Return how long, between two moments, the GPU communicated without computing, ns."""
        return subtract(clipped(self.communication, start, end), self.compute)

    def exposed_copies(self) -> int:
        """Return how long the GPU copied without a kernel running, ns."""
        kernels = self.events.kind != DeviceKind.COPY
        return subtract(self.copies, union(self.events.start[kernels], self.events.end[kernels]))


def devices(trace: Trace) -> dict[int, DeviceTimes]:
    """Return the times of each GPU that executed something for longer than 0 ns."""
    table = trace.device_events
    times = {}
    for device in distinct(table.device).tolist():
        events = table.rows(table.device == device)
        busy = union(events.start, events.end)
        if len(busy[0]):
            times[device] = DeviceTimes(
                events,
                busy,
                _of_kinds(events, DeviceKind.COMPUTE, DeviceKind.MEMSET),
                _of_kinds(events, DeviceKind.COMMUNICATION),
                _of_kinds(events, DeviceKind.COPY),
            )
    return times


def _of_kinds(events: DeviceEvents, *kinds: DeviceKind) -> Intervals:
    chosen = np.isin(events.kind, kinds)
    return union(events.start[chosen], events.end[chosen])


def step_times(times: DeviceTimes, steps: tuple[TraceStep, ...], origin: int, host: HostTimes) -> tuple[StepTime, ...]:
    """Return how each step went on one GPU and its host. `origin` is the start of the trace, ns."""
    found = []
    has_launches = bool((host.launched != UNKNOWN).any())
    for step in steps:
        length_ns = step.end - step.start
        if length_ns <= 0:
            continue
        busy = length(clipped(times.busy, step.start, step.end))
        exposed = times.exposed_communication(step.start, step.end)
        found.append(
            StepTime(
                step.name,
                (step.start - origin) / NS,
                length_ns / NS,
                busy / length_ns,
                exposed / NS,
                (length_ns - exposed) / NS,
                (length_ns - length(clipped(host.blocked, step.start, step.end))) / NS if has_launches else 0.0,
                (_launched_in(step, times.events, host) if has_launches else busy - exposed) / NS,
            )
        )
    return tuple(found)


def _launched_in(step: TraceStep, events: DeviceEvents, host: HostTimes) -> int:
    """Return how long the GPU executed what a step launched, without communication, ns; perhaps after the step."""
    chosen = (host.launched >= step.start) & (host.launched < step.end) & (events.kind != DeviceKind.COMMUNICATION)
    return length(union(events.start[chosen], events.end[chosen]))


def kernels(
    trace: Trace, events: DeviceEvents, classes: EventClasses, most: int
) -> tuple[tuple[Kernels, ...], tuple[Kernels, ...]]:
    """Return the time of kernels by class, and of the `most` costly names. Copies and memsets are a class, too."""
    if not len(events):
        return (), ()
    spent = events.end - events.start
    total = float(spent.sum()) or 1.0
    sums = np.bincount(classes.rows, weights=spent, minlength=len(classes.names))
    counts = np.bincount(classes.rows, minlength=len(classes.names))
    by_class = tuple(
        Kernels(name, name, int(counts[row]), sums[row] / NS, sums[row] / total)
        for row in np.argsort(-sums, kind="stable").tolist()
        for name in (classes.names[row],)
    )
    width = len(classes.names)
    keys, inverse, counts = np.unique(
        events.name.astype(np.int64) * width + classes.rows, return_inverse=True, return_counts=True
    )
    sums = np.bincount(inverse, weights=spent)
    top = tuple(
        Kernels(
            short_name(trace.names[keys[row] // width]),
            classes.names[keys[row] % width],
            int(counts[row]),
            sums[row] / NS,
            sums[row] / total,
        )
        for row in np.argsort(-sums, kind="stable")[:most].tolist()
    )
    return by_class, top
