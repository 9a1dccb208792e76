"""Exports of Nsight Systems, written by the documented schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.model import UNKNOWN, DeviceKind, HostKind
from gpu_exporter.traces.reader import read

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
        database.executescript(schema)
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
    with pytest.raises(GpuExporterError, match=r"damaged\.sqlite: not an export of Nsight Systems: .*\w$"):
        read(damaged)
