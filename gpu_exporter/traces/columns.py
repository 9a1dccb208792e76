"""Collects the columns of a trace from events of Chrome traces, chunk by chunk."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from gpu_exporter.traces.events import Args, TraceEvent
from gpu_exporter.traces.model import (
    UNKNOWN,
    Collectives,
    Column,
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
    MemoryEvents,
    Messages,
    Shapes,
)
from gpu_exporter.traces.work import has_work

NS_PER_US = 1000.0
# Times beyond these are no times: 2**62 ns are 146 years.
MOST_US = 2.0**62 / NS_PER_US
DEVICE_KINDS = {
    **dict.fromkeys(("kernel", "Kernel"), DeviceKind.COMPUTE),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), DeviceKind.COPY),
    **dict.fromkeys(("gpu_memset", "Memset"), DeviceKind.MEMSET),
}
HOST_KINDS = {
    "python_function": HostKind.PYTHON,
    "user_annotation": HostKind.ANNOTATION,
    **dict.fromkeys(("cpu_op", "Operator"), HostKind.OPERATOR),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver"), HostKind.RUNTIME),
    "overhead": HostKind.OVERHEAD,
}
# Repeat what other events say: the window of the profiler, annotations of the host on the GPU's timeline, waits.
REPETITIONS = frozenset((None, "", "Trace", "gpu_user_annotation", "cuda_sync", "cuda_event", "ac2g", "fwdbwd"))
# Host events are counted from here on, to have one number for what an event is.
_HOST_BASE, _OTHER = 8, 255
_CODES: defaultdict[str | None, int] = defaultdict(
    lambda: _OTHER,
    {
        **{category: int(kind) for category, kind in DEVICE_KINDS.items()},
        **{category: _HOST_BASE + kind for category, kind in HOST_KINDS.items()},
    },
)
_NO_ARGS = Args()
# Faster than attributes in a loop.
_CATEGORY, _NAME, _TIME, _DURATION = map(attrgetter, ("cat", "name", "ts", "dur"))
_THREAD = attrgetter("pid", "tid")
# The operator in which PyTorch records the arguments of a collective or message.
REQUEST = "record_param_comms"
NO_TIME, NOT_COMPLETE = "without a valid time", "begin or end events without the other"
MOST_PARTS = 64


class _Rows(dict[Any, int]):
    """Numbers keys in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        row = self[key] = len(self)
        return row


