"""Collectives of one or several ranks: how often, how long, how much, how fast, and how far apart they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.traces.collectives import bus_factor, calls_of, collective_times
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import CollectiveTime
from tests.support.traces import SyntheticTrace

Call = tuple[float, float, dict[str, Any]]  # start and duration, us, and what differs from ALLREDUCE
ALLREDUCE = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "dtype": "Float",
    "Group size": 4,
    "Process Group Name": "0",
}


def _times(folder: Path, *ranks: list[Call]) -> list[tuple[CollectiveTime, ...]]:
    files = []
    for rank, calls in enumerate(ranks):
        trace = SyntheticTrace()
        for start, duration, args in calls:
            trace.device(start, duration, "ncclKernel", launched=0, args={**ALLREDUCE, **args})
        files.append(calls_of(read(trace.write(folder / f"{rank}.json"))))
    return collective_times(files)


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),
    [
        ("allreduce", 4, 1.5),
        ("_allgather_base", 4, 0.75),
        ("_reduce_scatter_base", 4, 0.75),
        ("all_to_allv", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("send", 2, 1.0),
        ("recv", 2, 1.0),
        ("AllReduce", 2, 1.0),
        ("barrier", 4, 0.0),
        ("allreduce", 1, 0.0),
    ],
)
def test_bus_factors(operation: str, ranks: int, factor: float) -> None:
    """As nccl-tests defines them; 0 where no bandwidth is defined."""
    assert bus_factor(operation, ranks) == factor


def test_the_transfer_takes_as_long_as_on_the_rank_that_comes_last(tmp_path: Path) -> None:
    calls = _times(
        tmp_path, [(10, 50, {"Seq": 1}), (100, 20, {"Seq": 2})], [(30, 30, {"Seq": 1}), (90, 30, {"Seq": 2})]
    )
    ((first,), (second,)) = calls
    assert (first.count, first.ranks, first.bytes) == (2, 4, 8000)
    assert (first.seconds, second.seconds) == pytest.approx((70e-6, 60e-6))
    # 4000 bytes in 30 and in 20 us; all-reduce of 4 ranks: 1.5.
    assert first.bus_bandwidth == second.bus_bandwidth == pytest.approx(1.5 * (4000 / 30e-6 + 4000 / 20e-6) / 2)
    assert first.skew_seconds == pytest.approx(20e-6)


def test_one_file_says_nothing_about_skew(tmp_path: Path) -> None:
    ((found,),) = _times(tmp_path, [(10, 50, {})])
    assert found.skew_seconds is None


def test_calls_without_a_number_are_matched_by_their_order(tmp_path: Path) -> None:
    """Within their operation and group."""
    other = {"Process Group Name": "1"}
    ((first, *_), _) = _times(tmp_path, [(10, 50, {}), (70, 40, {})], [(0, 5, other), (15, 45, {}), (80, 30, {})])
    assert (first.count, first.skew_seconds) == pytest.approx((2, 10e-6))


def test_a_collective_on_one_rank_only_has_no_skew(tmp_path: Path) -> None:
    ((first,), (second,)) = _times(tmp_path, [(10, 50, {"Seq": 1})], [(90, 50, {"Seq": 2})])
    assert first.skew_seconds is second.skew_seconds is None
    ((first,), _) = _times(tmp_path, [(10, 50, {"Seq": 1}), (70, 5, {"Seq": 2})], [(75, 50, {"Seq": 2})])
    assert first.skew_seconds == pytest.approx(5e-6)


def test_groups_and_operations_are_apart_and_the_longest_is_first(tmp_path: Path) -> None:
    (found,) = _times(
        tmp_path,
        [
            (0, 10, {}),
            (20, 15, {"Process Group Name": "1"}),
            (40, 30, {"Collective name": "broadcast"}),
            (80, 9, {"Process Group Name": None}),
        ],
    )
    assert [(each.operation, each.group, each.count) for each in found] == [
        ("broadcast", "0", 1),
        ("allreduce", "1", 1),
        ("allreduce", "0", 1),
        ("allreduce", "", 1),
    ]


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ({}, 4000),
        ({"dtype": "BFloat16"}, 2000),
        ({"dtype": "Long"}, 8000),
        ({"dtype": "Byte"}, 1000),
        ({"dtype": "Float8_e4m3fn"}, 1000),
        ({"In msg nelems": 500}, 4000),
        ({"Out msg nelems": 500}, 4000),
    ],
)
def test_bytes_are_those_of_the_larger_side(tmp_path: Path, args: dict[str, Any], size: int) -> None:
    ((found,),) = _times(tmp_path, [(0, 10, args)])
    assert found.bytes == size
    assert found.bus_bandwidth == pytest.approx(1.5 * size / 10e-6)


@pytest.mark.parametrize("args", [{"dtype": "Unknown"}, {"dtype": None}, {"Collective name": "barrier"}])
def test_without_a_size_there_is_no_bandwidth(tmp_path: Path, args: dict[str, Any]) -> None:
    ((found,),) = _times(tmp_path, [(0, 10, args), (20, 0, args)])
    assert found.bus_bandwidth is None


def test_a_collective_of_no_time_has_no_bandwidth(tmp_path: Path) -> None:
    ((found,),) = _times(tmp_path, [(0, 0, {})])
    assert (found.seconds, found.bus_bandwidth) == (0.0, None)
