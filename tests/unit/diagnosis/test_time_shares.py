"""The time shares of every recorded phase add up, and agree with the time that the workloads injected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.signals import SM_CLOCK
from gpu_exporter.catalogue.time_shares import time_shares
from gpu_exporter.conditions.evaluate import value
from tests.support import phases
from tests.support.table import table_test
from tests.support.truth import MORE, PHASES

pytestmark = pytest.mark.slow
TOLERANCE = 0.05
# What was injected is not all of its cause there: two processes overlap, launches take time, too, and the CPU makes
# copies from pageable memory.
PARTLY = ("two_processes_duty", "ddp_launch_bound_late", "copy_pageable")
# Of the two H100s, the one whose rank waits is clocked 5 % lower, so it still computes in part of the other's pause of
# 5 ms.
SLOWER_CHIP = (MORE / "h100_x2_phases.jsonl.gz", "ddp_late_5ms")


def injections(path: Path) -> Mapping[str, list[dict[str, float]]]:
    """Return the injected shares of each GPU, by phase; empty if nothing is known."""
    file = path.with_name(path.name.replace(".jsonl.gz", ".injected.json"))
    found: dict[str, list[dict[str, float]]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def shares(path: Path, phase: str) -> list[Mapping[Cause, float]]:
    window = phases.window(path, phase)
    return [time_shares(window, device) for device in window.devices]


@table_test("path, phase", PHASES, lambda path, phase: f"{path.name} {phase}")
def test_shares_add_up_to_one(path: Path, phase: str) -> None:
    for of_gpu in shares(path, phase):
        assert sum(of_gpu.values()) == pytest.approx(1.0)
        assert all(-1e-9 <= share <= 1.0 for share in of_gpu.values())


INJECTED = [
    (path, phase)
    for path, phase in PHASES
    if any(injections(path).get(phase, [])) and phase not in PARTLY and (path, phase) != SLOWER_CHIP
]


@table_test("path, phase", INJECTED, lambda path, phase: f"{path.name} {phase}")
def test_shares_agree_with_what_was_injected(path: Path, phase: str) -> None:
    for of_gpu, injected in zip(shares(path, phase), injections(path)[phase], strict=True):
        for cause, share in injected.items():
            assert of_gpu[Cause(cause)] == pytest.approx(share, abs=TOLERANCE), cause


@pytest.mark.parametrize("model", ["h100", "h200"])
def test_enough_workloads_injected_time(model: str) -> None:
    of_model = [(path, phase) for path, phase in INJECTED if path.name.startswith(model)]

    causes = {cause for path, phase in of_model for injected in injections(path)[phase] for cause in injected}
    assert causes == {"host", "copies", "peers"}
    assert len(of_model) >= 20


def test_the_rank_on_the_slower_chip_waits_less_than_the_other_one_sleeps() -> None:
    path, phase = SLOWER_CHIP
    window = phases.window(path, phase)
    clocks = [value(mean(SM_CLOCK), window, device) for device in window.devices]
    waits, sleeps = injections(path)[phase]
    first, last = shares(path, phase)

    assert None not in clocks
    assert clocks[0] < 0.96 * clocks[1]  # type: ignore[operator]
    assert last[Cause.HOST] == pytest.approx(sleeps["host"], abs=TOLERANCE)
    assert 0.6 * waits["peers"] < first[Cause.PEERS] < waits["peers"]


@pytest.mark.parametrize(
    "path", [path for path, phase in PHASES if phase == "copy_pageable"], ids=lambda path: path.name
)
def test_a_copy_from_pageable_memory_is_work_of_host_and_copy_engine(path: Path) -> None:
    phase = "copy_pageable"
    (of_gpu,), (injected,) = shares(path, phase), injections(path)[phase]

    assert of_gpu[Cause.COPIES] + of_gpu[Cause.HOST] == pytest.approx(injected["copies"], abs=TOLERANCE)


HANGS = [(path, phase) for path, phase in PHASES if phase.startswith("hang")]


@table_test("path, phase", HANGS, lambda path, phase: f"{path.name} {phase}")
def test_all_time_of_a_job_that_hangs_is_lost(path: Path, phase: str) -> None:
    for of_gpu in shares(path, phase):
        assert of_gpu[Cause.PEERS] == 1.0
