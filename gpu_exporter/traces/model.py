"""A profiler trace as columns, whatever file it comes from: PyTorch (Kineto), Nsight Systems or JAX (XPlane).

All times are nanoseconds since the Unix epoch, or since the start of the trace if the file does not say when that was.
Columns of one table have equal lengths; a row is one event. Events of both tables are in order of their start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = NDArray[Any]
T = TypeVar("T", bound="EventTable")
# The types of columns, as metadata of fields.
INT64, INT32, INT16 = {"dtype": np.int64}, {"dtype": np.int32}, {"dtype": np.int16}
UINT64, UINT8 = {"dtype": np.uint64}, {"dtype": np.uint8}
# What a column contains where the file has no value.
UNKNOWN = -1
# Why an event is not analysed: the file ends in the middle of it.
TRUNCATED = "cut off at the end of the file"


class TraceRecorder(Enum):
    """What recorded a trace."""

    PYTORCH = "the PyTorch profiler"
    JAX = "the profiler of JAX"
    NSIGHT_SYSTEMS = "Nsight Systems"


class DeviceKind(IntEnum):
    """What a GPU does during an event."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    MEMSET = 3


class HostKind(IntEnum):
    """What a thread of the host does during an event. The larger of two nested kinds says less about the cause."""

    PYTHON = 0  # a Python frame, named `file(line): function`
    ANNOTATION = 1  # a range of the user: record_function, ProfilerStep, NVTX
    OPERATOR = 2  # an operator of the framework, such as aten::mm
    RUNTIME = 3  # a call of the CUDA or HIP runtime or driver
    WAIT = 4  # a wait in the operating system, such as pthread_cond_wait
    OVERHEAD = 5  # of the profiler or of lazy loading


