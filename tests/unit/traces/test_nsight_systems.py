"""Exports of Nsight Systems, written by the documented schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces import nsight_systems
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.model import UNKNOWN, DeviceKind, HostEvents, HostKind, Trace
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import TraceClass
from tests import ROOT

PROCESS, OTHER, THREAD = 4711 << 24, 4712 << 24, 7
MS = 1_000_000
SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
  gridX INTEGER, gridY INTEGER, gridZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
  nameId INTEGER, returnValue INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER, totalMemory INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);
"""
STRINGS = ["", "cudaLaunchKernel_v7000", "void gemm<float>(float*)", "gemm", "forward", "pthread_cond_wait"]
ROWS: dict[str, Sequence[Sequence[Any]]] = {
    "StringIds": list(enumerate(STRINGS)),
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        (20 * MS, 30 * MS, 0, 1, 7, 11, PROCESS, 2, 3, 4, 2, 1),
        (40 * MS, 45 * MS, 0, 1, 7, 12, PROCESS, 2, 3, 1, 1, 1),
        (41 * MS, 44 * MS, 0, 1, 7, 11, OTHER, 2, 3, 1, 1, 1),
        (50 * MS, 49 * MS, 0, 1, 7, 13, PROCESS, 2, 3, 1, 1, 1),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [
        (31 * MS, 33 * MS, 0, 7, 14, PROCESS, 4096, 1, 0, 2),
        (46 * MS, 47 * MS, 0, 7, 0, PROCESS, 65536, 11, 4, 2),
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        (10 * MS, 11 * MS, PROCESS + THREAD, 11, 1, 0),
        (38 * MS, 39 * MS, PROCESS + THREAD, 12, 1, 0),
        (30 * MS, 31 * MS, PROCESS + THREAD, 14, 1, 0),
        (39 * MS, 40 * MS, OTHER + THREAD, 11, 1, 0),
    ],
    "NVTX_EVENTS": [
        (5 * MS, 50 * MS, 59, "step", None, PROCESS + THREAD),
        (6 * MS, 20 * MS, 59, None, 4, PROCESS + THREAD),
        (7 * MS, None, 59, "open", None, PROCESS + THREAD),
        (8 * MS, None, 34, "a mark", None, PROCESS + THREAD),
    ],
    "OSRT_API": [(12 * MS, 18 * MS, PROCESS + THREAD, 0, 5)],
    "TARGET_INFO_GPU": [(0, "NVIDIA H200", 132, 2**37)],
    "TARGET_INFO_SESSION_START_TIME": [(1_000, "")],
}


def export(path: Path, rows: dict[str, Sequence[Sequence[Any]]], schema: str = SCHEMA) -> Path:
    with sqlite3.connect(path) as database:
        database.executescript(f"PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; {schema}")
        for table, values in rows.items():
            for row in values:
                database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row))
    database.close()
    return path


def test_every_table_becomes_columns(tmp_path: Path) -> None:
    """Kernels, copies, calls, ranges and waits, with their launches, names, sizes and times since the epoch."""
    trace = read(export(tmp_path / "report.sqlite", ROWS))
    device, host = trace.device_events, trace.host_events
    assert [trace.names[name] for name in device.name] == [
        "void gemm<float>(float*)",
        "Memcpy HtoD (Pageable -> Device)",
        "void gemm<float>(float*)",
        "void gemm<float>(float*)",
        "Memcpy HtoD (unified memory) (Managed -> Device)",
    ]
    assert device.start.tolist() == [t * MS + 1_000 for t in (20, 31, 40, 41, 46)]
    assert device.kind.tolist() == [DeviceKind.COMPUTE, DeviceKind.COPY] + [DeviceKind.COMPUTE] * 2 + [DeviceKind.COPY]
    assert (device.blocks[0], device.bytes[1]) == (8, 4096)
    assert device.device.tolist() == [0, 0, 0, 1, 0]  # each process numbers its GPUs from 0
    assert device.correlation[-1] == UNKNOWN
    launches = host.rows(host.kind == HostKind.RUNTIME)
    assert set(device.correlation[:4]) == set(launches.correlation)
    assert {trace.names[name] for name in launches.name} == {"cudaLaunchKernel"}
    ranges = host.rows(host.kind == HostKind.ANNOTATION)
    assert [trace.names[name] for name in ranges.name] == ["step", "forward"]
    assert [trace.names[name] for name in host.rows(host.kind == HostKind.WAIT).name] == ["pthread_cond_wait"]
    assert trace.threads == ("4711/7", "4712/7")
    assert trace.devices[0].multiprocessors == 132
    assert trace.dropped == {"without a valid time": 1, "NVTX ranges without an end": 1}


