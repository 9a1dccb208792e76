"""The Fleet dashboard. It reads aggregates, alerts, owners and shares, so that it scales with the number of GPUs.

Its panels on what Kubernetes has allocated read kube-state-metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from content.dashboards import queries as q
from content.dashboards import remediation
from content.dashboards.alert_table import grouped, incidents
from content.dashboards.frame import DARK_RED, GREEN, ORANGE, RED, YELLOW, About, BoardRow, ColourStep, link_to
from content.dashboards.graphs import GraphStyle, Legend, coloured, hues, lines, time_shares
from content.dashboards.panels import HOT, number, number_of_all, states, wasted
from content.dashboards.queries import Query
from content.dashboards.tables import FEW, SHARE_OF_COST, SOME, WASTEFUL, Columns, table
from gpu_exporter.alerting import aggregates as a
from gpu_exporter.alerting import allocation as al
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.boards import FLEET, NODE
from gpu_exporter.alerting.incidents import ALL, HELD, OPEN, SINCE
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.causes import COLOURS, Cause
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
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


CRITICAL, WARNING = (each.value for each in (Severity.CRITICAL, Severity.WARNING))
# Rows of the grid: the numbers, and up to the end of the first screen below them.
TILES, INCIDENTS, FIRST_SCREEN = 3, 9, 18
# How many nodes the map shows: as many as it has lines for. The counts below are of all nodes.
WORST = 14
# What is wrong with a node: the values 0, 1, … of the map. Of several alerts, the one with the highest value counts.
PROBLEMS = (
    ("no alert", GREEN),
    ("could be faster", "#67cad3"),
    ("hit: ranks wait", ORANGE),
    ("idle or host-bound", COLOURS[Cause.HOST]),
    ("hardware, network", YELLOW),
    ("throttled", COLOURS[Cause.THROTTLED]),
    ("straggler or hang", RED),
    ("lost or unhealthy", DARK_RED),
)
# The place of nodes whose ranks wait for an incident, also one on another node.
WAITS = 2


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows from general to specific: totals, alerts, owners, nodes, activity, capacity."""
    return [
        BoardRow(
            "Is anything wrong?",
            [
                *_numbers(),
                incidents(BOARD, modes, 24, INCIDENTS),
                _map(modes),
                _teams(),
            ],
        ),
        BoardRow("Which nodes differ?", [_nodes(), _problems(modes)]),
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
        wasted(
            BOARD,
            "Cost per hour of GPU time in which GPUs are lost or idle, wait for others, are throttled or only look "
            "busy. Any other GPU without measurements counts as cost, not as waste.",
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
                "GPUs whose clocks heat (GpuThermalThrottling) or the power supply (GpuPowerBrake) lowers, according "
                "to alerts. GPUs at their power limit do not count: that is normal at full load.",
                "0.",
                "the table of incidents says by what, the table of nodes where.",
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
        severity.value.capitalize(),
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


def problem(mode: FailureMode) -> int:
    """Return the place in `PROBLEMS` of an alert of a node."""
    if mode.severity is Severity.CRITICAL:
        return 7
    if mode.severity is Severity.INFO:
        return WAITS if mode.cause is Cause.PEERS else 1
    if mode.cause is Cause.FAULT or mode.domain is Domain.NETWORK:
        return 4
    return {Cause.PEERS: 6, Cause.THROTTLED: 5}.get(mode.cause, 3)


def _places(modes: Sequence[FailureMode], series: str, until: str = "") -> str:
    """Return the place in `PROBLEMS` of alerts, which are series with a selector in braces."""
    names = ["|".join(mode.name for mode in modes if problem(mode) == place) for place in range(len(PROBLEMS))]
    begin = series[:-1]
    return " or ".join(
        f'{place} + 0 * ({begin}, alertname=~"{of_place}"}}{until})' for place, of_place in enumerate(names) if of_place
    )


def _problem_of_nodes(modes: Sequence[FailureMode], *, at_end: bool = False) -> str:
    """Return the place in `PROBLEMS` of the worst alert of each node.

    What lasts until the end begins when its condition held first, as *active since* says: an alert may fire later.
    """
    places = [_places(modes, q.selected(BOARD, ALL))]
    held = q.selected(BOARD, HELD)
    if not at_end:
        lasting = " @ end() <= time()"
        places.append(_places(modes, q.selected(BOARD, SINCE), lasting))
        held = f"({held} or {held}{lasting})"
    places.append(f"{WAITS} + 0 * ({q.selected(BOARD, a.WAITING)} and on (cluster, namespace, workload) {held})")
    places.append(f"0 * {q.selected(BOARD, a.NODE_GPUS)}")
    found = q.having(f"max by (cluster, node) ({' or '.join(places)})", "node")
    return q.at_end(found) if at_end else found


def _map(modes: Sequence[FailureMode]) -> object:
    meanings = "\n".join(f"- {text}" for text, _ in reversed(PROBLEMS))
    worst = f"topk({WORST}, {_problem_of_nodes(modes, at_end=True)})"
    # The first label, by which Prometheus sorts.
    order = f'count_values by (cluster, node) ("Order", {len(PROBLEMS) - 1} - {worst})'
    return states(
        "Nodes over time",
        About(
            f"What is wrong with the {WORST} worst nodes, by their alerts, the worst node first; of several alerts "
            f"the worst counts. Those that last begin where *active since* says.\n{meanings}",
            "no alert.",
            "click the first node. *Nodes by problem* below counts all nodes.",
        ),
        Query(
            f"({_problem_of_nodes(modes)}) * on (cluster, node) group_left (Order) {order}",
            "{{node}}",
            "short",
            interval=q.EVALUATED,
        ),
        PROBLEMS,
        width=13,
        height=FIRST_SCREEN - INCIDENTS,
        link=link_to(NODE, "node"),
        lines=WORST,
    )


def _problems(modes: Sequence[FailureMode]) -> object:
    counts = f'count_values ("problem", {_problem_of_nodes(modes)})'
    overrides = [
        {
            "matcher": {"id": "byName", "options": str(place)},
            "properties": [
                {"id": "displayName", "value": text},
                {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}},
            ],
        }
        for place, (text, colour) in enumerate(PROBLEMS)
    ]
    return lines(
        "Nodes by problem",
        About(
            "All nodes by the worst of their alerts; the map above explains the problems.",
            "no alert.",
            "many nodes at once: see what they have in common, such as a rack, a driver or a job.",
        ),
        [Query(counts, "{{problem}}", "short", interval=q.EVALUATED)],
        GraphStyle(Legend.LIST, stacked=True, overrides=overrides),
        width=8,
        height=9,
        link=None,
    )


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
            q.query(BOARD, a.NAMESPACE_WASTED, "wasted/h"),
            Query(f"{idle} or 0 * {gpus}", "", "short", "idle GPUs"),
            Query(f"{idle} * {cost} / {gpus} or 0 * {gpus}", "", "currencyUSD", "idle/h"),
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
        width=11,
        sort="wasted/h",
        height=FIRST_SCREEN - INCIDENTS,
    )


