"""Which of several processes, such as the ranks of a job, is elsewhere than all others. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.result import ProcessProfile

# With fewer processes, there is no majority.
LEAST_PROCESSES = 3
# In a hang, a main thread is on one line all the time.
LEAST_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class OddOneOut:
    """A process whose main thread is on `line` while those of the `others` are all on `others_line`."""

    process: Process
    line: str
    others: int
    others_line: str


def odd_ones(found: Sequence[ProcessProfile]) -> tuple[OddOneOut, ...]:
    """Return the processes that are elsewhere, if all others are on the same line nearly all the time.

    These are at most a quarter of the processes, or one.
    """
    if len(found) < LEAST_PROCESSES:
        return ()
    lines = [_main_line(profile) for profile in found]
    (common, count), *_ = Counter(line for line, _ in lines).most_common(1)
    are_odd = [line != common for line, _ in lines]
    others = [share for (_, share), is_odd in zip(lines, are_odd, strict=True) if not is_odd]
    if not common or not 0 < sum(are_odd) <= max(1, len(found) // 4) or min(others) < LEAST_SHARE:
        return ()
    return tuple(
        OddOneOut(profile.process, line or "in no frame", count, common)
        for profile, (line, _), is_odd in zip(found, lines, are_odd, strict=True)
        if is_odd
    )


def _main_line(profile: ProcessProfile) -> tuple[str, float]:
    """Return the line of the user's code where the main thread is most of the time, and the share of that time."""
    shares: defaultdict[str, float] = defaultdict(float)
    for thread in profile.threads:
        if thread.is_main:
            for cause in thread.causes:
                for line in cause.lines:
                    shares[line.frame.split(" > ")[0]] += line.share
    return max(shares.items(), key=lambda item: item[1], default=("", 0.0))
