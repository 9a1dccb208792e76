"""The Fleet dashboard. It reads aggregates, alerts, owners and shares, so that it scales with the number of GPUs.

Its panels on what Kubernetes has allocated read kube-state-metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from content.dashboards import queries as q
from content.dashboards import remediation
from content.dashboards.alert_table import grouped, incidents
from content.dashboards.frame import GREEN, ORANGE, RED, About, BoardRow, ColourStep
from content.dashboards.graphs import GraphStyle, Legend, coloured, hues, lines, time_shares
from content.dashboards.panels import HOT, number, number_of_all
from content.dashboards.queries import Query
from content.dashboards.tables import FEW, SHARE_OF_COST, SOME, WASTEFUL, Columns, table
from gpu_exporter.alerting import aggregates as a
from gpu_exporter.alerting import allocation as al
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.boards import FLEET
from gpu_exporter.alerting.incidents import OPEN
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Severity
from gpu_exporter.catalogue.time_shares import LABEL

BOARD = FLEET
LONG = "pending for 30 min"


def panels() -> list[object]:
    """Return the panels on what Kubernetes has allocated, from kube-state-metrics."""
    capacity = _named(
        (al.CLUSTER_ALLOCATED, "allocated"),
        (al.CLUSTER_FREE, "free"),
        (al.CLUSTER_PENDING, "pending"),
        (al.CLUSTER_STARVED, LONG),
    )
    pending, long = _named((al.NAMESPACE_PENDING, "pending"), (al.NAMESPACE_STARVED, LONG))
    return [
        lines(
            "GPUs allocated, free and requested",
            About(
                "GPUs allocated to pods, free GPUs, and GPUs requested by pending pods, by resource name; "
                "some of them for half an hour or longer. From kube-state-metrics.",
                "no pending GPUs while GPUs are free.",
                "pending and free at once: see GpuAllocationFragmented, or pods that are restricted to certain nodes.",
            ),
            capacity,
            GraphStyle(Legend.LIST, overrides=hues(capacity)),
            width=24,
            link=None,
        ),
        table(
            "Node pools",
            About(
                "All, allocated and free GPUs by node pool. GPUs neither allocated nor free are on nodes that "
                "are cordoned or not ready.",
                "few free GPUs and no pending pods.",
                "the node table above shows which nodes; docs/signals.md explains how pools are identified.",
            ),
            _named((al.POOL_ALLOCATABLE, "GPUs"), (al.POOL_ALLOCATED, "allocated"), (al.POOL_FREE, "free")),
            Columns(("cluster", "pool", "resource")),
            sort="free",
        ),
        table(
            "Who waits for GPUs",
            About(
                "GPUs requested by pending pods, and those of them that were requested half an hour ago or earlier.",
                "none, or only for a short time.",
                "`kubectl describe pod` shows why the scheduler finds no node.",
            ),
            [pending, replace(long, expr=f"{long.expr} or 0 * {pending.expr}")],
            Columns(("cluster", "namespace", "resource")),
            sort="pending",
        ),
    ]


def _named(*aggregates: tuple[Aggregate, str]) -> list[Query]:
    """Return one named query per aggregate."""
    return [q.query(BOARD, aggregate, name) for aggregate, name in aggregates]


CRITICAL, WARNING = (f"{each.value} alerts" for each in (Severity.CRITICAL, Severity.WARNING))
# Rows of the grid: the numbers, and up to the end of the first screen below them.
TILES, INCIDENTS, FIRST_SCREEN = 3, 9, 18


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows from general to specific: totals, alerts, owners, nodes, activity, capacity."""
    return [
        BoardRow(
            "Is anything wrong?",
            [
                *_numbers(),
                incidents(BOARD, modes, 24, INCIDENTS),
                _teams(),
                _nodes(),
            ],
        ),
        BoardRow("What are the GPUs doing?", _doing()),
        BoardRow("Which workloads waste GPU time?", _owners()),
        BoardRow("Are GPUs free? (needs kube-state-metrics)", panels(), True),
        remediation.row(),
    ]


def _numbers() -> list[object]:
    return [
        number_of_all(
            About(
                "GPUs that the exporters can read, and all GPUs that Prometheus knows.",
                "both numbers are equal, and the number of all of your GPUs.",
                "GpuLost and GpuExporterDown below name the GPU or node; then check the scrape targets in Prometheus.",
            ),
            f"sum({q.selected(BOARD, a.CLUSTER_UP)})",
            f"sum({q.selected(BOARD, a.CLUSTER_GPUS)})",
            height=TILES,
        ),
        number(
            "Unhealthy GPUs",
            About(
                "GPUs whose health verdict is unhealthy.",
                "0.",
                "the table of nodes shows where; the alerts say what to do.",
            ),
            Query(f"sum({q.selected(BOARD, a.CLUSTER_UNHEALTHY)})", "", "short"),
            [ColourStep(None, GREEN), ColourStep(1, RED)],
            height=TILES,
        ),
        _incidents(Severity.CRITICAL, RED, "act now: the table below shows where, and the runbook of each incident."),
        _incidents(
            Severity.WARNING, ORANGE, "act this week: the table below shows where, and the runbook of each incident."
        ),
        *_misused(),
        number(
            "Wasted per hour",
            About(
                "Cost per hour of GPU time in which GPUs are idle, wait for others, are throttled or only look busy. A "
                "GPU without measurements counts as cost, not as waste.",
                "a small share of the cost of all GPUs.",
                "the table of namespaces shows who wastes it.",
            ),
            Query(f"sum({q.selected(BOARD, a.NAMESPACE_WASTED)})", "", "currencyUSD"),
            height=TILES,
        ),
    ]


