"""The committed counts: instructions and bytes of a collection and a scrape, and the modules that `serve` imports."""

from __future__ import annotations

import pytest

from tests.counts.measure import counted
from tests.counts.table import BASE, Table, committed, differences, interpreter, load

FIX = "fix: if that is intended, run `python -m tests.counts --update 'WHY'` and commit tests/counts/counts.json"

COMMITTED: Table = {
    "why": "an example",
    "packages": {"tornado": "6.4"},
    "instructions": {BASE: 1000},
    "bytes": {BASE: 100},
    "modules": {"least": [f"module{n}" for n in range(100)], "jobs": ["a", "b"]},
}
CHANGES: list[tuple[dict[str, object], list[str]]] = [
    ({}, []),
    ({"why": "other"}, []),
    ({"instructions": {BASE: 1030}}, []),
    ({"instructions": {BASE: 970}}, []),
    ({"instructions": {BASE: 1031}}, ["instructions, default, 1 GPU: collection: 1,031, was 1,000 (+3.1%)"]),
    (
        {"instructions": {BASE: 969}},
        ["instructions, default, 1 GPU: collection: 969, was 1,000 (-3.1%)"],
    ),
    ({"bytes": {BASE: 104}}, ["bytes, default, 1 GPU: collection: 104, was 100 (+4.0%)"]),
    (
        {"bytes": {"default, 2 GPUs: scrape": 100}},
        ["bytes, default, 1 GPU: collection: missing", "bytes, default, 2 GPUs: scrape: new"],
    ),
    (
        {"modules": {"least": COMMITTED["modules"]["least"], "jobs": ["a", "c", "d"]}},
        ["modules, jobs: 3, was 2: +c +d -b"],
    ),
    ({"modules": {"least": [*COMMITTED["modules"]["least"], "new"], "jobs": ["a", "b"]}}, []),
    ({"modules": {"least": COMMITTED["modules"]["least"]}}, ["modules, jobs: 0, was 2: -a -b"]),
]


def test_differences() -> None:
    """Each count that differs by more than 3 % is a line."""
    for change, lines in CHANGES:
        changed: Table = {**COMMITTED, **change}  # type: ignore[typeddict-item]
        assert differences(COMMITTED, changed, same_interpreter=True) == lines, change


def test_differences_with_another_interpreter() -> None:
    """Counts are compared with each other, and only modules of the project count."""
    before: Table = {**COMMITTED, "instructions": {BASE: 1000, "scrape": 400}}
    after: Table = {**before, "instructions": {BASE: 700, "scrape": 300}, "modules": {"jobs": ["a"]}}
    assert differences(before, after, same_interpreter=False) == []
    assert differences({**before, "packages": {}}, after, same_interpreter=True) == []
    after["instructions"] = {BASE: 700, "scrape": 360}
    assert differences(before, after, same_interpreter=False) == ["instructions, scrape: 514,285, was 400,000 (+28.6%)"]


@pytest.mark.drift
@pytest.mark.slowest
def test_counts() -> None:
    """Neither instructions, nor bytes, nor modules have changed by more than 3 % since they were committed."""
    tables = load()
    lines = "\n".join(differences(committed(tables), counted(), same_interpreter=interpreter() in tables))
    assert not lines, f"{lines}\n{FIX}"
