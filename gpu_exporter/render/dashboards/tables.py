"""Tables of nodes, workloads and alerts. Cells link to the dashboard or the runbook of what they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafanalib import core

from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.render.boards import COST, GPU, JOB, NODE, RUNBOOKS, Board
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import ABSENT, BLUE, ORANGE, RED, About, common, extra, ref, targets, to
from gpu_exporter.render.dashboards.queries import Query

SEVERITY_COLOURS = {Severity.CRITICAL: RED, Severity.WARNING: ORANGE, Severity.INFO: BLUE}
# The labels of an alert that a table of alerts shows, in this order.
ALERT_COLUMNS = ("severity", "alertname", "action", "runbook", "cluster", "node", "gpu", "namespace", "workload")
GPU_COLUMNS = {"gpu": to(GPU, "node", "gpu", table=True)}
LINKED_COLUMNS = {
    **GPU_COLUMNS,
    "node": to(NODE, "node", table=True),
    "workload": to(JOB, "namespace", "workload", table=True),
    "namespace": to(COST, "namespace", table=True),
    "runbook": {"title": "Runbook", "url": f"{RUNBOOKS.link()}?viewPanel=${{__value.raw}}", "targetBlank": True},
}


def table(title: str, about: About, queries: Sequence[Query], columns: Sequence[str], *, width: int = 12) -> Any:
    """Return a table with one row per node or workload: the `columns` that name it, then one column per query."""
    values = {f"Value #{ref(place)}" if len(queries) > 1 else "Value": each for place, each in enumerate(queries)}
    overrides = [
        {"matcher": {"id": "byName", "options": each.name}, "properties": [{"id": "unit", "value": each.unit}]}
        for each in queries
    ]
    return _table(
        title,
        about,
        queries,
        width,
        [*overrides, *_column_links(columns)],
        [
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {
                    "includeByName": {name: True for name in (*columns, *values)},
                    "indexByName": {name: place for place, name in enumerate((*columns, *values))},
                    "renameByName": {field: each.name for field, each in values.items()},
                },
            },
        ],
        queries[0].unit,
    )


def firing(board: Board, all_modes: Sequence[FailureMode], domains: Sequence[Domain], width: int = 12) -> Any:
    """Return a table of the firing alerts, with links to the affected GPU and to the runbook."""
    modes = [mode for mode in all_modes if mode.domain in domains]
    what = ", ".join(domain.value for domain in domains)
    about = About(
        f"Firing alerts ({what}).",
        'empty, while "GPUs monitored" shows all GPUs: without data no alert can fire.',
        "critical alerts come first; each row links to the GPU and to the runbook that says what to do.",
    )
    colours = {
        severity.value: {"color": colour, "index": place}
        for place, (severity, colour) in enumerate(SEVERITY_COLOURS.items())
    }
    properties = [
        {"id": "mappings", "value": [{"type": "value", "options": colours}]},
        {"id": "custom.cellOptions", "value": {"type": "color-text"}},
    ]
    # The value of this column is the number of a panel.
    opened = [
        {"id": "mappings", "value": [{"type": "regex", "options": {"pattern": ".+", "result": {"text": "open"}}}]}
    ]
    overrides = [
        {"matcher": {"id": "byName", "options": "severity"}, "properties": properties},
        {"matcher": {"id": "byName", "options": "runbook"}, "properties": opened},
    ]
    expr = q.with_runbooks(q.alerts(board, domains), modes)
    return _table(
        f"Firing alerts: {what}",
        about,
        [Query(expr, "", "short")],
        width,
        [*overrides, *_column_links(ALERT_COLUMNS)],
        [
            {
                "id": "organize",
                "options": {
                    "includeByName": {name: True for name in ALERT_COLUMNS},
                    "indexByName": {name: place for place, name in enumerate(ALERT_COLUMNS)},
                },
            },
            {"id": "sortBy", "options": {"sort": [{"field": "severity"}]}},
        ],
        "short",
        "no firing alerts",
    )


def _column_links(columns: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "links", "value": [LINKED_COLUMNS[name]]}],
        }
        for name in columns
        if name in LINKED_COLUMNS
    ]


def _table(
    title: str,
    about: About,
    queries: Sequence[Query],
    width: int,
    overrides: Sequence[Any],
    transformations: Sequence[Any],
    unit: str,
    empty: str = ABSENT,
) -> Any:
    return core.Table(
        **common(title, about, width, 8),
        targets=targets(queries, instant=True, table=True),
        overrides=list(overrides),
        transformations=list(transformations),
        extraJson=extra({"unit": unit, "noValue": empty}),
    )