def _kernel(start: float, process: int = PROCESS, device: int = 0, **columns: Any) -> Sequence[Any]:
    """Return a kernel of 1 ms on stream 7, with names and grid, at `start` ms."""
    values = {"stream": 7, "correlation": 11, "name": 2, "short": 3, "x": 4, "y": 2, "z": 1} | columns
    return (round(start * MS), round(start * MS) + MS, device, 1, values["stream"], values["correlation"], process,
            values["name"], values["short"], values["x"], values["y"], values["z"])  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "numbers"),
    [
        ([(PROCESS, 0), (PROCESS, 3)], [0, 3]),
        ([(PROCESS, 0), (OTHER, 0)], [0, 1]),  # each process sees one GPU
        ([(PROCESS, 1), (OTHER, 0)], [1, 0]),  # both see all, and use one
        ([(PROCESS, 1), (OTHER, 1), (OTHER, 0), (PROCESS, 0)], [1, 0, 2, 3]),
        ([(PROCESS, 3), (OTHER, 0), (OTHER, 1), (OTHER, 2), (OTHER, 3)], [3, 0, 1, 2, 4]),
        ([(PROCESS, 1023), (PROCESS, 1024), (PROCESS, -1)], [1023, 0, 1]),
    ],
)
def test_gpus_of_several_processes_stay_apart(
    tmp_path: Path, gpus: Sequence[tuple[int, int]], numbers: Sequence[int]
) -> None:
    """A GPU keeps the number that its process gives it, if that is free."""
    kernels = [_kernel(at, *gpu) for at, gpu in enumerate(gpus)]
    trace = read(export(tmp_path / "r.sqlite", {"StringIds": ROWS["StringIds"], "CUPTI_ACTIVITY_KIND_KERNEL": kernels}))
    assert trace.device_events.device.tolist() == numbers


def _read(folder: Path, schema: str = SCHEMA, **rows: Sequence[Sequence[Any]]) -> Trace:
    return read(export(folder / "report.sqlite", {"StringIds": ROWS["StringIds"], **rows}, schema))


def _copy(start: float, kind: int, source: int, target: int) -> Sequence[Any]:
    return (round(start * MS), round(start * MS) + MS, 0, 7, 14, PROCESS, 4096, kind, source, target)


@pytest.mark.parametrize(
    ("copy", "name"),
    [
        ((2, 2, 1), "Memcpy DtoH (Device -> Pinned)"),
        ((8, 2, 2), "Memcpy DtoD (Device -> Device)"),
        ((10, 2, 3), "Memcpy PtoP (Device -> Array)"),
        ((99, 98, None), "Memcpy kind 99 (Unknown -> Unknown)"),
    ],
)
def test_names_of_copies(tmp_path: Path, copy: tuple[int, int, int], name: str) -> None:
    assert _read(tmp_path, CUPTI_ACTIVITY_KIND_MEMCPY=[_copy(1, *copy)]).names == (name,)


@pytest.mark.parametrize(
    ("columns", "column", "expected"),
    [
        ({"x": None}, "blocks", UNKNOWN),
        ({"x": 5, "y": None, "z": None}, "blocks", 5),
        ({"x": 5, "y": 3, "z": 2}, "blocks", 30),
        ({"x": 2**31 - 1, "y": 2}, "blocks", 2**31 - 1),
        ({"x": -1, "y": 1}, "blocks", 0),
        ({"stream": None}, "stream", 0),
        ({"stream": 5}, "stream", 5),
        ({"correlation": None}, "correlation", UNKNOWN),
        ({"correlation": 0}, "correlation", UNKNOWN),
        ({"correlation": -2}, "correlation", UNKNOWN),
        ({"device": None}, "device", 0),
        ({}, "bytes", UNKNOWN),
    ],
)
def test_columns_of_kernels(tmp_path: Path, columns: dict[str, Any], column: str, expected: int) -> None:
    trace = _read(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[_kernel(1, **columns)])
    assert getattr(trace.device_events, column).tolist() == [expected]


@pytest.mark.parametrize(("names", "name"), [((2, 3), STRINGS[2]), ((77, 3), "gemm"), ((77, None), "unnamed kernel")])
def test_names_of_kernels(tmp_path: Path, names: tuple[int, int], name: str) -> None:
    trace = _read(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[_kernel(1, name=names[0], short=names[1])])
    assert trace.names == (name,)


