"""Panels other than graphs and tables, one function per kind. Every panel has a unit and a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from content.dashboards import grafana, queries
from content.dashboards import queries as q
from content.dashboards.frame import (
    ABSENT,
    DARK_RED,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TO_GPU,
    About,
    ColourStep,
    common,
    extra,
    ref,
    steps_of,
    targets,
)
from content.dashboards.queries import Query
from gpu_exporter.alerting.aggregates import WASTED_COST
from gpu_exporter.alerting.boards import Board
from gpu_exporter.alerting.incidents import UNEXPLAINED_COST
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS

# Grafana fits a text to the width, but forgets the space between its letters: the end, or a second line, is cut off.
NO_BREAK = "\N{NO-BREAK SPACE}"


def fitted(text: str) -> str:
    """Return a text that a panel with a number shows on one line."""
    return text.replace(" ", NO_BREAK) + 2 * NO_BREAK


MISSING = fitted(ABSENT)
# Ends the legend of a number of GPUs that is not that of all.
FEWER = ", not all"
# What waste is named, and a column with it, that no incident explains.
NO_INCIDENT = "unexplained"
# Rows of the grid that a panel with a number has.
TILE = 4
# A fixed limit, because a threshold of Grafana cannot be the slowdown temperature of each GPU.
HOT = ColourStep(85, ORANGE)
# The values of `queries.verdict`.
VERDICTS = (("unknown", GREY), ("healthy", GREEN), ("degraded", ORANGE), ("unhealthy", RED))
# The values of `queries.classes_of`.
LIMITS = (
    *((each.name, each.colour) for each in BOTTLENECKS),
    ("does not answer", DARK_RED),
)


def heatmap(title: str, about: About, query: Query) -> Any:
    """Return a heatmap of a histogram's buckets. The unit is that of the observed value; a cell is a share of time."""
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
        "cellGap": 1,
        "cellValues": {"unit": "percentunit"},
        "filterValues": {"le": 1e-9},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True},
        "yAxis": {"unit": query.unit, "axisPlacement": "left"},
    }
    heat = targets([query])
    for target in heat:
        target.format = "heatmap"
    return grafana.HeatmapPanel(
        **common(title, about, 12, 8), targets=heat, options=options, extraJson=extra({"unit": query.unit})
    )


def number(
    title: str,
    about: About,
    query: Query,
    steps: Sequence[ColourStep] = (),
    *,
    width: int = 4,
    height: int = TILE,
    alarm: ColourStep | None = None,
) -> Any:
    """Return a panel with one current number, or that the GPU does not answer (`queries.NO_ANSWER`).

    With steps, the background shows the severity: grey without a value. From `alarm` upwards, the number itself is
    coloured.
    """
    shown = [ColourStep(None, GREY), *(step._replace(value=step.value or 0) for step in steps)] if steps else []
    if alarm:
        shown = [ColourStep(None, "text"), alarm]
    defaults: dict[str, Any] = {"thresholds": {"mode": "absolute", "steps": steps_of(shown)}}
    if f"- {-q.NO_ANSWER}" in query.expr:
        lost = {str(q.NO_ANSWER): {"text": f"lost{2 * NO_BREAK}", "color": RED, "index": 0}}
        defaults["mappings"] = [{"type": "value", "options": lost}]
    return grafana.StatPanel(
        **common(title, about, width, height),
        targets=targets([query], instant=True),
        format=query.unit,
        noValue=MISSING,
        reduceCalc="lastNotNull",
        graphMode="none",
        colorMode="background" if steps else "value",
        color={"mode": "thresholds"} if shown else {"mode": "fixed", "fixedColor": "text"},
        extraJson={"fieldConfig": {"defaults": defaults}},
    )


