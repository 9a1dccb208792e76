"""Graphs over time, and the overrides that colour their series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import cycle
from typing import Any

from content.dashboards import grafana
from content.dashboards.frame import (
    ABSENT,
    BLUE,
    COMMUNICATES,
    GREY,
    PURPLE,
    RED,
    TEAL,
    TO_GPU,
    YELLOW,
    About,
    ColourStep,
    common,
    extra,
    ref,
    steps_of,
    targets,
)
from content.dashboards.queries import Query
from gpu_exporter.catalogue.causes import COLOURS, SHARES, WORDS, Cause

# Neither green nor orange nor red, which mean good and bad.
HUES = (BLUE, PURPLE, TEAL, YELLOW, GREY)
GPU_COLOURS = (BLUE, PURPLE, TEAL, GREY, "#8ab8ff", "#deb6f2", "#b3b9c5", "#d8d9da")
# The series of one query by their last value. Grafana's own colours would have a meaning: green, orange and red.
BY_VALUE = {"mode": "continuous-BlPu"}


# The causes of `WORDS` as dashboards name them: a GPU that waits for its host without end is idle, and a rank that
# moves data also waits at times. In a job that hangs all time is waiting, also that of the rank that holds it up.
CAUSES = {
    **WORDS,
    Cause.NO_PROCESS: "idle: no process",
    Cause.HOST: "idle: waiting for the host",
    Cause.THROTTLED: "working, but throttled",
    Cause.PEERS: COMMUNICATES,
}
# The widths of legends that are tables, in pixels: for names of GPUs, and for names of GPUs with those of signals.
NAMES, WIDE_NAMES = 220, 300


class Legend(Enum):
    """How a graph names its series."""

    TABLE = "table"  # at the right, the highest first: for many series per query
    LIST = "list"  # at the bottom
    NONE = "none"  # only in the tooltip; each query has its own hue, unless overrides set colours


@dataclass(frozen=True, slots=True)
class GraphStyle:
    """How a graph looks.

    `most` is where the axis ends if no value is higher; for ratios that are not stacked, it is 1. `limits` are drawn as
    dashed lines, `empty` is shown without data. `axis` is the text beside the left axis, `names` the width of a legend
    that is a table, in pixels. `words` are the texts of the values 0, 1, … of queries, by their places.
    """

    legend: Legend = Legend.TABLE
    stacked: bool = False
    most: float | None = None
    overrides: Sequence[Mapping[str, Any]] = ()
    limits: Sequence[float] = ()
    empty: str = ABSENT
    axis: str = ""
    names: int = NAMES
    words: Mapping[int, Sequence[str]] = field(default_factory=dict)


PLAIN = GraphStyle()
# What a legend shows, by Grafana's names; and the transformation that gives all series the same times.
CALCS = {"last": "Last", "max": "Max"}
ALIGNED = {"id": "joinByField", "options": {"byField": "Time", "mode": "outer"}}
# The legends of a band.
BAND = ("lowest", "highest")


def lines(
    title: str,
    about: About,
    queries: Sequence[Query],
    style: GraphStyle = PLAIN,
    *,
    width: int = 8,
    height: int = 8,
    link: Mapping[str, Any] | None = TO_GPU,
    links: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """Return a graph over time. Queries whose unit differs from that of the first get the right axis.

    `link` is that of each series, `links` are those of the panel.
    """
    unit = queries[0].unit
    own_hues = hues(queries) if not style.overrides and style.legend is Legend.NONE else []
    colour = {} if style.overrides else {"color": BY_VALUE}
    right = _right_axes([query.unit for query in queries], style)
    calc = _calc([*right, *style.overrides])
    return grafana.TimeSeriesPanel(
        **common(title, about, width, height),
        **_legend_arguments(style.legend, calc),
        targets=targets(queries),
        transformations=[ALIGNED] if calc == "last" and style.legend is Legend.TABLE else [],
        unit=unit,
        axisSoftMin=0,
        axisSoftMax=1 if unit == "percentunit" and not style.stacked else style.most,
        fillOpacity=60 if style.stacked else 0,
        stacking={"mode": "normal" if style.stacked else "none", "group": "A"},
        tooltipMode="multi",
        tooltipSort="desc",
        overrides=[
            *right,
            *own_hues,
            *style.overrides,
            *_axis(style),
        ],
        links=list(links),
        extraJson=extra(
            {**colour, "links": [dict(link)] if link else [], "noValue": style.empty, **_thresholds(style.limits)},
            {"legend": _legend(style, calc)},
        ),
    )


def _calc(overrides: Sequence[Mapping[str, Any]]) -> str:
    """Return what a legend shows of each series.

    The last value of the time range, which a series that has ended does not have: this needs series with the same
    times, for which Grafana loses the names of queries. If overrides need these, it is the highest value.
    """
    return "max" if any(each["matcher"]["id"] == "byFrameRefID" for each in overrides) else "last"


def _legend_arguments(legend: Legend, calc: str) -> dict[str, Any]:
    """Return the arguments of grafanalib for a legend."""
    if legend is Legend.LIST:
        return {"legendDisplayMode": "list", "legendPlacement": "bottom", "legendCalcs": []}
    return {"legendDisplayMode": "table", "legendPlacement": "right", "legendCalcs": [calc]}


def _legend(style: GraphStyle, calc: str) -> dict[str, Any]:
    """Return the part of a legend that grafanalib has no arguments for."""
    if style.legend is Legend.NONE:
        return {"showLegend": False}
    by = CALCS[calc]
    highest = {"sortBy": by, "sortDesc": True, "width": style.names} if style.legend is Legend.TABLE else {}
    return {"showLegend": True, **highest}


def _thresholds(limits: Sequence[float]) -> dict[str, Any]:
    """Return the part of a graph that draws limits."""
    if not limits:
        return {}
    steps = steps_of([ColourStep(None, "transparent"), *(ColourStep(limit, RED) for limit in limits)])
    return {"thresholds": {"mode": "absolute", "steps": steps}, "custom": {"thresholdsStyle": {"mode": "dashed"}}}


def _right_axes(units: Sequence[str], style: GraphStyle) -> list[dict[str, Any]]:
    """Return overrides that put queries on the right axis if their unit differs from that of the first.

    The limits and the range of the left axis are not theirs: in another unit they would be wrong.
    """
    bounded = units[0] == "percentunit" or style.most is not None
    return [
        {
            "matcher": {"id": "byFrameRefID", "options": ref(place)},
            "properties": [
                {"id": "unit", "value": unit},
                {"id": "custom.axisPlacement", "value": "right"},
                *([{"id": "custom.axisSoftMax"}] if bounded else []),
                *([{"id": "custom.thresholdsStyle", "value": {"mode": "off"}}] if style.limits else []),
            ],
        }
        for place, unit in enumerate(units)
        if unit != units[0]
    ]


def _axis(style: GraphStyle) -> list[dict[str, Any]]:
    """Return overrides that name the left axis, and that show values as words."""
    # As a default, the name would be that of the axis of time, too.
    named = {"matcher": {"id": "byType", "options": "number"}}
    label = {**named, "properties": [{"id": "custom.axisLabel", "value": style.axis}]}
    words = [
        {
            "matcher": {"id": "byFrameRefID", "options": ref(place)},
            "properties": [{"id": "mappings", "value": [{"type": "value", "options": _options(texts)}]}],
        }
        for place, texts in style.words.items()
    ]
    return [label, *words] if style.axis else words


def _options(texts: Sequence[str]) -> dict[str, Any]:
    return {str(value): {"text": text, "index": value} for value, text in enumerate(texts) if text}


def dashed(queries: Sequence[Query], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return overrides that draw the queries with these names (limits) as dashed red lines."""
    style = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
    colour = {"id": "color", "value": {"mode": "fixed", "fixedColor": RED}}
    return [
        {"matcher": {"id": "byFrameRefID", "options": ref(place)}, "properties": [style, colour]}
        for place, query in enumerate(queries)
        if query.name in names
    ]


