"""A stored profile: a summary that stays in memory, and stacks that are read from the file when somebody asks."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import msgspec

from gpu_exporter.catalogue.causes import STACK_WORDS, TraceCause
from gpu_exporter.io.decoding import gunzip, json_as
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import NotSampled, Sampling, SamplingFailure
from gpu_exporter.profiling.ranks import odd_ones
from gpu_exporter.profiling.result import ProcessProfile, process_profile
from gpu_exporter.profiling.stacks import unfolded

MOST_LINES, MOST_STACKS = 3, 2000
# Of the stacks of one process, as text; and of a file, packed and unpacked.
MOST_TEXT = 512 << 10
MOST_BYTES, MOST_UNPACKED_BYTES = 4 << 20, 16 << 20


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of code, and the share of the main thread's time."""

    frame: str
    share: float


@dataclass(frozen=True, slots=True)
class CauseShare:
    """What a main thread did: the cause as in `profile --json`, in words, seconds, share, and the costliest lines."""

    cause: TraceCause
    words: str
    seconds: float
    share: float
    lines: tuple[CodeLine, ...]


@dataclass(frozen=True, slots=True)
class ProfiledProcess:
    """A process that was sampled, and what its main thread did, the most costly first. `gpus` are UUIDs."""

    pid: int
    uid: int
    command: str
    rank: str
    gpus: tuple[str, ...]
    samples: int
    causes: tuple[CauseShare, ...]


@dataclass(frozen=True, slots=True)
class FailedProcess:
    """A process that was not sampled: why in one line, and by kind."""

    pid: int
    uid: int
    command: str
    reason: SamplingFailure
    why: str


@dataclass(frozen=True, slots=True)
class OddRank:
    """A process whose main thread is elsewhere than those of the `others`: at `line`, in words."""

    pid: int
    rank: str
    line: str
    others: int
    others_line: str


