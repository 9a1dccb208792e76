"""The Fleet dashboard. It reads aggregates, alerts and owners, so that it scales with the number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.catalogue.time_shares import LABEL
from gpu_exporter.render.boards import FLEET
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards import remediation
from gpu_exporter.render.dashboards.frame import GREEN, ORANGE, RED, About, BoardRow, Step
from gpu_exporter.render.dashboards.graphs import Legend, Style, coloured, hues, lines, time_shares
from gpu_exporter.render.dashboards.panels import number, pair
from gpu_exporter.render.dashboards.queries import Query
from gpu_exporter.render.dashboards.tables import Columns, firing, grouped, table
from gpu_exporter.render.rules import aggregates as a
from gpu_exporter.render.rules import allocation as al
from gpu_exporter.render.rules.aggregates import Aggregate

BOARD = FLEET
LONG = "pending for 30 min"
SOME, FEW = ([Step(None, "text"), Step(1, colour)] for colour in (RED, ORANGE))


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows from general to specific: totals, alerts, owners, nodes, activity, capacity."""
    return [
        BoardRow(
            "Is anything wrong?", [*_numbers(), firing(BOARD, modes, list(Domain), 24, height=13), _teams(), _nodes()]
        ),
        BoardRow("What are the GPUs doing?", _doing()),
        BoardRow("Which workloads waste GPU time?", _owners()),
        BoardRow("Are GPUs free? (needs kube-state-metrics)", _room(), True),
        remediation.row(),
    ]


def _numbers() -> list[object]:
    gpus = q.of(BOARD, a.CLUSTER_GPUS)
    return [
        pair(
            "GPUs",
            About(
                "GPUs that the exporters can read, and all GPUs that Prometheus knows.",
                "both numbers are equal, and the number of all of your GPUs.",
                "GpuLost and GpuExporterDown below name the GPU or node; then check the scrape targets in Prometheus.",
            ),
            Query(f"sum({q.of(BOARD, a.CLUSTER_UP)})", "reachable", "short"),
            Query(f"sum({gpus})", "monitored", "short"),
        ),
        number(
            "Unhealthy GPUs",
            About(
                "GPUs whose health verdict is unhealthy.",
                "0.",
                "the table of nodes shows where; the alerts say what to do.",
            ),
            Query(f"sum({q.of(BOARD, a.CLUSTER_UNHEALTHY)})", "", "short"),
            [Step(None, GREEN), Step(1, RED)],
        ),
        _alerts(Severity.CRITICAL, RED, "act now: the table below shows where, and the runbook of each alert."),
        _alerts(Severity.WARNING, ORANGE, "act this week: the table below shows where, and the runbook of each alert."),
        number(
            "Power",
            About(
                "Power draw of all GPUs.",
                "near the planned power.",
                "a sudden drop of the total is a stall or an outage.",
            ),
            Query(f"sum({q.of(BOARD, a.CLUSTER_POWER)})", "", "watt"),
        ),
        number(
            "Wasted per hour",
            About(
                "Cost per hour of idle GPU time and fake load.",
                "a small share of the cost of all GPUs.",
                "the table of namespaces below shows who wastes it.",
            ),
            Query(f"sum({q.of(BOARD, a.NAMESPACE_WASTED)})", "", "currencyUSD"),
        ),
    ]


def _alerts(severity: Severity, colour: str, cure: str) -> object:
    """Return the number of rows of a severity in the table; no value, rather than 0, if nothing is collected."""
    found = q.alerts(BOARD, severities=[severity])
    return number(
        f"Firing alerts: {severity.value}",
        About(
            f"Firing alerts of severity {severity.value}; one about several GPUs of a node counts once.",
            "0. Without data no alert can fire; the panel then shows that nothing is collected.",
            cure,
        ),
        Query(f"count({grouped(found)}) or 0 * sum({q.of(BOARD, a.CLUSTER_GPUS)})", "", "short"),
        [Step(None, GREEN), Step(1, colour)],
    )


