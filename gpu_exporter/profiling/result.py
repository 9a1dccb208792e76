"""The result of sampling stacks, as `profile --json` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.stacks import Stack, ThreadProfile, folded, profiles


@dataclass(frozen=True, slots=True)
class ProcessProfile:
    """Where the time of the threads of one process went.

    `samples` is how often the thread that lived longest was seen, `stacks` are seconds by folded stack.
    """

    process: Process
    sampling: Sampling
    samples: int
    threads: tuple[ThreadProfile, ...]
    stacks: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        threads = [asdict(thread) for thread in self.threads]
        for thread in threads:
            for cause in thread["causes"]:
                cause["cause"] = cause["cause"].value
        return {
            "pid": self.process.pid,
            "uid": self.process.uid,
            "command": self.process.command,
            "gpus": list(self.process.gpus),
            "rank": self.process.rank,
            "seconds": self.sampling.seconds,
            "rate": self.sampling.rate,
            "samples": self.samples,
            "threads": threads,
        }


def process_profile(process: Process, stacks: Sequence[Stack], sampling: Sampling) -> ProcessProfile:
    """Return where the time of a process went."""
    threads = profiles(stacks, sampling.rate)
    totals: Counter[str] = Counter()
    for stack in stacks:
        totals[stack.thread] += 0 if stack.worker else stack.samples
    samples = max(totals.values(), default=0)
    return ProcessProfile(process, sampling, samples, threads, folded(stacks, sampling.rate))


def all_stacks(found: Sequence[ProcessProfile]) -> dict[str, float]:
    """Return the folded stacks of all processes; with several, each begins with its process."""
    if len(found) == 1:
        return dict(found[0].stacks)
    return {
        f"process {profile.process.pid};{stack}": seconds
        for profile in found
        for stack, seconds in profile.stacks.items()
    }


def folded_lines(stacks: Mapping[str, float]) -> list[str]:
    """Return folded stacks with whole microseconds, the most costly first."""
    found = sorted(((round(seconds * 1e6), stack) for stack, seconds in stacks.items()), reverse=True)
    return [f"{' '.join(stack.split())} {microseconds}" for microseconds, stack in found if microseconds]
