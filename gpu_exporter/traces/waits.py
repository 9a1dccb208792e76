"""Waits of the host for the GPU, and the gaps that they cause.

A wait empties the queue of the GPU. The GPU is then idle until the host has launched enough to be ahead of it again.
"""

from __future__ import annotations

import numpy as np

from gpu_exporter.traces.frames import is_synchronising
from gpu_exporter.traces.intervals import Intervals, covered
from gpu_exporter.traces.model import UNKNOWN, Column, HostKind, Trace

# Clocks of the host and of the GPU agree to so much.
CLOCK_NS = 20_000
# Gaps before so many launches after a wait are its consequence. Without waits, a host that is too slow for the GPU
# makes gaps, too: a larger number would blame one wait in a step for these.
LAUNCHES_AFTER_WAIT = 8


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
