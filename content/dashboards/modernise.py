"""Convert grafanalib's JSON of 2016 to the current schema: one pass, then a round trip through Grafana's SDK."""

from __future__ import annotations

import json
import warnings
from typing import Any

SCHEMA = 42
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Keys that grafanalib writes but Grafana no longer reads, and maxDataPoints, whose default hides bursts.
OLD = {
    "dashboard": {"__inputs", "gnetId", "hideControls", "id", "rows", "sharedCrosshair", "style", "timepicker"},
    "panel": {
        *("error", "editable", "height", "span", "minSpan", "maxDataPoints", "maxPerRow", "repeatDirection"),
        *("color", "columns", "fontSize", "mappings"),  # of the table before Grafana 7
        *("cards", "dataFormat", "heatmap", "hideZeroBuckets", "highlightCards"),  # of the heatmap before Grafana 9
        *("legend", "reverseYBuckets", "tooltip", "xAxis", "xBucketNumber", "xBucketSize"),
        *("yAxis", "yBucketBound", "yBucketNumber", "yBucketSize"),
    },
    "target": {"intervalFactor", "metric", "query", "step", "target"},
    "variable": {"auto", "auto_count", "auto_min", "tagValuesQuery", "tagsQuery", "useTags"},
}
# Keys with their default, which the SDK writes. Without them, a board of many panels fits into a ConfigMap.
DEFAULTS: dict[str, object] = {
    **dict.fromkeys(("asDropdown", "hideTimeOverride", "includeVars", "keepTime", "transparent"), False),
    **dict.fromkeys(("icon", "tooltip"), ""),
    **{"repeatDirection": "h", "gradientMode": "none", "barAlignment": 0, "mappings": [], "transformations": []},
    # Of graphs.
    **{"axisPlacement": "auto", "drawStyle": "line", "showPoints": "auto"},
    **{"axisLabel": "", "lineInterpolation": "linear", "spanNulls": False, "thresholdsStyle": {"mode": "off"}},
    **{"hideFrom": dict.fromkeys(("legend", "tooltip", "viz"), False)},
    **{"scaleDistribution": {"log": 2, "type": "linear"}},
}
GRID = 24


def modern(board: dict[str, Any]) -> str:
    """Return the text of a dashboard file."""
    board = _without(board, OLD["dashboard"])
    board["schemaVersion"] = SCHEMA
    board["panels"] = _numbered([_panel(panel) for panel in board["panels"]])
    placed(board["panels"], 0)
    variables = [_variable(_without(each, OLD["variable"])) for each in board["templating"]["list"]]
    board["templating"] = {"list": variables}
    board["annotations"] = {"list": [{**each, "datasource": SOURCE} for each in board["annotations"]["list"]]}
    return text_of(_pruned(board))


def text_of(board: dict[str, Any]) -> str:
    """Return the text of a dashboard in the current schema, as Grafana's SDK writes it."""
    encoded = through_sdk(board)
    return json.dumps(_shown(encoded), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _without(found: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in keys}


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    panel = _without(panel, OLD["panel"])
    if panel["type"] == "row":
        return {
            "type": "row",
            "title": panel["title"],
            "collapsed": panel["collapsed"],
            "panels": [_panel(each) for each in panel["panels"]],
            "gridPos": {"h": 1, "w": GRID, "x": 0, "y": 0},
        }
    panel["datasource"] = SOURCE
    panel["targets"] = [
        {**_without(target, _unused(target)), "datasource": SOURCE, "range": not target["instant"]}
        for target in panel["targets"]
    ]
    panel["fieldConfig"]["defaults"].get("custom", {}).pop("displayMode", None)
    if not panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps"):
        panel["fieldConfig"]["defaults"].pop("thresholds", None)
    return panel


def _unused(target: dict[str, Any]) -> set[str]:
    """Return the keys of a query that Grafana does not need: old ones, and those with their default."""
    return OLD["target"] | {key for key in ("hide", "interval") if not target[key]}


def _variable(variable: dict[str, Any]) -> dict[str, Any]:
    variable["current"].pop("tags", None)
    if variable["type"] != "query":
        return variable
    every = {"selected": True, "text": ["All"], "value": ["$__all"]}
    # Without a current value, Grafana selects the first one.
    current = every if variable["includeAll"] else {}
    return {**variable, "datasource": SOURCE, "definition": variable["query"], "current": current}


def _shown(value: Any) -> Any:
    """Drop defaults, and the placement that the SDK adds to links and annotations: it hides them in new versions."""
    match value:
        case dict():
            return {
                key: _shown(each)
                for key, each in value.items()
                if each != "inControlsMenu" and (key not in DEFAULTS or each != DEFAULTS[key])
            }
        case list():
            return [_shown(each) for each in value]
    return value


def _pruned(value: Any) -> Any:
    """Drop nulls, except that of a threshold's first step, which has no lower bound."""
    match value:
        case dict():
            kept = {key: _pruned(each) for key, each in value.items() if each is not None}
            return {**kept, "value": None} if set(value) == {"color", "value"} and value["value"] is None else kept
        case list():
            return [_pruned(each) for each in value]
    return value


def _numbered(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number, panel in enumerate((each for top in panels for each in (top, *top.get("panels", ()))), 1):
        panel["id"] = number
    return panels


def placed(panels: list[dict[str, Any]], y: int) -> None:
    """Place panels where the highest free place for their width is, from line `y` on, the leftmost of several.

    The panels of a collapsed row take no space until it opens.
    """
    ends = [y] * GRID
    for panel in panels:
        width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
        top, x = min((max(ends[x : x + width]), x) for x in range(GRID - width + 1))
        panel["gridPos"] = {"h": height, "w": width, "x": x, "y": top}
        placed(panel.get("panels", []), top + height)
        ends[x : x + width] = [top + height] * width


def through_sdk(board: dict[str, Any]) -> dict[str, Any]:
    """Decode and encode the dashboard with Grafana's SDK, which drops unknown keys and normalises the rest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it recommends v2, which provisioning rejects
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard

        register_default_plugins()
        found: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board)))
    return found