def _misused() -> list[object]:
    """Return the numbers of GPUs that are slower than they could be, or not used."""
    none = f"or 0 * sum({q.selected(BOARD, a.CLUSTER_GPUS)})"
    return [
        number(
            "Throttled GPUs",
            About(
                "GPUs whose clocks heat or the power supply lowers, according to alerts.",
                "0.",
                "the table of nodes shows where.",
            ),
            Query(f"{_throttled()} {none}", "", "short"),
            [ColourStep(None, GREEN), ColourStep(1, ORANGE)],
            width=3,
            height=TILES,
        ),
        number(
            "Idle GPUs",
            About(
                "GPUs that someone holds but does not use, according to alerts: idle for two hours, or fake load.",
                "0.",
                "the table of namespaces shows who holds them, and what they cost.",
            ),
            Query(f"sum({q.idle(BOARD)}) {none}", "", "short"),
            [ColourStep(None, GREEN), ColourStep(1, ORANGE)],
            width=3,
            height=TILES,
        ),
    ]


def _incidents(severity: Severity, colour: str, cure: str) -> object:
    """Return the number of rows of a severity in the table; no value, rather than 0, if nothing is collected."""
    found = q.selected(BOARD, OPEN).replace("}", f', severity="{severity.value}"}}')
    return number(
        f"{severity.value.capitalize()} incidents",
        About(
            f"Incidents of severity {severity.value}; alerts that another one explains do not count.",
            "0. Without data no alert can fire; the panel then shows that nothing is collected.",
            cure,
        ),
        Query(f"count({found}) or 0 * sum({q.selected(BOARD, a.CLUSTER_GPUS)})", "", "short"),
        [ColourStep(None, GREEN), ColourStep(1, colour)],
        width=3,
        height=TILES,
    )


def _throttled(*by: str) -> str:
    """Return the number of GPUs about which there is an alert that they are throttled."""
    return f"count by ({', '.join(by)}) (count by (cluster, node, UUID) ({q.throttling(BOARD)}))"


def _teams() -> object:
    cost, gpus, idle = (
        f"sum by (cluster, namespace) ({each})"
        for each in (q.selected(BOARD, a.GPU_COST), q.selected(BOARD, a.GPUS), q.idle(BOARD))
    )
    return table(
        "Namespaces by waste",
        About(
            "What each namespace wastes per hour, also as a share of the cost of its GPUs; how many GPUs it holds but "
            "does not use, according to alerts, and what these cost. Unallocated GPUs have no namespace.",
            "small shares, and no idle GPUs.",
            "click the namespace: the Cost dashboard shows which workloads and GPUs.",
        ),
        [
            q.query(BOARD, a.NAMESPACE_WASTED, "wasted per hour"),
            Query(f"{idle} or 0 * {gpus}", "", "short", "idle GPUs"),
            Query(f"{idle} * {cost} / {gpus} or 0 * {gpus}", "", "currencyUSD", "idle per hour"),
            Query(
                f"{q.selected(BOARD, a.NAMESPACE_WASTED)} / on (cluster, namespace) {cost}",
                "",
                "percentunit",
                SHARE_OF_COST,
            ),
            Query(gpus, "", "short", "GPUs"),
        ],
        Columns(
            ("cluster", "namespace"),
            shares=[SHARE_OF_COST],
            steps={"idle GPUs": FEW, SHARE_OF_COST: WASTEFUL},
        ),
        width=12,
        sort="wasted per hour",
        height=FIRST_SCREEN - INCIDENTS,
    )


def _doing() -> list[object]:
    by_cause = Query(f"sum by ({LABEL}) ({q.selected(BOARD, a.CLUSTER_TIME)})", f"{{{{{LABEL}}}}}", "short")
    return [
        _classes(),
        time_shares("GPUs by what their time is spent on", by_cause),
        _activity(),
        _utilisation(),
        lines(
            "Power",
            About(
                "Power draw of all GPUs.",
                "near the planned power.",
                "a sudden drop of the total is a stall or an outage.",
            ),
            [q.query(BOARD, a.CLUSTER_POWER)],
            GraphStyle(Legend.LIST),
            width=5,
            link=None,
        ),
    ]


