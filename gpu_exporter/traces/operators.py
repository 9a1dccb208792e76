"""The operators of the framework that launched device events, and the classes of kernels that follow from them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_exporter.traces.frames import PYTHON_FRAME
from gpu_exporter.traces.idle import Launches
from gpu_exporter.traces.kernel_classes import kernel_class
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceEvents, Trace, distinct
from gpu_exporter.traces.stacks import Stacks

# Calls, and parts of the framework that contain all operators.
_CALL = re.compile(r"^(?:cuda|cu|hip|nccl)[A-Z]|^(?:ProfilerStep|Optimizer\.|autograd::engine)|^<")


def launch_stacks(trace: Trace, events: DeviceEvents, stacks: Stacks, launches: Launches) -> Column:
    """Return the stack of each device event's launch; 0 if it is not known."""
    calls = launches.rows_of(events)
    known = calls != UNKNOWN
    if not known.any():
        return np.zeros(len(events), dtype=np.int64)
    for thread in distinct(trace.host_events.thread[calls[known]]).tolist():
        stacks.timeline(thread)
    of_event: Column = np.where(known, np.maximum(stacks.of_event[calls], 0), 0).astype(np.int64)
    return of_event


def operator_of(names: Sequence[str]) -> str:
    """Return the innermost operator of a stack; "" if it has none."""
    return next((name for name in reversed(names) if not (PYTHON_FRAME.match(name) or _CALL.match(name))), "")


@dataclass(frozen=True)
class EventClasses:
    """The class of each device event: `rows` refers to `names`."""

    names: tuple[str, ...]
    rows: Column

    def among(self, classes: Sequence[str]) -> Column:
        """Return whether each event is of one of these classes."""
        chosen: Column = np.array([name in classes for name in self.names], dtype=bool)[self.rows]
        return chosen

    def chosen(self, index: Column) -> EventClasses:
        """Return the classes of the events that `index` selects."""
        return EventClasses(self.names, self.rows[index])


def event_classes(trace: Trace, events: DeviceEvents, stacks: Column, all_stacks: Stacks) -> EventClasses:
    """Return the class of each device event, by its name and the operator on the stack of its launch."""
    width = len(trace.names)
    keys, inverse = np.unique(stacks * width + events.name, return_inverse=True)
    operators = {stack: operator_of(all_stacks.names(stack)) for stack in distinct(keys // width).tolist()}
    found = [kernel_class(trace.names[key % width], operators[key // width]) for key in keys.tolist()]
    names = tuple(dict.fromkeys(found))
    numbers = {name: row for row, name in enumerate(names)}
    return EventClasses(names, np.array([numbers[name] for name in found], dtype=np.int64)[inverse])