def _doing() -> list[object]:
    by_cause = Query(f"sum by ({LABEL}) ({q.selected(BOARD, a.CLUSTER_TIME)})", f"{{{{{LABEL}}}}}", "short")
    return [
        _classes(),
        time_shares("GPUs by what their time is spent on", by_cause),
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
            width=12,
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
        width=12,
        link=None,
    )


def _nodes() -> object:
    throttled = f"{_throttled('cluster', 'node')} or 0 * {q.selected(BOARD, a.NODE_GPUS)}"
    return table(
        "Nodes",
        About(
            "Alerts, GPUs by health, the highest temperature, and the mean activity and power of each node. Missing "
            "columns were not collected.",
            "no alert, no unhealthy and no throttled GPU; nodes of one job have similar values.",
            "click the first node, or the one that differs.",
        ),
        [
            _affected(Severity.CRITICAL),
            _affected(Severity.WARNING),
            *_named((a.NODE_UNHEALTHY, "unhealthy"), (a.NODE_DEGRADED, "degraded")),
            Query(throttled, "", "short", "throttled"),
            *_named((a.NODE_TEMP, "hottest GPU"), (a.NODE_SM, "SM"), (a.NODE_POWER, "power")),
        ],
        Columns(
            ("cluster", "node"),
            steps={
                CRITICAL: SOME,
                WARNING: FEW,
                "unhealthy": SOME,
                "degraded": FEW,
                "throttled": FEW,
                "hottest GPU": [ColourStep(None, "text"), HOT],
            },
            shares=["SM"],
        ),
        width=16,
        sort=(CRITICAL, "throttled", WARNING),
        height=9,
    )


def _affected(severity: Severity) -> Query:
    """Return the number of firing alerts of a severity on each node, as the table of alerts counts them."""
    alerts = q.having(q.alerts(BOARD, severities=[severity]), "node")
    of_node = f"count by (cluster, node) ({grouped(alerts)})"
    return Query(f"{of_node} or 0 * {q.selected(BOARD, a.NODE_GPUS)}", "", "short", severity.value)


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
                *_named((a.WASTED_COST, "wasted/h"), (a.GPU_COST, "cost/h"), (a.GPUS, "GPUs")),
                Query(idle, "", "short", "idle GPUs"),
                *_named((a.WORKLOAD_GR, "engine"), (a.WORKLOAD_SM, "SM")),
            ],
            Columns(("cluster", "namespace", "workload"), shares=["engine", "SM"], steps={"idle GPUs": FEW}),
            width=14,
            sort="wasted/h",
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
            width=10,
            link=None,
        ),
    ]