class TraceColumns:
    """The tables of a trace in the making. Times are relative to the base that the file names."""

    def __init__(self) -> None:
        self.names: dict[str, int] = _Rows()
        self.threads: dict[tuple[Any, Any], int] = _Rows()
        self.device: list[DeviceEvents] = []
        self.host: list[HostEvents] = []
        self.memory: list[MemoryEvents] = []
        self.out_of_memory: list[MemoryEvents] = []
        self.collectives: list[Collectives] = []
        self.shapes: list[Shapes] = []
        self.messages: list[Messages] = []
        self.dropped: Counter[str] = Counter()
        self.complete = 0  # events with a beginning and an end, of whatever kind
        self._device_rows = 0
        self._joined = 0

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Add the events of a chunk."""
        complete = [event for event in events if event.ph == "X"]
        self.complete += len(complete)
        if len(complete) < len(events):
            self._add_others([event for event in events if event.ph in ("i", "I", "B", "E")])
        codes = np.array(list(map(_CODES.__getitem__, map(_CATEGORY, complete))), dtype=np.uint8)
        wanted = np.flatnonzero(codes != _OTHER)
        if len(wanted) < len(complete):
            ignored = Counter(complete[row].cat for row in np.flatnonzero(codes == _OTHER))
            self.dropped.update(
                {f"of the category {cat}": count for cat, count in ignored.items() if cat not in REPETITIONS}
            )
            complete = [complete[row] for row in wanted]
            codes = codes[wanted]
        start = _microseconds(map(_TIME, complete))
        duration = _microseconds(map(_DURATION, complete))
        valid = (np.abs(start) < MOST_US) & (duration >= 0) & (duration < MOST_US)
        if not valid.all():
            self.dropped[NO_TIME] += int(len(valid) - valid.sum())
            complete = [complete[row] for row in np.flatnonzero(valid)]
            codes, start, duration = codes[valid], start[valid], duration[valid]
        if not complete:
            return
        begin = _nanoseconds(start)
        end = begin + np.rint(duration * NS_PER_US).astype(np.int64)
        names = self._name_rows(map(_NAME, complete))
        is_host = codes >= _HOST_BASE
        self._add_host(complete, np.flatnonzero(is_host), codes, begin, end, names)
        self._join()
        self._add_device(complete, np.flatnonzero(~is_host), codes, begin, end, names)

    def _join(self) -> None:
        """Join the tables of many chunks: freed small arrays stay in the heap, large ones return to the system."""
        if len(self.host) - self._joined >= MOST_PARTS:
            self.host[self._joined :] = [HostEvents.joined(self.host[self._joined :])]
            self._joined += 1

    def _name_rows(self, names: Iterable[str]) -> Column:
        """Return the row of each name in the table of names."""
        return np.array(list(map(self.names.__getitem__, names)), dtype=np.int32)

    def _name(self, name: Any) -> int:
        return UNKNOWN if name is None else self.names[str(name)]

    def _thread_rows(self, events: Iterable[TraceEvent]) -> Column:
        """Return the row of each event's thread in the table of threads."""
        return np.array(list(map(self.threads.__getitem__, map(_THREAD, events))), dtype=np.int32)

    def _add_host(
        self, events: Sequence[TraceEvent], rows: Column, codes: Column, start: Column, end: Column, names: Column
    ) -> None:
        kinds = codes[rows] - _HOST_BASE
        correlation = np.full(len(rows), UNKNOWN, dtype=np.int64)
        calls = np.flatnonzero(kinds == HostKind.RUNTIME)
        correlation[calls] = integers([_correlation(events[row].args or _NO_ARGS) for row in rows[calls]])
        threads = self._thread_rows(map(events.__getitem__, rows.tolist()))
        self.host.append(HostEvents(start[rows], end[rows], names[rows], threads, kinds, correlation))
        operators = np.flatnonzero(kinds == HostKind.OPERATOR)
        self._add_shapes(events, rows[operators], threads[operators], start, end, names)
        requests = np.flatnonzero(names[rows] == self.names.get(REQUEST, UNKNOWN))
        self._add_messages([events[row] for row in rows[requests]], threads[requests], start[rows[requests]])

    def _add_shapes(
        self, events: Sequence[TraceEvent], rows: Column, threads: Column, start: Column, end: Column, names: Column
    ) -> None:
        """Add the shapes of operators whose work they tell."""
        chosen, inputs = [], []
        for at, row in enumerate(rows.tolist()):
            event = events[row]
            if event.args and event.args.dimensions and has_work(event.name):
                args = event.args
                text = b"[%b,%b,%b]" % (args.dimensions, args.types or b"[]", args.values or b"[]")
                chosen.append(at)
                inputs.append(self.names[text.decode(errors="replace")])
        if chosen:
            used = rows[chosen]
            self.shapes.append(
                Shapes(start[used], end[used], names[used], threads[chosen], np.array(inputs, dtype=np.int32))
            )

    def _add_messages(self, requests: Sequence[TraceEvent], threads: Column, start: Column) -> None:
        """Add the requests to send something to one rank, or to receive it."""
        args = [event.args or _NO_ARGS for event in requests]
        chosen = [at for at, of in enumerate(args) if of.source != UNKNOWN or of.destination != UNKNOWN]
        if chosen:
            columns: dict[str, Sequence[int] | Column] = {"start": start[chosen], "thread": threads[chosen]}
            self.messages.append(Messages.from_lists(columns | self._of_messages([args[at] for at in chosen])))

    def _of_messages(self, args: Sequence[Args]) -> dict[str, Sequence[int] | Column]:
        """Return what requests and kernels say about communication, by column."""
        return {
            "dtype": [self._name(of.dtype) for of in args],
            "source": np.clip(integers([of.source for of in args]), UNKNOWN, 2**31 - 1),
            "destination": np.clip(integers([of.destination for of in args]), UNKNOWN, 2**31 - 1),
            "elements_in": integers([of.elements_in for of in args]),
            "elements_out": integers([of.elements_out for of in args]),
        }

    def _add_device(
        self, events: Sequence[TraceEvent], rows: Column, codes: Column, start: Column, end: Column, names: Column
    ) -> None:
        if not len(rows):
            return
        chosen = [events[row] for row in rows.tolist()]
        args = [event.args or _NO_ARGS for event in chosen]
        devices = [event.pid if of.device is None else of.device for event, of in zip(chosen, args, strict=True)]
        streams = [event.tid if of.stream == UNKNOWN else of.stream for event, of in zip(chosen, args, strict=True)]
        table = DeviceEvents(
            start[rows],
            end[rows],
            names[rows],
            np.clip(integers(devices), UNKNOWN, 32767).astype(np.int16),
            integers(streams),
            codes[rows],
            integers([_correlation(of) for of in args]),
            integers([of.bytes for of in args]),
            np.clip(integers([_blocks(of.grid) for of in args]), UNKNOWN, 2**31 - 1).astype(np.int32),
        )
        self.device.append(table)
        self._add_collectives(args)
        self._device_rows += len(rows)

    def _add_collectives(self, args: Sequence[Args]) -> None:
        chosen = [(row, of) for row, of in enumerate(args) if of.collective is not None]
        if not chosen:
            return
        columns: dict[str, Sequence[int] | Column] = {
            "event": [self._device_rows + row for row, _ in chosen],
            "operation": [self._name(of.collective) for _, of in chosen],
            "group": [self._name(of.group) for _, of in chosen],
            "sequence": integers([of.sequence for _, of in chosen]),
            "ranks": np.clip(integers([of.ranks for _, of in chosen]), UNKNOWN, 2**31 - 1),
            **self._of_messages([of for _, of in chosen]),
        }
        self.collectives.append(Collectives.from_lists(columns))

    def _add_others(self, events: Sequence[TraceEvent]) -> None:
        """Add the instants that concern memory, and count the events that no reader can place."""
        unpaired = sum(event.ph in ("B", "E") for event in events)
        if unpaired:
            self.dropped[NOT_COMPLETE] += unpaired
        for name, tables in (("[memory]", self.memory), ("[OutOfMemory]", self.out_of_memory)):
            found = [
                event
                for event in events
                if event.name == name and event.args and event.ts is not None and abs(event.ts) < MOST_US
            ]
            if found:
                tables.append(self._memory(found))

    def _memory(self, found: Sequence[TraceEvent]) -> MemoryEvents:
        args = [event.args or _NO_ARGS for event in found]
        columns: dict[str, Sequence[int] | Column] = {
            "time": [round(event.ts * NS_PER_US) for event in found if event.ts is not None],
            "thread": self._thread_rows(found),
            "device": np.clip(integers([of.device_id for of in args]), UNKNOWN, 32767),
            "address": integers([of.address for of in args]).view(np.uint64),
            "bytes": integers([of.size for of in args]),
            "allocated": integers([of.allocated for of in args]),
            "reserved": integers([of.reserved for of in args]),
        }
        return MemoryEvents.from_lists(columns)


def integers(values: Sequence[Any]) -> Column:
    """Return whole numbers as a column; UNKNOWN for whatever is none, such as "stream 7"."""
    try:
        column = np.array(values, dtype=np.int64)
        if column.ndim == 1:
            return column
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN
    if 2**63 <= number < 2**64:  # an address
        number -= 2**64
    return number if -(2**63) <= number < 2**63 else UNKNOWN


def _microseconds(values: Iterable[float | None]) -> Column:
    """Return times as a column, NaN where there is none."""
    return np.array(list(values), dtype=np.float64)


def _nanoseconds(microseconds: Column) -> Column:
    """Return times as nanoseconds. The product of a float would lose digits of times since 1970."""
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * NS_PER_US).astype(np.int64)


def _correlation(args: Args) -> Any:
    """Return the number that a launch and what it launched have in common."""
    return args.external if args.correlation == UNKNOWN else args.correlation


def _blocks(grid: Any) -> int:
    """Return the number of thread blocks of a grid such as [2048, 1, 1]. ROCm writes [0, 0, 0] for an unknown one."""
    if isinstance(grid, list) and all(isinstance(size, int) and 0 <= size < 2**31 for size in grid) and any(grid):
        return prod(grid)
    return UNKNOWN
