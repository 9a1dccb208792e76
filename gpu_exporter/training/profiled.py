"""Self time from one profiled step in many, for jobs with collectives all over the step (FSDP, tensor parallelism).

A kernel of a collective runs from the moment when its own rank arrives until the last rank has arrived and the data is
there. So a step's kernels, without the time in which only collectives run, are the rank's own. Uses PyTorch's profiler,
hence waits for the GPU, but only in the steps that it samples.
"""

from __future__ import annotations

import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# Kernels of collectives and of point-to-point messages: NCCL, RCCL, DeepEP, NVSHMEM, MSCCL, vLLM, PyTorch.
COLLECTIVE = re.compile(
    r"nccl|rccl|deep_ep|dpsk::ep|nvshmem|msccl|cross_device_reduce|(one|two)_shot|multimem|symm_mem", re.IGNORECASE
)


class StepSampler:
    """Profiles every `every`-th step. All ranks sample the same steps, because they have made the same number.

    The first profile gives no self time: while CUPTI is being set up, launches take tens of milliseconds longer, and
    not equally on all ranks. If the profiler does not work, or the job uses it itself, nothing is sampled any more.
    """

    def __init__(self, every: int) -> None:
        if every < 2:
            raise ValueError(f"sample_every({every}): use 2 or more; a profiled step is slow")
        self._every = every
        self._profile: Any = None
        self._is_warm = self._is_off = False

    def begin(self, steps: int) -> None:
        """Start the profiler if it is the turn of the step after so many. The GPU is idle then."""
        if self._is_off or not steps or steps % self._every:
            return
        torch: Any = sys.modules["torch"]
        try:
            torch.cuda.synchronize()
            profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            profile.start()
            self._profile = profile
        except (RuntimeError, AttributeError):
            self._is_off = True

    def end(self) -> tuple[bool, float | None]:
        """Return whether the step was profiled, and its self time on the GPU in seconds, if that is known."""
        profile, self._profile = self._profile, None
        if profile is None:
            return False, None
        is_first, self._is_warm = not self._is_warm, True
        try:
            sys.modules["torch"].cuda.synchronize()
            profile.stop()
            own = None if is_first else own_seconds(kernels(profile.profiler.kineto_results.events(), "CUDA"))
        except (RuntimeError, AttributeError):
            self._is_off, own = True, None
        return True, own


def kernels(events: Iterable[Any], device: str) -> list[tuple[str, float, float]]:
    """Return name, begin and end in seconds of the profiler's events on a kind of device."""
    found = []
    for event in events:
        if event.device_type().name != device or getattr(event, "is_user_annotation", bool)():
            continue
        if hasattr(event, "start_ns"):
            begin, length = event.start_ns() / 1e9, event.duration_ns() / 1e9
        else:  # before PyTorch 2.4
            begin, length = event.start_us() / 1e6, event.duration_us() / 1e6
        found.append((event.name(), begin, begin + length))
    return found


def own_seconds(found: list[tuple[str, float, float]]) -> float | None:
    """Return the time from the first to the last kernel without that in which only collectives ran.

    None if there are no kernels. Idle time counts: the GPU waits for its own CPU then.
    """
    if not found:
        return None
    span = max(end for _, _, end in found) - min(begin for _, begin, _ in found)
    computing = _union((begin, end) for name, begin, end in found if not COLLECTIVE.search(name))
    busy = _union((begin, end) for _, begin, end in found)
    return span - (busy - computing)


def _union(intervals: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of some intervals lasts."""
    total, latest = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(end - max(begin, latest), 0.0)
        latest = max(latest, end)
    return total
