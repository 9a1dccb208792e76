"""Sets of half-open intervals as pairs of sorted columns. Lengths of unions, never sums: kernels overlap."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from gpu_exporter.traces.model import Column

# Starts and ends, ns. After `union`, sorted, disjoint and not touching.
Intervals: TypeAlias = tuple[Column, Column]
NOTHING: Intervals = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def union(start: Column, end: Column) -> Intervals:
    """Return the union of intervals in any order: disjoint, in order, and without empty ones."""
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return NOTHING
    if (np.diff(start) < 0).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def length(intervals: Intervals) -> int:
    """Return the total length of disjoint intervals, ns."""
    return int((intervals[1] - intervals[0]).sum())


def gaps(intervals: Intervals) -> Intervals:
    """Return the intervals between disjoint, ordered intervals."""
    return intervals[1][:-1], intervals[0][1:]


def covered(intervals: Intervals, start: Column, end: Column) -> Column:
    """Return for each query from `start` to `end` how much of it disjoint, ordered intervals cover, ns."""
    return covered_until(intervals, end) - covered_until(intervals, start)


def covered_until(intervals: Intervals, time: Column) -> Column:
    """Return how much of the time before each moment is covered, ns."""
    begins, ends = intervals
    if not len(begins):
        return np.zeros(len(time), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(ends - begins)))
    row = np.searchsorted(begins, time, side="right")
    inside = np.where(row > 0, np.maximum(ends[row - 1] - time, 0), 0)
    return before[row] - inside


def subtract(intervals: Intervals, others: Intervals) -> int:
    """Return how much of disjoint intervals the others, disjoint and ordered, do not cover, ns."""
    return length(intervals) - int(covered(others, *intervals).sum())


def clipped(intervals: Intervals, start: int, end: int) -> Intervals:
    """Return the parts of disjoint, ordered intervals between two moments."""
    begins, ends = np.maximum(intervals[0], start), np.minimum(intervals[1], end)
    kept = ends > begins
    return begins[kept], ends[kept]
