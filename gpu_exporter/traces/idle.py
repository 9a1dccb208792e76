"""Why a GPU was idle: for each gap the event that ended it, its launch, and what the launching thread did until then.

A gap has up to three parts: until the launch (what the host did), from the launch to the start (launch overhead), and
all of it if the work was launched before the gap began (the GPU waited for other work).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.traces.frames import (
    cause_of_long_call,
    is_allocation,
    is_synchronising,
    is_wait_of_library,
    waiting_code,
)
from gpu_exporter.traces.intervals import Intervals, covered, gaps, length, union
from gpu_exporter.traces.kernel_classes import short_name
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceEvents, DeviceKind, HostKind, Trace, distinct
from gpu_exporter.traces.stacks import Stacks

# Clocks of the host and of the GPU agree to so much.
CLOCK_NS = 20_000
# Gaps before so many launches after a wait are its consequence. Without waits, a host that is too slow for the GPU
# makes gaps, too: a larger number would blame one wait in a step for these.
LAUNCHES_AFTER_WAIT = 8
# A launch takes 5 to 20 us. One that takes longer than this waits for the GPU, whose queue is full.
LONGEST_LAUNCH_NS = 1_000_000


@dataclass(frozen=True)
class HostTimes:
    """What the host did for one GPU."""

    launched: Column  # of each device event the start of its launch, ns; UNKNOWN if the file has none
    blocked: Intervals  # when a thread that launches waited for the GPU


def host_times(trace: Trace, calls: Column) -> HostTimes:
    """Return the launches of device events and the waits of the threads that made them.

    `calls` has the row of each device event's launch in `Trace.host_events`, or UNKNOWN.
    """
    host = trace.host_events
    known = calls != UNKNOWN
    launched = np.full(len(calls), UNKNOWN, dtype=np.int64)
    launched[known] = host.start[calls[known]]
    rows = distinct(calls[known])
    waits = [synchronisations(trace, thread) for thread in distinct(host.thread[rows]).tolist()]
    full = rows[host.end[rows] - host.start[rows] > LONGEST_LAUNCH_NS]
    blocked = np.concatenate((*waits, full)).astype(np.int64)
    return HostTimes(launched, union(host.start[blocked], host.end[blocked]))


def synchronisations(trace: Trace, thread: int) -> Column:
    """Return the calls in which a thread waited for the GPU, by their end: rows of `Trace.host_events`."""
    events = trace.host_events
    names = [row for row, name in enumerate(trace.names) if is_synchronising(name)]
    rows = np.flatnonzero((events.kind == HostKind.RUNTIME) & (events.thread == thread) & np.isin(events.name, names))
    return rows[np.argsort(events.end[rows], kind="stable")]


def causing(trace: Trace, thread: int, launched: Column, launches: Column, busy: Intervals) -> Column:
    """Return for each launch the wait that left the GPU without work shortly before; UNKNOWN if there is none.

    `launched` has the starts of these launches, ns, and `launches` the rows of all launches of the GPU's work. The
    result has rows of `Trace.host_events`.
    """
    host = trace.host_events
    rows = synchronisations(trace, thread)
    # Allocations wait only while the GPU works.
    rows = rows[
        ~_allocate(trace, rows)
        | (2 * covered(busy, host.start[rows], host.end[rows]) > host.end[rows] - host.start[rows])
    ]
    ends = host.end[rows]
    dry = covered(busy, ends, ends + CLOCK_NS) < CLOCK_NS
    rows, ends = rows[dry], ends[dry]
    if not len(rows):
        return np.full(len(launched), UNKNOWN, dtype=np.int64)
    last = np.searchsorted(ends, launched, side="right") - 1
    of_thread = np.sort(host.start[launches[host.thread[launches] == thread]])
    since = np.searchsorted(of_thread, launched) - np.searchsorted(of_thread, ends[last])
    return np.where((last >= 0) & (since < LAUNCHES_AFTER_WAIT), rows[last], UNKNOWN)


def _allocate(trace: Trace, rows: Column) -> Column:
    """Return which of these host events allocate or free memory."""
    found: Column = np.isin(
        trace.host_events.name[rows], [row for row, name in enumerate(trace.names) if is_allocation(name)]
    )
    return found


US = 1_000
# A GPU needs about 1 us between two kernels; what waits longer although it was launched depends on something.
SHORT_GAP_NS = 10 * US
# The host launches a kernel each 5 to 20 us. What takes longer than this is not the cost of launching.
LONG_GAP_NS = 1_000 * US
MOST_NAME = 60


@dataclass(frozen=True)
class Share:
    """Idle time with one cause and stack. `stack` is a number of `Stacks`."""

    cause: TraceCause
    stack: int
    nanoseconds: int


@dataclass(frozen=True)
class _Gaps:
    """The gaps of a GPU, with the launch of the event that ended each."""

    start: Column
    end: Column
    kind: Column  # DeviceKind of the event that ended it
    call_start: Column  # of its launch, at most `end`; UNKNOWN if the file has none
    call_end: Column
    thread: Column  # of its launch
    call: Column  # row of `Trace.host_events`
    wait: Column  # the wait for the GPU that caused the gap: row of `Trace.host_events`, or UNKNOWN


class Launches:
    """The runtime calls of a trace by correlation."""

    def __init__(self, trace: Trace) -> None:
        events = trace.host_events
        rows = np.flatnonzero((events.kind == HostKind.RUNTIME) & (events.correlation != UNKNOWN))
        # Of several calls with one number, such as runtime and driver, the outer is the launch: it comes first.
        correlation, first = np.unique(events.correlation[rows], return_index=True)
        self._correlation, self._rows = correlation, rows[first]

    def rows_of(self, events: DeviceEvents) -> Column:
        """Return the row of each device event's launch in `Trace.host_events`, or UNKNOWN."""
        if not len(self._rows):
            return np.full(len(events), UNKNOWN, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._correlation, events.correlation), len(self._rows) - 1)
        return np.where(self._correlation[at] == events.correlation, self._rows[at], UNKNOWN)


