"""Divides collectives into transfer and waiting, by comparing the ranks of a job.

The rank that comes last to a collective waits for nobody: its duration is the transfer. What the same collective takes
longer on another rank is waiting for that rank, at the beginning. No clocks are compared, only durations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from gpu_exporter.traces.collectives import Call, calls_of, is_point_to_point
from gpu_exporter.traces.device_times import NS, DeviceTimes
from gpu_exporter.traces.intervals import covered, subtract, union
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceKind, Trace
from gpu_exporter.traces.result import RankResult, WaitingFor

_Key = tuple[str, str, int, int]


@dataclass(frozen=True)
class Split:
    """The communication of a file, one row for each event, in order of their start."""

    event: Column  # row of `Trace.device_events`
    transfer: Column  # ns, the last part of the event
    last: Column  # the position of the file whose rank came last, or UNKNOWN


@dataclass(frozen=True)
class Waits:
    """When one GPU waited in collectives. Columns of equal length."""

    start: Column  # ns
    end: Column
    last: Column  # the position of the file that it waited for, or UNKNOWN
    exposed: Column  # ns, of which no kernel computed
    exposed_transfer: int  # ns, in all


def splits(traces: Sequence[Trace]) -> list[Split | None]:
    """Return the communication of each file; None where none of it is in another file."""
    calls = [_all_calls(trace) for trace in traces]
    peers: dict[_Key, list[tuple[int, int]]] = defaultdict(list)  # durations and files
    shortest: dict[tuple[str, int], int] = {}
    for file, of_file in enumerate(calls):
        for key, call in of_file.items():
            peers[key].append((call.nanoseconds, file))
            size = _kind(key, call)
            shortest[size] = min(shortest.get(size, call.nanoseconds), call.nanoseconds)
    return [_split(trace, of_file, peers, shortest) for trace, of_file in zip(traces, calls, strict=True)]


def _kind(key: _Key, call: Call) -> tuple[str, int]:
    return "point to point" if is_point_to_point(key[0]) else key[0], call.bytes


def _split(
    trace: Trace,
    calls: Mapping[_Key, Call],
    peers: Mapping[_Key, Sequence[tuple[int, int]]],
    shortest: Mapping[tuple[str, int], int],
) -> Split | None:
    rows: list[tuple[int, int, int]] = []
    is_known = False
    for key, call in calls.items():
        of_call = peers[key]
        if len(of_call) > 1 and not is_point_to_point(key[0]) and (call.ranks < 1 or len(of_call) <= call.ranks):
            transfer, last = min(of_call)
            is_known = True
        else:  # nobody else recorded it: as fast as the fastest of its kind, for whoever it waited
            transfer, last = shortest[_kind(key, call)] if call.bytes > 0 else call.nanoseconds, UNKNOWN
        rows.append((call.event, transfer, last))
    if not is_known:
        return None
    event, transfers, lasts = np.array(sorted(rows), dtype=np.int64).T
    return Split(event, transfers, lasts)


def _all_calls(trace: Trace) -> dict[_Key, Call]:
    """Return all communication of a file. What has no arguments is numbered by its name, from the end of the trace.

    The beginning is that of the window of the profiler, which is not the same for all ranks.
    """
    found = dict(calls_of(trace))
    events = trace.device_events
    has_arguments = {call.event for call in found.values()}
    numbers = Counter[int]()
    for row in np.flatnonzero(events.kind == DeviceKind.COMMUNICATION)[::-1].tolist():
        if row not in has_arguments:
            name = int(events.name[row])
            numbers[name] += 1
            duration = int(events.end[row] - events.start[row])
            found[trace.names[name], "", -numbers[name], 0] = Call(row, int(events.start[row]), duration, 0, UNKNOWN)
    return found


def waits_of(trace: Trace, device: int, times: DeviceTimes, split: Split) -> Waits:
    """Return when a GPU waited in collectives."""
    events = trace.device_events
    chosen = events.device[split.event] == device
    rows, last = split.event[chosen], split.last[chosen]
    middle = events.end[rows] - split.transfer[chosen]
    start = events.start[rows]
    moved = union(middle, events.end[rows])
    exposed = (middle - start) - covered(times.compute, start, middle)
    return Waits(start, middle, last, exposed, subtract(moved, times.compute))


def by_last(waits: Waits, files: int) -> Column:
    """Return the exposed seconds that a GPU waited for each file, and at the end for unknown ones."""
    found: Column = np.bincount(waits.last % (files + 1), weights=waits.exposed, minlength=files + 1) / NS
    return found


def by_step(waits: Waits, starts: Sequence[int], files: int) -> Column:
    """Return the exposed seconds that a GPU waited for each file in each step, shape (steps, files)."""
    step = np.clip(np.searchsorted(np.array(starts, dtype=np.int64), waits.end, side="right") - 1, 0, None)
    found = np.zeros((max(1, len(starts)), files))
    known = waits.last != UNKNOWN
    np.add.at(found, (step[known], waits.last[known]), waits.exposed[known] / NS)
    return found


# What a rank may do longer than those that wait for it, besides the causes of its idle time.
COMPUTE, COPIES = "compute", "exposed_copies"


def with_waiting(ranks: Sequence[RankResult], waits: Sequence[Waits | None], files: Sequence[int]) -> list[RankResult]:
    """Return the ranks with their communication divided. `files` has the position of the file of each."""
    rank_of = {file: row for row, file in reversed(list(enumerate(files)))}
    return [
        rank if of_rank is None else _divided(row, ranks, of_rank, rank_of)
        for row, (rank, of_rank) in enumerate(zip(ranks, waits, strict=True))
    ]


def _divided(row: int, ranks: Sequence[RankResult], waits: Waits, rank_of: Mapping[int, int]) -> RankResult:
    rank = ranks[row]
    transfer = waits.exposed_transfer / NS
    waiting = rank.exposed_communication_seconds - transfer
    seconds = by_last(waits, len(rank_of))
    # Collectives on several streams overlap: the parts add up to the time.
    scale = waiting / seconds.sum() if seconds.sum() else 0.0
    found = []
    for file, of_file in enumerate((seconds * scale).tolist()):
        if of_file > 0:
            last = rank_of.get(file)
            cause, frames = ("", ()) if last is None else longer(ranks[last], [rank])
            number = None if last is None else ranks[last].rank
            found.append(WaitingFor(number, of_file, of_file / rank.span_seconds, cause, frames))
    return replace(
        rank,
        exposed_transfer_seconds=transfer,
        exposed_waiting_seconds=waiting,
        waiting=tuple(sorted(found, key=lambda of: -of.seconds)),
    )


def longer(slow: RankResult, others: Sequence[RankResult]) -> tuple[str, tuple[str, ...]]:
    """Return what a rank did longer than the others, and where; if it did nothing longer, on what it lost most."""
    own = _spent(slow)
    if not own:
        return "", ()
    usual = [_spent(rank) for rank in others]
    excess = {cause: seconds - median(of.get(cause, 0.0) for of in usual) for cause, seconds in own.items()}
    cause = max(excess, key=lambda of: excess[of])
    if excess[cause] <= 0:
        cause = max((of for of in own if of != COMPUTE), key=lambda of: own[of], default="")
    frames = {COMPUTE: slow.compute_frames, COPIES: slow.copy_frames}
    return cause, frames.get(cause) or next((of.frames for of in slow.idle_causes if of.cause == cause), ())


def _spent(rank: RankResult) -> dict[str, float]:
    """Return the share of the span of each thing that a rank does itself."""
    spent = {cause.cause: cause.seconds for cause in rank.idle_causes}
    spent |= {COMPUTE: rank.compute_seconds, COPIES: rank.exposed_copy_seconds}
    return {cause: seconds / rank.span_seconds for cause, seconds in spent.items() if seconds > 0}
