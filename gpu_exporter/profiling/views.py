"""What is served of stored profiles: the list, one with its stacks, pprof, and metrics of the latest ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import SamplingFailure
from gpu_exporter.profiling.records import (
    CodeLine,
    ProcessStacks,
    ProfiledProcess,
    StackKind,
    Summary,
    cause_shares,
    in_words,
)
from gpu_exporter.profiling.store import ProfileStore
from gpu_exporter.reports.numbers import clock, percent
from gpu_exporter.traces.frames import PYTHON_FRAME
from gpu_exporter.traces.pprof import LabelledStacks, Times, labelled

# For how long a profile says what a GPU waits for.
SHOWN_SECONDS = 3600.0
# Of several processes on a GPU, so many are named.
MOST_PROCESSES = 4
MOST_LINE = 600
# Why profiles are taken of GPUs that wait, and the letters of a line of code as a label.
OF_WAITING = frozenset({ProfileReason.STALL, ProfileReason.STRAGGLER, ProfileReason.HOST_BOUND})
MOST_LABEL = 80


class ProfileSeries:
    """Counts profiles, and makes samples. A series is the same object each time."""

    def __init__(self, *, lines: bool = False) -> None:
        """`lines`: also of the line that keeps a GPU waiting."""
        self._lines = lines
        self._taken = Counter[ProfileReason]()
        self._failures = Counter[SamplingFailure]()
        # Seconds in traces, by UUID and kernel class.
        self._kernels: dict[tuple[str, str], float] = {}
        self._series: dict[tuple[Metric, Gpu | None, Labels], Series] = {}

    def count(
        self, reason: ProfileReason, failed: Sequence[tuple[Process, SamplingFailure]], *, succeeded: bool
    ) -> None:
        """Count a profile, and the processes that it has no stacks of."""
        if succeeded:
            self._taken[reason] += 1
        self._failures.update(failure for _, failure in failed)

    def count_failure(self, failure: SamplingFailure) -> None:
        """Count a profile that could not be stored."""
        self._failures[failure] += 1

    def add_kernels(self, summary: Summary) -> None:
        """Add the GPU time of a trace."""
        for kernels in summary.kernels:
            key = (kernels.gpu, kernels.kernel_class)
            self._kernels[key] = self._kernels.get(key, 0.0) + kernels.seconds

    def samples(self, gpus: Sequence[GpuSamples], summaries: Sequence[Summary], now: float) -> Sequence[Sample]:
        """Return the samples of now, in unix seconds."""
        previous, self._series = self._series, {}
        made = []
        for metric, gpu, labels, value in self._rows(gpus, summaries, now):
            key = (metric, gpu, labels)
            series = self._series[key] = previous.get(key) or Series(*key)
            made.append(Sample(series, value))
        return made

    def _rows(
        self, gpus: Sequence[GpuSamples], summaries: Sequence[Summary], now: float
    ) -> Iterator[tuple[Metric, Gpu | None, Labels, float]]:
        for reason in ProfileReason:
            yield m.PROFILES, None, (("reason", reason.value),), self._taken[reason]
        for failure in SamplingFailure:
            yield m.PROFILE_FAILURES, None, (("reason", failure.value),), self._failures[failure]
        by_uuid = {seen.gpu.uuid: seen.gpu for seen in gpus}
        for (uuid, name), seconds in self._kernels.items():
            if uuid in by_uuid:
                yield m.KERNEL_CLASS, by_uuid[uuid], (("class", name),), round(seconds, 6)
        for gpu in (seen.gpu for seen in gpus):
            if latest := latest_of(summaries, gpu.uuid, now - SHOWN_SECONDS):
                yield m.PROFILED_AT, gpu, (), latest.at
                for cause, share in cause_shares(latest, gpu.uuid).items():
                    yield m.IDLE_CAUSE, gpu, (("cause", cause.value),), round(share, 4)
            if self._lines and (found := waiting_line(summaries, gpu.uuid, now - SHOWN_SECONDS)):
                cause, line = found
                yield m.WAITING_LINE, gpu, (("cause", cause.value), ("line", named_line(line.frame))), line.share


def latest_of(summaries: Sequence[Summary], uuid: str, since: float) -> Summary | None:
    """Return the latest profile with stacks of a process on this GPU, since this time; None if there is none."""
    for summary in reversed(summaries):
        if summary.at < since:
            return None
        if any(uuid in process.gpus and process.samples for process in summary.processes):
            return summary
    return None


def waiting_line(summaries: Sequence[Summary], uuid: str, since: float) -> tuple[TraceCause, CodeLine] | None:
    """Return the line that keeps a GPU waiting, and why, by the latest profile that was taken because the GPU waits.

    The line takes the largest part of the time in which a main thread does not wait for the GPU. None if there is no
    such profile since this time: those that a schedule or a person requests are of GPUs that may be busy.
    """
    latest = latest_of([each for each in summaries if each.reason in OF_WAITING], uuid, since)
    found = (
        (cause.cause, cause.lines[0])
        for process in (latest.processes if latest else ())
        if uuid in process.gpus
        for cause in process.causes
        if cause.lines and cause.cause is not TraceCause.SYNCHRONISATION
    )
    return max(found, key=lambda each: each[1].share, default=None)


def named_line(frame: str) -> str:
    """Return a line of code as `file:line function`, without its folder and what it calls, as a label."""
    outer = frame.split(" > ")[0]
    if match := PYTHON_FRAME.match(outer):
        outer = f"{match['path'].rpartition('/')[2]}:{match['line']} {match['function']}"
    return printable(outer, MOST_LABEL)


def lines_by_gpu(
    summaries: Sequence[Summary], gpus: Iterable[tuple[str, str]], now: float
) -> Mapping[str, Sequence[str]]:
    """Return a line for each profiled process on these GPUs (index and UUID): what its main thread did most of the
    time, and where. The keys are the UUIDs of GPUs with a profile.
    """
    found = {}
    for index, uuid in gpus:
        if summary := latest_of(summaries, uuid, now - SHOWN_SECONDS):
            ago = max(0, round((now - summary.at) / 60))
            about = f"Profile of GPU {index} at {clock(summary.at, now)} ({ago} min ago)"
            processes = [process for process in summary.processes if uuid in process.gpus]
            found[uuid] = [
                printable(f"{about}: {_process(process)}", MOST_LINE) for process in processes[:MOST_PROCESSES]
            ]
            found[uuid] += [printable(f"{about}: {in_words(odd)}", MOST_LINE) for odd in summary.odd]
    return found


def _process(process: ProfiledProcess) -> str:
    name = f"process {process.pid} ({printable(process.command, 80)}{f', rank {process.rank}' if process.rank else ''})"
    if not process.causes:
        return f"{name}: its main thread was not seen"
    cause = process.causes[0]
    where = f" at {printable(cause.lines[0].frame, 300)}" if cause.lines else ""
    return f"{name} spent {percent(cause.share)} of the time {cause.words}{where}"


MOST_LIST_BYTES = 1 << 20
# A profile for pprof is merged of at most so many, and of stacks with at most so much text; the newest are kept.
MOST_MERGED, MOST_MERGED_TEXT = 100, 16 << 20


class ProfileViews:
    """Answers about the profiles in a store. Files are read: call it on no thread that must not wait for a disk."""

    def __init__(self, store: ProfileStore) -> None:
        self._store = store

    def newest(self) -> str:
        """Return the id of the newest profile; empty if there is none. Reads no file."""
        summaries = self._store.summaries
        return summaries[-1].id if summaries else ""

    def lines(self, gpus: Iterable[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
        """Return what the processes on GPUs do now, as `lines_by_gpu` does. Reads no file."""
        return lines_by_gpu(self._store.summaries, gpus, time.time())

    def listed(self) -> bytes:
        """Return the profiles without stacks as JSON, the newest first; the oldest are left out at MOST_LIST_BYTES."""
        entries, size = list[bytes](), 0
        for summary in reversed(self._store.summaries):
            entry = msgspec.json.encode(summary)
            size += len(entry) + 1
            if size > MOST_LIST_BYTES:
                break
            entries.append(entry)
        return b'{"profiles":[' + b",".join(entries) + b"]}"

    def one(self, profile_id: str) -> bytes | None:
        """Return a profile with its stacks as JSON; None if there is no such profile, or only its summary."""
        summary = next((each for each in self._store.summaries if each.id == profile_id), None)
        stacks = self._store.stacks(profile_id) if summary else None
        if summary is None or stacks is None:
            return None
        return msgspec.json.encode({**summary.to_json(), "stacks": stacks})

    def pprof(self, seconds: float) -> bytes:
        """Return the profiles that ended in the last `seconds` as one for pprof: wall time of all threads.

        Its samples have the labels gpu, pid, command, rank, reason and profile. It has none if there is no profile.
        """
        since = time.time() - seconds
        recent = [each for each in self._store.summaries if each.at + each.seconds > since][-MOST_MERGED:]
        merged, groups, size = list[Summary](), list[LabelledStacks](), 0
        for summary in reversed(recent):
            added = list(self._groups(summary))
            size += sum(len(stack) for group in added for stack in group.stacks)
            if size > MOST_MERGED_TEXT:
                break
            merged.append(summary)
            groups += added
        begin = merged[-1].at if merged else since
        length = sum(each.seconds for each in merged)
        rate = merged[0].rate if merged else 0
        return labelled({"wall": groups}, Times(length, begin, 1 / rate if rate else 0.0))

    def _groups(self, summary: Summary) -> Iterator[LabelledStacks]:
        processes = {process.pid: process for process in summary.processes}
        for of_process in self._store.stacks(summary.id) or ():
            if of_process.kind is not StackKind.WALL:
                continue
            process = processes.get(of_process.pid)
            labels = {
                "gpu": _gpus(of_process),
                "pid": str(of_process.pid),
                "command": process.command if process else "",
                "rank": process.rank if process else "",
                "reason": summary.reason.value,
                "profile": summary.id,
            }
            yield LabelledStacks(of_process.stacks, {key: value for key, value in labels.items() if value})


def _gpus(stacks: ProcessStacks) -> str:
    return ",".join(map(str, stacks.gpus))
