"""Reads traces of the PyTorch profiler (Kineto): Chrome's trace format, as JSON."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from typing import Any

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.assemble import Parts, assemble
from gpu_exporter.traces.chunks import MOST_TAIL_BYTES, Chunks, metadata
from gpu_exporter.traces.columns import TraceColumns, integers
from gpu_exporter.traces.content import Content
from gpu_exporter.traces.events import Decoder
from gpu_exporter.traces.model import TRUNCATED, UNKNOWN, DeviceProperties, Distributed, Trace

# Times of newer files are relative to this, in nanoseconds.
BASE = "baseTimeNanoseconds"
MOST_BASE = 2**62
# The names of processes in what JAX writes for trace viewers: it lacks launches, threads of kernels, and categories.
_OF_JAX = re.compile(rb'"name"\s*:\s*"/(?:device:[GT]PU:\d|host:CPU)')


def read(content: Content) -> Trace:
    """Return the trace that a file contains. Memory: one chunk, and the columns, about 40 bytes for each event.

    Raises OSError, and GpuExporterError if the file contains no events.
    """
    chunks, decoder, columns = Chunks(content), Decoder(), TraceColumns()
    chunk = b""
    collecting = gc.isenabled()
    gc.disable()  # the events of a chunk contain no cycles, and there are many
    try:
        for chunk, is_last in chunks:
            columns.add(decoder.decode(chunk, is_last))
            if decoder.tail and len(decoder.tail) > MOST_TAIL_BYTES:
                break
    finally:
        if collecting:
            gc.enable()
    dropped = decoder.dropped + columns.dropped
    if decoder.tail is None:  # the array has no end; writers of plain arrays may omit it
        dropped[content.damage or TRUNCATED] += not dropped[TRUNCATED]
    if not columns.device and _OF_JAX.search(content.head):
        raise GpuExporterError(
            "a trace that JAX wrote for trace viewers, which lacks the launches of kernels: use the .xplane.pb file"
            " that is beside it"
        )
    is_complete = decoder.tail is None and not content.damage and chunk.rstrip().endswith((b"]", b"}"))
    is_other = (
        not sum(columns.dropped.values()) if columns.complete else is_complete and bool(chunk.strip(b" \t\r\n]}"))
    )
    if is_other and not columns.names:
        raise GpuExporterError("no event in this JSON is one of the PyTorch profiler: this is no trace of it")
    return _trace(chunks.header, decoder, columns, +dropped)


def _trace(header: bytes, decoder: Decoder, columns: TraceColumns, dropped: Mapping[str, int]) -> Trace:
    tail = decoder.tail or b""
    if not columns.names and not sum(dropped.values()):
        raise GpuExporterError("the trace contains no events: record at least one step while the profiler is active")
    base = metadata(header, tail, BASE)
    parts = Parts(
        tuple(columns.names),
        tuple(f"{process}/{thread}" for process, thread in columns.threads),
        columns.device,
        columns.host,
        columns.collectives,
        columns.memory,
        columns.out_of_memory,
        columns.shapes,
        columns.messages,
    )
    return assemble(
        parts,
        devices=_devices(metadata(header, tail, "deviceProperties")),
        distributed=_distributed(metadata(header, tail, "distributedInfo")),
        dropped=dropped,
        repaired=decoder.repaired,
        base=base if isinstance(base, int) and 0 <= base < MOST_BASE else 0,
    )


def _devices(content: Any) -> dict[int, DeviceProperties]:
    """Return the properties of each GPU, as far as they have the right types."""
    rows = [row for row in content if isinstance(row, dict)] if isinstance(content, list) else []
    return {
        number: DeviceProperties(
            str(row.get("name", "")), max(0, _number(row.get("numSms"))), max(0, _number(row.get("totalGlobalMem")))
        )
        for row in rows
        if (number := _number(row.get("id"))) != UNKNOWN
    }


def _distributed(content: Any) -> Distributed | None:
    if not isinstance(content, dict) or _number(content.get("rank")) < 0:
        return None
    return Distributed(
        _number(content["rank"]), max(1, _number(content.get("world_size"))), str(content.get("backend", ""))
    )


def _number(value: Any) -> int:
    return int(integers([value])[0])
