"""XIDs of simulated GPUs: errors of the programs that run there, at times that the seed determines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import NamedTuple

from gpu_exporter.sources.simulated.schedule import Schedule

# Each GPU has one XID in each of these periods, at a random time. Those of real GPUs are rarer.
PERIOD_SECONDS = 12 * 3600.0
# Not within the time that `diagnose` watches by default.
FIRST_SECONDS = 30.0
# Illegal memory accesses are more frequent than other exceptions in kernels.
CODES = (31, 31, 31, 13)


class Xid(NamedTuple):
    """An XID, `at` seconds after the start."""

    at: float
    code: int


def upcoming(identity: str, schedule: Schedule, after: float, *, early: bool) -> Iterator[Xid]:
    """Yield the XIDs of a GPU later than `after`, in order. They occur while a job runs; without jobs, the first is
    infinitely far away. With `early`, the first is soon after the start.
    """
    for period in count(int(after // PERIOD_SECONDS)):
        rng = Random(f"{identity}/xid/{period}")
        begin = FIRST_SECONDS if early and not period else (period + rng.random()) * PERIOD_SECONDS
        at = schedule.running_from(begin)
        if at > after:
            yield Xid(at, rng.choice(CODES))