def named(
    title: str, about: About, query: Query, words: Sequence[tuple[str, str]], *, width: int = 4, height: int = TILE
) -> Any:
    """Return a panel with the current state as a word; `words` are the texts and colours of the values 0, 1, …"""
    panel = number(title, about, query, [ColourStep(None, GREY)], width=width, height=height)
    fitted = [(text + 2 * NO_BREAK, colour) for text, colour in words]
    mapped = {
        "mappings": [_words(fitted)],
        "thresholds": {"mode": "absolute", "steps": steps_of([ColourStep(None, GREY)])},
    }
    panel.extraJson = {"fieldConfig": {"defaults": mapped}}
    return panel


def class_timeline(board: Board, width: int = 24, height: int = 8, of_ranks: Query | None = None) -> Any:
    """Return the bottleneck class of each GPU over time, in the colours of the classes.

    `of_ranks` is that of the ranks of a job.
    """
    meanings = "\n".join(f"- {each.name}: {each.means}" for each in BOTTLENECKS)
    meanings += "\n- does not answer: see GpuLost"
    each_of = "rank (its number, if known, comes first)" if of_ranks else "GPU"
    about = About(
        f"The bottleneck class of each {each_of} over time:\n{meanings}",
        "compute-bound; memory-bound when generating tokens.",
        "open the runbook of the alert for this class (communicating: first check for stragglers). For mixed, use a "
        "profiler.",
    )
    return grafana.StateTimelinePanel(
        **common("Bottleneck by rank" if of_ranks else "Bottleneck", about, width, height),
        targets=targets([of_ranks or queries.classes_of(board)]),
        mappings=[_words(LIMITS)],
        colorMode="fixed",
        extraJson=extra({"unit": "short", "links": [TO_GPU]}, _timeline(3 * height - 8)),
    )


def states(
    title: str,
    about: About,
    query: Query,
    words: Sequence[tuple[str, str]],
    *,
    width: int = 12,
    height: int = 8,
    link: Mapping[str, Any] = TO_GPU,
    lines: int | None = None,
) -> Any:
    """Return a state over time; `words` are the texts and colours of the values 0, 1, …, `lines` the rows that fit."""
    return grafana.StateTimelinePanel(
        **common(title, about, width, height),
        targets=targets([query]),
        mappings=[_words(words)],
        colorMode="fixed",
        extraJson=extra({"unit": "short", "links": [dict(link)]}, _timeline(lines or 3 * height - 8)),
    )


def _timeline(lines: int) -> dict[str, Any]:
    """Return options for this many rows; the others are on further pages.

    The legend explains the colours; words in the stretches help those who cannot tell them apart.
    """
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom"}
    return {"perPage": lines, "rowHeight": 0.85, "showValue": "auto", "legend": legend}


def _words(words: Sequence[tuple[str, str]]) -> dict[str, Any]:
    options = {
        str(place): {"text": text, "color": colour, "index": place} for place, (text, colour) in enumerate(words)
    }
    return {"type": "value", "options": options}


def verdict(board: Board, width: int = 4, height: int = TILE) -> Any:
    """Return the worst verdict on the selected GPUs: `gpu_health_state` as a word."""
    about = About(
        "The worst health verdict on the selected GPUs, from their errors, XIDs and pending repairs.",
        "healthy.",
        "the table of alerts says why and what to do. Degraded: start no new job on the GPU. Unhealthy: act now.",
    )
    return named("Health", about, Query(f"max({q.verdict(board)})", "", "short"), VERDICTS, width=width, height=height)


