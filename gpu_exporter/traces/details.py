"""What reports on a GPU draw: the code that it worked for, and its timeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_exporter.traces.device_times import NS, DeviceTimes
from gpu_exporter.traces.idle import Launches
from gpu_exporter.traces.intervals import covered, union
from gpu_exporter.traces.kernel_classes import short_name
from gpu_exporter.traces.model import Column, DeviceEvents, DeviceKind, Trace, TraceStep
from gpu_exporter.traces.operators import launch_stacks
from gpu_exporter.traces.result import RankTimeline
from gpu_exporter.traces.stacks import Stacks

NO_FRAMES = "(no frames)"
BINS = 500
MOST_STEPS = 200
# Time in several is counted for the first: kernels hide communication.
LAYERS = {
    "compute": (DeviceKind.COMPUTE, DeviceKind.MEMSET),
    "communication": (DeviceKind.COMMUNICATION,),
    "copies": (DeviceKind.COPY,),
}


def gpu_stacks(trace: Trace, events: DeviceEvents, stacks: Stacks, launches: Launches) -> dict[str, float]:
    """Return seconds of device events by folded stack: frames from the outermost to the innermost, then the kernel.

    Kernels may overlap, so the sum may exceed the span.
    """
    of_event = launch_stacks(trace, events, stacks, launches)
    width = len(trace.names) + 1
    keys, inverse = np.unique(of_event * width + events.name, return_inverse=True)
    spent = np.bincount(inverse, weights=events.end - events.start)
    found: dict[str, float] = {}
    for key, nanoseconds in zip(keys.tolist(), spent.tolist(), strict=True):
        stack, name = divmod(key, width)
        frames = stacks.names(stack) or (NO_FRAMES,)
        folded = ";".join(frame.replace(";", ":") for frame in (*frames, short_name(trace.names[name])))
        found[folded] = found.get(folded, 0.0) + nanoseconds / NS
    return found


def timeline(times: DeviceTimes, steps: Sequence[TraceStep]) -> RankTimeline:
    """Return what a GPU did in each of BINS equal parts of its span."""
    start, end = times.start, times.end
    marks = [
        (step.name, (step.start - start) / times.span) for step in steps[:MOST_STEPS] if start <= step.start <= end
    ]
    layers = {name: tuple(share.tolist()) for name, share in shares(times).items()}
    return RankTimeline(times.span / NS, layers, tuple(marks))


def shares(times: DeviceTimes) -> dict[str, Column]:
    """Return for each layer the share of each of BINS equal parts of the span, shape (BINS,), between 0 and 1."""
    edges = np.linspace(times.start, times.end, BINS + 1).astype(np.int64)
    begins, ends = edges[:-1], edges[1:]
    width = np.maximum(ends - begins, 1)
    events = times.events
    found, seen, before = {}, np.zeros(len(events), dtype=bool), np.zeros(BINS)
    for name, kinds in LAYERS.items():
        seen = seen | np.isin(events.kind, kinds)
        total = covered(union(events.start[seen], events.end[seen]), begins, ends) / width
        found[name] = total - before
        before = total
    return found
