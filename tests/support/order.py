"""The order of tests: each worker of pytest-xdist begins with slow ones, and ends with fast ones.

Each worker begins with an equal part of the tests in their order; one that has finished takes over a part of what is
left. In the order of paths, the slowest files come together, and the run ends with few workers that are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T")


def dealt(
    tests: Sequence[T],
    file_of: Callable[[T], str],
    is_slow: Callable[[T], bool],
    is_slowest: Callable[[T], bool],
    workers: int,
) -> list[T]:
    """Return the tests so that each of `workers` equal parts has slow files first, and about as many of them.

    Tests of a file stay together, because they share fixtures. The slowest begin, so that none of them runs alone at
    the end. Every other part has its slow files backwards, so that rules, which compute, do not all run after the e2e
    tests, which wait.
    """

    def begins_later(of_file: Sequence[T]) -> bool:
        return not any(map(is_slowest, of_file))

    slow = [test for test in tests if is_slow(test)]
    fast = [test for test in tests if not is_slow(test)]
    files = sorted((list(of_file) for _, of_file in groupby(slow, file_of)), key=begins_later)
    found, begin = list[T](), 0
    for number in range(1, workers + 1):
        mine = files[number - 1 :: workers]
        mine = sorted(mine if number % 2 else reversed(mine), key=begins_later)
        part = [test for of_file in mine for test in of_file]
        end = begin + max(0, number * len(tests) // workers - len(found) - len(part))
        found += [*part, *fast[begin:end]]
        begin = end
    return [*found, *fast[begin:]]
