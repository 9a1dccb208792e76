"""Where the time of a trace went, as totals per step: what `trace top` lists and `trace diff` compares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.analysis import no_gpu_events
from gpu_exporter.traces.device_times import NS, DeviceTimes, devices
from gpu_exporter.traces.frames import PYTHON_FRAME
from gpu_exporter.traces.idle import Launches, attribute
from gpu_exporter.traces.kernel_classes import kernel_class, short_name
from gpu_exporter.traces.model import UNKNOWN, Trace
from gpu_exporter.traces.stacks import Stacks

# What time is summed by, as `trace top --by` names it.
OPERATOR, KERNEL, CLASS, FRAME, CAUSE, IDLE_FRAME = "operator", "kernel", "class", "code", "cause", "idle-code"
KEYS = (OPERATOR, KERNEL, CLASS, FRAME, CAUSE, IDLE_FRAME)
NO_OPERATOR, NO_FRAME = "(no operator)", "(no Python frame)"
_CALL = re.compile(r"^(?:cuda|cu|hip|nccl)[A-Z]|^(?:ProfilerStep|Optimizer\.|autograd::engine)|^<")


@dataclass(frozen=True)
class Total:
    """Seconds and events with one name, per step. Kernels may overlap, so their sum may exceed the step."""

    seconds: float
    count: float


@dataclass(frozen=True)
class Totals:
    """All totals of one trace; with several GPUs, the mean over them. `steps` is 0 if the trace has no steps.

    `by` has a table for each of KEYS. Times of `cause` and `idle-code` are idle time, those of the others GPU time.
    """

    steps: int
    gpus: int
    step_seconds: float  # of the span if there are no steps
    busy_seconds: float
    by: Mapping[str, Mapping[str, Total]]


def totals(trace: Trace) -> Totals:
    """Return the totals of a trace. Raises GpuExporterError if it has no GPU events."""
    of_devices = devices(trace)
    if not of_devices:
        raise GpuExporterError(no_gpu_events([trace]))
    stacks, launches = Stacks(trace), Launches(trace)
    seconds: dict[str, Counter[str]] = {key: Counter() for key in KEYS}
    counts: dict[str, Counter[str]] = {key: Counter() for key in KEYS}
    for times in of_devices.values():
        for key, name, spent, count in (*_gpu(trace, times, stacks, launches), *_idle(trace, times, stacks, launches)):
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
    return Totals(len(trace.steps), len(of_devices), span / NS / shares, busy / NS / shares, by)


def _gpu(trace: Trace, times: DeviceTimes, stacks: Stacks, launches: Launches) -> Iterator[tuple[str, str, int, int]]:
    """Yield GPU time: what it is summed by, the name, ns, and the number of kernels and copies."""
    events = times.events
    spent = events.end - events.start
    for row, total, count in _sums(events.name, spent):
        yield KERNEL, short_name(trace.names[row]), total, count
        yield CLASS, kernel_class(trace.names[row]), total, count
    calls = launches.rows_of(events)
    known = calls != UNKNOWN
    for thread in np.unique(trace.host_events.thread[calls[known]]).tolist():
        stacks.timeline(thread)
    of_event = np.where(known, stacks.of_event[calls], 0)
    for stack, total, count in _sums(of_event, spent):
        names = stacks.names(stack)
        yield OPERATOR, _operator(names), total, count
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


def _operator(names: tuple[str, ...]) -> str:
    """Return the innermost operator of a stack."""
    return next((name for name in reversed(names) if not (PYTHON_FRAME.match(name) or _CALL.match(name))), NO_OPERATOR)


def _frame(names: tuple[str, ...], responsible: str) -> str:
    """Return the innermost frame of the user's code, or else of any Python code."""
    frame = responsible.partition(" > ")[0]
    if PYTHON_FRAME.match(frame):
        return frame
    return next((name for name in reversed(names) if PYTHON_FRAME.match(name)), NO_FRAME)
