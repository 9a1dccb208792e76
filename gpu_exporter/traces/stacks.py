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
# What changes with each step or run: numbers of steps, addresses of objects, what emit_nvtx of PyTorch counts.
_CHANGING = re.compile(r"(?<=^ProfilerStep)\s*#?\s*\d+$| (?:object )?at 0x[0-9a-fA-F]+|, (?:seq|op_id) = \d+")


@dataclass(frozen=True)
class ThreadTimeline:
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
        self._timelines: dict[int, ThreadTimeline] = {}
        # The stack of each host event: UNKNOWN until its thread was asked for.
        self.of_event: Column = np.full(len(trace.host_events), UNKNOWN, dtype=np.int32)

    def timeline(self, thread: int) -> ThreadTimeline:
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
        """The rows of the host events in order of thread and start, and where those of each thread begin."""
        thread = self._trace.host_events.thread
        order = np.argsort(thread, kind="stable").astype(np.int32)
        return order, np.concatenate(([0], np.cumsum(np.bincount(thread, minlength=len(self._trace.threads)))))

    def _make(self, thread: int) -> ThreadTimeline:
        order, bounds = self._by_thread
        rows = order[bounds[thread] : bounds[thread + 1]]
        events = self._trace.host_events
        rows = rows[events.end[rows] > events.start[rows]]
        nested = nesting(events.start[rows], events.end[rows], events.kind[rows] == HostKind.ANNOTATION)
        self.of_event[rows] = self._number(events.name[rows], nested.parent, nested.depth)
        return _timeline(rows, nested)

    def _number(self, names: Column, parent: Column, depth: Column) -> Column:
        """Return the stack of each event, by depth: that of its parent, and its name."""
        stacks = np.zeros(len(names), dtype=np.int32)
        by_depth = np.argsort(depth, kind="stable").astype(np.int32)
        bounds = np.concatenate(([0], np.cumsum(np.bincount(depth))))
        width = len(self._plain_rows) + 1
        for begin, end in pairwise(bounds.tolist()):
            rows = by_depth[begin:end]
            callers = np.where(parent[rows] == UNKNOWN, 0, stacks[parent[rows]]).astype(np.int64)
            keys, inverse = np.unique(callers * width + self._plain_rows[names[rows]], return_inverse=True)
            numbers = np.array([self._intern(*divmod(int(key), width)) for key in keys], dtype=np.int32)
            stacks[rows] = numbers[inverse]
        return stacks

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


@dataclass(frozen=True)
class Nesting:
    """How events of one thread contain each other. Rows are those of these events."""

    parent: Column  # row, or UNKNOWN
    depth: Column
    times: Column  # ns, in order, perhaps equal: at each, another event becomes the innermost
    innermost: Column  # row, or UNKNOWN, from that time on; of equal times the last counts


def nesting(start: Column, end: Column, is_range: Column) -> Nesting:
    """Nest events of one thread, which are in order of start, the outer before the inner.

    A child that outlives its parent ends with it. `is_range` marks annotations of the user: these begin in the frames
    of `__enter__`, and outlive them. Such frames end where the annotation begins.
    """
    parent, depth = np.full(len(start), UNKNOWN, dtype=np.int32), np.zeros(len(start), dtype=np.int32)
    opened: list[tuple[int, int]] = []  # rows and ends
    times, innermost = [], []
    for offset in range(0, len(start), BLOCK):
        block = slice(offset, offset + BLOCK)
        of_block = _nest(offset, start[block], end[block], is_range[block], (parent[block], depth[block]), opened)
        times.append(np.array(of_block[0], dtype=np.int64))
        innermost.append(np.array(of_block[1], dtype=np.int32))
    times.append(np.array([stop for _, stop in reversed(opened)], dtype=np.int64))
    innermost.append(np.array([*(row for row, _ in opened[-2::-1]), *([UNKNOWN] if opened else [])], dtype=np.int32))
    return Nesting(parent, depth, np.concatenate(times), np.concatenate(innermost))


def _nest(
    offset: int,
    start: Column,
    end: Column,
    is_range: Column,
    found: tuple[Column, Column],
    opened: list[tuple[int, int]],
) -> tuple[list[int], list[int]]:
    """Fill in the parents and depths of a block of events. Returns the times and what is innermost from then on.

    `opened` has the events that contain the next one; it is kept between blocks.
    """
    parents, depths, times, innermost = [], [], [], []
    blocks = zip(start.tolist(), end.tolist(), is_range.tolist(), strict=True)
    for row, (begin, stop, may_outlive) in enumerate(blocks, offset):
        while opened and opened[-1][1] <= begin:
            times.append(opened.pop()[1])
            innermost.append(opened[-1][0] if opened else UNKNOWN)
        while may_outlive and opened and stop - opened[-1][1] > opened[-1][1] - begin:
            opened.pop()
        depths.append(len(opened))
        if opened:
            parent, last = opened[-1]
            parents.append(parent)
            opened.append((row, min(stop, last)))
        else:
            parents.append(UNKNOWN)
            opened.append((row, stop))
        times.append(begin)
        innermost.append(row)
    found[0][:], found[1][:] = parents, depths
    return times, innermost


def _timeline(rows: Column, nested: Nesting) -> ThreadTimeline:
    """Return the timeline of the events in these rows of the table."""
    times = nested.times
    if not len(times):
        return ThreadTimeline(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32))
    last = np.append(times[1:] != times[:-1], True)
    owners = nested.innermost[last][:-1]
    return ThreadTimeline(times[last], np.where(owners == UNKNOWN, np.int32(UNKNOWN), rows[owners]))
