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


UNRECORDED = -1


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        ([(130, 200), (150, 210), (120, 205)], (150, 210, 60 / 210)),
        ([(130, 200), (150, 190), (150, 250)], (150, 250, 40 / 190)),  # at the first of equal peaks
        ([(UNRECORDED, 40), (UNRECORDED, 40), (UNRECORDED, 40)], (40, 40, 0.0)),  # 30, 40 and 15 by their events
        ([(UNRECORDED, 40), (150, 50), (140, 60)], (40, 60, 10 / 50)),
        ([(130, UNRECORDED), (150, UNRECORDED), (140, UNRECORDED)], (150, 0, 0.0)),
        ([(130, 0), (150, 0), (140, 0)], (150, 0, 0.0)),
        ([(130, 100), (150, 100), (140, 100)], (150, 100, 0.0)),
    ],
)
def test_the_peak(tmp_path: Path, totals: Sequence[tuple[int, int]], expected: tuple[int, int, float]) -> None:
    """As the trace records it, otherwise of the allocations so far, in MiB."""
    events = [
        instant(1_005 + number, size * MIB, address, max(-1, total[0] * MIB), max(-1, total[1] * MIB))
        for number, (size, address, total) in enumerate(zip((30, 10, -25), (1, 2, 9), totals, strict=True))
    ]
    found = memory(tmp_path / "a.json", events)
    peak = found.peak_allocated_bytes // MIB, found.peak_reserved_bytes // MIB, found.unused_ratio
    assert peak == pytest.approx(expected)
    assert found.largest_allocation_bytes == 30 * MIB
    # Since the first event of the GPU.
    assert found.peak_seconds == pytest.approx((1_006 - 1_105) * 1e-6)


def test_gpus_and_threads_are_apart(tmp_path: Path) -> None:
    """Memory of the host is left out, and a failed allocation belongs to its GPU: the largest counts."""
    path = tmp_path / "a.json"
    content = json.loads(trace(path, 1).read_text())
    rows = [instant(1_010, 8, 1, 8, 16), instant(1_020, 5, 1, 5, 16), instant(1_030, 9, 1, 9, 16)]
    rows += [instant(1_040 + size, size, 0, 1, 2, "[OutOfMemory]") for size in (20, 40, 30)]
    rows[1]["args"]["Device Id"] = rows[4]["args"]["Device Id"] = 1
    rows[2]["args"]["Device Id"] = -1
    rows[0]["tid"] = 300
    content["traceEvents"] += [*rows, {**event("cpu_op", "aten::other", 1_000, 20), "tid": 300}]
    path.write_text(json.dumps(content))
    first, second = memory_of(read(path))
    assert (first.device, first.peak_allocated_bytes, second.device, second.peak_allocated_bytes) == (0, 8, 1, 5)
    assert [each.name for each in first.by_code] == ["aten::other"]
    assert first.failed is not None
    assert second.failed is not None
    assert (first.failed.bytes, first.failed.code, second.failed.bytes) == (30, "train.py(7): load_batch", 40)


@pytest.mark.parametrize(
    ("frames", "category", "code"),
    [
        ([], "other", "(no frames)"),
        (["train.py(9): main"], "other", "train.py(9): main"),
        (["t.py(9): main", "torch/optim/sgd.py(3): step"], "optimizer", "t.py(9): main > torch/optim/sgd.py(3): step"),
        (["train.py(9): main", "Optimizer.step#Adam.step", "aten::mul"], "optimizer", "train.py(9): main > aten::mul"),
        (["torch/nn/functional.py(3): relu"], "forward pass and activations", "torch/nn/functional.py(3): relu"),
        (
            ["threading.py(9): run", "torch/nn/functional.py(3): relu", "aten::relu"],
            "forward pass and activations",
            "torch/nn/functional.py(3): relu > aten::relu",
        ),
        (["autograd::engine::evaluate_function: MmBackward0"], "backward pass and gradients",
         "autograd::engine::evaluate_function: MmBackward0"),
    ],
)  # fmt: skip
def test_code_and_category_of_an_allocation(tmp_path: Path, frames: Sequence[str], category: str, code: str) -> None:
    kinds = [
        event("cpu_op" if "(" not in name else "python_function", name, 5_000 + at, 100 - 2 * at)
        for at, name in enumerate(frames)
    ]
    found = memory(tmp_path / "a.json", [*kinds, instant(5_050, 7, 1, 7, 8)])
    assert [(each.name, each.share, each.blocks) for each in found.by_category] == [(category, 1.0, 1)]
    assert [(each.name, each.bytes) for each in found.by_code] == [(code, 7)]


def test_the_twelve_largest_holders(tmp_path: Path) -> None:
    total, events = 0, []
    for number in range(20):
        total += number + 1
        events.append(event("python_function", f"a.py({number}): f", 5_000 + 10 * number, 9))
        events.append(instant(5_005 + 10 * number, number + 1, number, total, total))
    found = memory(tmp_path / "a.json", events)
    assert [(each.name, each.bytes) for each in found.by_code] == [
        (f"a.py({number}): f", number + 1) for number in range(19, 7, -1)
    ]
    assert found.by_code[0].share == pytest.approx(20 / 210)
    assert [(each.name, each.blocks) for each in found.by_category] == [("other", 20)]


@pytest.mark.parametrize(
    ("unused", "said"),
    [
        (64, "memory was fragmented"),
        (63, "1 MiB more would"),
        (10, "54 MiB more would have been needed"),
        (80, "memory was fragmented"),
    ],
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
