"""The result of an analysis as folded stacks and for pprof."""

from __future__ import annotations

from gpu_exporter.traces.pprof import profile
from gpu_exporter.traces.result import AnalysisResult


def folded_lines(result: AnalysisResult) -> list[str]:
    """Return idle time as folded stacks, the most costly first: rank, cause and frames, and whole microseconds."""
    found = [
        (round(seconds * 1e6), f"rank {rank};{stack}")
        for rank, stacks in result.idle_stacks.items()
        for stack, seconds in stacks.items()
    ]
    return [f"{' '.join(stack.split())} {number}" for number, stack in sorted(found, reverse=True) if number]


def pprof_profile(result: AnalysisResult) -> bytes:
    """Return GPU time and idle time by stack in the format of pprof. The result needs its details."""
    gpu = {
        f"rank {rank};{stack}": seconds
        for (rank, _), details in result.details.items()
        for stack, seconds in details.gpu_stacks.items()
    }
    idle = {
        f"rank {rank};{stack}": seconds
        for rank, stacks in result.idle_stacks.items()
        for stack, seconds in stacks.items()
    }
    return profile({"gpu_time": gpu, "gpu_idle": idle}, max(rank.span_seconds for rank in result.ranks))
