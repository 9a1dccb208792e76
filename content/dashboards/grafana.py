"""grafanalib's classes in today's schema: without the keys that only Grafana before version 9 reads, or defaults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

SCHEMA = 42
GRID = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# What a panel has. Not maxDataPoints, for which grafanalib has a default that hides bursts.
KEYS = {
    *("id", "type", "title", "description", "gridPos", "collapsed", "datasource", "targets", "links", "timeFrom"),
    *("timeShift", "interval", "repeat", "transformations", "fieldConfig", "options"),
}


class Target(core.Target):
    """A query of Prometheus."""

    def to_json_data(self) -> dict[str, Any]:
        """Return the query."""
        query = {"refId": self.refId, "expr": self.expr, "format": self.format, "legendFormat": self.legendFormat}
        interval = {"interval": self.interval} if self.interval else {}
        return {**query, **interval, "datasource": SOURCE, "instant": self.instant, "range": not self.instant}


class Panel(core.Panel):
    """What all panels have in common, before grafanalib's class of their type."""

    def panel_json(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return the panel with what its type writes."""
        written = super().panel_json(own)
        fields = written["fieldConfig"]["defaults"]
        if not fields["thresholds"]["steps"]:
            del fields["thresholds"]
        if written["targets"]:
            written["datasource"] = SOURCE
        else:
            del written["fieldConfig"]
        return {key: written[key] for key in KEYS if written.get(key) not in (None, [])}


class RowPanel(Panel, core.RowPanel):
    """A row, which has its panels if it is collapsed."""

    def to_json_data(self) -> dict[str, Any]:
        """Return the row."""
        return {**super().to_json_data(), "panels": self.panels}


class TextPanel(Panel, core.Text):
    """A text."""


class HeatmapPanel(Panel, core.Heatmap):
    """A heatmap."""


class StateTimelinePanel(Panel, core.StateTimeline):
    """States over time."""


class TimeSeriesPanel(Panel, core.TimeSeries):
    """A graph."""

    def to_json_data(self) -> dict[str, Any]:
        """Return the panel."""
        most = {} if self.axisSoftMax is None else {"axisSoftMax": self.axisSoftMax}
        drawn = {"lineWidth": self.lineWidth, "fillOpacity": self.fillOpacity, "pointSize": self.pointSize}
        custom = {**drawn, "stacking": self.stacking, "axisSoftMin": self.axisSoftMin, **most}
        fields = {"color": {"mode": self.colorMode}, "custom": custom, "unit": self.unit}
        legend = {"displayMode": self.legendDisplayMode, "placement": self.legendPlacement, "calcs": self.legendCalcs}
        tooltip = {"mode": self.tooltipMode, "sort": self.tooltipSort}
        return self.panel_json(
            {
                "type": "timeseries",
                "fieldConfig": {"defaults": fields, "overrides": self.overrides},
                "options": {"legend": legend, "tooltip": tooltip},
            }
        )


class StatPanel(Panel, core.Stat):
    """Numbers."""

    def to_json_data(self) -> dict[str, Any]:
        """Return the panel."""
        fields = {"color": self.color, "unit": self.format, "noValue": self.noValue}
        looks = {"textMode": self.textMode, "colorMode": self.colorMode, "graphMode": self.graphMode}
        value = {"calcs": [self.reduceCalc], "fields": self.fields, "values": False}
        return self.panel_json(
            {
                "type": "stat",
                "fieldConfig": {"defaults": fields, "overrides": self.overrides},
                "options": {**looks, "orientation": self.orientation, "reduceOptions": value},
            }
        )


class TablePanel(Panel, core.Table):
    """A table."""

    def to_json_data(self) -> dict[str, Any]:
        """Return the panel."""
        return self.panel_json(
            {
                "type": "table",
                "fieldConfig": {"defaults": {"unit": self.unit}, "overrides": self.overrides},
                "options": {"showHeader": self.showHeader},
            }
        )


class Template(core.Template):
    """A variable."""

    def to_json_data(self) -> dict[str, Any]:
        """Return the variable."""
        chosen = {"label": self.label, "multi": self.multi, "includeAll": self.includeAll, "hide": self.hide}
        found = {"query": self.query, "refresh": self.refresh, "sort": self.sort, "options": self.options}
        variable = {"type": self.type, "name": self.name, **chosen, **found}
        if self.type != "query":
            return {**variable, "current": {"selected": True, "text": self.default, "value": self.default}}
        every = {"selected": True, "text": ["All"], "value": ["$__all"]}
        # Without a current value, Grafana selects the first one.
        current = every if self.includeAll else {}
        return {
            **variable,
            "allValue": self.allValue,
            "current": current,
            "datasource": SOURCE,
            "definition": self.query,
        }


class Dashboard(core.Dashboard):
    """A dashboard, whose panels get their places, and ids if they have none."""

    def to_json_data(self) -> dict[str, Any]:
        """Return the dashboard."""
        panels = self.auto_panel_ids().panels
        placed(panels, 0)
        about = {"title": self.title, "description": self.description, "uid": self.uid, "tags": self.tags}
        looks = {"graphTooltip": self.graphTooltip, "timezone": self.timezone, "time": self.time}
        parts = {"templating": self.templating, "annotations": self.annotations, "links": self.links, "panels": panels}
        versions = {"schemaVersion": SCHEMA, "version": self.version}
        return {**about, **looks, **parts, **versions, "editable": self.editable, "refresh": self.refresh}


def placed(panels: Sequence[Any], y: int) -> None:
    """Place panels where the highest free place for their width is, from line `y` on, the leftmost of several.

    The panels of a collapsed row take no space until it opens.
    """
    ends = [y] * GRID
    for panel in panels:
        width, height = panel.gridPos.w, panel.gridPos.h
        top, x = min((max(ends[x : x + width]), x) for x in range(GRID - width + 1))
        panel.gridPos = core.GridPos(h=height, w=width, x=x, y=top)
        placed(getattr(panel, "panels", ()), top + height)
        ends[x : x + width] = [top + height] * width


def text_of(dashboard: Dashboard) -> str:
    """Return the text of a dashboard file."""
    return json.dumps(dashboard, cls=DashboardEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
