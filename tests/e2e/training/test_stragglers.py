"""Ranks with gloo: the slow one is known from the messages that a Unix socket receives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.job_cases import TIMERS, Scrapes, result, summarize
from benchmarks.job_training import BY_NAME
from gpu_exporter.model.job_message import STEP_BUCKETS
from tests.support import torch_python
from tests.support.shared import made_once
from tests.support.tools import is_long

# Each imports PyTorch.
RANKS = 8 if is_long() else 4
CASES = "ddp-data,ddp-forward,ddp-backward,batchnorm-data,batchnorm-forward,tensor-forward,pipeline-uneven"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    options = ["--device", "cpu", "--ranks", str(RANKS), "--seconds", "5", "--repeats", "0", "--cases", CASES]

    def measure(folder: Path) -> None:
        torch_python.run("benchmarks/job_cases.py", *options, "--out", str(folder))

    file = made_once(tmp_path_factory, "stragglers", measure) / "job_cases.json"
    return {each["case"]: each for each in json.loads(file.read_text())["results"]}


@pytest.mark.slowest
@pytest.mark.parametrize("case", CASES.split(","))
def test_the_slow_rank_has_the_longest_self_time(results: dict[str, Any], case: str) -> None:
    result = results[case]
    by_rank = result["milliseconds"]
    assert len(by_rank) == RANKS
    own = {rank: times["self"] for rank, times in by_rank.items()}
    assert max(own, key=lambda rank: own[rank]) == "1"
    assert result["verdicts"][TIMERS]["named"].keys() == {"1"}


@pytest.mark.parametrize("case", ["ddp-data", "ddp-forward", "ddp-backward", "batchnorm-data"])
def test_step_times_do_not_tell(results: dict[str, Any], case: str) -> None:
    """Which is why self time exists: in synchronous training, all ranks take as long as the slowest."""
    steps = [times["step"] for times in results[case]["milliseconds"].values()]
    assert max(steps) < 1.3 * min(steps)


STEP = 0.2


def said(own: dict[int, float | None], phases: dict[int, dict[str, float]]) -> list[Scrapes]:
    """Return ten scrapes of ranks with these self times and phases, in seconds of each step."""
    scrapes = []
    for second in range(1, 11):
        steps = second / STEP
        messages = {
            rank: {
                "job_id": "job",
                "rank": rank,
                "world_size": len(own),
                "activity": "training",
                "elapsed": float(second),
                "since_step": 0.0,
                "steps": steps,
                "step": {"sum": float(second), "counts": [steps] + [0] * len(STEP_BUCKETS)},
                "data_seconds": 0.0,
                "activity_seconds": {"training": float(second)},
                "phase_seconds": {name: steps * seconds for name, seconds in phases.get(rank, {}).items()},
                **(
                    {} if mean is None else {"self": {"sum": steps * mean, "counts": [steps] + [0] * len(STEP_BUCKETS)}}
                ),
            }
            for rank, mean in own.items()
        }
        scrapes.append(Scrapes(1.7e9 + second, messages, ()))
    return scrapes


EQUAL: dict[int, float | None] = dict.fromkeys(range(4), 0.08)
UNTOLD: dict[int, float | None] = dict.fromkeys(range(4))
SLOW, WRONG = {**EQUAL, 1: 0.16}, {**EQUAL, 2: 0.16}


@pytest.mark.parametrize(
    ("case", "own", "longer", "outcome"),
    [
        ("ddp-balanced", EQUAL, "", "right"),
        ("ddp-balanced", SLOW, "", "false"),
        ("fsdp-balanced", UNTOLD, "", "unknown"),
        ("fsdp-forward", SLOW, "forward", "right"),
        ("fsdp-forward", SLOW, "backward", "wrong phase"),
        ("fsdp-forward", WRONG, "forward", "false"),
        ("fsdp-forward", EQUAL, "", "missed"),
        ("fsdp-gpu", UNTOLD, "", "missed"),
        ("dtensor-forward", UNTOLD, "", "unknown"),
        ("dtensor-forward", EQUAL, "", "missed"),
    ],
)
def test_a_miss_is_wrong(case: str, own: dict[int, float | None], longer: str, outcome: str) -> None:
    """An unknown is right only of balanced jobs, and where a case says that it is not measurable."""
    usual = {"forward": 0.03, "backward": 0.05}
    slow = {**usual, longer: usual[longer] + 0.08} if longer else usual
    phases = {rank: slow if own[rank] == 0.16 else usual for rank in own}
    found = result(BY_NAME[case], case, said(own, phases))
    assert found["verdicts"][TIMERS]["outcome"] == outcome
    kind = "balanced" if case.endswith("balanced") else "one slow rank"
    kind += ", not measurable" if case.startswith("dtensor") else ""
    assert summarize([found]) == {kind: {TIMERS: {outcome: 1}}}