def attribute(trace: Trace, events: DeviceEvents, busy: Intervals, stacks: Stacks, launches: Launches) -> list[Share]:
    """Return the idle time of one GPU by cause and stack. `events` are all of that GPU, `busy` is their union."""
    found = _gaps_of(trace, events, busy, launches)
    for thread in distinct(found.thread[found.call != UNKNOWN]).tolist():
        stacks.timeline(thread)  # fills in the stacks of its events
    totals: dict[tuple[TraceCause, int], int] = defaultdict(int)
    for cause, stack, nanoseconds in (*_after_launch(trace, found, stacks), *_until_launch(trace, found, stacks)):
        totals[cause, stack] += nanoseconds
    return [Share(cause, stack, total) for (cause, stack), total in totals.items() if total > 0]


def _gaps_of(trace: Trace, events: DeviceEvents, busy: Intervals, launches: Launches) -> _Gaps:
    start, end = gaps(busy)
    first = events.rows(np.searchsorted(events.start, end))
    calls = launches.rows_of(first)
    host = trace.host_events
    nothing = np.full(len(end), UNKNOWN, dtype=np.int64)
    if not len(host):
        return _Gaps(start, end, first.kind, nothing, nothing, nothing, calls, nothing)
    known = calls != UNKNOWN
    call_start = np.where(known, np.minimum(host.start[calls], end), UNKNOWN)
    call_end = np.where(known, np.minimum(host.end[calls], end), UNKNOWN)
    thread = np.where(known, host.thread[calls], UNKNOWN)
    all_calls = distinct(launches.rows_of(events))
    all_calls = all_calls[all_calls != UNKNOWN]
    wait = nothing.copy()
    for one in distinct(thread[known]).tolist():
        rows = np.flatnonzero(thread == one)
        wait[rows] = causing(trace, one, call_start[rows], all_calls, busy)
    return _Gaps(start, end, first.kind, call_start, call_end, thread, calls, wait)