@pytest.mark.parametrize(
    ("start", "end", "valid"),
    [(0, 0, True), (5, 5, True), (5, 4, False), (-1, 4, False), (None, 4, False), (4, None, False), (5, 2**62, False)],
)
def test_times_that_are_none_are_counted(tmp_path: Path, start: int | None, end: int | None, valid: bool) -> None:
    kernels = [(start, end, *_kernel(0)[2:]), _kernel(9)]
    trace = _read(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=kernels)
    assert len(trace.device_events) == 1 + valid
    assert trace.dropped == ({} if valid else {"without a valid time": 1})


def test_other_work_of_the_gpu(tmp_path: Path) -> None:
    """CUDA graphs are kernels, page faults of unified memory are copies that no launch made."""
    schema = """
        CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, bytes INTEGER);
        CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS (start INTEGER, end INTEGER, globalPid INTEGER, deviceId INTEGER);
    """
    rows: dict[str, Sequence[Sequence[Any]]] = {
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [(1, 2, 0, 7)],
        "CUPTI_ACTIVITY_KIND_MEMSET": [(3, 4, 0, 64)],
        "CUDA_UM_GPU_PAGE_FAULT_EVENTS": [(5, 6, 0, 1), (7, 6, 0, 1)],
    }
    trace = read(export(tmp_path / "report.sqlite", rows, schema))
    found = trace.device_events
    assert [trace.names[name] for name in found.name] == [
        "CUDA graph",
        "Memset",
        "Unified memory: page faults of the GPU",
    ]
    assert found.kind.tolist() == [DeviceKind.COMPUTE, DeviceKind.MEMSET, DeviceKind.COPY]
    assert (found.device.tolist(), found.stream.tolist()) == ([0, 0, 1], [7, 0, UNKNOWN])
    assert (found.bytes.tolist(), set(found.blocks.tolist())) == ([UNKNOWN, 64, UNKNOWN], {UNKNOWN})
    assert set(found.correlation.tolist()) == {UNKNOWN}
    assert trace.dropped == {"without a valid time": 1}


def test_ranges_and_calls_of_the_host(tmp_path: Path) -> None:
    trace = _read(
        tmp_path,
        NVTX_EVENTS=[
            (1, 9, 60, None, None, PROCESS + 1), (2, 8, 59, "text", 4, PROCESS + 2), (3, 4, 75, "category", 0, PROCESS),
        ],
        CUPTI_ACTIVITY_KIND_RUNTIME=[(4, 5, PROCESS + 1, 11, 77, 0), (6, 7, None, None, 1, 0)],
        OSRT_API=[(5, 6, PROCESS + 2, 11, 5)],
    )  # fmt: skip
    host = trace.host_events
    assert [(trace.names[row.name], trace.threads[row.thread], row.kind) for row in _each(host)] == [
        ("unnamed range", "4711/1", HostKind.ANNOTATION),
        ("text", "4711/2", HostKind.ANNOTATION),
        ("unnamed call", "4711/1", HostKind.RUNTIME),
        ("pthread_cond_wait", "4711/2", HostKind.WAIT),
        ("cudaLaunchKernel", "0/0", HostKind.RUNTIME),
    ]
    assert [row.correlation == UNKNOWN for row in _each(host)] == [True, True, False, True, True]
    assert trace.dropped == {}


def _each(table: HostEvents) -> Iterator[Any]:
    for row in range(len(table)):
        yield SimpleNamespace(**{column.name: getattr(table, column.name)[row] for column in fields(table)})


H100, H200 = ("NVIDIA H100", 132, 80), ("NVIDIA H200", 132, 141)


@pytest.mark.parametrize(
    ("gpus", "names"),
    [
        ([(0, *H100), (1, *H200)], {0: "NVIDIA H100", 1: "NVIDIA H200"}),
        # Process 2 may see only the second GPU, and number it 0; with equal GPUs this makes no difference.
        ([(5, *H100), (6, *H100)], {0: "NVIDIA H100", 1: "NVIDIA H100"}),
        ([(0, *H100), (6, *H200)], {0: "NVIDIA H100"}),
        ([(0, "GPU", None, None), (1, *H200)], {0: "GPU", 1: "NVIDIA H200"}),
        ([], {}),
    ],
)
def test_properties_of_gpus(tmp_path: Path, gpus: Sequence[Sequence[Any]], names: dict[int, str]) -> None:
    trace = _read(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[_kernel(0), _kernel(1, device=1)], TARGET_INFO_GPU=gpus)
    assert {number: found.name for number, found in trace.devices.items()} == names
    assert all(
        (of.multiprocessors, of.memory_bytes) in ((132, 80), (132, 141), (0, 0)) for of in trace.devices.values()
    )


