"""Which of several processes, such as the ranks of a job, is elsewhere than all others. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.result import ProcessProfile

# With fewer processes, there is no majority.
LEAST_PROCESSES = 3
# In a hang, a main thread is on one line all the time.
LEAST_SHARE = 0.9
WAITS = TraceCause.COLLECTIVES, TraceCause.SYNCHRONISATION


@dataclass(frozen=True, slots=True)
class OddOneOut:
    """A process whose main thread is on `line` while those of the `others` are all on `others_line`."""

    process: Process
    line: str
    others: int
    others_line: str


def odd_ones(found: Sequence[ProcessProfile], waited_for: Collection[int] = ()) -> tuple[OddOneOut, ...]:
    """Return the processes that are elsewhere, if all others are on the same line nearly all the time.

    These are at most a quarter of the processes, or one. Without such a majority, they are those that neither
    communicate nor wait for their GPU, if all others do: ranks that belong to several groups wait on different lines.
    With two ranks, they are those of the PIDs `waited_for`: their GPUs do nothing, while the others wait in a
    collective.
    """
    lines = [_main_line(profile) for profile in found]
    common, count = next(iter(Counter(line for line, _ in lines).most_common(1)), ("", 0))
    few = max(1, len(found) // 4)
    if len(found) >= LEAST_PROCESSES:
        if 0 < len(found) - count <= few:
            return _elsewhere(found, lines, common)
        waits = [_waits(profile, waited_for) for profile in found]
        if 0 < waits.count(False) <= few:
            return _not_waiting(found, lines, waits)
    others = {line for profile, (line, _) in zip(found, lines, strict=True) if profile.process.pid not in waited_for}
    return _elsewhere(found, lines, others.pop()) if len(others) == 1 else ()


def _elsewhere(
    found: Sequence[ProcessProfile], lines: Sequence[tuple[str, float]], common: str
) -> tuple[OddOneOut, ...]:
    """Return the processes that are not on the `common` line, if the others are nearly always there."""
    others = [share for line, share in lines if line == common]
    if not common or min(others) < LEAST_SHARE:
        return ()
    return tuple(
        OddOneOut(profile.process, line or "in no frame", len(others), common)
        for profile, (line, _) in zip(found, lines, strict=True)
        if line != common
    )


def _not_waiting(
    found: Sequence[ProcessProfile], lines: Sequence[tuple[str, float]], waits: Sequence[bool]
) -> tuple[OddOneOut, ...]:
    """Return the processes that do not wait, with the line on which most of the others do."""
    waiting = Counter(line for (line, _), waiting in zip(lines, waits, strict=True) if waiting)
    common, count = waiting.most_common(1)[0]
    return tuple(
        OddOneOut(profile.process, line or "in no frame", count, common)
        for profile, (line, _), waiting in zip(found, lines, waits, strict=True)
        if not waiting
    )


def _waits(profile: ProcessProfile, waited_for: Collection[int]) -> bool:
    """Return whether the main thread nearly always communicates or waits for its GPU, or its GPU waits."""
    if waited_for and profile.process.pid not in waited_for:
        return True
    causes = [cause for thread in profile.threads if thread.is_main for cause in thread.causes]
    return sum(cause.share for cause in causes if cause.cause in WAITS) >= LEAST_SHARE


def _main_line(profile: ProcessProfile) -> tuple[str, float]:
    """Return the line of the user's code where the main thread is most of the time, and the share of that time."""
    shares: defaultdict[str, float] = defaultdict(float)
    for thread in profile.threads:
        if thread.is_main:
            for cause in thread.causes:
                for line in cause.lines:
                    shares[line.frame.split(" > ")[0]] += line.share
    return max(shares.items(), key=lambda item: item[1], default=("", 0.0))
