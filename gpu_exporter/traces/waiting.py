"""Divides collectives into transfer and waiting, by comparing the ranks of a job.

The rank that comes last to a collective waits for nobody: its duration is the transfer. What the same collective takes
longer on another rank is waiting for that rank, at the beginning. No clocks are compared, only durations.

A message is divided in the same way between the two ranks that it connects, where both files say which these are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from gpu_exporter.traces.collectives import is_message, sizes_of
from gpu_exporter.traces.device_times import NS, DeviceTimes
from gpu_exporter.traces.idle import Launches, difference
from gpu_exporter.traces.intervals import Intervals, covered, union
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceEvents, DeviceKind, Distributed, Trace, TraceStep, distinct
from gpu_exporter.traces.result import RankResult, WaitingFor

# What kernels of NCCL for messages between ranks have in their names: these may be of two ranks, or of all.
MESSAGES = "sendrecv"
# What PyTorch records around the launch of such a kernel, where that is an operation of all ranks of a group.
_OPERATION = re.compile(r"nccl:(?!(?:send|recv|coalesced)\b)(\w+)")
# The groups of messages of two ranks, and of those of which the other rank's kernel is not known.
MESSAGE, UNPAIRED = "message", ("", "")


@dataclass(frozen=True)
class Communication:
    """The communication of one GPU: what is needed to compare it with others. Columns have a row for each event.

    It is part of what another process sends, so small numbers have 32 bits.
    """

    rank: int  # what its file says, or UNKNOWN
    groups: tuple[tuple[str, str], ...]  # operations and process groups, which `group` refers to
    group: Column
    number: Column  # of the collective in its group
    repeat: Column  # how many have the same number before it: operations may be coalesced
    start: Column  # ns
    end: Column
    bytes: Column  # 0 if unknown
    ranks: Column  # of the group, or UNKNOWN
    peer: Column  # the only other rank, or UNKNOWN; empty if all are
    exposed: Intervals  # when the GPU communicated and did not compute
    steps: tuple[int, ...]  # the starts of steps, ns


@dataclass(frozen=True)
class Waits:
    """How the communication of one GPU divides, in the order of `Communication`."""

    transfer: Column  # ns, the last part of the event
    last: Column  # the position of the GPU that came last, or UNKNOWN
    waiting: Column  # ns of the first part that no kernel hid
    exposed_transfer: int  # ns in all, without what a kernel hid


def communication_of(trace: Trace, device: int, times: DeviceTimes, steps: Sequence[TraceStep] = ()) -> Communication:
    """Return the communication of one GPU. `steps` are those that it executed.

    What has no arguments is numbered by its name, and messages by the two ranks, from the end of the trace: its
    beginning is that of the window of the profiler, which is not the same for all ranks.
    """
    table, events, of_job = trace.collectives, times.events, trace.distributed
    of_device = np.flatnonzero(trace.device_events.device[table.event] == device)
    position = np.searchsorted(np.flatnonzero(trace.device_events.device == device), table.event[of_device])
    of_event = dict(zip(position.tolist(), of_device.tolist(), strict=True))
    sizes = sizes_of(trace, table)
    groups: dict[tuple[str, str], int] = {}
    order, same = Counter[int](), Counter[tuple[int, int]]()
    rows: list[tuple[int, int, int, int, int, int]] = []
    chosen = np.flatnonzero(events.kind == DeviceKind.COMMUNICATION)
    exchanges = [at for at in chosen.tolist() if MESSAGES in _name(trace, events, at)]
    batches, operations = _batches(trace, events, exchanges), _recorded_operations(trace, events, exchanges)
    for at in chosen[::-1].tolist():
        row = of_event.get(at)
        number, size, ranks, peer = UNKNOWN, 0, of_job.world_size if of_job else UNKNOWN, UNKNOWN
        name = trace.names[events.name[at]], ""
        if row is not None:
            group = trace.names[table.group[row]] if table.group[row] != UNKNOWN else ""
            name, number = (trace.names[table.operation[row]], group), int(table.sequence[row])
            size, ranks = int(sizes[row]), int(table.ranks[row])
            if is_message(name[0]):
                source, destination = int(table.source[row]), int(table.destination[row])
                ends = _ends(source, destination, of_job)
                name, number, ranks = (ends and f"{ends} of {size} bytes", group), UNKNOWN, 2
                peer = max(source, destination)
        elif at in batches:
            (peer, size), name = batches[at], UNPAIRED
        elif at in operations:
            name = operations[at], ""
        key = groups.setdefault(name, len(groups))
        order[key] += 1
        number = -1 - order[key] if number == UNKNOWN else number
        rows.append((key, number, same[key, number], size, ranks, peer))
        same[key, number] += 1
    group_row, numbers, repeat, size_row, rank_row, peers = np.array(rows[::-1], dtype=np.int64).reshape(-1, 6).T
    # All are copies: a view would keep the other columns.
    return Communication(
        of_job.rank if of_job else UNKNOWN,
        tuple(groups),
        group_row.astype(np.int32),
        numbers.copy(),
        repeat.astype(np.int32),
        events.start[chosen],
        events.end[chosen],
        size_row.copy(),
        rank_row.astype(np.int32),
        peers.astype(np.int32) if (peers != UNKNOWN).any() else np.zeros(0, dtype=np.int32),
        difference(times.communication, times.compute),
        tuple(step.start for step in steps if step.end > step.start),
    )


def _name(trace: Trace, events: DeviceEvents, at: int) -> str:
    name: str = trace.names[events.name[at]]
    return name.lower()


def _ends(source: int, destination: int, of_job: Distributed | None) -> str:
    """Return the two ranks that a message connects, in words; "" if the file does not say both."""
    if not of_job or (source == UNKNOWN) == (destination == UNKNOWN):
        return ""
    ends = (of_job.rank, destination) if source == UNKNOWN else (source, of_job.rank)
    return f"{MESSAGE} from {ends[0]} to {ends[1]}"


def _batches(trace: Trace, events: DeviceEvents, kernels: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return with which rank each kernel exchanges messages, and the bytes of the larger direction.

    A kernel sends what its thread requested since it launched the kernel before. One that exchanges messages with
    several ranks is left out: nobody can tell for which of these it waited.
    """
    requests, host = trace.messages, trace.host_events
    if not len(requests) or not kernels:
        return {}
    rows = np.array(kernels, dtype=np.int64)
    calls = Launches(trace).rows_of(events.rows(rows))
    sizes, found = sizes_of(trace, requests), {}
    launched = calls != UNKNOWN
    for thread in distinct(host.thread[calls[launched]]).tolist():
        of_thread = np.flatnonzero(launched & (host.thread[calls] == thread))
        of_thread = of_thread[np.argsort(host.start[calls[of_thread]], kind="stable")]
        own = np.flatnonzero(requests.thread == thread)
        ends = np.searchsorted(requests.start[own], host.start[calls[of_thread]])
        for kernel, begin, end in zip(rows[of_thread].tolist(), [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            sent = own[begin:end]
            peers = distinct(np.maximum(requests.source[sent], requests.destination[sent]))
            if len(peers) == 1:
                received = requests.source[sent] != UNKNOWN
                found[kernel] = int(peers[0]), max(int(sizes[sent[is_of]].sum()) for is_of in (received, ~received))
    return found


def _recorded_operations(trace: Trace, events: DeviceEvents, kernels: Sequence[int]) -> dict[int, str]:
    """Return the operation of all ranks, such as all_to_all, inside whose range each kernel was launched, if any."""
    matches = [_OPERATION.match(name) for name in trace.names]
    host = trace.host_events
    ranges = np.flatnonzero(np.isin(host.name, [row for row, match in enumerate(matches) if match]))
    if not len(ranges) or not kernels:
        return {}
    calls = Launches(trace).rows_of(events.rows(np.array(kernels, dtype=np.int64)))
    found = {}
    for kernel, call in zip(kernels, calls.tolist(), strict=True):
        if call == UNKNOWN:
            continue
        of_thread = ranges[host.thread[ranges] == host.thread[call]]
        before = int(np.searchsorted(host.start[of_thread], host.start[call], side="right")) - 1
        match = matches[host.name[of_thread[before]]] if before >= 0 else None
        if match and host.start[call] <= host.end[of_thread[before]]:
            found[kernel] = match[1]
    return found


def divided(gpus: Sequence[Communication]) -> list[Waits | None]:
    """Return how the communication of each GPU of a job divides; None where no other GPU has the same collectives."""
    names: dict[tuple[str, str], int] = {}
    group = np.concatenate([_numbered(of.groups, names)[of.group] for of in gpus])
    lengths = [len(of.group) for of in gpus]
    owner = np.repeat(np.arange(len(gpus)), lengths)
    number, repeat, size, ranks = (
        np.concatenate([getattr(of, name) for of in gpus]) for name in ("number", "repeat", "bytes", "ranks")
    )
    peer = np.concatenate([of.peer if len(of.peer) else np.full(len(of.group), UNKNOWN) for of in gpus])
    duration = np.concatenate([of.end - of.start for of in gpus])
    unpaired = _unpaired(names, group, owner, ranks, len(gpus))
    # Of each collective, the shortest comes first: that is the rank that came last.
    order = np.lexsort((owner, duration, repeat, number, group))
    keys = np.stack((group, number, repeat))[:, order]
    new = np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0))) if len(order) else np.zeros(0, dtype=bool)
    first = order[np.flatnonzero(new)]
    run = np.empty(len(order), dtype=np.int64)
    run[order] = np.cumsum(new) - 1
    count = np.bincount(run, minlength=len(first))[run]
    is_known = (count > 1) & ~unpaired[group] & ((ranks < 1) | (count <= ranks))
    # Nobody else recorded the others: they are as fast as the fastest of their kind. Of messages, it is known for whom.
    messages = np.array([unpaired[row] or name.startswith(MESSAGE) for row, (name, _) in enumerate(names)], dtype=bool)
    kind = np.where(messages[group], -1, _operations(names)[group])
    transfer = np.where(is_known, duration[first[run]], _shortest(kind, size, duration))
    other = _positions(gpus, peer)
    last = np.where(is_known, owner[first[run]], np.where(duration > transfer, other, UNKNOWN))
    of_gpus = (np.split(column, np.cumsum(lengths)[:-1]) for column in (transfer, last, is_known | (other != UNKNOWN)))
    return [
        _waits(of, own_transfer, own_last) if known.any() else None
        for of, own_transfer, own_last, known in zip(gpus, *of_gpus, strict=True)
    ]


