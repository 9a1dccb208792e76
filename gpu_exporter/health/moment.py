"""When something happened: in unix time for people, and by the monotonic clock for every decision.

The wall clock can be set, and a log may contain any date. The monotonic clock only ever advances, so the age of an
event by it is right whatever happens to the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

# A time that is less than this in the future is now: the kernel's clock drifts, and logs round.
SLACK_SECONDS = 1.0


class Now(NamedTuple):
    """Both clocks, read together: unix time and monotonic seconds."""

    unix: float
    monotonic: float


class Moment(NamedTuple):
    """A time by both clocks. `clamped`: it was given as a time in the future, and the present is used instead."""

    at: float
    monotonic: float
    clamped: bool = False


NEVER = Moment(0.0, float("-inf"))
Clocks = Callable[[], Now]


def read_clocks() -> Now:
    """Return the present time."""
    return Now(time.time(), time.monotonic())


def moment(at: float, now: Now) -> Moment:
    """Return the moment of the unix time `at`; that of a time in the future is `now`."""
    if at - now.unix > SLACK_SECONDS:
        return Moment(now.unix, now.monotonic, clamped=True)
    return Moment(min(at, now.unix), now.monotonic - max(0.0, now.unix - at))
