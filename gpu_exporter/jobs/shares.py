"""Whose claim on a limit gives way when it is used up: verified senders come first, then users share equally. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Claim(NamedTuple):
    """What one sender uses of a limit: its user, whether its process is on the GPU, and how much it uses."""

    uid: int
    verified: bool
    amount: float = 1


def yielding(claims: Sequence[Claim], new: Claim) -> int | None:
    """Return the index of the claim that gives way to a new one; None if the new one does not fit.

    An unverified claim gives way to a verified one. Otherwise, a user that uses more than the user of the new claim
    would then use gives way. Of all users, the one that uses most does, with its first claim in `claims`.
    """
    unverified = [index for index, claim in enumerate(claims) if not claim.verified]
    precedes = new.verified and bool(unverified)
    candidates = range(len(claims)) if new.verified and not precedes else unverified
    used: dict[int, float] = {}
    for index in candidates:
        uid, _, amount = claims[index]
        used[uid] = used.get(uid, 0) + amount
    if not used:
        return None
    largest = max(used, key=used.__getitem__)
    first = next(index for index in candidates if claims[index].uid == largest)
    own = sum(claim.amount for claim in claims if claim.uid == new.uid) + new.amount
    return first if precedes or own <= used[largest] - claims[first].amount else None
