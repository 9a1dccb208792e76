"""What holds the GPU's memory at its peak, from the allocations that `profile_memory=True` records.

Only PyTorch's own allocator is recorded: memory of NCCL, of cuBLAS and of the CUDA context is not in the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_exporter.traces.frames import PYTHON_FRAME, is_user_frame
from gpu_exporter.traces.model import UNKNOWN, Column, MemoryEvents, Trace
from gpu_exporter.traces.stacks import Stacks

MOST_HOLDERS = 12
# Categories: the first whose pattern is in the stack of an allocation. PyTorch's own timeline of memory needs the
# graph of autograd, which a trace does not have; so gradients and what the backward pass needs meanwhile are one.
BEFORE, OTHER = "allocated before the trace began", "other"
CATEGORIES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("optimizer", re.compile(r"Optimizer\.|torch/optim/|_foreach_|_fused_adam", re.IGNORECASE)),
    ("backward pass and gradients", re.compile(r"autograd::engine|Backward\d|run_backward|torch/autograd/")),
    ("forward pass and activations", re.compile(r"nn\.Module|forward|torch/nn/|aten::")),
)


@dataclass(frozen=True)
class Holder:
    """Memory that one stack or one category holds at the peak. `share` is of the allocated bytes."""

    name: str
    bytes: int
    share: float
    blocks: int


@dataclass(frozen=True)
class FailedAllocation:
    """The largest allocation that failed for lack of memory, and the stack that asked for it.

    `unused_bytes` were reserved by PyTorch and in no tensor: if they exceed the allocation, memory was fragmented.
    """

    bytes: int
    allocated_bytes: int
    unused_bytes: int
    code: str


@dataclass(frozen=True)
class MemoryResult:
    """The memory of one GPU at the moment of most allocated bytes.

    `unused_ratio` is the part of the reserved bytes that no tensor used then: PyTorch's cache, and gaps that are too
    small for new tensors. `by_category` and `by_code` say what held the allocated bytes, the most first.
    """

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_seconds: float  # since the first GPU event of the trace
    largest_allocation_bytes: int
    unused_ratio: float
    by_category: tuple[Holder, ...]
    by_code: tuple[Holder, ...]
    total_bytes: int = 0  # of the GPU; 0 if the trace does not say
    failed: FailedAllocation | None = None


def memory_of(trace: Trace, stacks: Stacks | None = None) -> tuple[MemoryResult, ...]:
    """Return the memory of each GPU; empty without `profile_memory=True`."""
    table = trace.memory
    stacks = stacks or Stacks(trace)
    return tuple(
        _result(trace, device, table.rows(table.device == device), stacks)
        for device in np.unique(table.device[table.device != UNKNOWN]).tolist()
    )


def _result(trace: Trace, device: int, table: MemoryEvents, stacks: Stacks) -> MemoryResult:
    allocated, reserved = _allocated(table), table.reserved
    peak = int(np.argmax(allocated))
    live = _live(table, peak)
    sizes = table.bytes[live]
    total = max(1, int(allocated[peak]))
    before = max(0, int(allocated[peak]) - int(sizes.sum()))
    names = [_names(trace, stacks, int(table.thread[row]), int(table.time[row])) for row in live]
    known = [(BEFORE, before, 1)] if before else []
    by_category = [*known, *((_category(each), int(size), 1) for each, size in zip(names, sizes, strict=True))]
    by_code = [*known, *((_frame(each), int(size), 1) for each, size in zip(names, sizes, strict=True))]
    start = int(trace.device_events.start[0]) if len(trace.device_events) else int(table.time[0])
    properties = trace.devices.get(device)
    return MemoryResult(
        device,
        int(allocated[peak]),
        max(0, int(reserved.max())),
        (int(table.time[peak]) - start) / 1e9,
        max(0, int(table.bytes.max(initial=0))),
        max(0.0, 1 - float(allocated[peak]) / float(reserved[peak])) if reserved[peak] > 0 else 0.0,
        tuple(_holders(by_category, total)),
        tuple(_holders(by_code, total)),
        properties.memory_bytes if properties else 0,
        _failed(trace, device, stacks),
    )


def _failed(trace: Trace, device: int, stacks: Stacks) -> FailedAllocation | None:
    table = trace.out_of_memory.rows(trace.out_of_memory.device == device)
    if not len(table):
        return None
    row = int(np.argmax(table.bytes))
    allocated = max(0, int(table.allocated[row]))
    names = _names(trace, stacks, int(table.thread[row]), int(table.time[row]))
    return FailedAllocation(
        max(0, int(table.bytes[row])), allocated, max(0, int(table.reserved[row]) - allocated), _frame(names)
    )


def _allocated(table: MemoryEvents) -> Column:
    """Return the allocated bytes after each event: as recorded, or the sum of the events so far."""
    known = table.allocated != UNKNOWN
    return table.allocated if known.all() else np.cumsum(table.bytes)


def _live(table: MemoryEvents, peak: int) -> Sequence[int]:
    """Return the rows of the allocations up to the peak that nothing has freed by then."""
    live: dict[int, int] = {}
    for row, (address, size) in enumerate(
        zip(table.address[: peak + 1].tolist(), table.bytes[: peak + 1].tolist(), strict=True)
    ):
        if size > 0:
            live[address] = row
        else:
            live.pop(address, None)
    return list(live.values())


def _names(trace: Trace, stacks: Stacks, thread: int, time: int) -> tuple[str, ...]:
    """Return the stack of a thread at a moment, without its steps."""
    timeline = stacks.timeline(thread)
    at = int(np.searchsorted(timeline.borders, time, side="right")) - 1
    if not 0 <= at < len(timeline.event) or timeline.event[at] == UNKNOWN:
        return ()
    return stacks.names(int(stacks.of_event[timeline.event[at]]))


def _category(names: Sequence[str]) -> str:
    text = ";".join(names)
    return next((word for word, pattern in CATEGORIES if pattern.search(text)), OTHER)


def _frame(names: Sequence[str]) -> str:
    """Return the code that allocated: the innermost frame of the user, and the operator."""
    frames = [name for name in names if PYTHON_FRAME.match(name)]
    user = next((name for name in reversed(frames) if is_user_frame(name)), frames[-1] if frames else "")
    operator = names[-1] if names and names[-1] != user else ""
    return " > ".join(part for part in (user, operator) if part) or "(no frames)"


def _holders(rows: Sequence[tuple[str, int, int]], total: int) -> Iterator[Holder]:
    """Yield what holds most, by name."""
    sums: dict[str, tuple[int, int]] = {}
    for name, size, blocks in rows:
        before = sums.get(name, (0, 0))
        sums[name] = before[0] + size, before[1] + blocks
    for name, (size, blocks) in sorted(sums.items(), key=lambda item: -item[1][0])[:MOST_HOLDERS]:
        yield Holder(name, size, size / total, blocks)
