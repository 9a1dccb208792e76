"""The catalogue of failure modes rejects entries that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.failure_modes.check import check
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Ramp, Wave
from gpu_exporter.catalogue.signals import SM_ACTIVE
from gpu_exporter.conditions.tree import Compare, Limit, Over

SWING = Limit("swing", 0.2, "ratio", "how much it swings")


def mode(name: str, limit: Limit) -> FailureMode:
    """Return a failure mode with this limit."""
    return replace(MODES[0], name=name, condition=Compare(Over(SM_ACTIVE), ">", limit))


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ((mode("A", SWING), mode("A", SWING)), "two modes are named A: rename one"),
        (
            (mode("A", SWING), mode("B", replace(SWING, value=95.0))),
            "limit swing is 0.2 in A and 95 in B: rename one",
        ),
        (
            (mode("A", SWING), mode("B", replace(SWING, unit="watts"))),
            "limit swing has one unit or help in A and another in B: rename one, or use the same Limit in both",
        ),
        (
            (mode("A", replace(SWING, name=PRICES[0].name)),),
            f"limit {PRICES[0].name} is 0.2 in A and {PRICES[0].value:g} in PRICES: rename one",
        ),
    ],
    ids=["modes", "values", "units", "prices"],
)
def test_conflicting_names_are_rejected(modes: Sequence[FailureMode], message: str) -> None:
    """The package checks its own catalogue when it is imported."""
    with pytest.raises(ValueError, match=f"^{re.escape(f'catalogue/failure_modes: {message}')}$"):
        check(modes)


def test_modes_may_share_a_limit() -> None:
    check((mode("A", SWING), mode("B", SWING)))


@pytest.mark.parametrize(
    "mode", [mode for mode in MODES if m.FB_USED in mode.inject.values], ids=lambda mode: mode.name
)
def test_injected_memory_adds_up(mode: FailureMode) -> None:
    """At the start; what grows is taken from what is free."""
    values = {**profiles.BOARD, **mode.inject.values}
    starts, growths = 0.0, 0.0
    for row in (m.FB_USED, m.FB_FREE, m.FB_RESERVED):
        value = values[row]
        assert not isinstance(value, Wave)
        starts += value.start if isinstance(value, Ramp) else value
        growths += value.per_second if isinstance(value, Ramp) else 0.0
    assert (starts, growths) == (values[m.FB_TOTAL], 0.0)
