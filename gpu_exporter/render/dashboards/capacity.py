"""Panels of the Fleet dashboard on what Kubernetes has allocated, from kube-state-metrics."""

from __future__ import annotations

from dataclasses import replace

from gpu_exporter.render.boards import FLEET
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import About
from gpu_exporter.render.dashboards.graphs import Legend, Style, hues, lines
from gpu_exporter.render.dashboards.queries import Query
from gpu_exporter.render.dashboards.tables import Columns, table
from gpu_exporter.render.rules import allocation as al
from gpu_exporter.render.rules.aggregates import Aggregate

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


def _named(*aggregates: tuple[Aggregate, str]) -> list[Query]:
    """Return one named query per aggregate."""
    return [q.query(BOARD, aggregate, name) for aggregate, name in aggregates]
