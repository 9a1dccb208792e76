"""Each failure mode fires where it is injected, with every exporter that can show it; a healthy GPU has no alert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES, host, loops, network
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.conditions.signal import Derived, Read, Signal
from gpu_exporter.conditions.tree import (
    And,
    Compare,
    Condition,
    Is,
    Leaf,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Unless,
    children,
    no_case,
    terms,
)
from tests.rules.promtool import Case, Expect, check, firing, never_fired, no_other_node, now_firing
from tests.rules.series import Device, Generation, exposed, injected, minutes, of_peers, rank
from tests.support.incidents import in_incident_of
from tests.support.tools import is_long

# `test_stragglers.py` always has jobs of 8 and 16 ranks.
RANKS = 8 if is_long() else 4
SLACK = 12.0  # minutes that a failure mode may need beyond its window and hold
BEFORE = 15.0
SOON = 60.0
# Failure modes of a GPU or its exporter; `test_allocation.py`, `test_jobs.py` and `test_remediation.py` have the rest.
OF_GPUS = [mode for mode in MODES if not mode.requires]


def lasts(mode: FailureMode) -> float:
    """Return for how many minutes a failure mode is injected."""
    windows = [term.window for term in terms(mode.condition) if isinstance(term, Over)] if mode.condition else []
    return (mode.hold + max(windows, default=0.0)) / 60 + SLACK


def knowable(condition: Condition, generation: Generation) -> bool:
    """Return whether a generation exposes enough to find the condition true."""
    match condition:
        case Compare():
            return all(_term_knowable(term, generation) for term in terms(condition))
        case And() | Is():
            return all(knowable(child, generation) for child in children(condition))
        case Or():
            return any(knowable(child, generation) for child in condition.conditions)
        case Unless() | OrIfKnown():
            return knowable(condition.condition, generation)
        case _:
            raise no_case(condition)


def _term_knowable(term: Leaf, generation: Generation) -> bool:
    match term:
        case Over():
            return available(term.signal, generation)
        case PeerShare():
            return knowable(term.mark.condition, generation)
        case PeerMedian() | PeerMean() | PeerMin():
            return available(term.of.signal, generation) and knowable(term.mark.condition, generation)
        case _:
            raise no_case(term)


def available(side: Signal | Derived | float, generation: Generation) -> bool:
    match side:
        case Derived():
            return available(side.left, generation) and available(side.right, generation)
        case Signal():
            names = {shown[0] for row in METRICS if (shown := exposed(generation, row))}
            return any(
                way.name in names if isinstance(way, Read) else available(way, generation) for way in side.definitions
            )
    return True


def devices(mode: FailureMode, generation: Generation, node: str, total: float) -> Iterator[Device]:
    """Return a job on one node, whose first GPU has the failure mode after some time."""
    last = lasts(mode)
    for gpu in range(RANKS if mode.inject.peers else 2 if mode.inject.fault else 1):
        then = of_peers(last, mode.inject) if gpu else injected(last, mode.inject)
        yield Device(node, gpu, (minutes(total - last), then), generation, rank(mode.name.lower(), gpu))


def expected(mode: FailureMode, generation: Generation, node: str) -> Iterator[Expect]:
    """Expect the failure mode on the right GPUs, and no other mode that it does not imply, now or before."""
    by_device = mode.condition is not None and knowable(mode.condition, generation)
    gpus = range(RANKS) if mode.inject.everyone else (0 if by_device else None,)
    of_source = m.SOURCE_UP.name in mode.fleet and generation is not Generation.GPU_EXPORTER
    names = [mode.name] if by_device or (mode.fleet and not of_source) else []
    yield now_firing(node, f', alertname="{mode.name}"', firing(node, names, gpus))
    yield never_fired(node, in_incident_of(mode))


def test_gpu_exporter_can_show_every_mode() -> None:
    """Checks the derived expectations: wrong ones would expect no alert."""
    conditions = {mode.name: mode.condition for mode in MODES if mode.condition and mode not in loops.MODES}
    assert all(knowable(condition, Generation.GPU_EXPORTER) for condition in conditions.values())
    partly = [name for name, condition in conditions.items() if not knowable(condition, Generation.DCGM_4_9)]
    of_health = ["GpuLost", "GpuNvlinkDown", "GpuXidUnknown", "GpuXidApplication", "GpuTelemetryStale"]
    of_network = ["GpuJobAcrossCliques", *(mode.name for mode in network.MODES)]
    assert partly == [*of_health, *of_network, *(mode.name for mode in host.MODES), "GpuMemoryBrieflyFull"]


def case(generation: Generation, modes: Sequence[FailureMode]) -> Case:
    """Return one fleet: a node for each failure mode, and a healthy one."""
    total = max(map(lasts, modes)) + BEFORE
    fleet = [Device("healthy", gpu, [minutes(total)], generation, rank("healthy", gpu)) for gpu in range(2)]
    found = [never_fired("healthy")]
    for mode in modes:
        node = mode.name.lower()
        fleet += devices(mode, generation, node, total)
        found += expected(mode, generation, node)
    found.append(no_other_node(sorted({device.node for device in fleet})))
    return Case(generation.value, fleet, found)


# Those of dcgm-exporter only rename labels and metrics, as tests of hard cases do: they run only with --long.
GENERATIONS = list(Generation) if is_long() else [Generation.GPU_EXPORTER]


@pytest.mark.slowest
@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda each: each.value)
def test_injected_fires_and_healthy_does_not(tmp_path: Path, generation: Generation) -> None:
    soon = [mode for mode in OF_GPUS if lasts(mode) < SOON]
    late = [mode for mode in OF_GPUS if mode not in soon]
    check(tmp_path, [case(generation, soon), case(generation, late)])
