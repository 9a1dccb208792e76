"""Divides collectives into transfer and waiting, by comparing the ranks of a job.

The rank that comes last to a collective waits for nobody: its duration is the transfer. What the same collective takes
longer on another rank is waiting for that rank, at the beginning. No clocks are compared, only durations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from gpu_exporter.traces.collectives import sizes_of
from gpu_exporter.traces.device_times import NS, DeviceTimes
from gpu_exporter.traces.idle import difference
from gpu_exporter.traces.intervals import Intervals, covered, union
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceKind, Trace
from gpu_exporter.traces.result import RankResult, WaitingFor

# Operations of two ranks, each of which has its own name for it.
POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend")


@dataclass(frozen=True)
class Communication:
    """The communication of one GPU: what is needed to compare it with others. Columns have a row for each event.

    It is part of what another process sends, so small numbers have 32 bits.
    """

    groups: tuple[tuple[str, str], ...]  # operations and process groups, which `group` refers to
    group: Column
    number: Column  # of the collective in its group
    repeat: Column  # how many have the same number before it: operations may be coalesced
    start: Column  # ns
    end: Column
    bytes: Column  # 0 if unknown
    ranks: Column  # of the group, or UNKNOWN
    exposed: Intervals  # when the GPU communicated and did not compute
    steps: tuple[int, ...]  # the starts of steps, ns


@dataclass(frozen=True)
class Waits:
    """How the communication of one GPU divides, in the order of `Communication`."""

    transfer: Column  # ns, the last part of the event
    last: Column  # the position of the GPU that came last, or UNKNOWN
    waiting: Column  # ns of the first part that no kernel hid
    exposed_transfer: int  # ns in all, without what a kernel hid


def communication_of(trace: Trace, device: int, times: DeviceTimes) -> Communication:
    """Return the communication of one GPU.

    What has no arguments is numbered by its name, from the end of the trace: its beginning is that of the window of the
    profiler, which is not the same for all ranks.
    """
    table, events = trace.collectives, times.events
    of_device = np.flatnonzero(trace.device_events.device[table.event] == device)
    position = np.searchsorted(np.flatnonzero(trace.device_events.device == device), table.event[of_device])
    of_event = dict(zip(position.tolist(), of_device.tolist(), strict=True))
    sizes = sizes_of(trace)
    groups: dict[tuple[str, str], int] = {}
    order, same = Counter[int](), Counter[tuple[int, int]]()
    rows: list[tuple[int, int, int, int, int]] = []
    chosen = np.flatnonzero(events.kind == DeviceKind.COMMUNICATION)
    for at in chosen[::-1].tolist():
        row = of_event.get(at)
        number, size, ranks = UNKNOWN, 0, UNKNOWN
        name = trace.names[events.name[at]], ""
        if row is not None:
            group = trace.names[table.group[row]] if table.group[row] != UNKNOWN else ""
            name, number = (trace.names[table.operation[row]], group), int(table.sequence[row])
            size, ranks = int(sizes[row]), int(table.ranks[row])
        key = groups.setdefault(name, len(groups))
        order[key] += 1
        number = -1 - order[key] if number == UNKNOWN else number
        rows.append((key, number, same[key, number], size, ranks))
        same[key, number] += 1
    group_row, numbers, repeat, size_row, rank_row = np.array(rows[::-1], dtype=np.int64).reshape(-1, 5).T
    # All are copies: a view would keep the other columns.
    return Communication(
        tuple(groups),
        group_row.astype(np.int32),
        numbers.copy(),
        repeat.astype(np.int32),
        events.start[chosen],
        events.end[chosen],
        size_row.copy(),
        rank_row.astype(np.int32),
        difference(times.communication, times.compute),
        tuple(step.start for step in trace.steps if step.end > step.start),
    )


def divided(gpus: Sequence[Communication]) -> list[Waits | None]:
    """Return how the communication of each GPU of a job divides; None where no other GPU has the same collectives."""
    names: dict[tuple[str, str], int] = {}
    group = np.concatenate([_numbered(of.groups, names)[of.group] for of in gpus])
    lengths = [len(of.group) for of in gpus]
    owner = np.repeat(np.arange(len(gpus)), lengths)
    number, repeat, size, ranks = (
        np.concatenate([getattr(of, name) for of in gpus]) for name in ("number", "repeat", "bytes", "ranks")
    )
    duration = np.concatenate([of.end - of.start for of in gpus])
    pairs = _point_to_point(names, group, owner, len(gpus))
    # Of each collective, the shortest comes first: that is the rank that came last.
    order = np.lexsort((owner, duration, repeat, number, group))
    keys = np.stack((group, number, repeat))[:, order]
    new = np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0))) if len(order) else np.zeros(0, dtype=bool)
    first = order[np.flatnonzero(new)]
    run = np.empty(len(order), dtype=np.int64)
    run[order] = np.cumsum(new) - 1
    count = np.bincount(run, minlength=len(first))[run]
    is_known = (count > 1) & ~pairs[group] & ((ranks < 1) | (count <= ranks))
    # Nobody else recorded the others: they are as fast as the fastest of their kind, for whoever they waited.
    kind = np.where(pairs[group], -1, _operations(names)[group])
    transfer = np.where(is_known, duration[first[run]], _shortest(kind, size, duration))
    last = np.where(is_known, owner[first[run]], UNKNOWN)
    of_gpus = (np.split(column, np.cumsum(lengths)[:-1]) for column in (transfer, last, is_known))
    return [
        _waits(of, own_transfer, own_last) if known.any() else None
        for of, own_transfer, own_last, known in zip(gpus, *of_gpus, strict=True)
    ]


def _point_to_point(names: Mapping[tuple[str, str], int], group: Column, owner: Column, gpus: int) -> Column:
    """Return whether each operation is of two ranks. A kernel for messages is, unless all run it equally often."""
    counts = np.bincount(group * gpus + owner, minlength=len(names) * gpus).reshape(len(names), gpus)
    unequal = counts.min(axis=1) != counts.max(axis=1)
    return np.array(
        [
            name.lower().startswith(POINT_TO_POINT) or ("sendrecv" in name.lower() and unequal[row])
            for row, (name, _) in enumerate(names)
        ],
        dtype=bool,
    )


def _numbered(groups: Sequence[tuple[str, str]], names: dict[tuple[str, str], int]) -> Column:
    return np.array([names.setdefault(group, len(names)) for group in groups], dtype=np.int64)


def _operations(names: Mapping[tuple[str, str], int]) -> Column:
    """Return for each operation and group a number of the operation."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(operation, len(numbers)) for operation, _ in names], dtype=np.int64)