def _classes() -> object:
    by_class = f"sum by (class) ({q.selected(BOARD, a.CLASSES)})"
    return lines(
        "GPUs by bottleneck",
        About(
            "Number of GPUs in each bottleneck class, stacked.",
            "most are compute-bound and communicate at times; none is throttled.",
            "open a node with many GPUs in another class to see what limits them.",
        ),
        [Query(by_class, "{{class}}", "short")],
        GraphStyle(
            Legend.LIST,
            stacked=True,
            overrides=coloured({bottleneck.name: bottleneck.colour for bottleneck in BOTTLENECKS}),
        ),
        width=12,
        link=None,
    )


def _utilisation() -> object:
    queries = _named(
        (a.CLUSTER_UTIL, "utilisation"),
        (a.CLUSTER_GR, "engine"),
        (a.CLUSTER_SM, "SM"),
        (a.CLUSTER_TENSOR, "tensor"),
        (a.CLUSTER_DRAM, "memory"),
    )
    return lines(
        "Utilisation and real activity",
        About(
            "Means over all GPUs: utilisation as nvidia-smi shows it, and the activity of the hardware units.",
            "SM activity close to engine activity; tensor activity well above 0 in training.",
            "utilisation far above SM activity: the GPUs wait, or run fake load.",
        ),
        queries,
        GraphStyle(Legend.LIST, overrides=hues(queries)),
        width=8,
        link=None,
    )


def _nodes() -> object:
    throttled = f"{_throttled('cluster', 'node')} or 0 * {q.selected(BOARD, a.NODE_GPUS)}"
    return table(
        "Nodes",
        About(
            "Critical and warning alerts, unhealthy and throttled GPUs, and the highest temperature by node. Missing "
            "columns were not collected.",
            "no alert, no unhealthy and no throttled GPU.",
            "click the first node, or the one that differs.",
        ),
        [
            _affected(Severity.CRITICAL),
            Query(throttled, "", "short", "throttled"),
            _affected(Severity.WARNING),
            q.query(BOARD, a.NODE_UNHEALTHY, "unhealthy"),
            q.query(BOARD, a.NODE_TEMP, "hottest GPU"),
        ],
        Columns(
            ("cluster", "node"),
            steps={
                CRITICAL: SOME,
                WARNING: FEW,
                "unhealthy": SOME,
                "throttled": FEW,
                "hottest GPU": [ColourStep(None, "text"), HOT],
            },
        ),
        width=12,
        sort=(CRITICAL, "throttled", WARNING),
        height=FIRST_SCREEN - INCIDENTS,
    )


def _activity() -> object:
    return table(
        "Activity by node",
        About(
            "GPUs of each node, how many of them are degraded, their mean activity and power.",
            "nodes of one job have similar values.",
            "click the node that differs.",
        ),
        _named(
            (a.NODE_GPUS, "GPUs"),
            (a.NODE_DEGRADED, "degraded"),
            (a.NODE_UTIL, "utilisation"),
            (a.NODE_SM, "SM"),
            (a.NODE_POWER, "power"),
        ),
        Columns(("cluster", "node"), shares=["utilisation", "SM"], steps={"degraded": FEW}),
        width=11,
        sort="degraded",
    )


def _affected(severity: Severity) -> Query:
    """Return the number of firing alerts of a severity on each node, as the table of alerts counts them."""
    alerts = q.having(q.alerts(BOARD, severities=[severity]), "node")
    of_node = f"count by (cluster, node) ({grouped(alerts)})"
    return Query(f"{of_node} or 0 * {q.selected(BOARD, a.NODE_GPUS)}", "", "short", f"{severity.value} alerts")


def _owners() -> list[object]:
    wasters = q.ranked(BOARD, a.NAMESPACE_WASTED)
    idle = f"sum by (cluster, namespace, workload) ({q.idle(BOARD)}) or 0 * {q.selected(BOARD, a.GPUS)}"
    return [
        table(
            "Workloads",
            About(
                "Workloads with GPUs, their cost and their wasted spend, and their idle GPUs according to alerts. "
                "Unallocated GPUs have no owner.",
                "wasted spend is a small share of the cost.",
                "click the workload to see why its ranks wait.",
            ),
            [
                *_named((a.WASTED_COST, "wasted per hour"), (a.GPU_COST, "cost per hour"), (a.GPUS, "GPUs")),
                Query(idle, "", "short", "idle GPUs"),
                *_named((a.WORKLOAD_GR, "engine"), (a.WORKLOAD_SM, "SM")),
            ],
            Columns(("cluster", "namespace", "workload"), shares=["engine", "SM"], steps={"idle GPUs": FEW}),
            width=13,
            sort="wasted per hour",
        ),
        lines(
            "Wasted spend by namespace",
            About(
                f"Cost of wasted GPU time per hour: the {q.RANKS} namespaces that waste most at the end of the time "
                "range, and the sum of the others.",
                "low and falling.",
                "the Cost dashboard shows which workloads and GPUs waste it.",
            ),
            wasters,
            GraphStyle(overrides=hues(wasters)),
            width=11,
            link=None,
        ),
    ]
