"""Render dashboards/*.json from the catalogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafanalib import core

from content.dashboards import cost, fleet, gpu, grafana, job, node, runbooks, server
from content.dashboards import queries as q
from content.dashboards.frame import BLUE, OF_A_NODE, ORANGE, RED, BoardRow, dashboard
from content.dashboards.mode_panels import mode_rows
from gpu_exporter.alerting.aggregates import GPUS, NODE_GPUS
from gpu_exporter.alerting.allocation import POD_REQUESTS
from gpu_exporter.alerting.boards import COST, EVERY, FLEET, GPU, JOB, NODE, RUNBOOKS, SERVER, Board
from gpu_exporter.alerting.identity import EXPORTER
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Severity
from gpu_exporter.conditions.signal import DEVICE_INFO

ROWS = {
    FLEET: fleet.rows,
    NODE: node.rows,
    GPU: gpu.rows,
    JOB: job.rows,
    SERVER: server.rows,
    COST: cost.rows,
}
ON_TIME_CHANGE, NATURAL = 2, 7
LABELS = {"cluster": "Cluster", "node": "Node", "gpu": "GPU", "namespace": "Namespace", "workload": "Workload"}
LABELS |= {"pod": "Pod"}
# Where annotations are on: the dashboards of single jobs and GPUs, on which there are few.
ANNOTATED = (GPU, JOB)


def render(board: Board, modes: Sequence[FailureMode] = MODES) -> str:
    """Return the text of dashboards/<name>.json."""
    if board is RUNBOOKS:
        return runbooks.render(modes)
    rows = [*ROWS[board](modes), *mode_rows(board, modes)]
    panels = [panel for row in rows for panel in _panels(row)]
    return grafana.text_of(dashboard(board, panels, _variables(board), _annotations(board)))


def _panels(row: BoardRow) -> list[Any]:
    place = core.GridPos(h=1, w=grafana.GRID, x=0, y=0)
    hidden = list(row.panels) if row.collapsed else []
    head = grafana.RowPanel(title=row.title, gridPos=place, collapsed=row.collapsed, panels=hidden)
    return [head, *([] if row.collapsed else row.panels)]


def _variables(board: Board) -> list[Any]:
    found = [
        grafana.Template(
            name="datasource", label="Data source", type="datasource", query="prometheus", default="default"
        )
    ]
    for place, label in enumerate(board.chosen):
        chosen = ", ".join(f'{before}=~"${before}"' for before in board.chosen[:place])
        # One series per node or workload is cheaper than one per GPU; that of workloads needs the rules about costs.
        of_owners = GPUS.record if board is COST else DEVICE_INFO
        known = NODE_GPUS.record if label in ("cluster", *NODE_GPUS.by) else of_owners
        if board is SERVER and label != "cluster":
            known = POD_REQUESTS.record
        narrowed = f"{known}{{{chosen}}}" if chosen else known
        found.append(
            grafana.Template(
                name=label,
                label=LABELS[label],
                query=f"label_values({narrowed}, {label})",
                includeAll=label not in board.single,
                multi=label not in board.single,
                allValue=EVERY,
                refresh=ON_TIME_CHANGE,
                sort=NATURAL,
            )
        )
    if board in OF_A_NODE:
        exporter = f'{EXPORTER}{{cluster=~"$cluster", node=~"$node"}}'
        found.append(
            grafana.Template(
                name="instance",
                label="Exporter",
                query=f"label_values({exporter}, instance)",
                refresh=ON_TIME_CHANGE,
                sort=NATURAL,
                allValue=EVERY,
                hide=core.HIDE_VARIABLE,
            )
        )
    return found


def _annotations(board: Board) -> list[dict[str, Any]]:
    urgent = q.alerts_since(board, severities=(Severity.CRITICAL, Severity.WARNING))
    ages = " or ".join(q.selected(board, each) for each in (s.XID_UNKNOWN, s.XID_APPLICATION))
    return [
        {
            "name": name,
            "datasource": grafana.SOURCE,
            "enable": board in ANNOTATED,
            "iconColor": colour,
            "expr": expr,
            "titleFormat": title,
            "textFormat": q.DEVICE_LEGEND,
            "tagKeys": tags,
            "useValueForTime": timed,
        }
        for name, colour, expr, title, tags, timed in (
            ("alerts", ORANGE, f"({urgent}) * 1000", "{{alertname}}", "severity,domain", True),
            # Shown until the repair.
            ("XIDs (fatal)", RED, q.selected(board, s.XID_FATAL), "XID {{xid}}", "xid", False),
            ("XIDs (other)", BLUE, f"(time() - ({ages})) * 1000", "XID {{xid}}", "xid", True),
        )
    ]
