"""One function per kind of panel, built with grafanalib. Every panel has a unit and a description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from grafanalib import core

from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.causes import COLOURS, SHARES, WORDS
from gpu_exporter.render.boards import Board
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import (
    ABSENT,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    TEAL,
    TO_GPU,
    YELLOW,
    About,
    Step,
    common,
    extra,
    ref,
    steps_of,
    targets,
)
from gpu_exporter.render.dashboards.queries import Query

# Neither green nor orange nor red, which mean good and bad.
HUES = (BLUE, PURPLE, TEAL, YELLOW, GREY)
GPU_COLOURS = (BLUE, PURPLE, TEAL, GREY, "#8ab8ff", "#deb6f2", "#b3b9c5", "#d8d9da")
# The series of one query by their last value. Grafana's own colours would have a meaning: green, orange and red.
BY_VALUE = {"mode": "continuous-BlPu"}
# The values of `queries.verdict`.
VERDICTS = (("unknown", GREY), ("healthy", GREEN), ("degraded", ORANGE), ("unhealthy", RED))


# The values of `queries.limit_of`.
LIMITS = (*((each.name, each.colour) for each in BOTTLENECKS), ("throttled", RED))


def lines(
    title: str,
    about: About,
    queries: Sequence[Query],
    *,
    width: int = 8,
    height: int = 8,
    link: Mapping[str, Any] | None = TO_GPU,
    stacked: bool = False,
    many: bool = True,
    legend: bool = True,
    most: float | None = None,
    overrides: Sequence[Mapping[str, Any]] = (),
    links: Sequence[Mapping[str, Any]] = (),
    limits: Sequence[float] = (),
    empty: str = ABSENT,
) -> Any:
    """Return a graph over time. Queries whose unit differs from that of the first get the right axis.

    With `many` series per query, a table at the right lists them, the highest first; without `legend`, only the tooltip
    names them, and each query has its own hue, unless `overrides` set colours. `limits` are drawn as dashed
    lines, `empty` is shown without data. `most` is where the axis ends if no value is higher: 1 for ratios.
    """
    unit = queries[0].unit
    most = 1 if unit == "percentunit" and not stacked else most
    colour = {} if overrides else {"color": BY_VALUE}
    return core.TimeSeries(
        **common(title, about, width, height),
        targets=targets(queries),
        unit=unit,
        axisSoftMin=0,
        axisSoftMax=most,
        fillOpacity=60 if stacked else 0,
        stacking={"mode": "normal", "group": "A"} if stacked else {"mode": "none", "group": "A"},
        legendDisplayMode="table" if many else "list",
        legendPlacement="right" if many else "bottom",
        legendCalcs=["lastNotNull"] if many else [],
        tooltipMode="multi",
        tooltipSort="desc",
        overrides=[
            *_right_axes([query.unit for query in queries]),
            *(hues(queries) if not overrides and not legend else []),
            *overrides,
        ],
        links=list(links),
        extraJson=extra(
            {**colour, "links": [dict(link)] if link else [], "noValue": empty, **_thresholds(limits)},
            {"legend": _legend(many) if legend else {"showLegend": False}},
        ),
    )


def _thresholds(limits: Sequence[float]) -> dict[str, Any]:
    """Return the part of a graph that draws limits."""
    if not limits:
        return {}
    steps = steps_of([Step(None, "transparent"), *(Step(limit, RED) for limit in limits)])
    return {"thresholds": {"mode": "absolute", "steps": steps}, "custom": {"thresholdsStyle": {"mode": "dashed"}}}


def _legend(many: bool) -> dict[str, Any]:
    return {"showLegend": True, **({"sortBy": "Last *", "sortDesc": True, "width": 220} if many else {})}


def _right_axes(units: Sequence[str]) -> list[dict[str, Any]]:
    """Return overrides that put queries on the right axis if their unit differs from that of the first."""
    ratio = units[0] == "percentunit"
    return [
        {
            "matcher": {"id": "byFrameRefID", "options": ref(place)},
            "properties": [
                {"id": "unit", "value": unit},
                {"id": "custom.axisPlacement", "value": "right"},
                *([{"id": "custom.axisSoftMax"}] if ratio else []),
            ],
        }
        for place, unit in enumerate(units)
        if unit != units[0]
    ]


def dashed(queries: Sequence[Query], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return overrides of `lines` that draw the queries with these names (limits) as dashed red lines."""
    style = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
    colour = {"id": "color", "value": {"mode": "fixed", "fixedColor": RED}}
    return [
        {"matcher": {"id": "byFrameRefID", "options": ref(place)}, "properties": [style, colour]}
        for place, query in enumerate(queries)
        if query.name in names
    ]


def hues(queries: Sequence[Query]) -> list[dict[str, Any]]:
    """Return overrides of `lines` that draw each query in a hue of its own, its series in shades of it.

    Grafana's own order of colours has green for the first series and red for the fifth, whatever they mean.
    """
    return [
        {
            "matcher": {"id": "byFrameRefID", "options": ref(place)},
            "properties": [{"id": "color", "value": {"mode": "shades", "fixedColor": hue}}],
        }
        for place, (_, hue) in enumerate(zip(queries, cycle(HUES), strict=False))
    ]


def gpu_colours() -> list[dict[str, Any]]:
    """Return overrides of `lines` that give the GPUs of a node, and their MIG instances, colours without a meaning."""
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/GPU {number}( .*)?$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": GPU_COLOURS[number % 8]}}],
        }
        for number in range(16)
    ]


