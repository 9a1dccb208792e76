"""Call stacks of the host: which events contain which, and what a thread did at each moment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.traces.frames import PYTHON_FRAME, cause_of, is_user_frame
from gpu_exporter.traces.intervals import Intervals, covered_until
from gpu_exporter.traces.model import UNKNOWN, Column, HostKind, Trace

# So many events at a time are Python objects, which need far more memory than columns.
BLOCK = 1 << 18
STEP = "ProfilerStep"
# What changes with each step or run: the number of a step, the address of an object.
_CHANGING = re.compile(r"(?<=^ProfilerStep)\s*#?\s*\d+$| (?:object )?at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Timeline:
    """What one thread did: the innermost event between each two of the borders, which are in order."""

    borders: Column  # ns, one more than events
    event: Column  # row of `Trace.host_events`, or UNKNOWN while the thread was in none

    def within(self, windows: Intervals) -> tuple[Column, Column]:
        """Return the segments with an event that overlap disjoint, ordered windows, and how much of each does, ns."""
        if not len(self.event):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        spent = np.diff(covered_until(windows, self.borders))
        used = np.flatnonzero((spent > 0) & (self.event != UNKNOWN))
        return used, spent[used]


class Stacks:
    """The stacks of a trace, made for one thread when it is first asked for.

    Stacks with equal names have the same number; 0 is the empty stack.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._names: list[int] = [UNKNOWN]
        self._callers: list[int] = [0]
        self._causes: list[TraceCause | None] = [None]
        self._frames: list[int] = [0]  # the innermost stack that ends in a frame of the user's code
        self._numbers: dict[tuple[int, int], int] = {}
        self._timelines: dict[int, Timeline] = {}
        # The stack of each host event: UNKNOWN until its thread was asked for.
        self.of_event: Column = np.full(len(trace.host_events), UNKNOWN, dtype=np.int32)

    def timeline(self, thread: int) -> Timeline:
        """Return what a thread did, and fill in `of_event` for its events."""
        if thread not in self._timelines:
            self._timelines[thread] = self._make(thread)
        return self._timelines[thread]

    def names(self, stack: int) -> tuple[str, ...]:
        """Return the names of a stack, from the outermost to the innermost."""
        names = []
        while stack:
            names.append(self.plain_names[self._names[stack]])
            stack = self._callers[stack]
        return tuple(reversed(names))

    def cause(self, stack: int) -> TraceCause | None:
        """Return the cause that the frames of a stack name: the innermost that names one."""
        return self._causes[stack]

    def name(self, stack: int) -> str:
        """Return the innermost name of a stack; empty for the empty stack."""
        return self.plain_names[self._names[stack]] if stack else ""

    def responsible(self, stack: int) -> str:
        """Return the innermost frame of the user's code, and the innermost frame of all if that is another.

        For example `train.py(31): load_batch > <built-in function sleep>`. Before a frame without a name of its own,
        such as <genexpr>, stands the one that it is in. Without any frame of the user, the one of a library or the
        operator stands there. Empty for the empty stack.
        """
        inner, number = self.name(stack), self._frames[stack]
        frames = [self.name(number)] if number else []
        while number and frames[0].endswith(">") and self._frames[self._callers[number]]:
            number = self._frames[self._callers[number]]
            frames.insert(0, self.name(number))
        if not frames:
            outer = [name for name in reversed(self.names(stack)[:-1]) if name != STEP]
            frames = [name for name in outer if PYTHON_FRAME.match(name)][:1] or outer[:1]
        return " > ".join(frames if frames[-1:] == [inner] else [*frames, inner]) if inner else ""

    @property
    def count(self) -> int:
        """The number of different stacks so far, with the empty one."""
        return len(self._names)

    @cached_property
    def plain_names(self) -> tuple[str, ...]:
        """The names of the trace, without the numbers of steps and the addresses of objects."""
        return tuple(_CHANGING.sub("", name) for name in self._trace.names)

    @cached_property
    def _plain_rows(self) -> Column:
        """The row of each name's plain form."""
        rows: dict[str, int] = {}
        return np.array([rows.setdefault(name, row) for row, name in enumerate(self.plain_names)], dtype=np.int64)

    @cached_property
    def _by_thread(self) -> tuple[Column, Column]:
        """The rows of the host events in order of thread and start, and their threads."""
        order = np.argsort(self._trace.host_events.thread, kind="stable")
        return order, self._trace.host_events.thread[order]

    def _make(self, thread: int) -> Timeline:
        order, threads = self._by_thread
        rows = order[np.searchsorted(threads, thread) : np.searchsorted(threads, thread, side="right")]
        events = self._trace.host_events
        rows = rows[events.end[rows] > events.start[rows]].astype(np.int32)
        start = events.start[rows]
        parent, depth, end = nesting(start, events.end[rows], events.kind[rows] == HostKind.ANNOTATION)
        self.of_event[rows] = self._number(self._plain_rows[events.name[rows]], parent, depth)
        return _timeline(rows, start, end, parent)

    def _number(self, names: Column, parent: Column, depth: Column) -> Column:
        """Return the stack of each event, by depth: that of its parent, and its name."""
        stacks = np.zeros(len(names), dtype=np.int64)
        by_depth = np.argsort(depth, kind="stable")
        bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=-1)) + 2))
        width = len(self._plain_rows) + 1
        for begin, end in pairwise(bounds.tolist()):
            rows = by_depth[begin:end]
            callers = np.where(parent[rows] == UNKNOWN, 0, stacks[parent[rows]])
            keys, inverse = np.unique(callers * width + names[rows], return_inverse=True)
            numbers = np.array([self._intern(*divmod(int(key), width)) for key in keys], dtype=np.int64)
            stacks[rows] = numbers[inverse]
        return stacks.astype(np.int32)

    def _meaning(self, name: int) -> tuple[TraceCause | None, bool]:
        """Return the cause that a frame names, and whether it is of the user's code."""
        return _meaning_of(self.plain_names[name])

    def _intern(self, caller: int, name: int) -> int:
        number = self._numbers.setdefault((caller, name), len(self._names))
        if number == len(self._names):
            cause, is_user = self._meaning(name)
            self._names.append(name)
            self._callers.append(caller)
            self._causes.append(cause or self._causes[caller])
            self._frames.append(number if is_user else self._frames[caller])
        return number