def _teams() -> object:
    of_namespace = "sum by (cluster, namespace) ({})"
    return table(
        "Namespaces by waste",
        About(
            "GPUs of each namespace, and the cost per hour of its idle GPU time and fake load. "
            "Unallocated GPUs have no namespace.",
            "the waste is a small share of the cost.",
            "click the namespace: the Cost dashboard shows which workloads and GPUs.",
        ),
        [
            q.query(BOARD, a.NAMESPACE_WASTED, "wasted per hour"),
            Query(of_namespace.format(q.of(BOARD, a.GPU_COST)), "", "currencyUSD", "cost per hour"),
            Query(of_namespace.format(q.of(BOARD, a.GPUS)), "", "short", "GPUs"),
        ],
        Columns(("cluster", "namespace"), gauges=["wasted per hour"]),
        width=9,
        sort="wasted per hour",
        height=10,
    )


def _doing() -> list[object]:
    by_cause = Query(f"sum by ({LABEL}) ({q.of(BOARD, a.CLUSTER_TIME)})", f"{{{{{LABEL}}}}}", "short")
    return [_classes(), time_shares("GPUs by what their time is spent on", by_cause), _utilisation()]


def _classes() -> object:
    by_class = f"sum by (class) ({q.of(BOARD, a.CLASSES)})"
    return lines(
        "GPUs by bottleneck",
        About(
            "Number of GPUs in each bottleneck class.",
            "most are compute-bound and communicate at times.",
            "open a node with many GPUs in another class to see what limits them.",
        ),
        [Query(by_class, "{{class}}", "short")],
        Style(
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
        Style(Legend.LIST, overrides=hues(queries)),
        width=24,
        link=None,
    )


def _nodes() -> object:
    return table(
        "Nodes",
        About(
            "Critical and warning alerts, unhealthy and degraded GPUs, mean activity and "
            "highest temperature by node. Missing columns were not collected.",
            "no alert and no unhealthy GPU; nodes of one job have similar values.",
            "click the first node, or the one that differs.",
        ),
        [
            *map(_affected, (Severity.CRITICAL, Severity.WARNING)),
            *_named(
                (a.NODE_UNHEALTHY, "unhealthy"),
                (a.NODE_DEGRADED, "degraded"),
                (a.NODE_GPUS, "GPUs"),
                (a.NODE_UTIL, "utilisation"),
                (a.NODE_SM, "SM"),
                (a.NODE_TEMP, "hottest"),
            ),
        ],
        Columns(
            ("cluster", "node"),
            gauges=["utilisation", "SM"],
            steps={"critical": SOME, "warning": FEW, "unhealthy": SOME, "degraded": FEW},
        ),
        width=15,
        sort=(Severity.CRITICAL.value, Severity.WARNING.value),
        height=10,
    )


def _affected(severity: Severity) -> Query:
    """Return the number of firing alerts of a severity on each node, as the table of alerts counts them."""
    alerts = q.having(q.alerts(BOARD, severities=[severity]), "node")
    of_node = f"count by (cluster, node) ({grouped(alerts)})"
    return Query(f"{of_node} or 0 * {q.of(BOARD, a.NODE_GPUS)}", "", "short", severity.value)


def _named(*aggregates: tuple[Aggregate, str]) -> list[Query]:
    """Return one named query per aggregate."""
    return [q.query(BOARD, aggregate, name) for aggregate, name in aggregates]


def _owners() -> list[object]:
    wasters = q.ranked(BOARD, a.NAMESPACE_WASTED)
    return [
        table(
            "Workloads",
            About(
                "Workloads with GPUs, their cost and their wasted spend. Unallocated GPUs have no owner.",
                "wasted spend is a small share of the cost.",
                "click the workload to see why its ranks wait.",
            ),
            _named(
                (a.WASTED_COST, "wasted per hour"),
                (a.GPU_COST, "cost per hour"),
                (a.GPUS, "GPUs"),
                (a.WORKLOAD_GR, "engine"),
                (a.WORKLOAD_SM, "SM"),
            ),
            Columns(("cluster", "namespace", "workload"), gauges=["wasted per hour", "engine", "SM"]),
            sort="wasted per hour",
        ),
        lines(
            "Wasted spend by namespace",
            About(
                f"Cost of idle time and fake load per hour: the {q.RANKS} namespaces that waste most at the end of the "
                "time range, and the sum of the others.",
                "low and falling.",
                "the Cost dashboard shows which workloads and GPUs waste it.",
            ),
            wasters,
            Style(overrides=hues(wasters)),
            width=12,
            link=None,
        ),
    ]


def _room() -> list[object]:
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
            Style(Legend.LIST, overrides=hues(capacity)),
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
