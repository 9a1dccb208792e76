"""Fleet: is anything wrong, and who wastes? Reads aggregates and alerts only, however many GPUs there are."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.render.boards import FLEET
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import GREEN, ORANGE, RED, About, BoardRow, Step
from gpu_exporter.render.dashboards.panels import coloured, lines, number
from gpu_exporter.render.dashboards.queries import Query
from gpu_exporter.render.dashboards.tables import firing, table
from gpu_exporter.render.rules import aggregates as a
from gpu_exporter.render.rules import allocation as al
from gpu_exporter.render.rules.aggregates import Aggregate

BOARD = FLEET


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """General to specific: numbers, alerts, what the GPUs do, who has them."""
    return [
        BoardRow("Is anything wrong?", [*_numbers(), firing(BOARD, modes, list(Domain), 24)]),
        BoardRow("What do the GPUs do?", _doing()),
        BoardRow("Who wastes?", _owners()),
        BoardRow("Is there room?", _room()),
    ]


def _numbers() -> list[object]:
    gpus = q.of(BOARD, a.CLUSTER_GPUS)
    return [
        number(
            "GPUs watched",
            About(
                "GPUs of which anything is collected.",
                "as many as you have.",
                "look at GpuExporterDown below, then at what Prometheus scrapes.",
            ),
            Query(f"sum({gpus})", "", "short"),
        ),
        number(
            "Nodes watched",
            About("Nodes with such GPUs.", "as many as you have.", "is the exporter on every node, and scraped?"),
            Query(f"count({q.of(BOARD, a.NODE_GPUS)})", "", "short"),
        ),
        *(
            number(
                f"Firing: {severity.value}",
                About(
                    f"Alerts of severity {severity.value} that fire.",
                    "0. Without data nothing can fire: then it says that nothing is collected.",
                    cure,
                ),
                Query(f"count({q.alerts(BOARD, severities=[severity])}) or 0 * sum({gpus})", "", "short"),
                [Step(None, GREEN), Step(1, colour)],
            )
            for severity, colour, cure in (
                (Severity.CRITICAL, RED, "the table below has each with its GPU and its runbook: now."),
                (Severity.WARNING, ORANGE, "the table below has each with its GPU and its runbook: this week."),
            )
        ),
        number(
            "Power",
            About("Power of all GPUs.", "near what is planned.", "a fall of all at once is a stall or an outage."),
            Query(f"sum({q.of(BOARD, a.CLUSTER_POWER)})", "", "watt"),
        ),
        number(
            "Paid for nothing",
            About(
                "Price of the time in which engines stand still, and of fake load, by the hour.",
                "a small share of the price of all GPUs.",
                "the table at the end names the workloads.",
            ),
            Query(f"sum({q.of(BOARD, a.NAMESPACE_WASTED)})", "", "currencyUSD"),
        ),
    ]


def _doing() -> list[object]:
    return [_classes(), _utilisation(), _nodes()]


def _classes() -> object:
    by_class = f"sum by (class) ({q.of(BOARD, a.CLASSES)})"
    return lines(
        "GPUs by what limits them",
        About(
            "How many GPUs are of each class.",
            "most are compute-bound, communicating at times.",
            "open a node with many of the same class; its GPUs say why.",
        ),
        [Query(by_class, "{{class}}", "short")],
        width=12,
        link=None,
        stacked=True,
        overrides=coloured({bottleneck.name: bottleneck.colour for bottleneck in BOTTLENECKS}),
    )


def _utilisation() -> object:
    return lines(
        "Busy, or only looks busy",
        About(
            "Means over all GPUs: utilisation as nvidia-smi shows it, and what the chip really does.",
            "SM activity close to engine activity, tensor pipes well above 0 for training.",
            "a gap between utilisation and SM activity is waiting or fake load.",
        ),
        _named(
            (a.CLUSTER_UTIL, "utilisation"),
            (a.CLUSTER_GR, "engine"),
            (a.CLUSTER_SM, "SM"),
            (a.CLUSTER_TENSOR, "tensor"),
            (a.CLUSTER_DRAM, "memory"),
        ),
        width=12,
        link=None,
    )


def _nodes() -> object:
    return table(
        "Nodes",
        About(
            "Each node: its GPUs, means over them, power, the hottest. A column that lacks was not collected.",
            "nodes of one job look alike.",
            "click on the node that differs.",
        ),
        _named(
            (a.NODE_GPUS, "GPUs"),
            (a.NODE_UTIL, "utilisation"),
            (a.NODE_GR, "engine"),
            (a.NODE_SM, "SM"),
            (a.NODE_TENSOR, "tensor"),
            (a.NODE_DRAM, "memory"),
            (a.NODE_POWER, "power"),
            (a.NODE_TEMP, "hottest"),
        ),
        ("cluster", "node"),
        width=24,
    )


def _named(*aggregates: tuple[Aggregate, str]) -> list[Query]:
    """A query for each aggregate, under a name."""
    return [q.query(BOARD, aggregate, name) for aggregate, name in aggregates]


def _owners() -> list[object]:
    return [
        table(
            "Workloads",
            About(
                "Who has GPUs, what they cost, what of it is paid for nothing. GPUs of no one have no name.",
                "the last column is small against the one before.",
                "click on the workload: its ranks say why it waits.",
            ),
            [
                q.query(BOARD, each, name)
                for each, name in (
                    (a.GPUS, "GPUs"),
                    (a.WORKLOAD_GR, "engine"),
                    (a.WORKLOAD_SM, "SM"),
                    (a.GPU_COST, "cost per hour"),
                    (a.WASTED_COST, "paid for nothing per hour"),
                )
            ],
            ("cluster", "namespace", "workload"),
        ),
        lines(
            "Paid for nothing by namespace",
            About(
                "Price of idle time and fake load by the hour.",
                "low and falling.",
                "the dashboard of costs says which workloads and GPUs.",
            ),
            [q.query(BOARD, a.NAMESPACE_WASTED)],
            width=12,
            link=None,
            stacked=True,
        ),
    ]


def _room() -> list[object]:
    """What Kubernetes has allocated, from kube-state-metrics."""
    return [
        lines(
            "Allocated, free, waited for",
            About(
                "GPUs that pods have, that are free, and that pods without a node wait for; each kind for itself. "
                "From kube-state-metrics.",
                "nothing is waited for while something is free.",
                "both at once: GpuAllocationFragmented, or pods that may use some nodes only.",
            ),
            _named(
                (al.CLUSTER_ALLOCATED, "allocated"),
                (al.CLUSTER_FREE, "free"),
                (al.CLUSTER_PENDING, "pending"),
                (al.CLUSTER_STARVED, "starved"),
            ),
            width=24,
            link=None,
        ),
        table(
            "Node pools",
            About(
                "GPUs that pods could have, have, and could have now, by pool of nodes. What is neither allocated nor "
                "free is on nodes that are cordoned or not ready.",
                "little is free, and nobody waits.",
                "the node table above says which nodes; signals.md says how pools are distinguished.",
            ),
            _named((al.POOL_ALLOCATABLE, "GPUs"), (al.POOL_ALLOCATED, "allocated"), (al.POOL_FREE, "free")),
            ("cluster", "pool", "resource"),
        ),
        table(
            "Who waits",
            About(
                "GPUs that pods without a node wait for; starved: for half an hour or longer.",
                "nobody, or not for long.",
                "kubectl describe the pod: the scheduler says what each node lacks.",
            ),
            _named((al.NAMESPACE_PENDING, "pending"), (al.NAMESPACE_STARVED, "starved")),
            ("cluster", "namespace", "resource"),
        ),
    ]
