"""Waits of the host for the GPU, and the gaps that they cause.

A wait empties the queue of the GPU. The GPU is then idle until the host has launched enough to be ahead of it again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_exporter.traces.frames import is_synchronising
from gpu_exporter.traces.intervals import Intervals, covered, union
from gpu_exporter.traces.model import UNKNOWN, Column, HostKind, Trace, distinct

# Clocks of the host and of the GPU agree to so much.
CLOCK_NS = 20_000
# Gaps before so many launches after a wait are its consequence. Without waits, a host that is too slow for the GPU
# makes gaps, too: a larger number would blame one wait in a step for these.
LAUNCHES_AFTER_WAIT = 8
# A launch takes 5 to 20 us. One that takes longer than this waits for the GPU, whose queue is full.
LONGEST_LAUNCH_NS = 1_000_000


@dataclass(frozen=True)
class HostTimes:
    """What the host did for one GPU."""

    launched: Column  # of each device event the start of its launch, ns; UNKNOWN if the file has none
    blocked: Intervals  # when a thread that launches waited for the GPU


def host_times(trace: Trace, calls: Column) -> HostTimes:
    """Return the launches of device events and the waits of the threads that made them.

    `calls` has the row of each device event's launch in `Trace.host_events`, or UNKNOWN.
    """
    host = trace.host_events
    known = calls != UNKNOWN
    launched = np.full(len(calls), UNKNOWN, dtype=np.int64)
    launched[known] = host.start[calls[known]]
    rows = distinct(calls[known])
    waits = [synchronisations(trace, thread) for thread in distinct(host.thread[rows]).tolist()]
    full = rows[host.end[rows] - host.start[rows] > LONGEST_LAUNCH_NS]
    blocked = np.concatenate((*waits, full)).astype(np.int64)
    return HostTimes(launched, union(host.start[blocked], host.end[blocked]))


def synchronisations(trace: Trace, thread: int) -> Column:
    """Return the calls in which a thread waited for the GPU, by their end: rows of `Trace.host_events`."""
    events = trace.host_events
    names = [row for row, name in enumerate(trace.names) if is_synchronising(name)]
    rows = np.flatnonzero((events.kind == HostKind.RUNTIME) & (events.thread == thread) & np.isin(events.name, names))
    return rows[np.argsort(events.end[rows], kind="stable")]


def causing(trace: Trace, thread: int, launched: Column, launches: Column, busy: Intervals) -> Column:
    """Return for each launch the wait that left the GPU without work shortly before; UNKNOWN if there is none.

    `launched` has the starts of these launches, ns, and `launches` the rows of all launches of the GPU's work. The
    result has rows of `Trace.host_events`.
    """
    host = trace.host_events
    rows = synchronisations(trace, thread)
    ends = host.end[rows]
    dry = covered(busy, ends, ends + CLOCK_NS) < CLOCK_NS
    rows, ends = rows[dry], ends[dry]
    if not len(rows):
        return np.full(len(launched), UNKNOWN, dtype=np.int64)
    last = np.searchsorted(ends, launched, side="right") - 1
    of_thread = np.sort(host.start[launches[host.thread[launches] == thread]])
    since = np.searchsorted(of_thread, launched) - np.searchsorted(of_thread, ends[last])
    return np.where((last >= 0) & (since < LAUNCHES_AFTER_WAIT), rows[last], UNKNOWN)
