"""The result of an analysis as folded stacks and for pprof."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_exporter.traces.device_times import NS
from gpu_exporter.traces.idle import Launches
from gpu_exporter.traces.kernel_classes import short_name
from gpu_exporter.traces.model import Trace
from gpu_exporter.traces.operators import launch_stacks
from gpu_exporter.traces.pprof import profile
from gpu_exporter.traces.result import AnalysisResult
from gpu_exporter.traces.stacks import Stacks

NO_FRAMES = "(no frames)"


def gpu_stacks(trace: Trace, device: int) -> dict[str, float]:
    """Return seconds by folded stack: frames from the outermost to the innermost, then the kernel.

    Kernels may overlap, so the sum may exceed the span.
    """
    events = trace.device_events.rows(trace.device_events.device == device)
    stacks = Stacks(trace)
    of_event = launch_stacks(trace, events, stacks, Launches(trace))
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


def folded_lines(result: AnalysisResult) -> list[str]:
    """Return idle time as folded stacks, the most costly first: rank, cause and frames, and whole microseconds."""
    found = [
        (round(seconds * 1e6), f"rank {rank};{stack}")
        for rank, stacks in result.idle_stacks.items()
        for stack, seconds in stacks.items()
    ]
    return [f"{' '.join(stack.split())} {number}" for number, stack in sorted(found, reverse=True) if number]


def pprof_profile(traces: Sequence[Trace], result: AnalysisResult) -> bytes:
    """Return GPU time and idle time by stack in the format of pprof."""
    positions = {position if trace.rank is None else trace.rank: trace for position, trace in enumerate(traces)}
    gpu = {
        f"rank {rank.rank};{stack}": seconds
        for rank in result.ranks
        for stack, seconds in gpu_stacks(positions[rank.rank], rank.device).items()
    }
    idle = {
        f"rank {rank};{stack}": seconds
        for rank, stacks in result.idle_stacks.items()
        for stack, seconds in stacks.items()
    }
    return profile({"gpu_time": gpu, "gpu_idle": idle}, max(rank.span_seconds for rank in result.ranks))
