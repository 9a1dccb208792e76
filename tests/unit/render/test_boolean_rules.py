"""Marks are 0 or 1, whatever their condition is made of."""

import pytest

from gpu_exporter.catalogue import promql
from gpu_exporter.catalogue.conditions import Mark
from gpu_exporter.catalogue.failure_modes import distributed as d
from gpu_exporter.catalogue.signals import GR_ACTIVE


@pytest.mark.parametrize("mark", [d.WAITS, d.SPINS, d.STALLED, d.TALKS], ids=lambda mark: mark.name)
def test_a_mark_is_made_of_its_whole_condition(mark: Mark) -> None:
    """`a >= 1e9 * 0 + 1` would compare with 1 and record what is compared."""
    condition, known = promql.mark_definition(mark, {}).split(" * 0 + 1)\nand\n")
    assert condition.startswith("((\n")
    assert condition.endswith("\n)")
    assert known == f"{GR_ACTIVE.record}\nor\n{GR_ACTIVE.record} * 0"