def _shortest(kind: Column, size: Column, duration: Column) -> Column:
    """Return the shortest duration of each kind and size; where the size is not known, the own duration."""
    order = np.lexsort((duration, size, kind))
    if not len(order):
        return duration
    keys = np.stack((kind, size))[:, order]
    new = np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = duration[order[np.flatnonzero(new)]][np.cumsum(new) - 1]
    return np.where(size > 0, found, duration)


def _waits(of: Communication, transfer: Column, last: Column) -> Waits:
    middle = of.end - transfer
    moved = union(middle, of.end)
    return Waits(transfer, last, covered(of.exposed, of.start, middle), int(covered(of.exposed, *moved).sum()))


def by_step(of: Communication, waits: Waits, gpus: int) -> Column:
    """Return the exposed seconds that a GPU waited for each GPU in each step, shape (steps, GPUs)."""
    ends = of.end - waits.transfer
    step = np.clip(np.searchsorted(np.array(of.steps, dtype=np.int64), ends, side="right") - 1, 0, None)
    found = np.zeros((max(1, len(of.steps)), gpus))
    known = waits.last != UNKNOWN
    np.add.at(found, (step[known], waits.last[known]), waits.waiting[known] / NS)
    return found


# What a rank may do longer than those that wait for it, besides the causes of its idle time.
COMPUTE, COPIES = "compute", "exposed_copies"


def with_waiting(ranks: Sequence[RankResult], waits: Sequence[Waits | None]) -> list[RankResult]:
    """Return the ranks with their communication divided."""
    return [
        rank if of_rank is None else _with_parts(rank, ranks, of_rank)
        for rank, of_rank in zip(ranks, waits, strict=True)
    ]


def _with_parts(rank: RankResult, ranks: Sequence[RankResult], waits: Waits) -> RankResult:
    transfer = waits.exposed_transfer / NS
    waiting = rank.exposed_communication_seconds - transfer
    seconds: Column = np.bincount(waits.last % (len(ranks) + 1), weights=waits.waiting, minlength=len(ranks) + 1)
    # Collectives on several streams overlap: the parts add up to the time.
    total = float(seconds.sum())
    seconds = seconds * (waiting / total if total else 0.0)
    found = []
    for row in np.flatnonzero(seconds > 0).tolist():
        last = ranks[row] if row < len(ranks) else None
        cause, frames = longer(last, [rank]) if last else ("", ())
        share = float(seconds[row]) / rank.span_seconds
        found.append(WaitingFor(last.rank if last else None, float(seconds[row]), share, cause, frames))
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
