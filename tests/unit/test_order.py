"""The order in which the workers of pytest-xdist run tests."""

from __future__ import annotations

from tests.support.order import dealt

SLOW = [f"slow{file}/{number}" for file in range(6) for number in range(3)]
FAST = [f"fast/{number}" for number in range(62)]


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("/")[0]


def test_each_part_has_slow_files_first() -> None:
    """With whole files, in every other part backwards, and as many tests as the others."""
    found = dealt([*FAST[:30], *SLOW, *FAST[30:]], file_of, lambda test: test in SLOW, 4)
    assert sorted(found) == sorted([*SLOW, *FAST])
    parts = [found[number * 20 : number * 20 + 20] for number in range(4)]
    assert [[file_of(test) for test in part[:7]] for part in parts] == [
        ["slow0"] * 3 + ["slow4"] * 3 + ["fast"],
        ["slow5"] * 3 + ["slow1"] * 3 + ["fast"],
        ["slow2"] * 3 + ["fast"] * 4,
        ["slow3"] * 3 + ["fast"] * 4,
    ]
    assert not [test for part in parts for test in part[7:] if test in SLOW]


def test_few_fast_ones() -> None:
    """No test is lost or run twice."""
    assert dealt(["a", *SLOW], file_of, lambda test: test in SLOW, 4)[-1] == "a"
    assert sorted(dealt(SLOW, file_of, lambda test: True, 4)) == SLOW
    assert sorted(dealt(SLOW, file_of, lambda test: True, 20)) == SLOW
    assert dealt(FAST, file_of, lambda test: False, 4) == FAST