def numbers(
    title: str,
    about: About,
    *queries: Query,
    width: int = 4,
    height: int = TILE,
    colours: Sequence[str] = (),
) -> Any:
    """Return a panel with two or more current numbers, each with its legend; their queries have no labels.

    With `colours`, the background of a number is green at zero, and above in its colour; grey without a value.
    """
    if not colours and not any("{" in each.legend for each in queries):
        # One query, because the first screen of a dashboard may not have many.
        named = (f'label_replace({each.expr}, "number", "{each.legend}", "", "")' for each in queries)
        queries = (replace(queries[0], expr=" or ".join(named), legend="{{number}}"),)
    panel = number(title, about, queries[0], [ColourStep(None, GREEN)] if colours else [], width=width, height=height)
    panel.targets = targets(queries, instant=True)
    panel.textMode = "value_and_name"
    if height < TILE:
        panel.extraJson = {**panel.extraJson, "options": {"text": {"titleSize": 12}}}
    panel.orientation = "vertical"
    panel.overrides = [
        {
            "matcher": {"id": "byFrameRefID", "options": ref(place)},
            "properties": [{"id": "thresholds", "value": {"mode": "absolute", "steps": steps_of(steps)}}],
        }
        for place, colour in enumerate(colours)
        for steps in [[ColourStep(None, GREY), ColourStep(0, GREEN), ColourStep(1, colour)]]
    ]
    return panel


def wasted(board: Board, about: str, *, width: int = 4, height: int = TILE) -> Any:
    """Return what the selected GPUs waste per hour, and how much of that no incident in the table explains.

    `about` says what waste is.
    """
    return numbers(
        "Wasted per hour",
        About(
            f"{about} *{NO_INCIDENT}*: the part that no incident in the table explains, such as the gaps between the "
            "kernels of a program. The costs of incidents add up to the rest.",
            "a small share of the cost of all GPUs.",
            "the table of incidents says what to do about the largest; the bottleneck of each GPU shows the rest.",
        ),
        Query(f"sum({q.selected(board, WASTED_COST)})", "total", "currencyUSD"),
        Query(f"sum({q.selected(board, UNEXPLAINED_COST)})", NO_INCIDENT, "currencyUSD"),
        width=width,
        height=height,
    )


def watched(board: Board, width: int = 4, height: int = TILE) -> Any:
    """Return the number of selected GPUs with data: it tells "nothing is wrong" from "nothing is collected"."""
    about = About(
        "Selected GPUs with at least one collected metric.",
        "all of your GPUs.",
        "check that Prometheus scrapes the exporter; `gpu-exporter doctor` on the node says why a GPU is not read.",
    )
    return number("GPUs monitored", about, Query(_monitored(board), "", "short"), width=width, height=height)


def _monitored(board: Board) -> str:
    return f"count(count by (cluster, UUID) ({q.devices(board)}))"


def reachable(board: Board, height: int = TILE) -> Any:
    """Return how many of the selected GPUs the exporters can read."""
    about = About(
        "Selected GPUs that the exporter can read, and all that Prometheus knows.",
        "both numbers are equal, and the number of all of these GPUs.",
        "see GpuLost in the table of alerts; `gpu-exporter doctor` on the node says why a GPU is not read.",
    )
    up = f"count(count by (cluster, UUID) ({q.devices(board)} unless on (cluster, UUID) {q.lost(board)}))"
    return number_of_all(about, up, _monitored(board), height=height)


def number_of_all(about: About, up: str, gpus: str, *, height: int = TILE) -> Any:
    """Return the number of GPUs that can be read, red if it is not that of all GPUs, and this."""
    known = f"({up} or 0 * {gpus})"
    fewer = f'label_replace({known} < {gpus}, "fewer", "{FEWER}", "", "")'
    panel = numbers(
        "Reachable GPUs",
        about,
        Query(f"{fewer} or {known} >= {gpus}", "reachable{{fewer}}", "short"),
        Query(gpus, "monitored", "short"),
        height=height,
    )
    red = [{"id": "displayName", "value": "reachable"}, {"id": "color", "value": {"mode": "fixed", "fixedColor": RED}}]
    panel.overrides = [{"matcher": {"id": "byName", "options": f"reachable{FEWER}"}, "properties": red}]
    # Two numbers that fill a high panel would seem to be what matters most.
    size = {"valueSize": 48} if height > TILE else {}
    panel.extraJson = {**panel.extraJson, "options": {"text": {"titleSize": 12, **size}}}
    return panel