@dataclass(frozen=True, slots=True)
class KernelTime:
    """GPU time of the kernels of one class on a GPU (UUID), in seconds of a trace."""

    gpu: str
    kernel_class: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A profile without its stacks: when it was taken (unix seconds), why, of which GPUs (UUIDs and indices).

    `left_out` counts processes beyond the limit. `odd` are those that are elsewhere than all others: in a hang, the
    missing ranks. Only a trace has `kernels`; its processes have no samples and no causes.
    """

    id: str
    at: float
    reason: ProfileReason
    finding: str
    uuids: tuple[str, ...]
    gpus: tuple[int, ...]
    seconds: float
    rate: int
    processes: tuple[ProfiledProcess, ...] = ()
    failed: tuple[FailedProcess, ...] = ()
    left_out: int = 0
    odd: tuple[OddRank, ...] = ()
    kernels: tuple[KernelTime, ...] = ()

    @property
    def is_trace(self) -> bool:
        """Whether processes recorded traces; otherwise their stacks were sampled."""
        return not self.rate

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return dict(msgspec.to_builtins(self))


class StackKind(Enum):
    """What the seconds of stacks are: of threads, of a GPU by what launched its work, or of a GPU that was idle."""

    WALL = "wall"
    GPU = "gpu"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """The folded stacks of a process with seconds, the most costly first. `left_out` are seconds of further stacks.

    `workers` is the number of its child processes, whose stacks begin with `workers`.
    """

    pid: int
    gpus: tuple[int, ...]
    stacks: Mapping[str, float]
    left_out: float = 0.0
    kind: StackKind = StackKind.WALL
    workers: int = 0


def process_summary(profile: ProcessProfile, uuids: Sequence[str]) -> ProfiledProcess:
    """Return what the main thread of a process did."""
    process = profile.process
    main = next((thread for thread in profile.threads if thread.is_main), None)
    causes = tuple(
        CauseShare(
            cause.cause,
            STACK_WORDS[cause.cause],
            round(cause.seconds, 3),
            round(cause.share, 4),
            tuple(CodeLine(line.frame, round(line.share, 4)) for line in cause.lines[:MOST_LINES]),
        )
        for cause in (main.causes if main else ())
    )
    return ProfiledProcess(
        process.pid, process.uid, process.command, process.rank, tuple(uuids), profile.samples, causes
    )


def traced_process(process: Process, uuids: Sequence[str]) -> ProfiledProcess:
    """Return a process that recorded a trace, which says nothing about its main thread as a whole."""
    return ProfiledProcess(process.pid, process.uid, process.command, process.rank, tuple(uuids), 0, ())


def odd_ranks(profiles: Sequence[ProcessProfile], waited_for: Collection[int] = ()) -> tuple[OddRank, ...]:
    """Return the processes that are elsewhere than all others, as `odd_ones` does."""
    return tuple(
        OddRank(odd.process.pid, odd.process.rank, odd.line, odd.others, odd.others_line)
        for odd in odd_ones(profiles, waited_for)
    )


def in_words(odd: OddRank) -> str:
    """Return where a process is, and where the others are."""
    rank = f" (rank {odd.rank})" if odd.rank else ""
    others = "1 other is" if odd.others == 1 else f"{odd.others} others are"
    return f"process {odd.pid}{rank} is at {odd.line}, while {others} at {odd.others_line}"


def failure(process: Process, error: NotSampled) -> FailedProcess:
    """Return the record of a process that was not sampled."""
    return FailedProcess(process.pid, process.uid, process.command, error.failure, str(error))


def process_stacks(profile: ProcessProfile) -> ProcessStacks:
    """Return the most costly stacks of a process."""
    workers = max((thread.workers for thread in profile.threads), default=0)
    kept, rest = most_costly(profile.stacks)
    return ProcessStacks(profile.process.pid, profile.process.gpus, kept, rest, StackKind.WALL, workers)


def most_costly(stacks: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Return the most costly of these stacks, as many as a file may have, and the seconds of the others."""
    kept, rest, size = dict[str, float](), 0.0, 0
    for stack, seconds in sorted(stacks.items(), key=lambda item: (-item[1], item[0])):
        size += len(stack)
        if len(kept) < MOST_STACKS and size <= MOST_TEXT:
            kept[stack] = round(seconds, 6)
        else:
            rest += seconds
    return kept, round(rest, 3)


def profile_again(process: ProfiledProcess, of: ProcessStacks, sampling: Sampling) -> ProcessProfile:
    """Return the profile of a process, from what is stored of it."""
    found = Process(process.pid, 0, process.uid, process.command, process.pid, of.gpus, process.rank)
    profile = process_profile(found, unfolded(of.stacks, sampling.rate), sampling)
    threads = tuple(replace(thread, workers=of.workers) if thread.workers else thread for thread in profile.threads)
    return replace(profile, samples=process.samples, threads=threads)


def encode(summary: Summary, stacks: Sequence[ProcessStacks]) -> bytes:
    """Return the content of a file: a line of JSON with the summary, and one with the stacks, compressed."""
    return gzip.compress(b"\n".join((msgspec.json.encode(summary), msgspec.json.encode(stacks))), mtime=0)


def decode_summary(content: bytes) -> Summary:
    """Return the summary in a file. Raises ValueError."""
    return json_as(Summary, gunzip(content, MOST_UNPACKED_BYTES).partition(b"\n")[0])


def decode_stacks(content: bytes) -> list[ProcessStacks]:
    """Return the stacks in a file. Raises ValueError."""
    return json_as(list[ProcessStacks], gunzip(content, MOST_UNPACKED_BYTES).partition(b"\n")[2])


def cause_shares(summary: Summary, uuid: str) -> Mapping[TraceCause, float]:
    """Return the share of the time of the main threads on a GPU by cause; empty if none was sampled."""
    totals: defaultdict[TraceCause, float] = defaultdict(float)
    for process in summary.processes:
        if uuid in process.gpus:
            for cause in process.causes:
                totals[cause.cause] += cause.seconds
    whole = sum(totals.values())
    return {cause: seconds / whole for cause, seconds in totals.items()} if whole else {}