@lru_cache(maxsize=1 << 16)
def _meaning_of(name: str) -> tuple[TraceCause | None, bool]:
    return cause_of(name), is_user_frame(name)


def nesting(start: Column, end: Column, is_range: Column) -> tuple[Column, Column, Column]:
    """Return the parent of each event (a row, or UNKNOWN), its depth, and its end, at most that of its parent.

    Events are those of one thread, by start, the outer before the inner. `is_range` marks annotations of the user:
    these begin in the frames of `__enter__`, and outlive them. Such frames end where the annotation begins.
    """
    parents, depths = np.full(len(start), UNKNOWN, dtype=np.int32), np.zeros(len(start), dtype=np.int32)
    end = end.copy()
    open_rows: list[int] = []
    open_ends: list[int] = []
    for offset in range(0, len(start), BLOCK):
        block = slice(offset, offset + BLOCK)
        _nest(offset, start[block], end, is_range[block], parents[block], depths[block], (open_rows, open_ends))
    end[open_rows] = open_ends
    return parents, depths, end


def _nest(
    offset: int,
    start: Column,
    end: Column,
    is_range: Column,
    parents: Column,
    depths: Column,
    opened: tuple[list[int], list[int]],
) -> None:
    """Fill in the parents and depths of a block of events, and shorten their ends. `opened` is kept between blocks."""
    open_rows, open_ends = opened
    of_block: list[int] = []
    block_depths: list[int] = []
    ends: list[int] = end[offset : offset + len(start)].tolist()
    for row, (begin, stop, may_outlive) in enumerate(zip(start.tolist(), ends, is_range.tolist(), strict=True), offset):
        while open_rows and open_ends[-1] <= begin:
            end[open_rows.pop()] = open_ends.pop()
        if may_outlive:
            while open_rows and stop - open_ends[-1] > open_ends[-1] - begin:
                open_ends.pop()
                end[open_rows.pop()] = begin
        if open_rows:
            of_block.append(open_rows[-1])
            if stop > open_ends[-1]:
                stop = open_ends[-1]
        else:
            of_block.append(UNKNOWN)
        block_depths.append(len(open_rows))
        open_rows.append(row)
        open_ends.append(stop)
    parents[:], depths[:] = of_block, block_depths


def _timeline(rows: Column, start: Column, end: Column, parent: Column) -> Timeline:
    """Return the innermost event of each moment: at a start, the event; at an end, its parent."""
    if not len(rows):
        return Timeline(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32))
    # Of equal times, the last counts: ends before starts, the inner end first, the inner start last.
    times = np.concatenate((end[::-1], start))
    order = np.argsort(times, kind="stable")
    times = times[order]
    kept = np.flatnonzero(times[1:] > times[:-1])
    borders = np.append(times[kept], times[-1])
    del times
    owners = np.concatenate((parent[::-1], np.arange(len(rows), dtype=np.int32)))[order[kept]]
    return Timeline(borders, np.where(owners == UNKNOWN, UNKNOWN, rows[owners]).astype(np.int32))
