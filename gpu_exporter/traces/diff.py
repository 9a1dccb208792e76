"""Where the time of a trace went, as totals per step, and what got slower between two traces of the same job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpu_exporter.catalogue.causes import TRACE_WORDS, TraceCause
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.reports.numbers import duration, signed_percent
from gpu_exporter.traces.analysis import no_gpu_events, summary
from gpu_exporter.traces.device_times import NS, DeviceTimes, devices
from gpu_exporter.traces.frames import PYTHON_FRAME
from gpu_exporter.traces.idle import Launches, attribute
from gpu_exporter.traces.kernel_classes import short_name
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceKind, Trace
from gpu_exporter.traces.operators import event_classes, launch_stacks, operator_of
from gpu_exporter.traces.rank_files import RankFile, rank_numbers
from gpu_exporter.traces.stacks import Stacks
from gpu_exporter.traces.waiting import Waits, communication_of, divided

# What time is summed by, as `trace top --by` names it.
OPERATOR, KERNEL, CLASS, FRAME, CAUSE, IDLE_FRAME = "operator", "kernel", "class", "code", "cause", "idle-code"
KEYS = (OPERATOR, KERNEL, CLASS, FRAME, CAUSE, IDLE_FRAME)
# Of jobs with several ranks: the rank for which the others waited.
WAITING, UNKNOWN_RANK = "waiting", "another rank"
NO_OPERATOR, NO_FRAME = "(no operator)", "(no Python frame)"


@dataclass(frozen=True)
class Total:
    """Seconds and events with one name, per step. Kernels may overlap, so their sum may exceed the step."""

    seconds: float
    count: float


@dataclass(frozen=True)
class TraceTotals:
    """All totals of the traces of a job; with several GPUs, the mean over them. `steps` is 0 if they have no steps.

    `by` has a table for each of KEYS, and WAITING. Times of `cause` and `idle-code` are idle time, those of the others
    GPU time. If the ranks can be compared, that of collectives is the transfer, and waiting is by the last rank.
    """

    steps: int
    gpus: int
    step_seconds: float  # of the span if there are no steps
    busy_seconds: float
    by: Mapping[str, Mapping[str, Total]]


def totals(*traces: Trace) -> TraceTotals:
    """Return the totals of the traces of a job.

    Raises GpuExporterError if one has no GPU events, or if they are not one of each rank of one job.
    """
    of_devices = [devices(trace) for trace in traces]
    for trace, of_trace in zip(traces, of_devices, strict=True):
        if not of_trace:
            raise GpuExporterError(no_gpu_events([summary(trace)]))
    gpus = [(position, device) for position, of_trace in enumerate(of_devices) for device in of_trace]
    ranks = rank_numbers(
        [
            RankFile(trace.path, trace.distributed, [times.start for times in of_trace.values()])
            for trace, of_trace in zip(traces, of_devices, strict=True)
        ]
    )
    numbers = [ranks[position] for position, _ in gpus]
    waits: Sequence[Waits | None] = [None] * len(gpus)
    if len(traces) > 1:
        waits = divided([communication_of(traces[at], device, of_devices[at][device]) for at, device in gpus])
    parts = {gpu: _Parts(of_gpu, numbers) for gpu, of_gpu in zip(gpus, waits, strict=True)}
    found = [
        _of_trace(trace, of_trace, {device: parts[position, device] for device in of_trace})
        for position, (trace, of_trace) in enumerate(zip(traces, of_devices, strict=True))
    ]
    if len(found) == 1:
        return found[0]

    def mean(values: Iterable[float]) -> float:
        return sum(value * of.gpus for value, of in zip(values, found, strict=True)) / len(gpus)

    nothing = Total(0.0, 0.0)
    by: dict[str, Mapping[str, Total]] = {}
    for key in TITLES:
        rows = {
            name: Total(mean(each.seconds for each in of_name), mean(each.count for each in of_name))
            for name in dict.fromkeys(name for of in found for name in of.by[key])
            for of_name in ([of.by[key].get(name, nothing) for of in found],)
        }
        by[key] = dict(sorted(rows.items(), key=lambda item: -item[1].seconds))
    steps = min(of.steps for of in found)
    step, busy = mean(of.step_seconds for of in found), mean(of.busy_seconds for of in found)
    return TraceTotals(steps, len(gpus), step, busy, by)


@dataclass(frozen=True)
class _Parts:
    """How the communication of a GPU divides. `ranks` are those that `Waits.last` refers to."""

    waits: Waits | None
    ranks: Sequence[int]


def _of_trace(trace: Trace, of_devices: Mapping[int, DeviceTimes], parts: Mapping[int, _Parts]) -> TraceTotals:
    stacks, launches = Stacks(trace), Launches(trace)
    seconds: dict[str, Counter[str]] = {key: Counter() for key in TITLES}
    counts: dict[str, Counter[str]] = {key: Counter() for key in TITLES}
    for device, times in of_devices.items():
        for key, name, spent, count in (
            *_gpu(trace, times, _spent(times, parts[device]), stacks, launches),
            *_waiting(parts[device]),
            *_idle(trace, times, stacks, launches),
        ):
            seconds[key][name] += spent
            counts[key][name] += count
    shares = max(1, len(trace.steps)) * len(of_devices)
    by = {
        key: {name: Total(spent / NS / shares, counts[key][name] / shares) for name, spent in of_key.most_common()}
        for key, of_key in seconds.items()
    }
    span = sum(step.end - step.start for step in trace.steps) * len(of_devices)
    span = span or sum(times.span for times in of_devices.values())
    busy = sum(int((times.busy[1] - times.busy[0]).sum()) for times in of_devices.values())
    return TraceTotals(len(trace.steps), len(of_devices), span / NS / shares, busy / NS / shares, by)


def _spent(times: DeviceTimes, parts: _Parts) -> Column:
    """Return the time of each event of a GPU, ns; of a collective, only the transfer."""
    spent = times.events.end - times.events.start
    if parts.waits:
        spent[times.events.kind == DeviceKind.COMMUNICATION] = parts.waits.transfer
    return spent


def _waiting(parts: _Parts) -> Iterator[tuple[str, str, int, int]]:
    if parts.waits is None:
        return
    for last, spent, count in _sums(parts.waits.last, parts.waits.waiting):
        if spent:
            yield WAITING, UNKNOWN_RANK if last == UNKNOWN else f"rank {parts.ranks[last]}", spent, count


def _gpu(
    trace: Trace, times: DeviceTimes, spent: Column, stacks: Stacks, launches: Launches
) -> Iterator[tuple[str, str, int, int]]:
    """Yield GPU time: what it is summed by, the name, ns, and the number of kernels and copies."""
    events = times.events
    for row, total, count in _sums(events.name, spent):
        yield KERNEL, short_name(trace.names[row]), total, count
    of_event = launch_stacks(trace, events, stacks, launches)
    classes = event_classes(trace, events, of_event, stacks)
    for row, total, count in _sums(classes.rows, spent):
        yield CLASS, classes.names[row], total, count
    for stack, total, count in _sums(of_event, spent):
        names = stacks.names(stack)
        yield OPERATOR, operator_of(names) or NO_OPERATOR, total, count
        yield FRAME, _frame(names, stacks.responsible(stack)), total, count


def _idle(trace: Trace, times: DeviceTimes, stacks: Stacks, launches: Launches) -> Iterator[tuple[str, str, int, int]]:
    for share in attribute(trace, times.events, times.busy, stacks, launches):
        yield CAUSE, share.cause.value, share.nanoseconds, 1
        yield IDLE_FRAME, stacks.responsible(share.stack) or NO_FRAME, share.nanoseconds, 1


def _sums(rows: np.ndarray, spent: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield each row number, the sum of what was spent, and how often."""
    values, inverse, counts = np.unique(rows, return_inverse=True, return_counts=True)
    found = np.zeros(len(values), dtype=np.int64)
    np.add.at(found, inverse, spent)
    yield from zip(values.tolist(), found.tolist(), counts.tolist(), strict=True)


