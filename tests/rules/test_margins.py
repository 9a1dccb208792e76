"""No judgement of a recorded phase is close to flipping, without a reason in the table of margins."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from types import MappingProxyType

import pytest

from gpu_exporter.catalogue.bottlenecks import WINDOW
from gpu_exporter.catalogue.signals import DRAM_ACTIVE, GR_ACTIVE, SM_ACTIVE
from gpu_exporter.conditions.evaluate import Device, Points
from gpu_exporter.conditions.tree import And, Compare, Condition, Fn, Or, Over, Unless
from tests.margins.margin import margin
from tests.margins.table import REASONS, SMALLEST, rows
from tests.support.tools import is_long
from tests.support.truth import PHASES


class Flat:
    """A window in which each signal has had one value."""

    now = 1000.0
    presence = GR_ACTIVE
    devices = ("GPU",)
    limits: Mapping[str, float] = MappingProxyType({})

    def __init__(self, **values: float) -> None:
        self._values = {"gr_active": 0.9, **values}
        self.memo: dict[object, object] = {}

    def by_device(self, signal: object) -> Mapping[Device, Points]:
        value = self._values.get(getattr(signal, "name", ""))
        return {} if value is None else dict.fromkeys(self.devices, ((990.0, value),))

    def ranks(self, device: object) -> tuple[object, ...]:
        return ()

    def alike(self, device: object) -> Hashable:
        return ""


def _at_least(signal: object, limit: float) -> Compare:
    return Compare(Over(signal, Fn.MEAN, WINDOW), ">=", limit)  # type: ignore[arg-type]


HIGH_SM, HIGH_DRAM, BUSY = _at_least(SM_ACTIVE, 0.4), _at_least(DRAM_ACTIVE, 0.2), _at_least(GR_ACTIVE, 0.85)


@pytest.mark.parametrize(
    ("condition", "values", "holds", "factor"),
    [
        (HIGH_SM, {"sm_active": 0.5}, True, 1.25),
        (HIGH_SM, {"sm_active": 0.2}, False, 2.0),
        (HIGH_SM, {"sm_active": 0.0}, False, float("inf")),
        (HIGH_SM, {}, None, float("inf")),
        (BUSY, {"gr_active": 0.99}, True, 15.0),  # idle 1 % of the time, limit 15 %
        (And(HIGH_SM, HIGH_DRAM), {"sm_active": 0.5, "dram_active": 0.8}, True, 1.25),
        (And(HIGH_SM, HIGH_DRAM), {"sm_active": 0.2, "dram_active": 0.02}, False, 10.0),
        (Or(HIGH_SM, HIGH_DRAM), {"sm_active": 0.5, "dram_active": 0.8}, True, 4.0),
        (Unless(HIGH_SM, HIGH_DRAM), {"sm_active": 0.5, "dram_active": 0.1}, True, 1.25),
        (Unless(HIGH_SM, HIGH_DRAM), {"sm_active": 0.5}, True, 1.25),  # what is unknown does not exclude
    ],
)
def test_margin_of_a_condition(
    condition: Condition, values: dict[str, float], holds: bool | None, factor: float
) -> None:
    found = margin(condition, Flat(**values), "GPU")

    assert found.holds is holds
    assert found.factor == pytest.approx(factor)


def test_margins_of_recorded_phases() -> None:
    """Every small margin has a reason, and every reason is needed. Only with `--long`, in all phases."""
    phases = PHASES if is_long() else PHASES[::3]
    small = [row for path, phase in phases for row in rows(path, phase) if row.margin.factor < SMALLEST]

    unexplained = [(row.recording, row.phase, row.judged, row.what, row.margin.left) for row in small if not row.reason]
    assert not unexplained, (
        f"{unexplained}; fix: compare a quantity that differs by an order of magnitude, or add the reason to REASONS "
        "in tests/margins/table.py"
    )
    unneeded = {why for _, _, why in REASONS} - {row.reason for row in small}
    assert not (is_long() and unneeded), f"no margin is small because of {unneeded}; fix: remove it from REASONS"
