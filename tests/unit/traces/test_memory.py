"""What holds memory at its peak: replayed allocations, against a simulation that remembers everything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.memory import BEFORE, MemoryResult, memory_of
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.text_report import lines
from tests.unit.traces.test_diff import PID, TID, event, trace

MIB = 1 << 20


def instant(
    at: float, size: int, address: int, allocated: int, reserved: int, name: str = "[memory]"
) -> dict[str, Any]:
    args = {"Bytes": size, "Addr": address, "Device Id": 0, "Total Allocated": allocated, "Total Reserved": reserved}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": name,
        "pid": PID,
        "tid": TID,
        "ts": at,
        "s": "t",
        "args": args,
    }


def memory(path: Path, events: Sequence[dict[str, Any]]) -> MemoryResult:
    """Return the memory of a trace with a kernel and these events."""
    content = json.loads(trace(path, 1).read_text())
    content["traceEvents"] += events
    path.write_text(json.dumps(content))
    (found,) = memory_of(read(path))
    return found


def test_who_holds_memory_at_the_peak(tmp_path: Path) -> None:
    """What was freed before does not count; what was allocated before the trace does; a reused address counts once."""
    found = memory(
        tmp_path / "a.json",
        [
            event("python_function", "model.py(5): forward", 10_000, 100),
            event("cpu_op", "aten::mm", 10_010, 50),
            event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 10_200, 50),
            instant(10_020, 30 * MIB, 1, 130 * MIB, 200 * MIB),
            instant(10_030, 20 * MIB, 2, 150 * MIB, 200 * MIB),
            instant(10_040, -20 * MIB, 2, 130 * MIB, 200 * MIB),
            instant(10_210, 40 * MIB, 2, 170 * MIB, 200 * MIB),
            instant(10_300, -30 * MIB, 1, 140 * MIB, 200 * MIB),
        ],
    )
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (170 * MIB, 200 * MIB)
    assert found.unused_ratio == pytest.approx(30 / 200)
    assert {each.name: each.bytes // MIB for each in found.by_category} == {
        BEFORE: 100,
        "backward pass and gradients": 40,
        "forward pass and activations": 30,
    }
    assert {each.name: each.bytes // MIB for each in found.by_code}["model.py(5): forward > aten::mm"] == 30
    assert sum(each.bytes for each in found.by_code) == found.peak_allocated_bytes
    assert found.failed is None


@pytest.mark.parametrize(
    ("unused", "said"), [(10, "54 MiB more would have been needed"), (80, "memory was fragmented")]
)
def test_an_allocation_that_failed(tmp_path: Path, unused: int, said: str) -> None:
    path = tmp_path / "a.json"
    allocated = instant(1_100, 50 * MIB, 1, 50 * MIB, 60 * MIB)
    failed = instant(1_200, 64 * MIB, 0, 50 * MIB, (50 + unused) * MIB, "[OutOfMemory]")
    found = memory(path, [allocated, failed])
    assert found.failed is not None
    assert (found.failed.bytes, found.failed.unused_bytes) == (64 * MIB, unused * MIB)
    text = "\n".join(lines(analyze([read(path)])))
    assert "An allocation of 64 MiB failed while tensors used 50 MiB" in text
    assert said in text


def test_traces_without_memory_have_none(tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json", 1)
    assert memory_of(read(path)) == ()
    result = analyze([read(path)])
    assert result.ranks[0].memory is None
    assert "Memory" not in "\n".join(lines(result))
    assert result.to_json()["ranks"][0]["memory"] is None