def band(lower: int, upper: int, name: str, colour: str) -> list[dict[str, Any]]:
    """Return overrides that fill the area between two queries, by their places; `name` is the lower one's legend."""
    thin = [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}, {"id": "custom.lineWidth", "value": 0}]
    filled = [{"id": "custom.fillBelowTo", "value": name}, {"id": "custom.fillOpacity", "value": 25}]
    return [
        {"matcher": {"id": "byFrameRefID", "options": ref(place)}, "properties": properties}
        for place, properties in ((lower, thin), (upper, [*thin, *filled]))
    ]


def banded(colour: str) -> list[dict[str, Any]]:
    """Return overrides for ranks: the culprits in a colour, then the median, the lowest and the highest as a band."""
    properties = [
        [{"id": "color", "value": {"mode": "shades", "fixedColor": colour}}, {"id": "custom.lineWidth", "value": 2}],
        [{"id": "color", "value": {"mode": "fixed", "fixedColor": TEAL}}],
    ]
    drawn = [
        {"matcher": {"id": "byFrameRefID", "options": ref(place)}, "properties": each}
        for place, each in enumerate(properties)
    ]
    return [*drawn, *band(2, 3, BAND[0], TEAL)]


def hues(queries: Sequence[Query]) -> list[dict[str, Any]]:
    """Return overrides that draw each query in a hue of its own, its series in shades of it.

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
    """Return overrides that give the GPUs of a node, and their MIG instances, colours without a meaning."""
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/GPU {number}( .*)?$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": GPU_COLOURS[number % 8]}}],
        }
        for number in range(16)
    ]


def coloured(colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return overrides that set the colours of series by name."""
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in colours.items()
    ]


def time_shares(title: str, query: Query, *, width: int = 12, height: int = 8) -> Any:
    """Return where GPU time goes, stacked by cause; `query` has one series for each cause."""
    meanings = "\n".join(f"- {cause.value}: {CAUSES[cause]}" for cause in SHARES)
    colours = coloured({cause.value: COLOURS[cause] for cause in SHARES})
    overrides = [
        {**override, "properties": [*override["properties"], {"id": "displayName", "value": CAUSES[cause]}]}
        for cause, override in zip(SHARES, colours, strict=True)
    ]
    return lines(
        title,
        About(
            f"Where the time of the GPUs goes, by cause; the shares add up:\n{meanings}",
            "mostly useful.",
            "follow the largest other share: host and copies: the input and the CPU; peers: stragglers and "
            "communication; underfilled: larger batches; throttled: cooling and power.",
        ),
        [query],
        GraphStyle(Legend.LIST, stacked=True, most=1 if query.unit == "percentunit" else None, overrides=overrides),
        width=width,
        height=height,
        link=None,
    )
