"""The row of the Fleet dashboard about the remediation controller, from its own metrics."""

from __future__ import annotations

from content.dashboards import queries as q
from content.dashboards.frame import GREEN, ORANGE, RED, About, BoardRow, ColourStep
from content.dashboards.graphs import GraphStyle, Legend, lines
from content.dashboards.panels import number
from content.dashboards.queries import Query
from content.dashboards.tables import Columns, table
from gpu_exporter.alerting import remediation as r
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.boards import FLEET

BOARD = FLEET


def row() -> BoardRow:
    """Return the row. Without a controller, its panels show that nothing is collected."""
    return BoardRow(
        "Which nodes are out of service? (needs the remediation controller)",
        [*_numbers(), _nodes(), *_pools(), *_actions()],
        True,
    )


def _numbers() -> list[object]:
    return [
        number(
            "Breaker",
            About(
                "Faults that began on many nodes at once. The controller cordons no node for them.",
                "0.",
                "look for a common cause; GpuRemediationBreakerOpen names the fault.",
            ),
            Query(f"sum({q.selected(BOARD, r.BREAKER)})", "", "short"),
            [ColourStep(None, GREEN), ColourStep(1, RED)],
        ),
        number(
            "Controllers that act",
            About(
                "Controllers that hold their Lease.",
                "1 per cluster.",
                "0: nothing is cordoned and nothing returns, see GpuRemediationNotRunning. More: two releases.",
            ),
            Query(f"sum({q.selected(BOARD, r.LEADERS)})", "", "short"),
            [ColourStep(None, RED), ColourStep(1, GREEN)],
        ),
        number(
            "Nodes that may still be cordoned",
            About(
                "The remaining budget of all pools together.",
                "above 0.",
                "the next faulty node has to wait until another one returns: the table says which nodes are out.",
            ),
            Query(f"sum({q.selected(BOARD, r.BUDGET)})", "", "short"),
            [ColourStep(None, ORANGE), ColourStep(1, GREEN)],
        ),
    ]


def _nodes() -> object:
    return table(
        "Nodes under remediation",
        About(
            "Nodes that are not simply healthy: what the controller waits for, for how long, and for how long the node "
            "has been cordoned and its drain has taken.",
            "few nodes, none of them for days.",
            "`kubectl describe node` shows the history; docs/remediation.md explains the reasons.",
        ),
        [q.query(BOARD, r.STATE, "for"), _of_state(r.CORDONED, "cordoned for"), _of_state(r.DRAINING, "draining for")],
        Columns(("cluster", "node", "pool", "reason")),
        width=24,
        sort="cordoned for",
    )


def _of_state(age: Aggregate, name: str) -> Query:
    """Return an age with the label of the row that it belongs to."""
    state = f"0 * {q.selected(BOARD, r.STATE)}"
    return Query(f"{state} + on (cluster, node, pool) group_left () {q.selected(BOARD, age)}", "", "s", name)


def _pools() -> list[object]:
    by_reason = Query(f"sum by (reason) ({q.selected(BOARD, r.NODES)})", "{{reason}}", "short")
    return [
        lines(
            "Nodes by state",
            About(
                "Nodes by the reason of the controller's last decision.",
                "nearly all are healthy.",
                "unknown: no answer of the exporter. budget, breaker_open, outside_window: faulty, still in service.",
            ),
            [by_reason],
            GraphStyle(Legend.LIST),
            width=12,
            link=None,
        ),
        lines(
            "Remaining budget",
            About(
                "Nodes that the controller may still cordon, by pool.",
                "above 0.",
                "repair the nodes that are out of service, or widen the budget of the pool.",
            ),
            [q.query(BOARD, r.BUDGET)],
            GraphStyle(Legend.LIST),
            width=12,
            link=None,
        ),
    ]


def _actions() -> list[object]:
    return [
        lines(
            "Decisions",
            About(
                "Decisions in 15 minutes, each counted when it changes, with their reasons.",
                "none, or a cordon and later a return.",
                "the same decisions again and again: a node that flaps.",
            ),
            [Query(f"sum by (verb, reason) ({q.selected(BOARD, r.DECISIONS)})", "{{verb}}: {{reason}}", "short")],
            width=12,
            link=None,
        ),
        lines(
            "Evictions",
            About(
                "Attempts to evict a pod in 15 minutes, by result.",
                "evicted, or nothing.",
                "disruption_budget: the workload allows no eviction now; forbidden: a right is missing.",
            ),
            [Query(f"sum by (result) ({q.selected(BOARD, r.EVICTIONS)})", "{{result}}", "short")],
            width=12,
            link=None,
        ),
    ]
