"""The dashboard with all runbooks: one panel each, to which the alerts link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafanalib import core

from content.dashboards import grafana
from content.dashboards.frame import dashboard
from gpu_exporter.alerting import runbooks
from gpu_exporter.alerting.boards import RUNBOOKS, panel_id, panel_link
from gpu_exporter.catalogue import project
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.reports.markdown import relinked

INDEX, HEIGHT = "readme", 20


def render(modes: Sequence[FailureMode]) -> str:
    """Return the text of dashboards/runbooks.json."""
    panels = [_panel("Runbooks", INDEX, runbooks.index(modes))]
    panels += [_panel(mode.name, mode.page, runbooks.runbook(mode, modes)) for mode in modes]
    return grafana.text_of(dashboard(RUNBOOKS, panels, variables=(), annotations=()))


def _panel(title: str, page: str, text: str) -> Any:
    """Return a panel with a runbook, without its heading and how the alert is detected, which is long."""
    text = text.partition("\n# ")[2].partition("\n")[2].partition("\n## How it is detected\n")[0].strip()
    return grafana.TextPanel(
        id=panel_id(page),
        title=title,
        content=relinked(text, _target, runbooks.FOLDER),
        gridPos=core.GridPos(h=HEIGHT, w=grafana.GRID, x=0, y=0),
    )


def _target(link: str) -> str:
    """Return where a link of a runbook leads in Grafana; empty if nowhere."""
    file, _, anchor = link.partition("#")
    if "://" in link:
        return link
    if file and "/" not in file:
        return panel_link(file.removesuffix(".md").lower())
    if file.startswith("../") and not file.startswith("../../") and project.DOCS:
        return f"{project.DOCS}/{file.removeprefix('../')}" + (f"#{anchor}" if anchor else "")
    return ""