@pytest.mark.parametrize(("epoch", "begin"), [(5, 5), (-5, 0), (2**61, 0), (None, 0), ("x", 0)])
def test_the_begin_of_the_session(tmp_path: Path, epoch: Any, begin: int) -> None:
    trace = _read(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[_kernel(0)], TARGET_INFO_SESSION_START_TIME=[(epoch, "")])
    assert trace.device_events.start.tolist() == [begin]


def test_progress_is_in_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read in parts, so that not all are objects in memory at one time."""
    monkeypatch.setattr(nsight_systems, "ROWS", 2)
    calls: list[tuple[int, int]] = []
    path = export(tmp_path / "report.sqlite", ROWS)
    trace = read(path, lambda done, total: calls.append((done, total)))
    assert calls == [(done, 15) for done in (2, 4, 5, 7, 9, 11, 13, 15)]
    assert (len(trace.device_events), len(trace.host_events)) == (5, 7)


def test_columns_of_other_versions_may_be_missing(tmp_path: Path) -> None:
    """An export without launches and names still says when the GPU worked."""
    schema = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER);"
    trace = read(export(tmp_path / "report.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [(1, 5, 0), (7, 9, 0)]}, schema))
    assert trace.device_events.end.tolist() == [5, 9]
    assert trace.names == ("unnamed kernel",)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("CREATE TABLE t (x INTEGER);", "no CUDA, NVTX or OS runtime events"),
        ("CREATE TABLE OSRT_API (start INTEGER, end INTEGER);", "contains no events"),
    ],
)
def test_an_export_without_events(tmp_path: Path, schema: str, said: str) -> None:
    with pytest.raises(GpuExporterError, match=said):
        read(export(tmp_path / "empty.sqlite", {}, schema))


def test_an_export_without_gpu_events_names_the_option_of_nsys(tmp_path: Path) -> None:
    ranges = {"NVTX_EVENTS": ROWS["NVTX_EVENTS"], "StringIds": ROWS["StringIds"]}
    with pytest.raises(GpuExporterError, match=r"no GPU events.*: record with `nsys profile --trace=cuda"):
        analyze([read(export(tmp_path / "report.sqlite", ranges))])


def test_damaged_exports(tmp_path: Path) -> None:
    """Each is one line, never a traceback, wherever the damage is."""
    content = export(tmp_path / "whole.sqlite", ROWS).read_bytes()
    damaged = tmp_path / "damaged.sqlite"
    versions = [content[:length] for length in range(20, len(content), 1501)]
    versions += [content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :] for at in range(100, len(content), 307)]
    for version in versions:
        damaged.write_bytes(version)
        with suppress(GpuExporterError):
            read(damaged)
    damaged.write_bytes(content[:200])
    with pytest.raises(GpuExporterError, match=r"damaged\.sqlite: truncated: it has 200 of \d+ bytes: copy it again$"):
        read(damaged)


@pytest.mark.parametrize(
    ("version", "verdict", "gpus"),
    [("2023", TraceClass.DATA_LOADING, 1), ("2025", TraceClass.MIXED, 2)],
)
def test_exports_of_two_versions_agree_with_sums_in_sql(
    tmp_path: Path, version: str, verdict: TraceClass, gpus: int
) -> None:
    """All columns of the schema of each version: the number and time of the work of each GPU, and bytes copied."""
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript((ROOT / f"tests/data/nsight_systems_{version}.sql").read_text())
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        work = " UNION ALL ".join(
            f"SELECT end - start AS t, {size} AS size, globalPid, deviceId FROM CUPTI_ACTIVITY_KIND_{table}"
            for table, size in (("KERNEL", 0), ("MEMCPY", "bytes"), ("MEMSET", "bytes"), ("GRAPH_TRACE", 0))
            if f"CUPTI_ACTIVITY_KIND_{table}" in tables
        )
        sums = database.execute(
            f"SELECT deviceId, COUNT(*), SUM(t), SUM(size) FROM ({work}) GROUP BY globalPid, deviceId ORDER BY deviceId"
        ).fetchall()
    database.close()
    trace = read(path)
    events = trace.device_events
    assert len(sums) == gpus
    assert sums == [
        (
            device,
            int((events.device == device).sum()),
            int((events.end - events.start)[events.device == device].sum()),
            int(events.bytes[(events.device == device) & (events.bytes != UNKNOWN)].sum()),
        )
        for device in range(gpus)
    ]
    assert trace.devices[0].multiprocessors == 108
    assert trace.dropped == {}
    assert analyze([trace]).verdict.trace_class is verdict
