"""Panels in grafanalib's terms. Every panel has a unit, a description, and a text for what is not collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, NamedTuple

from grafanalib import core

from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.render.boards import COST, DOCS, GPU, JOB, NODE, Board, runbook
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.queries import Query

ABSENT = "not collected"
RED, ORANGE, GREEN, BLUE = "#e02f44", "#ff9830", "#73bf69", "#5794f2"
SEVERITY_COLOURS = {Severity.CRITICAL: RED, Severity.WARNING: ORANGE, Severity.INFO: BLUE}
# Of the labels of an alert, those that a table of alerts shows, in this order.
ALERT_COLUMNS = ("severity", "alertname", "action", "runbook", "cluster", "node", "gpu", "namespace", "workload")


class About(NamedTuple):
    """A description: what is shown, what good looks like, what to do if it does not."""

    what: str
    good: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}\n\n**Good:** {self.good}\n\n**Else:** {self.cure}"


class Step(NamedTuple):
    """A colour from a value on."""

    value: float | None
    colour: str


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title; those of a collapsed row are asked for when it is opened."""

    title: str
    panels: Sequence[Any]
    collapsed: bool = False


def to(board: Board, *labels: str, table: bool = False) -> dict[str, Any]:
    """A link to the board with what was clicked on chosen; its labels are columns in a table."""
    of = "__data.fields" if table else "__field.labels"
    values = {label: f"${{{of}.{label}}}" for label in labels}
    return {"title": f"{board.title}", "url": f"{board.link(**values)}&${{__url_time_range}}", "targetBlank": False}


TO_GPU = to(GPU, "node", "gpu")
GPU_COLUMNS = {"gpu": to(GPU, "node", "gpu", table=True)}
LINKED_COLUMNS = {
    **GPU_COLUMNS,
    "node": to(NODE, "node", table=True),
    "workload": to(JOB, "namespace", "workload", table=True),
    "namespace": to(COST, "namespace", table=True),
    "runbook": {"title": "Runbook", "url": f"{DOCS}/${{__data.fields.runbook}}.md", "targetBlank": True},
}


def _targets(queries: Sequence[Query], *, instant: bool = False, table: bool = False) -> list[Any]:
    return [
        core.Target(
            expr=each.expr,
            legendFormat=each.legend,
            refId=_ref(place),
            instant=instant,
            format=core.TABLE_TARGET_FORMAT if table else core.TIME_SERIES_TARGET_FORMAT,
        )
        for place, each in enumerate(queries)
    ]