def _positions(gpus: Sequence[Communication], ranks: Column) -> Column:
    """Return which GPU each rank is; UNKNOWN if none, or one of several GPUs, says so."""
    counts = Counter(of.rank for of in gpus)
    position = {of.rank: row for row, of in enumerate(gpus) if of.rank != UNKNOWN and counts[of.rank] == 1}
    return np.array([position.get(rank, UNKNOWN) for rank in ranks.tolist()], dtype=np.int64)


def _unpaired(names: Mapping[tuple[str, str], int], group: Column, owner: Column, ranks: Column, gpus: int) -> Column:
    """Return which groups are messages of which nobody can tell to what other message they belong.

    Those without arguments belong together in a job of two ranks, if both run them equally often.
    """
    counts = np.bincount(group * gpus + owner, minlength=len(names) * gpus).reshape(len(names), gpus)
    of_two = (counts.min(axis=1) == counts.max(axis=1)) & (gpus == 2)
    of_two[group[ranks > gpus]] = False
    return np.array(
        [not name or (MESSAGES in name.lower() and not of_two[row]) for row, (name, _) in enumerate(names)], dtype=bool
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


def longer(slow: RankResult, others: Sequence[RankResult], *, of_host: bool = False) -> tuple[str, tuple[str, ...]]:
    """Return what a rank did longer than the others, and where; if it did nothing longer, on what it lost most.

    `of_host`: of what its host did, not of what its GPU computed.
    """
    own = _spent(slow)
    if of_host and len(own) > 1:
        own.pop(COMPUTE, None)
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
