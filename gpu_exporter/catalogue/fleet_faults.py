"""When the same fault on many nodes is one fault of the fleet.

An alert and the breaker of remediation have the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.conditions.tree import Limit

NODES = Limit(
    "fleetNodes",
    3,
    "nodes",
    "nodes on which the same critical fault begins within ten minutes, from which on it is one fault of the fleet",
    a.COUNTS,
)
SHARE = Limit(
    "fleetShare",
    0.05,
    "ratio",
    "share of the nodes of the cluster that these must be, too, unless so many have the fault within two minutes",
    a.COUNTS,
)
# Faults that begin within so many seconds count together.
WINDOW = 600.0
# Faults that begin within so many seconds need no SHARE: otherwise, 19 of 400 nodes would page before it is reached.
# Chance rarely brings three so close together. Meta had 148 faulty GPUs in 54 days on 16 384 GPUs, the most frequent
# cause in "The Llama 3 Herd of Models". 5000 nodes of 8 GPUs would have 0.28 an hour: three within two minutes once in
# nine years (0.28^3 / 2 * (2 min)^2), within ten minutes every four or five months.
AT_ONCE = 120.0


def is_of_fleet(began: Iterable[float], total: int, nodes: int, share: float) -> bool:
    """Return whether a fault is one of the fleet: `began` is when it began on each node within the window, in seconds.

    The fleet has `total` nodes. `nodes` and `share` are the limits.
    """
    times = sorted(began)
    if len(times) < nodes:
        return False
    at_once = any(last - first <= AT_ONCE for first, last in zip(times, times[nodes - 1 :], strict=False))
    return at_once or len(times) >= share * total