def _ref(place: int) -> str:
    return (ascii_uppercase[place // 26 - 1] if place >= 26 else "") + ascii_uppercase[place % 26]


def _common(title: str, about: About, width: int, height: int) -> dict[str, Any]:
    return {"title": title, "description": str(about), "gridPos": core.GridPos(h=height, w=width, x=0, y=0)}


def _extra(more: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"fieldConfig": {"defaults": {"noValue": ABSENT, **more}}, "options": dict(options or {})}


def _steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [{"value": step.value, "color": step.colour} for step in steps]


def lines(
    title: str,
    about: About,
    queries: Sequence[Query],
    *,
    width: int = 8,
    link: Mapping[str, Any] | None = TO_GPU,
    stacked: bool = False,
    colours: Mapping[str, str] | None = None,
    dashed: Sequence[str] = (),
    links: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """Lines over time; queries with another unit than the first get an axis of their own. `dashed` are limits."""
    units = [each.unit for each in queries]
    overrides: list[dict[str, Any]] = [
        {
            "matcher": {"id": "byFrameRefID", "options": _ref(place)},
            "properties": [
                {"id": "unit", "value": unit},
                {"id": "custom.axisPlacement", "value": "right"},
                *([{"id": "custom.axisSoftMax"}] if units[0] == "percentunit" else []),
            ],
        }
        for place, unit in enumerate(units)
        if unit != units[0]
    ]
    for place, each in enumerate(queries):
        if each.name in dashed:
            style = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
            overrides.append({"matcher": {"id": "byFrameRefID", "options": _ref(place)}, "properties": [style]})
    for name, colour in (colours or {}).items():
        value = {"mode": "fixed", "fixedColor": colour}
        overrides.append(
            {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "color", "value": value}]}
        )
    return core.TimeSeries(
        **_common(title, about, width, 8),
        targets=_targets(queries),
        unit=units[0],
        axisSoftMin=0,
        axisSoftMax=1 if units[0] == "percentunit" and not stacked else None,
        fillOpacity=60 if stacked else 0,
        stacking={"mode": "normal", "group": "A"} if stacked else {"mode": "none", "group": "A"},
        legendDisplayMode="table",
        legendCalcs=["mean", "max", "lastNotNull"],
        tooltipMode="multi",
        tooltipSort="desc",
        overrides=overrides,
        links=list(links),
        extraJson=_extra({"links": [dict(link)] if link else []}, {"legend": {"showLegend": True}}),
    )


def heatmap(title: str, about: About, query: Query, *, width: int = 12) -> Any:
    """The buckets of a histogram over time. The unit is that of what was observed; a cell is observations a second."""
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
        "cellGap": 1,
        "filterValues": {"le": 1e-9},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True},
        "yAxis": {"unit": query.unit, "axisPlacement": "left"},
    }
    targets = _targets([query])
    for target in targets:
        target.format = "heatmap"
    return core.Heatmap(
        **_common(title, about, width, 8), targets=targets, options=options, extraJson=_extra({"unit": query.unit})
    )


def number(title: str, about: About, query: Query, steps: Sequence[Step] = (), *, width: int = 4) -> Any:
    """One number, now. With steps its background says what it means."""
    return core.Stat(
        **_common(title, about, width, 4),
        targets=_targets([query], instant=True),
        format=query.unit,
        noValue=ABSENT,
        reduceCalc="lastNotNull",
        graphMode="none",
        colorMode="background" if steps else "value",
        color={"mode": "thresholds"} if steps else {"mode": "fixed", "fixedColor": "text"},
        extraJson={"fieldConfig": {"defaults": {"thresholds": {"mode": "absolute", "steps": _steps(steps)}}}},
    )


def class_timeline(board: Board, width: int = 24) -> Any:
    """What limited each device, over time, in the colours of the classes."""
    options = {
        str(place): {"text": each.name, "color": each.colour, "index": place} for place, each in enumerate(BOTTLENECKS)
    }
    meanings = "\n".join(f"- {each.name}: {each.means}" for each in BOTTLENECKS)
    about = About(
        f"What limits each GPU, one class at a time:\n{meanings}",
        "compute-bound, or memory-bound where tokens are generated.",
        "open the alert of the same name below; its runbook says what to change.",
    )
    return core.StateTimeline(
        **_common("What limits it", about, width, 8),
        targets=_targets([q.class_of(board)]),
        mappings=[{"type": "value", "options": options}],
        colorMode="fixed",
        extraJson=_extra({"unit": "short", "links": [TO_GPU]}),
    )


def states(title: str, about: About, query: Query, words: Sequence[tuple[str, str]], *, width: int = 12) -> Any:
    """A state over time; `words` are text and colour of 0, 1, …"""
    options = {
        str(place): {"text": text, "color": colour, "index": place} for place, (text, colour) in enumerate(words)
    }
    return core.StateTimeline(
        **_common(title, about, width, 8),
        targets=_targets([query]),
        mappings=[{"type": "value", "options": options}],
        colorMode="fixed",
        extraJson=_extra({"unit": "short", "links": [TO_GPU]}),
    )


