"""Eight ranks with gloo: the slow rank is known from the messages that a Unix socket receives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.job_cases import result
from benchmarks.job_training import BY_NAME
from benchmarks.job_verdict import verdict
from tests.support import torch_python
from tests.support.shared import made_once

CASES = "ddp-data,ddp-forward,ddp-backward,pipeline-uneven"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    options = ["--device", "cpu", "--ranks", "8", "--seconds", "3", "--cases", CASES, "--json"]

    def measure(folder: Path) -> None:
        torch_python.run("benchmarks/job_cases.py", *options, str(folder / "cases.json"))

    file = made_once(tmp_path_factory, "stragglers", measure) / "cases.json"
    return {each["case"]: each for each in json.loads(file.read_text())["results"]}


@pytest.mark.parametrize("case", CASES.split(","))
def test_the_slow_rank_has_the_longest_self_time(results: dict[str, Any], case: str) -> None:
    result = results[case]
    by_rank = result["milliseconds"]
    assert len(by_rank) == 8
    own = {rank: times["self"] for rank, times in by_rank.items()}
    assert max(own, key=lambda rank: own[rank]) == "1"
    assert result["named"]["rank"] == 1


@pytest.mark.parametrize("case", ["ddp-data", "ddp-forward", "ddp-backward"])
def test_step_times_do_not_tell(results: dict[str, Any], case: str) -> None:
    """Which is why self time exists: in synchronous training, all ranks take as long as the slowest."""
    steps = [times["step"] for times in results[case]["milliseconds"].values()]
    assert max(steps) < 1.3 * min(steps)


@pytest.mark.parametrize("part", ["data", "forward", "backward"])
def test_the_part_of_the_step_is_named(results: dict[str, Any], part: str) -> None:
    assert results[f"ddp-{part}"]["named"]["cause"] == part


def rank(**parts: float) -> dict[str, float]:
    base = {"data": 0.001, "forward": 0.004, "backward": 0.008, "optimizer": 0.001, "rest": 0.0, **parts}
    return {**base, "self": sum(base.values()), "step": 0.03}


def test_equal_ranks_and_a_slow_gpu() -> None:
    ranks = {number: rank(data=0.001 + number * 1e-5) for number in range(8)}
    assert verdict(ranks) == (None, "")
    assert verdict({**ranks, 5: rank(forward=0.006, backward=0.012)}) == (5, "gpu")
    assert verdict({**ranks, 5: rank(forward=0.014, backward=0.018, rest=0.001)}) == (5, "gpu")
    assert verdict({0: rank(), 1: rank(data=0.02)}) == (1, "data")
    assert verdict({0: rank(), 1: {**rank(), "self": float("nan")}}) == (None, "unknown")
    same_phases = {number: {**rank(), "self": 0.01 + 0.01 * (number == 2)} for number in range(8)}
    assert verdict(same_phases) == (2, "unknown")


def said(self_seconds: dict[int, float | None]) -> dict[int, dict[str, Any]]:
    """Return the last messages of ranks with these self times in steps of a second."""
    step = {"sum": 1.0, "counts": [1]}
    return {
        rank: {
            "step": step,
            "steps": 1,
            "data_seconds": 0.0,
            "phase_seconds": {"forward": own or 0.3},
            **({} if own is None else {"self": {"sum": own, "counts": [1]}}),
        }
        for rank, own in self_seconds.items()
    }


@pytest.mark.parametrize(
    ("case", "own", "right", "missed"),
    [
        ("ddp-balanced", dict.fromkeys(range(4), 0.4), True, False),
        ("ddp-balanced", {0: 0.4, 1: 0.8, 2: 0.4, 3: 0.4}, False, False),
        ("fsdp-forward", {0: 0.4, 1: 0.8, 2: 0.4, 3: 0.4}, True, False),
        ("fsdp-forward", {0: 0.4, 1: 0.4, 2: 0.8, 3: 0.4}, False, False),
        ("fsdp-forward", dict.fromkeys(range(4), 0.4), False, True),
        ("fsdp-gpu", dict.fromkeys(range(4)), False, True),
        ("fsdp-balanced", dict.fromkeys(range(4)), True, False),
    ],
)
def test_a_miss_is_wrong(case: str, own: dict[int, float | None], right: bool, missed: bool) -> None:
    """And where no self time is known, the verdict is so, too."""
    found = result(BY_NAME[case], said(own))
    assert (found["right"], found["missed"]) == (right, missed)
    assert found["named"]["cause"] == "unknown" or None not in own.values()