@dataclass(frozen=True)
class EventTable:
    """Columns of equal length."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def rows(self: T, index: Column | slice) -> T:
        """Return the rows that `index` selects: a mask, row numbers or a slice."""
        return type(self)(**{column.name: getattr(self, column.name)[index] for column in fields(self)})

    @classmethod
    def empty(cls: type[T]) -> T:
        """Return a table without rows."""
        return cls.from_lists({})

    @classmethod
    def from_lists(cls: type[T], columns: Mapping[str, Iterable[Any]]) -> T:
        """Return a table of these columns, converted to their types; a column that is missing is empty."""
        types: Mapping[str, type] = {column.name: column.metadata["dtype"] for column in fields(cls)}
        return cls(**{name: np.asarray(columns.get(name, ()), dtype=dtype) for name, dtype in types.items()})

    @classmethod
    def joined(cls: type[T], tables: Iterable[T]) -> T:
        """Return one table with the rows of several, in their order."""
        parts = list(tables)
        if not parts:
            return cls.empty()
        names = [column.name for column in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@dataclass(frozen=True)
class DeviceEvents(EventTable):
    """What GPUs executed: kernels, copies and memsets. Shape of each column: (events,)."""

    start: Column = field(metadata=INT64)  # ns
    end: Column = field(metadata=INT64)  # ns, >= start
    name: Column = field(metadata=INT32)  # row of `Trace.names`
    device: Column = field(metadata=INT16)  # number of the GPU in its process
    stream: Column = field(metadata=INT64)
    kind: Column = field(metadata=UINT8)  # DeviceKind
    correlation: Column = field(metadata=INT64)  # of the runtime call that launched it, or UNKNOWN
    bytes: Column = field(metadata=INT64)  # of a copy or memset, or UNKNOWN
    blocks: Column = field(metadata=INT32)  # thread blocks of the kernel's grid, or UNKNOWN


@dataclass(frozen=True)
class HostEvents(EventTable):
    """What threads of the host did. Events of one thread are nested, with small errors in some files."""

    start: Column = field(metadata=INT64)  # ns
    end: Column = field(metadata=INT64)  # ns, >= start
    name: Column = field(metadata=INT32)  # row of `Trace.names`
    thread: Column = field(metadata=INT32)  # row of `Trace.threads`
    kind: Column = field(metadata=UINT8)  # HostKind
    correlation: Column = field(metadata=INT64)  # of runtime calls: equals that of the events they launched; or UNKNOWN


@dataclass(frozen=True)
class Collectives(EventTable):
    """The arguments of communication kernels, where the profiler recorded them."""

    event: Column = field(metadata=INT64)  # row of `Trace.device_events`
    operation: Column = field(metadata=INT32)  # row of `Trace.names`, such as allreduce
    dtype: Column = field(metadata=INT32)  # row of `Trace.names`, such as BFloat16
    group: Column = field(metadata=INT32)  # row of `Trace.names`: the process group, or UNKNOWN
    sequence: Column = field(metadata=INT64)  # number of the collective in its group, or UNKNOWN
    ranks: Column = field(metadata=INT32)  # size of the group
    source: Column = field(metadata=INT32)  # rank that sent what this one receives, or UNKNOWN
    destination: Column = field(metadata=INT32)  # rank that receives what this one sent, or UNKNOWN
    elements_in: Column = field(metadata=INT64)
    elements_out: Column = field(metadata=INT64)


@dataclass(frozen=True)
class Messages(EventTable):
    """Messages between two ranks that the host requested: kernels that send several at once have no arguments."""

    start: Column = field(metadata=INT64)  # ns
    thread: Column = field(metadata=INT32)  # row of `Trace.threads`
    dtype: Column = field(metadata=INT32)  # row of `Trace.names`
    source: Column = field(metadata=INT32)  # rank that sent what this one receives, or UNKNOWN
    destination: Column = field(metadata=INT32)  # rank that receives what this one sent, or UNKNOWN
    elements_in: Column = field(metadata=INT64)
    elements_out: Column = field(metadata=INT64)


@dataclass(frozen=True)
class Shapes(EventTable):
    """Calls of operators with the shapes of their inputs, from `record_shapes=True`."""

    start: Column = field(metadata=INT64)  # ns
    end: Column = field(metadata=INT64)  # ns
    name: Column = field(metadata=INT32)  # row of `Trace.names`
    thread: Column = field(metadata=INT32)  # row of `Trace.threads`
    inputs: Column = field(metadata=INT32)  # row of `Trace.names`: JSON of [dimensions, types, values] of each input


@dataclass(frozen=True)
class MemoryEvents(EventTable):
    """Allocations (`bytes` > 0) and frees (< 0) of the framework, from `profile_memory=True`."""

    time: Column = field(metadata=INT64)  # ns
    thread: Column = field(metadata=INT32)  # row of `Trace.threads`
    device: Column = field(metadata=INT16)  # of the GPU; UNKNOWN for memory of the host
    address: Column = field(metadata=UINT64)
    bytes: Column = field(metadata=INT64)
    allocated: Column = field(metadata=INT64)  # bytes in total after the event, or UNKNOWN
    reserved: Column = field(metadata=INT64)  # bytes in total after the event, or UNKNOWN


def distinct(values: Column) -> Column:
    """Return the distinct values in order. For many whole numbers, np.unique is far slower: it hashes them."""
    ordered = np.sort(values)
    if not len(ordered):
        return ordered
    found: Column = ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    return found


def contained(values: Column, ordered: Column) -> Column:
    """Return whether each value is one of these, which are in order."""
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    nearest: Column = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)]
    equal: Column = nearest == values
    return equal


@dataclass(frozen=True)
class TraceStep:
    """One training step, or another phase that repeats: a ProfilerStep annotation or an NVTX range."""

    name: str
    start: int  # ns
    end: int  # ns
    thread: int  # row of `Trace.threads`


@dataclass(frozen=True)
class DeviceProperties:
    """What the file says about a GPU; 0 and "" where it says nothing."""

    name: str = ""
    multiprocessors: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True)
class Distributed:
    """`distributedInfo` of the file."""

    rank: int
    world_size: int
    backend: str = ""

    @property
    def job(self) -> str:
        """What all ranks of a job have in common, in words."""
        return f"a job of {self.world_size} ranks" + (f" with {self.backend}" if self.backend else "")


@dataclass(frozen=True)
class Trace:
    """One file. `names` and `threads` are tables that events refer to by row."""

    path: str
    names: tuple[str, ...]
    threads: tuple[str, ...]  # `process/thread`
    device_events: DeviceEvents
    host_events: HostEvents
    collectives: Collectives
    memory: MemoryEvents
    steps: tuple[TraceStep, ...]
    devices: Mapping[int, DeviceProperties]
    distributed: Distributed | None
    # Events that the analysis does not cover, by reason, such as {"not valid JSON": 3}.
    dropped: Mapping[str, int]
    repaired: int = 0  # events that were not valid JSON and are read all the same
    out_of_memory: MemoryEvents = field(default_factory=MemoryEvents.empty)  # allocations that failed
    shapes: Shapes = field(default_factory=Shapes.empty)
    messages: Messages = field(default_factory=Messages.empty)  # by start
    recorder: TraceRecorder = TraceRecorder.PYTORCH

    @property
    def dropped_events(self) -> int:
        """The number of events that the analysis does not cover, whatever the reason."""
        return sum(self.dropped.values())
