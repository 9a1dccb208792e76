"""Makes a trace of collected tables: sorted, without events that belong to no launch in the file. For all readers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from gpu_exporter.traces.kernel_classes import is_communication
from gpu_exporter.traces.model import (
    UNKNOWN,
    Collectives,
    DeviceEvents,
    DeviceKind,
    DeviceProperties,
    Distributed,
    HostEvents,
    HostKind,
    MemoryEvents,
    Messages,
    Shapes,
    Trace,
    TraceRecorder,
    TraceStep,
    contained,
    distinct,
)

BEFORE_WINDOW = "launched before the trace began"
_STEP = re.compile(r"ProfilerStep\s*#?\s*\d+")


@dataclass(frozen=True)
class Parts:
    """What a reader collects: names and threads, which events refer to by row, and the events, each table in parts."""

    names: Sequence[str]
    threads: Sequence[str]
    device: Sequence[DeviceEvents]
    host: Sequence[HostEvents]
    collectives: Sequence[Collectives] = ()
    memory: Sequence[MemoryEvents] = ()
    out_of_memory: Sequence[MemoryEvents] = ()
    shapes: Sequence[Shapes] = ()
    messages: Sequence[Messages] = ()


def assemble(
    parts: Parts,
    *,
    devices: Mapping[int, DeviceProperties] | None = None,
    distributed: Distributed | None = None,
    dropped: Mapping[str, int] | None = None,
    repaired: int = 0,
    base: int = 0,
    recorder: TraceRecorder = TraceRecorder.PYTORCH,
) -> Trace:
    """Return the trace of these parts, without a path. `base` is added to all times, ns.

    Kernels whose names say that they communicate get that kind. Device events without a launch in the file were
    launched before the window of the profiler: those that start before the first one with a launch are dropped and
    counted, unless most have none.
    """
    names, host_events = parts.names, _sorted_host(parts.host, base)
    device_events, collectives, unlaunched = _device(
        DeviceEvents.joined(parts.device), Collectives.joined(parts.collectives), host_events, names, base
    )
    reasons = dict(dropped or {})
    if unlaunched:
        reasons[BEFORE_WINDOW] = unlaunched
    return Trace(
        path="",
        names=tuple(names),
        threads=tuple(parts.threads),
        device_events=device_events,
        host_events=host_events,
        collectives=collectives,
        memory=_by_time(parts.memory, base),
        out_of_memory=_by_time(parts.out_of_memory, base),
        steps=_steps(host_events, names),
        devices=devices or {},
        distributed=distributed,
        dropped=reasons,
        repaired=repaired,
        shapes=_shapes(parts.shapes, base),
        messages=_messages(parts.messages, base),
        recorder=recorder,
    )


def _by_time(parts: Sequence[MemoryEvents], base: int) -> MemoryEvents:
    table = MemoryEvents.joined(parts)
    return replace(table, time=table.time + base).rows(np.argsort(table.time, kind="stable"))


def _messages(parts: Sequence[Messages], base: int) -> Messages:
    table = Messages.joined(parts)
    return replace(table, start=table.start + base).rows(np.argsort(table.start, kind="stable"))


def _shapes(parts: Sequence[Shapes], base: int) -> Shapes:
    table = Shapes.joined(parts)
    return replace(table, start=table.start + base, end=table.end + base)


def _sorted_host(parts: Sequence[HostEvents], base: int) -> HostEvents:
    """Return the events of the host by start, the outer before the inner where they start together."""
    if not parts:
        return HostEvents.empty()
    # One column at a time: all of them twice would be the largest use of memory.
    start, end, kind = (np.concatenate([getattr(part, name) for part in parts]) for name in ("start", "end", "kind"))
    order = np.lexsort((kind, np.negative(end, out=end), start))
    del start, end, kind
    table = HostEvents(
        **{
            column.name: np.concatenate([getattr(part, column.name) for part in parts])[order]
            for column in fields(HostEvents)
        }
    )
    if base:
        np.add(table.start, base, out=table.start)
        np.add(table.end, base, out=table.end)
    return table


def _device(
    table: DeviceEvents, collectives: Collectives, host: HostEvents, names: Sequence[str], base: int
) -> tuple[DeviceEvents, Collectives, int]:
    """Return the device events to analyse, their collectives, and how many were launched before the trace began."""
    launches = distinct(host.correlation[host.kind == HostKind.RUNTIME])
    launches = launches[launches != UNKNOWN]
    kept = contained(table.correlation, launches) if len(launches) else np.ones(len(table), dtype=bool)
    kept |= table.correlation == UNKNOWN  # nobody launched it, such as copies of unified memory
    if kept.sum() * 2 < len(kept):  # the writer left out launches, too
        kept[:] = True
    for device in distinct(table.device[kept]):  # other streams finish what was launched before, meanwhile
        of_device = table.device == device
        kept |= of_device & (table.start >= table.start[kept & of_device].min())
    order = np.flatnonzero(kept)
    order = order[np.argsort(table.start[order], kind="stable")]
    new_row = np.full(len(table), UNKNOWN, dtype=np.int64)
    new_row[order] = np.arange(len(order))
    rows = new_row[collectives.event]
    collectives = replace(collectives, event=rows).rows(rows != UNKNOWN)
    unlaunched = len(table) - len(order)
    table = table.rows(order)
    communicates = np.zeros(len(names), dtype=bool)
    kernels = table.kind == DeviceKind.COMPUTE
    for name in distinct(table.name[kernels]):
        communicates[name] = is_communication(names[name])
    kind = np.where(kernels & communicates[table.name], np.uint8(DeviceKind.COMMUNICATION), table.kind)
    start, end = (table.start + base, table.end + base) if base else (table.start, table.end)
    return replace(table, kind=kind, start=start, end=end), collectives, unlaunched


def _steps(host: HostEvents, names: Sequence[str]) -> tuple[TraceStep, ...]:
    """Return the steps that the profiler marked, in order of their start."""
    matching = [row for row, name in enumerate(names) if _STEP.fullmatch(name)]
    if not matching:
        return ()
    rows = np.flatnonzero(np.isin(host.name, matching))
    return tuple(
        TraceStep(names[host.name[row]], int(host.start[row]), int(host.end[row]), int(host.thread[row]))
        for row in rows
    )
