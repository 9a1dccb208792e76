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

import numpy as np

from gpu_exporter.traces.model import UNKNOWN, Column, Trace, distinct
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


@dataclass(frozen=True)
class _Call:
    """One collective on one rank."""

    start: int  # ns
    nanoseconds: int
    bytes: int
    ranks: int


_Key = tuple[str, str, int]  # operation, group, number of the call


def collective_times(traces: Mapping[int, Trace]) -> dict[int, tuple[CollectiveTime, ...]]:
    """Return the collectives of each file, by its position. Skew assumes that the clocks of the hosts agree."""
    calls = {file: _calls(trace) for file, trace in traces.items()}
    peers: dict[_Key, list[_Call]] = defaultdict(list)
    for of_file in calls.values():
        for key, call in of_file.items():
            peers[key].append(call)
    return {file: _grouped(of_file, peers) for file, of_file in calls.items()}


def _calls(trace: Trace) -> dict[_Key, _Call]:
    """Return the collectives of a file. Without a sequence number, calls are numbered by their order."""
    table, events, sizes = trace.collectives, trace.device_events, sizes_of(trace)
    found: dict[_Key, _Call] = {}
    order: dict[tuple[str, str], int] = defaultdict(int)
    for row in range(len(table)):
        event = table.event[row]
        operation = trace.names[table.operation[row]]
        group = trace.names[table.group[row]] if table.group[row] != UNKNOWN else ""
        number = int(table.sequence[row])
        order[operation, group] += 1
        found[operation, group, order[operation, group] if number == UNKNOWN else number] = _Call(
            int(events.start[event]),
            int(events.end[event] - events.start[event]),
            int(sizes[row]),
            int(table.ranks[row]),
        )
    return found


def sizes_of(trace: Trace) -> Column:
    """Return the bytes of each collective: those of the larger side; 0 if they are not known."""
    table = trace.collectives
    elements = np.maximum(np.maximum(table.elements_in, table.elements_out), 0)
    widths = {row: BYTES.get(trace.names[row].lower(), 0) for row in distinct(table.dtype).tolist() if row != UNKNOWN}
    found: Column = elements * np.array([widths.get(row, 0) for row in table.dtype.tolist()], dtype=np.int64)
    return found


def _grouped(calls: Mapping[_Key, _Call], peers: Mapping[_Key, Sequence[_Call]]) -> tuple[CollectiveTime, ...]:
    by_group: dict[tuple[str, str], list[_Key]] = defaultdict(list)
    for key in calls:
        by_group[key[0], key[1]].append(key)
    found = [_time(operation, group, keys, calls, peers) for (operation, group), keys in by_group.items()]
    return tuple(sorted(found, key=lambda of: -of.seconds))


def _time(
    operation: str,
    group: str,
    keys: Sequence[_Key],
    calls: Mapping[_Key, _Call],
    peers: Mapping[_Key, Sequence[_Call]],
) -> CollectiveTime:
    chosen = [calls[key] for key in keys]
    skews = [max(call.start for call in peers[key]) - min(call.start for call in peers[key]) for key in keys]
    # The rank that comes last waits for nobody: its time is that of the transfer.
    rates = [
        call.bytes * factor / (fastest / NS)
        for key, call in zip(keys, chosen, strict=True)
        if (factor := bus_factor(operation, call.ranks)) and (fastest := min(of.nanoseconds for of in peers[key]))
    ]
    rates = [rate for rate in rates if rate > 0]
    return CollectiveTime(
        operation,
        group,
        max(call.ranks for call in chosen),
        len(chosen),
        sum(call.nanoseconds for call in chosen) / NS,
        sum(call.bytes for call in chosen),
        median(rates) if rates else None,
        max(skews) / NS if any(len(peers[key]) > 1 for key in keys) else None,
        sum(min(of.nanoseconds for of in peers[key]) for key in keys) / NS
        if any(len(peers[key]) > 1 for key in keys)
        else None,
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
    if excess < wait / 2:
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