def table(title: str, about: About, queries: Sequence[Query], columns: Sequence[str], *, width: int = 12) -> Any:
    """One row a node or workload: the `columns` that name it, then one for each query. What lacks has no column."""
    values = {f"Value #{_ref(place)}" if len(queries) > 1 else "Value": each for place, each in enumerate(queries)}
    overrides = [
        {"matcher": {"id": "byName", "options": each.name}, "properties": [{"id": "unit", "value": each.unit}]}
        for each in queries
    ]
    return _table(
        title,
        about,
        _targets(queries, instant=True, table=True),
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
    """The alerts that fire, each with a link to what it is about and to its runbook."""
    modes = [mode for mode in all_modes if mode.domain in domains]
    what = ", ".join(domain.value for domain in domains)
    about = About(
        f"Alerts that fire ({what}).",
        'empty, and "GPUs watched" shows all of them: without data nothing can fire.',
        "critical ones come first: follow the links in a row to the GPU, and to the runbook that says what to do.",
    )
    colours = {
        severity.value: {"color": colour, "index": place}
        for place, (severity, colour) in enumerate(SEVERITY_COLOURS.items())
    }
    properties = [
        {"id": "mappings", "value": [{"type": "value", "options": colours}]},
        {"id": "custom.cellOptions", "value": {"type": "color-text"}},
    ]
    overrides = [{"matcher": {"id": "byName", "options": "severity"}, "properties": properties}]
    expr = q.with_runbooks(q.alerts(board, domains), modes)
    return _table(
        f"Firing alerts: {what}",
        about,
        _targets([Query(expr, "", "short")], instant=True, table=True),
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
        "nothing fires",
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
    targets: Sequence[Any],
    width: int,
    overrides: Sequence[Any],
    transformations: Sequence[Any],
    unit: str,
    empty: str = ABSENT,
) -> Any:
    return core.Table(
        **_common(title, about, width, 8),
        targets=list(targets),
        overrides=list(overrides),
        transformations=list(transformations),
        extraJson=_extra({"unit": unit, "noValue": empty}),
    )


# Of alerts that are about no GPU, what tells two of them apart.
LEGENDS = {"attribution": "{{instance}} {{source}}", "kube-state-metrics": "{{namespace}} {{resource}}"}


def evidence(board: Board, mode: FailureMode) -> Any:
    """A failure mode: what its condition reads, or whether its alert fires if only a fleet's Prometheus can know."""
    queries = [q.query(board, signal, signal.name) for signal in mode.needs]
    if not queries:
        name = f'alertname="{mode.name}"'
        expr = q.alerts(board, [mode.domain], [mode.severity]).replace("{", f"{{{name}, ", 1)
        queries = [Query(expr, LEGENDS.get(mode.requires, "{{instance}}"), "short")]
    about = About(
        f"{mode.name} ({mode.severity.value}): what its condition reads. {mode.meaning}".rstrip(),
        "the alert does not fire." if mode.needs else "empty: the alert does not fire.",
        mode.advice,
    )
    return lines(
        mode.name,
        about,
        queries,
        width=12,
        link=TO_GPU if mode.needs else None,
        links=[{"title": "Runbook", "url": runbook(mode), "targetBlank": True}],
    )


def evidence_rows(board: Board, modes: Sequence[FailureMode]) -> list[Row]:
    """One collapsed row a domain of the board, with a panel for each of its modes."""
    return [
        Row(
            f"Why an alert fires: {domain.value}",
            [evidence(board, mode) for mode in modes if mode.domain is domain],
            True,
        )
        for domain in board.shows
    ]


def watched(board: Board, width: int = 4) -> Any:
    """How many GPUs are chosen and known: what tells "nothing is wrong" from "nothing is collected"."""
    about = About(
        "GPUs that are chosen and of which anything is collected.",
        "as many as you have.",
        "is the exporter scraped? `gpu-exporter doctor` on the node says why a GPU is not read.",
    )
    expr = f"count(count by (cluster, UUID) ({q.devices(board)}))"
    return number("GPUs watched", about, Query(expr, "", "short"), width=width)
