"""What the remediation controller does, recorded from its own series: few, no matter how many nodes there are."""

from __future__ import annotations

from gpu_exporter.alerting.aggregates import Aggregate


def _age(name: str, help: str, series: str, *more: str) -> Aggregate:
    """Return the age of a time that the controller has about a node."""
    by = ("pool", "node", *more)
    expression = f"time() - max by ({', '.join(('cluster', *by))}) ({series}_timestamp_seconds)"
    return Aggregate(f"node:{name}:seconds", help, expression, by)


LEADERS = Aggregate(
    "cluster:remediation_leaders:count", "Controllers that act", "sum by (cluster) (gpu_remediation_leader)"
)
BREAKER = Aggregate(
    "cluster:remediation_breaker:count",
    "Faults for which the breaker is open",
    "count by (cluster) (max by (cluster, fault) (gpu_remediation_breaker_open) == 1)\n"
    "or 0 * max by (cluster) (gpu_remediation_leader == 1)",
)
BUDGET = Aggregate(
    "pool:remediation_budget:count",
    "Nodes that the controller may still cordon",
    "max by (cluster, pool) (gpu_remediation_budget_remaining)",
    ("pool",),
)
NODES = Aggregate(
    "pool:remediation_nodes:count",
    "Nodes by the reason of the last decision",
    "max by (cluster, pool, reason) (gpu_remediation_nodes)",
    ("pool", "reason"),
)
STATE = _age(
    "remediation_state",
    "Time since the last decision about a node has this reason, unless it is healthy or left alone",
    "gpu_remediation_node_state_since",
    "reason",
)
CORDONED = _age(
    "remediation_cordoned",
    "Time since the controller cordoned the node",
    "gpu_remediation_cordoned_since",
)
DRAINING = _age(
    "remediation_draining",
    "Time since the drain of the node began, until it is drained",
    "gpu_remediation_draining_since",
)
DECISIONS = Aggregate(
    "pool:remediation_decisions:per_15m",
    "Decisions in the last 15 minutes, each counted when it changes",
    "sum by (cluster, pool, verb, reason) (increase(gpu_remediation_decisions_total[15m]))",
    ("pool", "verb", "reason"),
)
EVICTIONS = Aggregate(
    "pool:remediation_evictions:per_15m",
    "Attempts to evict a pod in the last 15 minutes",
    "sum by (cluster, pool, result) (increase(gpu_remediation_evictions_total[15m]))",
    ("pool", "result"),
)
REMEDIATION = (LEADERS, BREAKER, BUDGET, NODES, STATE, CORDONED, DRAINING, DECISIONS, EVICTIONS)
