"""Parts shared by all panels: descriptions, colours, links, queries, and the text for missing data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, NamedTuple

from grafanalib import core

from content.dashboards import grafana
from content.dashboards.queries import Query
from gpu_exporter.alerting.boards import GPU, NODE, Board

ABSENT = "not collected"
# By which the dashboards find each other.
TAG = "gpu-observability"
# What a rank does that is in a collective: counters cannot always tell one from the other.
COMMUNICATES = "communicating or waiting"
# Red is a culprit or critical, orange a victim, degraded or a warning, green good, grey unknown. The others have no
# meaning.
RED, ORANGE, YELLOW, GREEN = "#e02f44", "#d87600", "#fade2a", "#73bf69"
# A red for areas; text in it would be hard to read.
DARK_RED = "#7a0016"
BLUE, PURPLE, TEAL, GREY = "#5794f2", "#b877d9", "#4fb3bf", "#8e8e8e"


class About(NamedTuple):
    """A description: what the panel shows, what is good, and what to do otherwise."""

    what: str
    good: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}\n\n**Good:** {self.good}\n\n**Otherwise:** {self.cure}"


class ColourStep(NamedTuple):
    """A threshold: the colour from this value upwards."""

    value: float | None
    colour: str


@dataclass(frozen=True, slots=True)
class BoardRow:
    """Panels under a title. Grafana queries the panels of a collapsed row when it is opened."""

    title: str
    panels: Sequence[Any]
    collapsed: bool = False


# Dashboards of one node, whose exporter is the variable `instance`.
OF_A_NODE = (NODE, GPU)
LIVE_PAGE = "http://${instance}/"


def dashboard(board: Board, panels: Sequence[Any], variables: Sequence[Any], annotations: Sequence[Any]) -> Any:
    """Return a dashboard with a menu of the others."""
    menu = core.DashboardLink(title="GPU dashboards", tags=[TAG], asDropdown=True, includeVars=True, keepTime=True)
    return grafana.Dashboard(
        title=board.title,
        description=board.description,
        uid=board.uid,
        tags=[TAG],
        editable=False,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        timezone="browser",
        refresh="1m",
        time=core.Time("now-3h", "now"),
        version=1,
        panels=list(panels),
        templating=core.Templating(list=list(variables)),
        annotations=core.Annotations(list=list(annotations)),
        links=[menu, *live_page(board)],
    )


def live_page(board: Board) -> Sequence[core.DashboardLink]:
    """Return the link to the live page of the node that a dashboard is about, if it is about one."""
    if board not in OF_A_NODE:
        return ()
    return (core.DashboardLink(title="Live page", type="link", uri=LIVE_PAGE, keepTime=False, targetBlank=True),)


def link_to(board: Board, *labels: str, table: bool = False) -> dict[str, Any]:
    """Return a link to the dashboard that sets its variables from the labels of the clicked series or table row.

    The cluster is the chosen one: series of a single cluster may lack the label.
    """
    of = "__data.fields" if table else "__field.labels"
    values = {label: f"${{{of}.{label}}}" for label in labels}
    url = f"{board.link(**values)}&${{cluster:queryparam}}&${{__url_time_range}}"
    return {"title": f"{board.title}", "url": url, "targetBlank": False}


TO_GPU = link_to(GPU, "node", "gpu")


def targets(queries: Sequence[Query], *, instant: bool = False, table: bool = False) -> list[Any]:
    """Return the queries as grafanalib's targets."""
    return [
        grafana.Target(
            expr=each.expr,
            legendFormat=each.legend,
            refId=ref(place),
            instant=instant,
            interval=each.interval,
            format=core.TABLE_TARGET_FORMAT if table else core.TIME_SERIES_TARGET_FORMAT,
        )
        for place, each in enumerate(queries)
    ]


def ref(place: int) -> str:
    """Return the name of a query within its panel: A, B, … AA."""
    return (ascii_uppercase[place // 26 - 1] if place >= 26 else "") + ascii_uppercase[place % 26]


def common(title: str, about: About, width: int, height: int) -> dict[str, Any]:
    """Return the arguments that every panel takes."""
    return {"title": title, "description": str(about), "gridPos": core.GridPos(h=height, w=width, x=0, y=0)}


def extra(more: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON that grafanalib has no arguments for."""
    return {"fieldConfig": {"defaults": {"noValue": ABSENT, **more}}, "options": dict(options or {})}


def steps_of(steps: Sequence[ColourStep]) -> list[dict[str, Any]]:
    """Return thresholds as Grafana writes them."""
    return [{"value": step.value, "color": step.colour} for step in steps]