def _after_launch(trace: Trace, found: _Gaps, stacks: Stacks) -> Iterator[tuple[TraceCause, int, int]]:
    """Yield the time between launch and start, that of gaps in which the host was not late, and that of no launch."""
    known = found.call != UNKNOWN
    whole = found.end - found.start
    yield TraceCause.UNKNOWN, 0, int(whole[~known].sum())
    # If the launch was already being made, what remained of the call is launch overhead. The rest waited for the GPU.
    waiting = np.where(found.call_start <= found.start, whole, found.end - found.call_start)
    calling = np.clip(found.call_end - np.maximum(found.call_start, found.start), 0, waiting)
    overhead = np.where((whole <= SHORT_GAP_NS) | (waiting - calling <= SHORT_GAP_NS), waiting, calling)
    yield TraceCause.DEPENDENCY, 0, int((waiting - overhead)[known].sum())
    copies = found.kind == DeviceKind.COPY
    # A launch that takes so long while the GPU is idle loads the kernel first. One of a graph may just be large.
    graphs = [row for row, name in enumerate(trace.names) if "GraphLaunch" in name]
    loading = known & ~copies & (overhead > LONGEST_LAUNCH_NS)
    loading[loading] = ~np.isin(trace.host_events.name[found.call[loading]], graphs)
    waited = (found.wait != UNKNOWN) & ~loading
    for chosen, cause, calls in (
        (loading, TraceCause.COMPILATION, found.call),
        (waited, TraceCause.SYNCHRONISATION, found.wait),
        (~waited & copies, TraceCause.COPIES, found.call),
        (~waited & ~copies & ~loading, TraceCause.LAUNCH_OVERHEAD, found.call),
    ):
        rows = np.flatnonzero(known & chosen)
        yield from _by_stack(cause, stacks, calls[rows], overhead[rows])


def _by_stack(
    cause: TraceCause, stacks: Stacks, events: Column, nanoseconds: Column
) -> Iterator[tuple[TraceCause, int, int]]:
    """Yield the sum for each stack of host events: with the cause that its frames name, otherwise with this one."""
    if not len(events):
        return
    numbers, inverse = np.unique(np.maximum(stacks.of_event[events], 0), return_inverse=True)
    sums = np.bincount(inverse, weights=nanoseconds)
    for number, total in zip(numbers.tolist(), sums.tolist(), strict=True):
        yield stacks.cause(number) or cause, number, round(total)


def _until_launch(trace: Trace, found: _Gaps, stacks: Stacks) -> Iterator[tuple[TraceCause, int, int]]:
    """Yield what the launching threads did from the start of gaps to the launches that ended them."""
    late = (found.call != UNKNOWN) & (found.call_start > found.start)
    if not late.any():
        return
    main = main_thread(trace, found.thread[late])
    for thread in distinct(found.thread[late]).tolist():
        rows = np.flatnonzero(late & (found.thread == thread))
        windows = found.start[rows], found.call_start[rows]
        waits = found.wait[rows]
        is_long = windows[1] - windows[0] > LONG_GAP_NS
        after_wait = (waits != UNKNOWN) & ~is_long
        yield from _after_wait(stacks, thread, _chosen(windows, after_wait), waits[after_wait])
        for chosen, otherwise in (
            (~after_wait & ~is_long, TraceCause.LAUNCH_OVERHEAD),
            (is_long, TraceCause.PYTHON),
        ):
            spent = _spent(stacks, thread, main, _chosen(windows, chosen))
            for stack, nanoseconds in spent.items():
                yield _cause(stacks, stack, otherwise), stack, nanoseconds


@dataclass(frozen=True)
class UserWaits:
    """Waits for the GPU that the user's code causes, by the frame responsible, and what idle time they made, ns."""

    nanoseconds: int
    frames: tuple[str, ...]  # the most costly first
    count: int  # of waits at the first of these frames
    code: str  # what waits there, such as .item()


