"""Unions of intervals, against sets of integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.traces.idle import difference
from gpu_exporter.traces.intervals import Intervals, clipped, covered, gaps, length, subtract, union

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=30)


def _columns(spans: list[tuple[int, int]]) -> Intervals:
    start = np.array([begin for begin, _ in spans], dtype=np.int64)
    return start, start + np.array([size for _, size in spans], dtype=np.int64)


def _moments(intervals: Intervals) -> set[int]:
    """Return every whole number inside, as brute force."""
    return {moment for begin, end in zip(*intervals, strict=True) for moment in range(begin, end)}


@given(SPANS)
def test_union_covers_the_same_moments_and_is_disjoint(spans: list[tuple[int, int]]) -> None:
    merged = union(*_columns(spans))
    assert _moments(merged) == _moments(_columns(spans))
    assert length(merged) == len(_moments(_columns(spans)))
    assert (merged[0][1:] > merged[1][:-1]).all()


@given(SPANS)
def test_gaps_are_what_is_missing_between_first_and_last(spans: list[tuple[int, int]]) -> None:
    merged = union(*_columns(spans))
    inside = _moments(merged)
    if inside:
        assert _moments(gaps(merged)) == set(range(min(inside), max(inside))) - inside


@given(SPANS, SPANS)
def test_covered_counts_the_moments_in_each_query(spans: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    inside = _moments(_columns(spans))
    found = covered(union(*_columns(spans)), *_columns(queries))
    assert found.tolist() == [len(inside & set(range(begin, begin + size))) for begin, size in queries]


@given(SPANS, SPANS)
def test_differences_are_those_of_sets(spans: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    one, other = union(*_columns(spans)), union(*_columns(others))
    expected = _moments(one) - _moments(other)
    assert subtract(one, other) == len(expected)
    assert _moments(difference(one, other)) == expected


@given(SPANS, st.integers(0, 40), st.integers(0, 40))
def test_clipped_keeps_what_is_inside(spans: list[tuple[int, int]], start: int, size: int) -> None:
    merged = union(*_columns(spans))
    assert _moments(clipped(merged, start, start + size)) == _moments(merged) & set(range(start, start + size))
