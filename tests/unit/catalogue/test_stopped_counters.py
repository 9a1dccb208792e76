"""When profiling counters that are all 0 have stopped, or keep their values, and when the GPU is idle."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.stopped_counters import REMEMBERED_SECONDS, StoppedCounters
from tests.support.truth import MORE, PACKAGED

ENGINE, DRAM, PCIE, TX = m.GR_ENGINE_ACTIVE.name, m.DRAM_ACTIVE.name, m.PCIE_RX.name, m.PCIE_TX.name
ZEROS = {ENGINE: 0.0, DRAM: 0.0, PCIE: 0.0}


@pytest.mark.parametrize(
    ("util", "counters", "stopped"),
    [
        (1.0, ZEROS, True),
        (0.24, ZEROS, True),
        (0.02, ZEROS, False),
        (None, ZEROS, False),
        (42.0, ZEROS, False),
        # Copies alone.
        (1.0, {**ZEROS, PCIE: 5e10}, False),
        (1.0, {ENGINE: 0.0}, False),
        (1.0, {}, False),
    ],
)
def test_one_sample(util: float | None, counters: dict[str, float], stopped: bool) -> None:
    assert StoppedCounters().take("GPU-1", 0.0, util, None, counters.items()) is stopped


def test_a_gpu_that_works_at_times() -> None:
    """Utilisation is that of a moment. After five minutes without any, the GPU is idle."""
    counters = StoppedCounters()
    assert counters.take("GPU-1", 0.0, 0.9, None, ZEROS.items())
    assert counters.take("GPU-1", 30.0, 0.0, None, ZEROS.items())
    assert not counters.take("GPU-2", 30.0, 0.0, None, ZEROS.items())
    assert not counters.take("GPU-1", 60.0, 0.9, None, {**ZEROS, ENGINE: 0.3}.items())
    assert not counters.take("GPU-1", REMEMBERED_SECONDS, 0.0, None, ZEROS.items())


IDLE = {ENGINE: 0.0, PCIE: 1e6, TX: 1.5e6}


def judged(counters: Mapping[str, Sequence[float]], power: Sequence[float | None], seconds: float) -> list[bool]:
    """Return the verdicts about values that come every `seconds`; the last of each are repeated."""
    stopped = StoppedCounters()
    return [
        stopped.take("GPU-1", step * seconds, 0.0, watts, [(name, at(of, step)) for name, of in counters.items()])
        for step, watts in enumerate(power)
    ]


def at(values: Sequence[float], step: int) -> float:
    return values[min(step, len(values) - 1)]


def kept(**others: float) -> dict[str, list[float]]:
    return {name: [value] for name, value in {**IDLE, **others}.items()}


@pytest.mark.parametrize(
    ("counters", "power", "seconds", "first"),
    [
        (kept(), [120.0, 121.0] * 6, 30.0, 8),
        (kept(), [120.0, 121.0] * 6, 60.0, 4),
        (kept(), [120.0, 120.0, 121.0, 121.0] * 150, 1.0, 240),
        ({**kept(), PCIE: [1e6, 1e6, 2e6]}, [120.0, 121.0] * 6, 30.0, 10),
        # A host engine that samples nothing, a sensor that hardly changes, one that cannot be read.
        (kept(), [120.0] * 20, 30.0, None),
        (kept(), [120.0, 121.0, 122.0, *[123.0] * 20], 30.0, None),
        (kept(), [None] * 20, 30.0, None),
        # One of the counters counts.
        ({**kept(), TX: [float(step) for step in range(20)]}, [120.0, 121.0] * 10, 30.0, None),
        ({**kept(), ENGINE: [step / 1e6 for step in range(20)]}, [120.0, 121.0] * 10, 30.0, None),
        # Not known: whether traffic is measured, and with what.
        (kept(**{PCIE: 0.0, ENGINE: 1.0}), [120.0, 121.0] * 10, 30.0, None),
        ({PCIE: [1e6], TX: [1e6]}, [120.0, 121.0] * 10, 30.0, None),
        ({PCIE: [1e6], ENGINE: [1.0]}, [120.0, 121.0] * 10, 30.0, None),
    ],
)
def test_counters_that_keep_their_values(
    counters: Mapping[str, Sequence[float]], power: Sequence[float | None], seconds: float, first: int | None
) -> None:
    stopped = judged(counters, power, seconds)
    assert (stopped.index(True) if True in stopped else None) == first
    assert first is None or all(stopped[first:])


def test_counters_that_move_again() -> None:
    """They count from the first new value. What they kept is no measurement, should they return to it."""
    stopped = StoppedCounters()
    verdicts = [stopped.take("GPU-1", step * 30.0, 0.0, float(step), IDLE.items()) for step in range(9)]
    assert verdicts[-1]
    assert not stopped.take("GPU-1", 270.0, 0.0, 9.0, {**IDLE, PCIE: 2e6}.items())
    assert stopped.take("GPU-1", 300.0, 0.0, 10.0, IDLE.items())
    assert stopped.take("GPU-1", 330.0, 0.0, 11.0, ())
    assert not stopped.take("GPU-2", 330.0, 0.0, 11.0, IDLE.items())


@pytest.mark.parametrize("path", [*PACKAGED.glob("*.gz"), *MORE.rglob("*.gz")], ids=lambda path: path.name)
def test_no_recorded_gpu_keeps_its_values(path: Path) -> None:
    """As if its ticks were a minute apart: each one alone must differ."""
    stopped, steps = StoppedCounters(), Counter[int]()
    with gzip.open(path, "rt") as lines:
        next(lines)
        for tick in map(json.loads, lines):
            gpu, values = tick.get("gpu"), tick.get("samples", {})
            if {ENGINE, PCIE, TX} <= values.keys():
                steps[gpu] += 1
                assert not stopped.take(gpu, steps[gpu] * 60.0, 0.0, float(steps[gpu]), values.items()), tick["t"]
    assert steps
