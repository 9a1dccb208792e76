"""Collective operations: bus bandwidth and, across ranks, by how much their starts differ and who makes others wait.

A straggler makes the others wait in collectives, in most steps, and needs longer itself. In synchronous training every
step takes equally long on all ranks, so what a rank needs itself is the longer of its self time on the GPU, which is
the step without the communication that nothing hides, and of the time of its host. Waiting alone does not tell: hosts
do not wait in collectives, so where both launch too slowly for their GPUs, the GPU of the host that leads waits for the
other in each collective, by a lead that was gained only once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import numpy as np

from gpu_exporter.traces.model import UNKNOWN, Collectives, Column, Messages, Trace, distinct
from gpu_exporter.traces.result import CollectiveTime, RankResult, Straggler

NS = 1e9
BYTES = {
    **dict.fromkeys(("double", "long", "float64", "int64", "long int"), 8),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("half", "c10::half", "bfloat16", "c10::bfloat16", "float16", "short", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "unsigned char", "float8_e4m3fn", "float8_e5m2"), 1),
}
# Factor of bytes for the bus bandwidth of n ranks: NCCL's doc/PERFORMANCE.md of nccl-tests.
BUS_FACTORS: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("allreduce", lambda ranks: 2 * (ranks - 1) / ranks),
    ("reducescatter", lambda ranks: (ranks - 1) / ranks),
    ("allgather", lambda ranks: (ranks - 1) / ranks),
    ("alltoall", lambda ranks: (ranks - 1) / ranks),
    ("broadcast", lambda ranks: 1.0),
    ("reduce", lambda ranks: 1.0),
    ("send", lambda ranks: 1.0),
    ("recv", lambda ranks: 1.0),
)


# Operations between two ranks: the sender and the receiver record them under different names.
POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend")


def is_message(operation: str) -> bool:
    """Return whether an operation is a message between two ranks."""
    return operation.lower().startswith(POINT_TO_POINT)


@dataclass(frozen=True)
class GroupCalls:
    """The collectives of one operation and process group in one file, in order of their numbers, which are distinct."""

    number: Column
    start: Column  # ns
    nanoseconds: Column
    bytes: Column
    ranks: Column  # size of the group


CallsByGroup: TypeAlias = Mapping[tuple[str, str], GroupCalls]  # by operation and group


def calls_of(trace: Trace) -> dict[tuple[str, str], GroupCalls]:
    """Return the collectives of a file. Without a sequence number, calls are numbered by their order."""
    table, events, sizes = trace.collectives, trace.device_events, sizes_of(trace, trace.collectives)
    start = events.start[table.event]
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(table.operation.tolist(), table.group.tolist(), strict=True)):
        rows[key].append(row)
    found = {}
    for (operation, group), of_group in rows.items():
        chosen = np.array(of_group, dtype=np.int64)
        number = table.sequence[chosen]
        number = np.where(number == UNKNOWN, np.arange(1, len(chosen) + 1), number)
        # Of calls with one number, the last counts.
        number, last = np.unique(number[::-1], return_index=True)
        chosen = chosen[::-1][last]
        duration = events.end[table.event[chosen]] - start[chosen]
        found[trace.names[operation], trace.names[group] if group != UNKNOWN else ""] = GroupCalls(
            number, start[chosen], duration, sizes[chosen], table.ranks[chosen]
        )
    return found


def sizes_of(trace: Trace, table: Collectives | Messages) -> Column:
    """Return the bytes of each collective: those of the larger side; 0 if they are not known."""
    elements = np.maximum(np.maximum(table.elements_in, table.elements_out), 0)
    widths = {row: BYTES.get(trace.names[row].lower(), 0) for row in distinct(table.dtype).tolist() if row != UNKNOWN}
    found: Column = elements * np.array([widths.get(row, 0) for row in table.dtype.tolist()], dtype=np.int64)
    return found


@dataclass(frozen=True)
class _Peers:
    """Of each number of a call, over all files: how many made it, how far apart it began, and its shortest time, ns."""

    number: Column
    count: Column
    skew: Column
    fastest: Column

    @classmethod
    def of(cls, calls: Sequence[GroupCalls]) -> _Peers:
        """Return what the calls of one operation and group in several files have in common."""
        number, inverse = np.unique(np.concatenate([each.number for each in calls]), return_inverse=True)
        start = np.concatenate([each.start for each in calls])
        first, last = np.full(len(number), 2**63 - 1), np.full(len(number), -(2**63))
        fastest = first.copy()
        np.minimum.at(first, inverse, start)
        np.maximum.at(last, inverse, start)
        np.minimum.at(fastest, inverse, np.concatenate([each.nanoseconds for each in calls]))
        return cls(number, np.bincount(inverse), last - first, fastest)


def collective_times(files: Sequence[CallsByGroup]) -> list[tuple[CollectiveTime, ...]]:
    """Return the collectives of each file. Skew assumes that the clocks of the hosts agree."""
    by_group: dict[tuple[str, str], list[GroupCalls]] = defaultdict(list)
    for of_file in files:
        for key, calls in of_file.items():
            by_group[key].append(calls)
    # The sends of several ranks are different messages, whatever their numbers are.
    peers = {key: _Peers.of(calls) for key, calls in by_group.items() if not is_message(key[0])}
    found = [
        [_time(*key, calls, peers.get(key) or _Peers.of([calls])) for key, calls in of_file.items()]
        for of_file in files
    ]
    return [tuple(sorted(of_file, key=lambda of: -of.seconds)) for of_file in found]


def _time(operation: str, group: str, calls: GroupCalls, peers: _Peers) -> CollectiveTime:
    at = np.searchsorted(peers.number, calls.number)
    # The rank that comes last waits for nobody: its time is that of the transfer.
    fastest, is_shared = peers.fastest[at], bool((peers.count[at] > 1).any())
    factors = np.array([bus_factor(operation, ranks) for ranks in calls.ranks.tolist()])
    moved = calls.bytes * factors
    rates = moved[(moved > 0) & (fastest > 0)] / (fastest[(moved > 0) & (fastest > 0)] / NS)
    return CollectiveTime(
        operation,
        group,
        int(calls.ranks.max()),
        len(calls.number),
        int(calls.nanoseconds.sum()) / NS,
        int(calls.bytes.sum()),
        median(rates.tolist()) if len(rates) else None,
        int(peers.skew[at].max()) / NS if is_shared else None,
        int(fastest.sum()) / NS if is_shared else None,
    )


def bus_factor(operation: str, ranks: int) -> float:
    """Return by what to multiply bytes per second for the bus bandwidth; 0 if it is not defined."""
    plain = operation.lower().replace("_", "")
    if ranks < 2:
        return 0.0
    return next((factor(ranks) for name, factor in BUS_FACTORS if name in plain), 0.0)


# The first step of a trace often has the cost of the profiler's start.
FEWEST_STEPS = 3
# A straggler makes the others wait longest in at least this share of the steps.
CONSISTENT = 2 / 3
# Of the other ranks, at most this share may need as long: where more do, such as the middle stages of a pipeline, the
# work is uneven, and nobody is slow.
MOST_ALIKE = 1 / 4


@dataclass(frozen=True)
class RankStep:
    """The median step of a rank; without steps, its span."""

    seconds: float
    self_seconds: float
    host_seconds: float  # 0 if it is not known
    gpu_seconds: float  # kernels and copies other than communication, per step

    @property
    def own_seconds(self) -> float:
        """What the rank needs if it waits for no other: the GPU and the host work at the same time."""
        return max(self.self_seconds, self.host_seconds)


def straggler_of(ranks: Sequence[RankResult], waits: Sequence[Column], least: float) -> Straggler | None:
    """Return the rank that makes the others wait, by at least `least` of a step, in most steps.

    `waits` has for each rank the exposed seconds that it waited for each rank, shape (steps, ranks).
    """
    if len(ranks) < 2:
        return None
    count = min(len(of_rank) for of_rank in waits)
    first = 1 if count > FEWEST_STEPS else 0
    # Ranks that wait, steps, ranks that came last.
    by_step = _rooted(np.stack([of_rank[len(of_rank) - count + first :] for of_rank in waits]))
    steps = [rank_step(rank) for rank in ranks]
    others = len(ranks) - 1
    blamed = by_step.sum(axis=0) / others
    slow = int(np.median(blamed, axis=0).argmax())
    wait = float(np.median(blamed[:, slow]))
    waiting = (np.median(by_step[:, :, slow], axis=1) >= wait / 2).sum()
    material = least * median(step.seconds for step in steps)
    if wait <= 0 or wait < material or waiting < min(2, others):
        return None
    if (blamed.argmax(axis=1) == slow).mean() < CONSISTENT:
        return None
    other_steps = [step for row, step in enumerate(steps) if row != slow]
    excess = steps[slow].own_seconds - median(step.own_seconds for step in other_steps)
    alike = sum(step.own_seconds > steps[slow].own_seconds - excess / 2 for step in other_steps)
    if excess < wait / 2 or alike > MOST_ALIKE * others:
        return None
    on_gpu = steps[slow].gpu_seconds - median(step.gpu_seconds for step in other_steps)
    return Straggler(ranks[slow].rank, "gpu" if on_gpu >= excess / 2 else "host", wait)


def _rooted(by_step: Column) -> Column:
    """Return waits for the ranks with which they began: who comes last because it waited for another is not blamed.

    Such as the rest of a tensor-parallel group, which comes as late to the collectives of all as its slowest rank.
    """
    found = np.zeros_like(by_step)
    for waiting, step, last in np.argwhere(by_step > 0).tolist():
        seconds, passed = by_step[waiting, step, last], {waiting}
        root = last
        while root not in passed:
            passed.add(root)
            before = int(by_step[root, step].argmax())
            if before in passed or by_step[root, step, before] < seconds / 2:
                break
            root = before
        found[waiting, step, root] += seconds
    return found


def rank_step(rank: RankResult) -> RankStep:
    """Return the median step of a rank."""
    steps = rank.steps[1:] if len(rank.steps) > FEWEST_STEPS else rank.steps
    if not steps:
        span = rank.span_seconds
        return RankStep(span, span - rank.exposed_communication_seconds, 0.0, rank.compute_seconds)
    return RankStep(
        median(step.seconds for step in steps),
        median(step.self_seconds for step in steps),
        median(step.host_seconds for step in steps),
        median(step.gpu_seconds for step in steps),
    )
