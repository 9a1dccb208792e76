"""Reads what `nsys export --type sqlite` writes of a report of Nsight Systems.

The schema is the one that NVIDIA documents as "SQLite Export Schema Reference". Tables exist only if the report has
such events, and columns differ by version, so each is looked up before it is read.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.assemble import Parts, assemble
from gpu_exporter.traces.content import Content, Progress
from gpu_exporter.traces.model import (
    UNKNOWN,
    DeviceEvents,
    DeviceKind,
    DeviceProperties,
    HostEvents,
    HostKind,
    Trace,
    TraceRecorder,
)

# `globalTid` has the process above this bit, and the thread below.
PROCESS_BIT = 24
_MASK = (1 << PROCESS_BIT) - 1
# Correlation ids are unique within a process: the number of the process is put above this bit.
_CORRELATION_BITS = 40
MOST_TEXT = 200
# Rows that are in memory as Python objects at one time.
ROWS = 200_000
MOST_DEVICES = 1024
# NVTX: pairs of push and pop, and of start and end. Marks and categories have no duration.
RANGES = (59, 60)
_DEVICE_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": DeviceKind.COMPUTE,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": DeviceKind.COMPUTE,
    "CUPTI_ACTIVITY_KIND_MEMCPY": DeviceKind.COPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": DeviceKind.MEMSET,
}
_HOST_TABLES = {"CUPTI_ACTIVITY_KIND_RUNTIME": HostKind.RUNTIME, "OSRT_API": HostKind.WAIT}
_UM_FAULTS = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
# `copyKind` of CUPTI, as the profiler of PyTorch names it.
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP", 11: "HtoD (unified memory)", 12: "DtoH (unified memory)"}
# `srcKind` and `dstKind`.
MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
NO_TIME, NO_NAME = "without a valid time", "without a name"


def read(content: Content) -> Trace:
    """Return the trace in an export. Memory: ROWS rows, and the columns, about 40 bytes for each event.

    Raises OSError, and GpuExporterError if the file is no export, is truncated, or has no events.
    """
    with content.file() as path:
        _check_length(path, content.head)
        return _read(path, content.progress)


def _check_length(path: Path, head: bytes) -> None:
    """Raise GpuExporterError if a database has fewer pages than its header says."""
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    expected, size = (1 << 16 if page == 1 else page) * pages, path.stat().st_size
    if size < expected:
        raise GpuExporterError(f"truncated: it has {size} of {expected} bytes: copy it again")


def _read(path: Path, progress: Progress | None) -> Trace:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
        database.text_factory = lambda text: text.decode(errors="replace")
        try:
            return _Export(database, progress).trace()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # messages contain what is damaged
            raise GpuExporterError(f"not an export of Nsight Systems: {printable(str(error), MOST_TEXT)}") from None


class _Export:
    """One export while it is read."""

    def __init__(self, database: sqlite3.Connection, progress: Progress | None) -> None:
        self._database, self._progress = database, progress
        self._columns = {name: self._columns_of(name) for name in self._tables()}
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._processes: dict[int, int] = {}
        self._devices: dict[tuple[int, int], int] = {}
        self._dropped: Counter[str] = Counter()
        self._done = self._total = 0

    def trace(self) -> Trace:
        """Return the trace."""
        tables = [name for name in (*_DEVICE_TABLES, *_HOST_TABLES, "NVTX_EVENTS", _UM_FAULTS) if name in self._columns]
        if not tables:
            raise GpuExporterError(
                "no CUDA, NVTX or OS runtime events: export a report that was recorded with --trace=cuda,nvtx,osrt"
            )
        self._total = sum(self._count(name) for name in tables)
        host = [part for name, kind in _HOST_TABLES.items() if name in self._columns for part in self._host(name, kind)]
        host += self._ranges()
        device = [
            part for name, kind in _DEVICE_TABLES.items() if name in self._columns for part in self._device(name, kind)
        ]
        device += self._faults()
        if not self._names:
            raise GpuExporterError("the report contains no events: record while the program works")
        threads = tuple(f"{process}/{thread}" for process, thread in self._threads)
        return assemble(
            Parts(tuple(self._names), threads, device, host),
            devices=self._properties(),
            dropped=+self._dropped,
            base=self._begin(),
            recorder=TraceRecorder.NSIGHT_SYSTEMS,
        )

    def _tables(self) -> Sequence[str]:
        return [
            name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        ]

    def _columns_of(self, table: str) -> frozenset[str]:
        return frozenset(row[1] for row in self._database.execute(f'PRAGMA table_info("{table}")'))

    def _count(self, table: str) -> int:
        return int(self._database.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0])

    def _rows(self, table: str, columns: Mapping[str, str], where: str = "") -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows in parts. A column that the table lacks is its default, an SQL expression."""
        known = self._columns[table]
        chosen = ", ".join(
            f'CAST("{name}" AS {"TEXT" if name == "text" else "INTEGER"})' if name in known else default
            for name, default in columns.items()
        )
        cursor = self._database.execute(f'SELECT {chosen} FROM "{table}" {where}')
        while rows := cursor.fetchmany(ROWS):
            self._done += len(rows)
            if self._progress:
                self._progress(self._done, self._total)
            yield rows

    def _strings(self) -> dict[int, str]:
        if "StringIds" not in self._columns:
            return {}
        return {number: str(text) for number, text in self._database.execute("SELECT id, value FROM StringIds")}

    def _name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def _thread(self, identity: int) -> int:
        key = identity >> PROCESS_BIT & _MASK, identity & _MASK
        return self._threads.setdefault(key, len(self._threads))

    def _process(self, identity: int) -> int:
        return self._processes.setdefault(identity >> PROCESS_BIT, len(self._processes))

    def _correlation(self, identity: int, number: int | None) -> int:
        if number is None or number <= 0:
            return UNKNOWN
        return (self._process(identity) << _CORRELATION_BITS) + number

    def _device_number(self, process: int, device: int) -> int:
        """Return the number of a GPU: each process numbers the GPUs that it sees from 0, so numbers may be taken."""
        key = process, device
        if key not in self._devices:
            taken = set(self._devices.values())
            free = 0 <= device < MOST_DEVICES and device not in taken
            self._devices[key] = device if free else next(number for number in count() if number not in taken)
        return self._devices[key]

    def _host(self, table: str, kind: HostKind) -> Iterator[HostEvents]:
        strings = self._strings()
        columns = {"start": "NULL", "end": "NULL", "globalTid": "0", "correlationId": "NULL", "nameId": "NULL"}
        for rows in self._rows(table, columns):
            kept = [row for row in rows if self._valid(row[0], row[1])]
            yield HostEvents.from_lists(
                {
                    "start": [row[0] for row in kept],
                    "end": [row[1] for row in kept],
                    "thread": [self._thread(row[2] or 0) for row in kept],
                    "correlation": [
                        self._correlation(row[2] or 0, row[3]) if kind is HostKind.RUNTIME else UNKNOWN for row in kept
                    ],
                    "name": [self._name(_plain(strings.get(row[4], "unnamed call"))) for row in kept],
                    "kind": np.full(len(kept), kind),
                }
            )

    def _ranges(self) -> Iterator[HostEvents]:
        """Yield ranges of NVTX: the annotations of the user."""
        if "NVTX_EVENTS" not in self._columns:
            return
        strings = self._strings()
        columns = {
            "start": "NULL",
            "end": "NULL",
            "globalTid": "0",
            "text": "NULL",
            "textId": "NULL",
            "eventType": "59",
        }
        for rows in self._rows("NVTX_EVENTS", columns):
            ranges = [row for row in rows if row[5] in RANGES]
            kept = [row for row in ranges if row[1] is not None and self._valid(row[0], row[1])]
            self._dropped["NVTX ranges without an end"] += sum(row[1] is None for row in ranges)
            yield HostEvents.from_lists(
                {
                    "start": [row[0] for row in kept],
                    "end": [row[1] for row in kept],
                    "thread": [self._thread(row[2] or 0) for row in kept],
                    "correlation": np.full(len(kept), UNKNOWN),
                    "name": [self._name(row[3] or strings.get(row[4], "") or "unnamed range") for row in kept],
                    "kind": np.full(len(kept), HostKind.ANNOTATION),
                }
            )

    def _device(self, table: str, kind: DeviceKind) -> Iterator[DeviceEvents]:
        strings = self._strings()
        columns = {
            "start": "NULL", "end": "NULL", "globalPid": "0", "deviceId": "0", "streamId": "0", "correlationId": "NULL",
            "demangledName": "NULL", "shortName": "NULL", "bytes": "NULL", "copyKind": "NULL", "srcKind": "NULL",
            "dstKind": "NULL", "gridX": "NULL", "gridY": "1", "gridZ": "1",
        }  # fmt: skip
        for rows in self._rows(table, columns):
            kept = [row for row in rows if self._valid(row[0], row[1])]
            yield DeviceEvents.from_lists(
                {
                    "start": [row[0] for row in kept],
                    "end": [row[1] for row in kept],
                    "device": [self._device_number(self._process(row[2] or 0), row[3] or 0) for row in kept],
                    "stream": [row[4] or 0 for row in kept],
                    "correlation": [self._correlation(row[2] or 0, row[5]) for row in kept],
                    "name": [self._name(_title(table, row, strings)) for row in kept],
                    "bytes": [UNKNOWN if row[8] is None else row[8] for row in kept],
                    "blocks": [_blocks(*row[12:15]) for row in kept],
                    "kind": np.full(len(kept), kind),
                }
            )

    def _faults(self) -> Iterator[DeviceEvents]:
        """Yield page faults of unified memory: the GPU waits for pages to be moved."""
        if _UM_FAULTS not in self._columns:
            return
        name = "Unified memory: page faults of the GPU"
        columns = {"start": "NULL", "end": "NULL", "globalPid": "0", "deviceId": "0", "correlationId": "NULL"}
        for rows in self._rows(_UM_FAULTS, columns):
            kept = [row for row in rows if self._valid(row[0], row[1])]
            yield DeviceEvents.from_lists(
                {
                    "start": [row[0] for row in kept],
                    "end": [row[1] for row in kept],
                    "device": [self._device_number(self._process(row[2] or 0), row[3] or 0) for row in kept],
                    "stream": np.full(len(kept), UNKNOWN),
                    "correlation": np.full(len(kept), UNKNOWN),
                    "name": [self._name(name)] * len(kept),
                    "bytes": np.full(len(kept), UNKNOWN),
                    "blocks": np.full(len(kept), UNKNOWN),
                    "kind": np.full(len(kept), DeviceKind.COPY),
                }
            )

    def _valid(self, start: object, end: object) -> bool:
        """Return whether these are times, in order; otherwise count the event as dropped."""
        valid = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end < 2**62
        self._dropped[NO_TIME] += not valid
        return valid

    def _properties(self) -> dict[int, DeviceProperties]:
        """Return the GPUs of the machine, where they are the ones that the process numbers."""
        known = self._columns.get("TARGET_INFO_GPU", frozenset())
        if not {"id", "name"} <= known:
            return {}
        chosen = ", ".join(name if name in known else "0" for name in ("smCount", "totalMemory"))
        rows = self._database.execute(f"SELECT id, name, {chosen} FROM TARGET_INFO_GPU")
        by_id = {
            int(number): DeviceProperties(str(name), int(sms or 0), int(memory or 0))
            for number, name, sms, memory in rows
        }
        one = next(iter(by_id.values())) if len(set(by_id.values())) == 1 else None
        return {
            number: found
            for (_, device), number in self._devices.items()
            if (found := one or by_id.get(device)) is not None
        }

    def _begin(self) -> int:
        """Return when the session began, in nanoseconds since the Unix epoch; 0 if the export does not say."""
        if "utcEpochNs" not in self._columns.get("TARGET_INFO_SESSION_START_TIME", ()):
            return 0
        row = self._database.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
        return row[0] if row and isinstance(row[0], int) and 0 <= row[0] < 2**61 else 0


def _plain(name: str) -> str:
    """Return the name of a call without the version that Nsight appends: cudaLaunchKernel_v7000."""
    head, mark, version = name.rpartition("_v")
    return head if mark and version.isdigit() else name


def _blocks(x: int | None, y: int | None, z: int | None) -> int:
    return UNKNOWN if x is None else max(0, min(x * (y or 1) * (z or 1), 2**31 - 1))


def _title(table: str, row: Sequence[Any], strings: Mapping[int, str]) -> str:
    if table.endswith("GRAPH_TRACE"):
        return "CUDA graph"
    if table.endswith("MEMSET"):
        return "Memset"
    if table.endswith("MEMCPY"):
        kind = COPIES.get(row[9], f"kind {row[9]}")
        return f"Memcpy {kind} ({MEMORY.get(row[10], 'Unknown')} -> {MEMORY.get(row[11], 'Unknown')})"
    return strings.get(row[6]) or strings.get(row[7]) or "unnamed kernel"