def user_waits(
    trace: Trace, shares: list[Share], stacks: Stacks, events: DeviceEvents, calls: Column, most: int
) -> UserWaits | None:
    """Return the waits that the user's code causes; None if there are none. `calls` are the launches of the events."""
    chosen = [
        share
        for share in shares
        if share.cause is TraceCause.SYNCHRONISATION
        and share.stack
        and not is_wait_of_library(stacks.names(share.stack))
    ]
    frames = frames_of(chosen, stacks, most)
    if not frames:
        return None
    threads = distinct(trace.host_events.thread[calls[calls != UNKNOWN]])
    rows = np.concatenate([synchronisations(trace, thread) for thread in threads.tolist()]).astype(np.int64)
    rows = rows[~_allocate(trace, rows)]
    numbers, counts = np.unique(stacks.of_event[rows], return_counts=True)
    same = [
        (count, stack)
        for stack, count in zip(numbers.tolist(), counts.tolist(), strict=True)
        if stack > 0 and _user_frame(stacks, stack) == frames[0].partition(" > ")[0]
    ]
    stack = max(same)[1] if same else max(chosen, key=lambda share: share.nanoseconds).stack
    total = sum(share.nanoseconds for share in chosen)
    to_gpu = _follow_copies_to_gpu(trace, events, calls, rows[stacks.of_event[rows] == stack])
    return UserWaits(total, frames, sum(count for count, _ in same), waiting_code(stacks.names(stack), to_gpu=to_gpu))


def _follow_copies_to_gpu(trace: Trace, events: DeviceEvents, calls: Column, waits: Column) -> bool:
    """Return whether the last thing that a thread launched before most of its waits was a copy to the GPU."""
    host = trace.host_events
    copies = np.isin(events.name, [row for row, name in enumerate(trace.names) if "HtoD" in name])
    followed = 0
    for thread in distinct(host.thread[waits]).tolist():
        launched = np.flatnonzero((calls != UNKNOWN) & (host.thread[calls] == thread))
        launched = launched[np.argsort(host.start[calls[launched]], kind="stable")]
        last = (
            np.searchsorted(host.start[calls[launched]], host.start[waits[host.thread[waits] == thread]], "right") - 1
        )
        followed += int(copies[launched[last[last >= 0]]].sum())
    return followed * 2 > len(waits)


def _user_frame(stacks: Stacks, stack: int) -> str:
    return stacks.responsible(stack).partition(" > ")[0]


def dependencies(trace: Trace, events: DeviceEvents, busy: Intervals, launches: Launches, most: int) -> tuple[str, ...]:
    """Return for what launched work waited, the longest first: which kernel, after which, on which streams."""
    found = _gaps_of(trace, events, busy, launches)
    waited = (found.call != UNKNOWN) & (found.call_start <= found.start) & (found.end - found.start > SHORT_GAP_NS)
    rows = np.flatnonzero(waited)
    after = np.searchsorted(events.start, found.end[rows])
    before, _ = _last_before(events, found.start[rows])
    of_others = trace.device_events.rows(trace.device_events.device != events.device[0])
    meanwhile, ended = _last_before(of_others, found.end[rows])
    totals: dict[str, int] = defaultdict(int)
    for at, gap in enumerate(rows.tolist()):
        first = _on_stream(trace, events, before[at])
        if ended[at] > found.start[gap]:  # another GPU of the process worked until then
            other = meanwhile[at]
            first = f"{_on_stream(trace, of_others, other)} of GPU {of_others.device[other]}"
        totals[f"{_on_stream(trace, events, after[at])} after {first}"] += int(found.end[gap] - found.start[gap])
    return tuple(sorted(totals, key=lambda words: -totals[words])[:most])


def _last_before(events: DeviceEvents, times: Column) -> tuple[Column, Column]:
    """Return the last event that ended until each of these times, and its end; UNKNOWN twice if there is none."""
    order = np.argsort(events.end, kind="stable")
    at = np.searchsorted(events.end[order], times, side="right") - 1
    rows = np.where(at >= 0, order[at], UNKNOWN) if len(order) else np.full(len(times), UNKNOWN)
    return rows, np.where(rows != UNKNOWN, events.end[rows], UNKNOWN) if len(order) else rows


def _on_stream(trace: Trace, events: DeviceEvents, row: int) -> str:
    return f"{short_name(trace.names[events.name[row]], MOST_NAME)} on stream {events.stream[row]}"


def _chosen(windows: Intervals, mask: Column) -> Intervals:
    return windows[0][mask], windows[1][mask]


def main_thread(trace: Trace, threads: Column) -> int:
    """Return the thread of the training loop: that of the steps, otherwise that of most launches in `threads`."""
    if trace.steps:
        return trace.steps[0].thread
    python = trace.host_events.thread[trace.host_events.kind == HostKind.PYTHON]
    return int(np.bincount(python if len(python) else threads).argmax())


