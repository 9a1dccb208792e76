"""Marks are 0 or 1 for any condition."""

import pytest

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue.failure_modes import distributed as d
from gpu_exporter.catalogue.signals import GR_ACTIVE
from gpu_exporter.conditions import promql
from gpu_exporter.conditions.tree import Mark


@pytest.mark.parametrize("mark", [d.WAITS, c.SPINS, c.NO_PROGRESS, d.TALKS], ids=lambda mark: mark.name)
def test_a_mark_has_its_whole_condition_in_parentheses(mark: Mark) -> None:
    """`a >= 1e9 * 0 + 1` would compare with 1 and record the value of a."""
    condition, known = promql.mark_definition(mark, {}).split(" * 0 + 1)\nand\n")
    assert condition.startswith("((\n")
    assert condition.endswith("\n)")
    assert known == f"{GR_ACTIVE.record}\nor\n{GR_ACTIVE.record} * 0"
