"""The committed counts: instructions and bytes of a collection and a scrape, and the modules that `serve` imports."""

from __future__ import annotations

import pytest

from tests.counts.measure import counted
from tests.counts.table import Table, differences, interpreter, load

FIX = "fix: if that is intended, run `python -m tests.counts --update 'WHY'` and commit tests/counts/counts.json"

COMMITTED: Table = {
    "why": "an example",
    "packages": {"tornado": "6.4"},
    "instructions": {"default, 1 GPU: scrape": 1000},
    "bytes": {"default, 1 GPU: scrape": 100},
    "modules": {"least": [f"module{n}" for n in range(100)], "jobs": ["a", "b"]},
}
CHANGES: list[tuple[dict[str, object], list[str]]] = [
    ({}, []),
    ({"why": "other"}, []),
    ({"packages": {"tornado": "6.5"}}, []),
    ({"instructions": {"default, 1 GPU: scrape": 1030}}, []),
    ({"instructions": {"default, 1 GPU: scrape": 970}}, []),
    (
        {"instructions": {"default, 1 GPU: scrape": 1031}, "packages": {"tornado": "6.5"}},
        ["instructions, default, 1 GPU: scrape: 1,031, was 1,000 (+3.1%)", "tornado is 6.5, was 6.4"],
    ),
    (
        {"instructions": {"default, 1 GPU: scrape": 969}},
        ["instructions, default, 1 GPU: scrape: 969, was 1,000 (-3.1%)"],
    ),
    ({"bytes": {"default, 1 GPU: scrape": 104}}, ["bytes, default, 1 GPU: scrape: 104, was 100 (+4.0%)"]),
    (
        {"bytes": {"default, 2 GPUs: scrape": 100}},
        ["bytes, default, 1 GPU: scrape: missing", "bytes, default, 2 GPUs: scrape: new"],
    ),
    (
        {"modules": {"least": COMMITTED["modules"]["least"], "jobs": ["a", "c", "d"]}},
        ["modules, jobs: 3, was 2: +c +d -b"],
    ),
    ({"modules": {"least": [*COMMITTED["modules"]["least"], "new"], "jobs": ["a", "b"]}}, []),
    ({"modules": {"least": COMMITTED["modules"]["least"]}}, ["modules, jobs: 0, was 2: -a -b"]),
]


def test_differences() -> None:
    """Each count that differs by more than 3 % is a line; versions of packages explain it."""
    for change, lines in CHANGES:
        changed: Table = {**COMMITTED, **change}  # type: ignore[typeddict-item]
        assert differences(COMMITTED, changed) == lines, change


@pytest.mark.drift
def test_counts() -> None:
    """Neither instructions, nor bytes, nor modules have changed by more than 3 % since they were committed."""
    committed = load().get(interpreter())
    assert committed is not None, f"no counts of Python {interpreter()}: {FIX}"
    lines = "\n".join(differences(committed, counted()))
    assert not lines, f"{lines}\n{FIX}"
