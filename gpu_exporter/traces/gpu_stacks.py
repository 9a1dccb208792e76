"""GPU time by the stack of the host that launched the work."""

from __future__ import annotations

import numpy as np

from gpu_exporter.traces.device_times import NS
from gpu_exporter.traces.idle import Launches
from gpu_exporter.traces.kernel_classes import short_name
from gpu_exporter.traces.model import UNKNOWN, Trace
from gpu_exporter.traces.stacks import Stacks

NO_FRAMES = "(no frames)"


def gpu_stacks(trace: Trace, device: int) -> dict[str, float]:
    """Return seconds by folded stack: frames from the outermost to the innermost, then the kernel.

    Kernels may overlap, so the sum may exceed the span.
    """
    events = trace.device_events.rows(trace.device_events.device == device)
    stacks, calls = Stacks(trace), Launches(trace).rows_of(events)
    known = calls != UNKNOWN
    for thread in np.unique(trace.host_events.thread[calls[known]]).tolist():
        stacks.timeline(thread)
    of_event = np.where(known, stacks.of_event[calls], 0).astype(np.int64)
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