def coloured(colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return overrides of `lines` that set the colours of series by name."""
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in colours.items()
    ]


def heatmap(title: str, about: About, query: Query, *, width: int = 12) -> Any:
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
    return core.Heatmap(
        **common(title, about, width, 8), targets=heat, options=options, extraJson=extra({"unit": query.unit})
    )


def number(
    title: str, about: About, query: Query, steps: Sequence[Step] = (), *, width: int = 4, height: int = 4
) -> Any:
    """Return a panel with one current number. With steps, the background shows the severity."""
    return core.Stat(
        **common(title, about, width, height),
        targets=targets([query], instant=True),
        format=query.unit,
        noValue=ABSENT,
        reduceCalc="lastNotNull",
        graphMode="none",
        colorMode="background" if steps else "value",
        color={"mode": "thresholds"} if steps else {"mode": "fixed", "fixedColor": "text"},
        extraJson={"fieldConfig": {"defaults": {"thresholds": {"mode": "absolute", "steps": steps_of(steps)}}}},
    )


def named(title: str, about: About, query: Query, words: Sequence[tuple[str, str]], *, width: int = 4) -> Any:
    """Return a panel with the current state as a word; `words` are the texts and colours of the values 0, 1, …"""
    panel = number(title, about, query, [Step(None, GREY)], width=width)
    mapped = {"mappings": [_words(words)], "thresholds": {"mode": "absolute", "steps": steps_of([Step(None, GREY)])}}
    panel.extraJson = {"fieldConfig": {"defaults": mapped}}
    return panel


def class_timeline(board: Board, width: int = 24, height: int = 8) -> Any:
    """Return the bottleneck class of each GPU over time, in the colours of the classes."""
    meanings = "\n".join(f"- {each.name}: {each.means}" for each in BOTTLENECKS)
    meanings += "\n- throttled: heat or the power supply lowers the clocks"
    about = About(
        f"The bottleneck class of each GPU over time:\n{meanings}",
        "compute-bound; memory-bound when generating tokens.",
        "open the runbook of the alert for this class (communicating: first check for stragglers). For mixed, use a "
        "profiler.",
    )
    return core.StateTimeline(
        **common("Bottleneck", about, width, height),
        targets=targets([q.classes_of(board)]),
        mappings=[_words(LIMITS)],
        colorMode="fixed",
        extraJson=extra({"unit": "short", "links": [TO_GPU]}, _timeline(height)),
    )


def time_shares(title: str, query: Query, *, width: int = 12) -> Any:
    """Return where GPU time goes, stacked by cause; `query` has one series for each cause."""
    meanings = "\n".join(f"- {cause.value}: {WORDS[cause]}" for cause in SHARES)
    return lines(
        title,
        About(
            f"Where the time of the GPUs goes, by cause; the shares add up:\n{meanings}",
            "mostly useful.",
            "follow the largest other share: host and copies: the input and the CPU; peers: stragglers and "
            "communication; underfilled: larger batches; throttled: cooling and power.",
        ),
        [query],
        width=width,
        link=None,
        stacked=True,
        many=False,
        most=1 if query.unit == "percentunit" else None,
        overrides=[
            {**override, "properties": [*override["properties"], {"id": "displayName", "value": WORDS[cause]}]}
            for cause, override in zip(SHARES, coloured({each.value: COLOURS[each] for each in SHARES}), strict=True)
        ],
    )


def states(
    title: str, about: About, query: Query, words: Sequence[tuple[str, str]], *, width: int = 12, height: int = 8
) -> Any:
    """Return a state over time; `words` are the texts and colours of the values 0, 1, …"""
    return core.StateTimeline(
        **common(title, about, width, height),
        targets=targets([query]),
        mappings=[_words(words)],
        colorMode="fixed",
        extraJson=extra({"unit": "short", "links": [TO_GPU]}, _timeline(height)),
    )


def _timeline(height: int) -> dict[str, Any]:
    """Return options for as many rows as fit; the others are on further pages. The legend explains the colours."""
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom"}
    return {"perPage": 3 * height - 8, "rowHeight": 0.85, "showValue": "never", "legend": legend}


def _words(words: Sequence[tuple[str, str]]) -> dict[str, Any]:
    options = {
        str(place): {"text": text, "color": colour, "index": place} for place, (text, colour) in enumerate(words)
    }
    return {"type": "value", "options": options}


def verdict(board: Board, width: int = 4) -> Any:
    """Return the worst verdict on the selected GPUs: `gpu_health_state` as a word."""
    about = About(
        "The worst health verdict on the selected GPUs, from their errors, XIDs and pending repairs.",
        "healthy.",
        "the table of alerts says why and what to do. Degraded: start no new job on the GPU. Unhealthy: act now.",
    )
    return named("Health", about, Query(f"max({q.verdict(board)})", "", "short"), VERDICTS, width=width)


def pair(title: str, about: About, first: Query, second: Query, *, width: int = 4) -> Any:
    """Return a panel with two current numbers, each with its legend."""
    panel = number(title, about, first, width=width)
    panel.targets = targets([first, second], instant=True)
    panel.textMode = "value_and_name"
    panel.orientation = "vertical"
    return panel


def watched(board: Board, width: int = 4, height: int = 4) -> Any:
    """Return the number of selected GPUs with data: it tells "nothing is wrong" from "nothing is collected"."""
    about = About(
        "Selected GPUs with at least one collected metric.",
        "all of your GPUs.",
        "check that Prometheus scrapes the exporter; `gpu-exporter doctor` on the node says why a GPU is not read.",
    )
    expr = f"count(count by (cluster, UUID) ({q.devices(board)}))"
    return number("GPUs monitored", about, Query(expr, "", "short"), width=width, height=height)