def _frame(names: tuple[str, ...], responsible: str) -> str:
    """Return the innermost frame of the user's code, or else of any Python code."""
    frame = responsible.partition(" > ")[0]
    if PYTHON_FRAME.match(frame):
        return frame
    return next((name for name in reversed(names) if PYTHON_FRAME.match(name)), NO_FRAME)


# Of a step: a change that is smaller is not mentioned in the text.
LEAST_CHANGE = 0.005
MOST_ROWS, MOST_NAME = 5, 120
TITLES: Mapping[str, str] = {
    OPERATOR: "GPU time by operator",
    KERNEL: "GPU time by kernel",
    CLASS: "GPU time by class of kernel",
    FRAME: "GPU time by code that launched it",
    WAITING: "Waiting in collectives, by the rank that came last",
    CAUSE: "Idle time of the GPU by cause",
    IDLE_FRAME: "Idle time of the GPU by code of the host",
}


@dataclass(frozen=True)
class Change:
    """One name in both traces, in seconds and events per step; 0 where a trace does not have it."""

    name: str
    before_seconds: float
    after_seconds: float
    before_count: float
    after_count: float

    @property
    def seconds(self) -> float:
        """By how much it is slower."""
        return self.after_seconds - self.before_seconds


@dataclass(frozen=True)
class Diff:
    """Two traces compared. Times are per step (`unit` is "step") or of the whole trace ("trace").

    `changes` has a list for each of TITLES, with the largest slowdown first.
    """

    unit: str
    before: TraceTotals
    after: TraceTotals
    changes: Mapping[str, Sequence[Change]]

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        found: dict[str, Any] = {"unit": self.unit}
        for name, of_trace in (("before", self.before), ("after", self.after)):
            found[name] = {
                "steps": of_trace.steps,
                "gpus": of_trace.gpus,
                "step_seconds": of_trace.step_seconds,
                "busy_seconds": of_trace.busy_seconds,
            }
        found["changes"] = {
            key: [{**asdict(change), "seconds": change.seconds} for change in of_key]
            for key, of_key in self.changes.items()
        }
        return found