def _after_wait(
    stacks: Stacks, thread: int, windows: Intervals, waits: Column
) -> Iterator[tuple[TraceCause, int, int]]:
    """Yield the time of windows after a wait: what names its cause itself, and the rest by the stack of the wait."""
    if not len(waits):
        return
    timeline = stacks.timeline(thread)
    used, spent = timeline.within(windows)
    of_segment = stacks.of_event[timeline.event[used]]
    causes = {stack: stacks.cause(stack) for stack in distinct(of_segment).tolist()}
    named = np.isin(of_segment, [stack for stack, cause in causes.items() if cause is not None])
    used, spent, of_segment = used[named], spent[named], of_segment[named]
    for stack, nanoseconds in zip(of_segment.tolist(), spent.tolist(), strict=True):
        cause = causes[stack]
        if cause is not None:
            yield cause, stack, nanoseconds
    left = windows[1] - windows[0] - covered((timeline.borders[used], timeline.borders[used + 1]), *windows)
    yield from _by_stack(TraceCause.SYNCHRONISATION, stacks, waits, left)


def _spent(stacks: Stacks, thread: int, main: int, windows: Intervals) -> dict[int, int]:
    """Return the nanoseconds of each stack in windows; where a thread did nothing, what the main thread did."""
    totals: dict[int, int] = defaultdict(int)
    left = _add(totals, stacks, thread, windows)
    if thread != main and len(left[0]):
        left = _add(totals, stacks, main, left)
    totals[0] += length(left)
    return totals


def _add(totals: dict[int, int], stacks: Stacks, thread: int, windows: Intervals) -> Intervals:
    """Add the nanoseconds of each stack in windows. Returns the parts of these in which the thread was in no event."""
    timeline = stacks.timeline(thread)
    used, spent = timeline.within(windows)
    if len(used):
        sums = np.bincount(stacks.of_event[timeline.event[used]], weights=spent)
        for stack in np.flatnonzero(sums).tolist():
            totals[stack] += round(sums[stack])
    return difference(windows, union(timeline.borders[used], timeline.borders[used + 1]))


def difference(windows: Intervals, others: Intervals) -> Intervals:
    """Return the parts of disjoint, ordered intervals that the others, disjoint and ordered, do not cover."""
    if not len(others[0]) or not len(windows[0]):
        return windows
    # Cut at every border, and keep the pieces inside a window and outside all others.
    borders = distinct(np.concatenate((*windows, *others)))
    start, end = borders[:-1], borders[1:]
    kept = (covered(windows, start, end) > 0) & (covered(others, start, end) == 0)
    return union(start[kept], end[kept])


def _cause(stacks: Stacks, stack: int, otherwise: TraceCause) -> TraceCause:
    """Return what the frames of a stack name; where they name nothing, what the kind of gap suggests."""
    named = stacks.cause(stack)
    if named is not None:
        return named
    if not stack and otherwise is TraceCause.PYTHON:
        return TraceCause.UNKNOWN
    if is_synchronising(stacks.name(stack)):
        return TraceCause.SYNCHRONISATION
    of_call = cause_of_long_call(stacks.name(stack)) if otherwise is TraceCause.PYTHON else None
    return of_call or otherwise


def frames_of(shares: list[Share], stacks: Stacks, most: int) -> tuple[str, ...]:
    """Return the frames responsible for shares of one cause, the most costly first."""
    totals: dict[str, int] = defaultdict(int)
    for share in shares:
        totals[stacks.responsible(share.stack)] += share.nanoseconds
    ordered = sorted(totals, key=lambda frame: -totals[frame])
    return tuple(frame for frame in ordered if frame)[:most]


def launch_frames(trace: Trace, events: DeviceEvents, stacks: Stacks, launches: Launches, most: int) -> tuple[str, ...]:
    """Return the frames that launched device events, those with most time on the device first."""
    calls = launches.rows_of(events)
    known = calls != UNKNOWN
    calls = calls[known]
    if not len(calls):
        return ()
    for thread in distinct(trace.host_events.thread[calls]).tolist():
        stacks.timeline(thread)
    duration = (events.end - events.start)[known]
    shares = _by_stack(TraceCause.UNKNOWN, stacks, calls, duration)
    return frames_of([Share(*share) for share in shares], stacks, most)
