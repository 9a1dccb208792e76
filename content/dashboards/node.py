"""The Node dashboard: the GPUs of a node side by side."""

from __future__ import annotations

from collections.abc import Sequence

from content.dashboards import queries as q
from content.dashboards import why
from content.dashboards.alert_table import firing
from content.dashboards.frame import ORANGE, RED, About, BoardRow, ColourStep
from content.dashboards.graphs import GraphStyle, gpu_colours, lines
from content.dashboards.panels import HOT, VERDICTS, class_timeline, number, numbers, reachable, verdict
from content.dashboards.queries import Query
from content.dashboards.tables import Columns, table
from gpu_exporter.alerting import aggregates as a
from gpu_exporter.alerting import roofline
from gpu_exporter.alerting.boards import NODE
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import THROTTLED_TIME
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.conditions.prose import title
from gpu_exporter.reports.numbers import capitalised

BOARD = NODE


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: alerts and totals, bottlenecks, activity of each GPU."""
    return [
        BoardRow("Is anything wrong?", [*_numbers(), firing(BOARD, modes, list(Domain), 24, by_gpu=True, height=6)]),
        BoardRow("Which GPU differs?", [_gpus(), class_timeline(BOARD, 8, 10)]),
        BoardRow(
            "What is each GPU doing?",
            [
                lines(capitalised(title(each)), about, [q.query(BOARD, each)], GraphStyle(overrides=gpu_colours()))
                for each, about in _DOING
            ],
        ),
        BoardRow(
            "Achieved against what this GPU can do",
            [
                lines(name, about, [q.query(BOARD, each)], GraphStyle(overrides=gpu_colours()))
                for name, each, about in _ACHIEVED
            ],
            True,
        ),
        why.fabric_row(BOARD),
        why.exporter_row(BOARD),
    ]


def _gpus() -> object:
    values = [
        Query(q.throttled(BOARD), "", "percentunit", "throttled"),
        q.query(BOARD, s.GPU_TEMP, "temperature"),
        q.query(BOARD, s.GR_ACTIVE, "engine"),
        q.query(BOARD, s.SM_ACTIVE, "SM"),
        q.query(BOARD, s.POWER_USE, "power"),
    ]
    return table(
        "GPUs",
        About(
            "The GPUs of the node side by side, unhealthy and throttled ones first.",
            "similar values on all GPUs of one job.",
            "click the GPU that differs.",
        ),
        [Query(q.verdict(BOARD), "", "short", "health"), *(q.or_lost(BOARD, each) for each in values)],
        Columns(
            ("node", "gpu"),
            shares=["throttled", "engine", "SM", "power"],
            words={"health": VERDICTS},
            steps={
                "throttled": [ColourStep(None, "text"), ColourStep(THROTTLED_TIME.value, ORANGE)],
                "temperature": [ColourStep(None, "text"), HOT],
            },
            answers=[each.name for each in values],
        ),
        width=16,
        height=10,
        sort=("health", "throttled"),
    )


def _numbers() -> list[object]:
    return [
        reachable(BOARD),
        verdict(BOARD),
        numbers(
            "Alerts by severity",
            About(
                "Firing alerts of this node, by severity; an alert counts once for each GPU.",
                "0, while GPUs are monitored.",
                "the table below shows each alert with its runbook.",
            ),
            *(_alerts(severity) for severity in (Severity.CRITICAL, Severity.WARNING)),
            colours=(RED, ORANGE),
        ),
        number(
            "Hottest GPU",
            About(
                "Highest GPU temperature of the node.",
                "well below the temperature at which the GPU throttles (see the GPU dashboard).",
                "check airflow and fans.",
            ),
            Query(f"max({q.selected(BOARD, a.NODE_TEMP)})", "", "celsius"),
            alarm=HOT,
        ),
        number(
            "Power",
            About(
                "Power draw of all GPUs of the node.", "near the planned power.", "compare it with the GPUs' limits."
            ),
            Query(f"sum({q.selected(BOARD, a.NODE_POWER)})", "", "watt"),
        ),
        number(
            "SM activity",
            About(
                "Mean over the GPUs.", "above 60 % in training.", "the bottleneck classes below show what limits them."
            ),
            Query(f"avg({q.selected(BOARD, a.NODE_SM)})", "", "percentunit"),
        ),
    ]


def _alerts(severity: Severity) -> Query:
    firing = q.alerts(BOARD, severities=[severity])
    return Query(f"count({firing}) or 0 * sum({q.selected(BOARD, a.NODE_GPUS)})", severity.value, "short")


_ACHIEVED = (
    (
        "Tensor cores: achieved",
        roofline.TENSOR,
        About(
            "Rate of the tensor cores, including the clock, as a share of what the best kernels reach on this model.",
            "above 50 % in training with large batches.",
            "if the memory is near 100 %, a larger batch uses the tensor cores better; else see the classes.",
        ),
    ),
    (
        "Memory bandwidth: achieved",
        roofline.MEMORY,
        About(
            "Memory bandwidth as a share of what this GPU reached in its last active check, or else of what its model "
            "reaches.",
            "above 80 % in decoding, if the tensor cores are below that.",
            "if both are low, the kernels are too small or wait: see the bottleneck classes.",
        ),
    ),
)
_ALIKE = "similar on all GPUs of one job."
_DOING = (
    (
        s.GR_ACTIVE,
        About(
            "Share of time in which the graphics or compute engine was busy.",
            _ALIKE,
            "a GPU below the others waits for its host.",
        ),
    ),
    (
        s.SM_ACTIVE,
        About(
            "Share of SMs with a resident warp.",
            _ALIKE,
            "a GPU above the others is the slow one that they wait for.",
        ),
    ),
    (
        s.POWER,
        About(
            "Power draw.",
            "near the limit at full load.",
            "idle power at full utilisation: the GPU does no useful work.",
        ),
    ),
    (
        s.GPU_TEMP,
        About("GPU temperature.", "similar on all GPUs.", "one GPU hotter than the others: check its airflow."),
    ),
    (
        s.FB_PEAK_USE,
        About(
            "Share of the usable device memory in use, at the peak of each minute.",
            "stable from step to step.",
            "steady growth is a leak that ends in an out-of-memory error; so may a peak.",
        ),
    ),
    (
        s.PCIE_RX_USE,
        About(
            "PCIe traffic to the GPU as a share of the link's capacity.",
            "below 70 %.",
            "data loading, or a link with fewer lanes or a lower generation.",
        ),
    ),
)
