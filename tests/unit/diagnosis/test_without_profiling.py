"""Without profiling counters, a GPU has only classes and failure modes that are right: compared on every recording."""

from __future__ import annotations

import re

import pytest

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import signals as s
from tests import ROOT
from tests.support.tools import is_long
from tests.unit.diagnosis.test_class_and_shares import Job
from tests.without_profiling.compare import class_of, coverage, judged, rows, scores

LEAST_PRECISION, LEAST_COVERAGE = 0.9, 0.6
PAGE = ROOT / "docs" / "without-profiling.md"


# With and without samples of PCIe traffic and counters of NVLinks.
READ = [(True, False), *([(False, False), (True, True)] if is_long() else [])]


@pytest.mark.slow
@pytest.mark.parametrize(("pcie", "nvlink"), READ)
def test_precision_and_coverage(pcie: bool, nvlink: bool) -> None:
    """Each class and failure mode that is given is right, and most GPUs that work have a class."""
    found = list(judged(pcie=pcie, nvlink=nvlink))
    wrong = {
        name: score for of_kind in scores(found) for name, score in of_kind.items() if score.precision < LEAST_PRECISION
    }
    assert wrong == {}
    assert coverage(found) >= LEAST_COVERAGE
    assert {class_of(each.exact) for each in found} >= c.LOW_POWER_CLASSES
    assert all(each.approximate.approximate and not each.exact.approximate for each in found)
    if pcie and not nvlink:
        text = PAGE.read_text()
        assert [row for row in rows(found) if f"| {' | '.join(row)} |" not in text] == [], f"fix: correct {PAGE}"
        assert re.findall(r"(\d+) % of the GPUs that worked have a class", text) == [f"{coverage(found):.0%}"[:-1]]


@pytest.mark.parametrize(("approximate", "expected"), [(1.0, ["low-power", "compute-bound"]), (0.0, [None, None])])
def test_power_of_a_gpu_with_profiling_counters(approximate: float, expected: list[str | None]) -> None:
    """Power says what limits a GPU only without these counters."""
    busy = {s.GR_ACTIVE: 1.0, s.DRAM_ACTIVE: 0.2, s.UP: 1.0, s.APPROXIMATE: approximate}
    ranks = [busy | {s.POWER_USE: 0.2, s.POWER_CAP: 0.0}, busy | {s.POWER_USE: 0.98, s.POWER_CAP: 1.0}]
    assert [found and found.name for found in c.classified(Job(ranks, together=False))] == expected
