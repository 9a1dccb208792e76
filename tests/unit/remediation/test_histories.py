"""Whole random histories of two controllers: never over budget, never against a person, and everything ends well."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.remediation import drain, state, workload
from gpu_exporter.remediation.drainer import Drainer
from gpu_exporter.remediation.leader import Leader
from gpu_exporter.remediation.pods import NodePod
from gpu_exporter.remediation.workload import EvictionUnit
from tests.support.remediation_world import history

pytestmark = pytest.mark.slow


def run(first: int) -> None:
    """Run many histories from this one on."""
    for seed in range(first, first + 3000):
        history(seed)


@given(st.integers(0, 2**32))
def test_histories(seed: int) -> None:
    """The world checks every write, and at the end that nothing is left."""
    history(seed)


def test_histories_do_something() -> None:
    """Otherwise the test above would prove nothing: nodes are cordoned, drained and returned, jobs are evicted."""
    worlds = [history(seed) for seed in range(60)]
    assert sum(world.writes for world in worlds) >= 30
    assert sum(world.drained for world in worlds) >= 5
    assert sum(len(world.pods.begun) for world in worlds) >= 5
    assert sum(len(world.pods.told) for world in worlds) >= 5


@pytest.mark.parametrize(
    # The first history is shortly before the one that fails at present, which saves time.
    ("what", "instead", "first", "error"),
    [
        # Two controllers that trust their own copy of the cluster exceed the budget.
        ((Leader, "claim"), lambda *_: None, 230, "over budget"),
        ((state, "_is_foreign"), lambda _: False, 310, "undid a foreign cordon"),
        ((workload, "protection"), lambda *_: "", 0, "is protected"),
        ((EvictionUnit, "live"), property(lambda unit: unit.pods), 0, "is evicted although it ends"),
        ((NodePod, "waits"), lambda *_: False, 0, "is evicted before the time that it was told"),
        ((NodePod, "gang"), lambda *_: None, 0, "is evicted without"),
        ((Drainer, "_begin"), lambda *_: True, 0, "is evicted from a node that is not drained"),
        ((Drainer, "_is_possible"), lambda *_: True, 0, "Counter"),
        ((drain, "_finish"), lambda decision, *_: decision, 0, "is not drained|a job lost"),
        ((drain, "_evictions"), lambda decision, *_: decision, 0, "is not drained"),
    ],
)
def test_without_a_bound_the_histories_fail(
    monkeypatch: pytest.MonkeyPatch, what: tuple[Any, str], instead: Any, first: int, error: str
) -> None:
    """They are hard enough to find a controller that lacks one of its precautions."""
    monkeypatch.setattr(*what, instead)
    with pytest.raises(AssertionError, match=error):
        run(first)
