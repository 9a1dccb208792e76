"""Averages of numbers. The module `statistics` would load decimal arithmetic and fractions into each exporter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence


def mean(numbers: Sequence[float]) -> float:
    """Return the mean."""
    return math.fsum(numbers) / len(numbers)


def median(numbers: Sequence[float]) -> float:
    """Return the median."""
    ordered, middle = sorted(numbers), len(numbers) // 2
    return ordered[middle] if len(numbers) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def means_of_others(numbers: Sequence[float]) -> Iterator[float]:
    """Yield for each number the mean of all others; nothing for a single one. Each is as exact as `mean`."""
    total: list[float] = []  # their sum without an error, as a sum of few numbers
    while rest := math.fsum([*numbers, *(-part for part in total)]):
        total.append(rest)
    if len(numbers) > 1:
        yield from (math.fsum((*total, -number)) / (len(numbers) - 1) for number in numbers)


def deviation(numbers: Sequence[float]) -> float:
    """Return the standard deviation of a whole population."""
    middle = mean(numbers)
    return math.sqrt(math.fsum((number - middle) ** 2 for number in numbers) / len(numbers))


def line(times: Sequence[float], numbers: Sequence[float]) -> tuple[float, float]:
    """Return slope and intercept of the line with the least squares. Raises ValueError if all times are the same."""
    mean_time, mean_number = mean(times), mean(numbers)
    spread = math.fsum((time - mean_time) ** 2 for time in times)
    if not spread:
        raise ValueError("all times are the same")
    both = math.fsum((t - mean_time) * (n - mean_number) for t, n in zip(times, numbers, strict=True))
    slope = both / spread
    return slope, mean_number - slope * mean_time
