"""The order of tests: each worker of pytest-xdist begins with slow ones, and ends with fast ones.

Each worker begins with an equal part of the tests in their order; one that has finished takes over a part of what is
left. In the order of paths, the slowest files come together, and the run ends with few workers that are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T")


def dealt(tests: Sequence[T], file_of: Callable[[T], str], is_slow: Callable[[T], bool], workers: int) -> list[T]:
    """Return the tests so that each of `workers` equal parts has slow files first, and about as many of them.

    Tests of a file stay together, because they share fixtures.
    """
    slow = [test for test in tests if is_slow(test)]
    fast = [test for test in tests if not is_slow(test)]
    parts: list[list[T]] = [[] for _ in range(workers)]
    for number, (_, of_file) in enumerate(groupby(slow, file_of)):
        parts[number % workers].extend(of_file)
    found, begin = list[T](), 0
    for number, part in enumerate(parts, 1):
        end = begin + max(0, number * len(tests) // workers - len(found) - len(part))
        found += [*part, *fast[begin:end]]
        begin = end
    return [*found, *fast[begin:]]
