"""Who gives way at a limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.jobs.shares import Claim, yielding


def claims(text: str) -> list[Claim]:
    """Return claims from `1 1v 2x5`: user, whether verified, and amount."""
    parts = (word.partition("x") for word in text.split())
    return [Claim(int(who.rstrip("v")), who.endswith("v"), int(amount or 1)) for who, _, amount in parts]


@pytest.mark.parametrize(
    ("held", "new", "gone"),
    [
        ("", "1", None),
        ("1", "1", None),
        ("1", "2", None),
        ("1 1", "2", 0),
        ("2 1 1", "2", None),
        ("2 1 1 1", "2", 1),
        ("3 2 1 1 1", "2", 2),
        ("1x9 2", "2x4", None),
        ("1x5 1x4 2", "2x3", 0),
        ("1x5 1x4 2", "2x4", None),
        ("1", "1v", 0),
        ("1v 1", "1v", 1),
        ("1v 2 3 3", "1v", 2),
        ("1v 1v", "2", None),
        ("1v 1v 1 1", "2", 2),
        ("1v 1v", "2v", 0),
        ("1v 2v", "2v", None),
    ],
)
def test_which_claim_gives_way(held: str, new: str, gone: int | None) -> None:
    (claim,) = claims(new)
    assert yielding(claims(held), claim) == gone


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200))
def test_users_have_equal_shares_in_the_end(order: list[tuple[int, bool]]) -> None:
    """Of ten places: verified ones first, and nobody has less than another, unless nobody asked for more."""
    held: list[Claim] = []
    for uid, verified in [*order, *((uid, True) for uid in range(5) for _ in range(10))]:
        if len(held) >= 10:
            index = yielding(held, Claim(uid, verified))
            if index is None:
                continue
            del held[index]
        held.append(Claim(uid, verified))
    assert all(claim.verified for claim in held)
    assert sorted(sum(claim.uid == uid for claim in held) for uid in range(5)) == [2] * 5
