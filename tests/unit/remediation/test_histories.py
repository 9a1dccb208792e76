"""Whole random histories of two controllers: never over budget, never against a person, and everything ends well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.remediation.leader import Leader
from tests.support.remediation_world import history

pytestmark = pytest.mark.slow


def run(count: int) -> None:
    """Run this many histories."""
    for seed in range(count):
        history(seed)


@given(st.integers(0, 2**32))
def test_histories(seed: int) -> None:
    """The world checks every write, and at the end that nothing is left."""
    history(seed)


def test_histories_do_something() -> None:
    """Otherwise the test above would prove nothing: nodes are cordoned and returned, with and without mishaps."""
    worlds = [history(seed) for seed in range(60)]
    assert sum(world.writes for world in worlds) >= 30


def test_without_claims_the_budget_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The histories are hard enough to find a controller that trusts its own copy of the cluster."""
    monkeypatch.setattr(Leader, "claim", lambda *_: None)
    with pytest.raises(AssertionError, match="over budget"):
        run(3000)


def test_foreign_cordons_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """And hard enough to find one that undoes the cordon of a person."""
    monkeypatch.setattr("gpu_exporter.remediation.state._is_foreign", lambda _: False)
    with pytest.raises(AssertionError, match="undid a foreign cordon"):
        run(3000)
