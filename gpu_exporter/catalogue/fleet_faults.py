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
# Independent faults rarely begin so close together, no matter how large the fleet is.
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