def diff(before: TraceTotals, after: TraceTotals) -> Diff:
    """Compare two traces: by step if both have steps, otherwise as a whole."""
    unit = "step" if before.steps and after.steps else "trace"
    if unit == "trace":
        before, after = _whole(before), _whole(after)
    changes = {}
    nothing = Total(0.0, 0.0)
    for key in TITLES:
        old, new = before.by[key], after.by[key]
        rows = [
            Change(name, first.seconds, second.seconds, first.count, second.count)
            for name in dict.fromkeys((*new, *old))
            for first, second in ((old.get(name, nothing), new.get(name, nothing)),)
        ]
        changes[key] = sorted(rows, key=lambda row: -row.seconds)
    return Diff(unit, before, after, changes)


def _whole(totals: TraceTotals) -> TraceTotals:
    """Return totals of the whole trace instead of a step."""
    factor = max(1, totals.steps)
    by = {
        key: {name: Total(each.seconds * factor, each.count * factor) for name, each in of_key.items()}
        for key, of_key in totals.by.items()
    }
    return TraceTotals(0, totals.gpus, totals.step_seconds * factor, totals.busy_seconds * factor, by)


def lines(found: Diff) -> Iterator[str]:
    """Yield the comparison as text: first what explains most of the difference."""
    before, after = found.before, found.after
    change = after.step_seconds - before.step_seconds
    what = "A step" if found.unit == "step" else "The trace"
    share = f" ({signed_percent(change / before.step_seconds)})" if before.step_seconds else ""
    took, takes = duration(before.step_seconds), duration(after.step_seconds)
    yield f"{what} took {took}, and now takes {takes}{share}."
    if before.gpus != after.gpus:
        yield f"The job had {before.gpus} GPUs, and now has {after.gpus}: times are means over them."
    busy, idle = (after.busy_seconds - before.busy_seconds, change - (after.busy_seconds - before.busy_seconds))
    yield (
        f"The GPU works {_signed(busy)} and is idle {_signed(idle)} than before."
        if busy or idle
        else "The GPU works and is idle for exactly as long as before."
    )
    if culprit := main_cause(found):
        yield f"Most of it: {culprit}."
    least = LEAST_CHANGE * max(before.step_seconds, after.step_seconds)
    sign = _sign(found)
    for key, title in TITLES.items():
        rows = [row for row in found.changes[key] if abs(row.seconds) >= least][::sign]
        first = rows[:MOST_ROWS]
        against = [row for row in rows[MOST_ROWS:] if sign * row.seconds < 0][-MOST_ROWS:]
        if rows:
            yield ""
            yield f"{title}, per {found.unit}"
        for row in (*first, *against):
            counts = f"{row.before_count:.4g} -> {row.after_count:.4g} x" if key not in (CAUSE, IDLE_FRAME) else ""
            times = f"{duration(row.before_seconds):>8} -> {duration(row.after_seconds):>8}"
            yield f"  {_plus(row.seconds):>10}  {times}  {counts:>18}  {_words(key, row.name)}"


def _sign(found: Diff) -> int:
    """Return -1 if steps got faster, so that what got faster explains it, otherwise 1."""
    change = found.after.step_seconds - found.before.step_seconds
    return -1 if change <= -LEAST_CHANGE * found.before.step_seconds and change else 1


def main_cause(found: Diff) -> str:
    """Return in words what changed most, in the direction in which the step did.

    It is an operator, waiting for a rank, or a cause of idle time; "" if nothing changed in this direction.
    """
    sign = _sign(found)
    rows = {key: found.changes[key][::sign][0] for key in (OPERATOR, WAITING, CAUSE) if found.changes[key]}
    if not rows:
        return ""
    key, row = max(rows.items(), key=lambda item: sign * item[1].seconds)
    if sign * row.seconds < LEAST_CHANGE * max(found.before.step_seconds, found.after.step_seconds):
        return ""
    if key == WAITING:
        return f"{_plus(row.seconds)} of waiting in collectives for {row.name}"
    frames = found.changes[FRAME if key == OPERATOR else IDLE_FRAME][::sign]
    code = printable(frames[0].name, MOST_NAME) if frames and sign * frames[0].seconds > 0 else ""
    if key == OPERATOR:
        return f"{_plus(row.seconds)} in the operator {_words(key, row.name)}" + (
            f", launched by {code}" if code else ""
        )
    return f"{_plus(row.seconds)} idle, {_words(key, row.name)}" + (f", in {code}" if code else "")


def _words(key: str, name: str) -> str:
    return TRACE_WORDS[TraceCause(name)] if key == CAUSE else printable(name, MOST_NAME)


def _plus(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"


def _signed(seconds: float) -> str:
    return f"{duration(abs(seconds))} {'less' if seconds < 0 else 'more'}"
