"""Panels on activity between two scrapes, over all selected GPUs: from histograms and, where possible, from gauges."""

from __future__ import annotations

from content.dashboards import queries as q
from content.dashboards.frame import About, BoardRow
from content.dashboards.graphs import WIDE_NAMES, GraphStyle, lines
from content.dashboards.panels import heatmap
from content.dashboards.queries import Query
from gpu_exporter.alerting.boards import JOB, Board
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import WINDOW
from gpu_exporter.conditions.tree import Fn, Over

NEEDS = " Needs `--metrics full`; without it, see"
QUANTILES = {0.5: "median", 0.9: "90th percentile", 0.99: "99th percentile"}


def row(board: Board) -> BoardRow:
    """Return the row. Distributions cover all selected GPUs together: select one GPU to see only its own."""
    return BoardRow("Between two scrapes", [_activity(board), _power(board), _gaps(board), _swing(board)], True)


def _activity(board: Board) -> object:
    about = About(
        f"Distribution of SM activity over time.{NEEDS} the mean SM activity above.",
        "one band at a high level.",
        _ranks(board, "SM activity")
        or "two bands, one of them near 0: the GPU works in bursts and waits between them.",
    )
    return heatmap("SM activity distribution", about, Query(q.shares(board, m.SM_SHARES), "{{le}}", "percentunit"))


def _power(board: Board) -> object:
    about = About(
        f"Distribution of power over time, from 50 samples per second.{NEEDS} the power above.",
        "one band near the limit under load.",
        _ranks(board, "power")
        or "two bands far apart: power oscillates even if its mean is flat; see GpuPowerOscillation.",
    )
    return heatmap("Power distribution", about, Query(q.shares(board, m.POWER_SAMPLES), "{{le}}", "watt"))


def _ranks(board: Board, what: str) -> str:
    """Return what two bands mean on a dashboard that shows all ranks of a job; empty for other dashboards."""
    if board is not JOB:
        return ""
    return (
        "two bands: either each GPU alternates between the two levels, or different ranks stay at different levels; "
        f"compare the {what} of the ranks above."
    )


def _gaps(board: Board) -> object:
    about = About(
        f"Length of completed periods without SM activity, in whole intervals.{NEEDS} the SM activity above.",
        "no gap longer than one interval while a job runs.",
        "repeated gaps of one length: the job waits in each step; see GpuDataLoadingBound and GpuHostBound.",
    )
    queries = [_quantile(board, each) for each in QUANTILES]
    return lines("Idle gaps", about, queries, GraphStyle(empty="no gap, or not collected"), width=12, link=None)


def _quantile(board: Board, share: float) -> Query:
    # Without a gap the quantile is NaN.
    expr = f"histogram_quantile({share:g}, {q.buckets(board, m.IDLE_GAPS)}) >= 0"
    return Query(expr, QUANTILES[share], q.UNITS[m.IDLE_GAPS.unit])


def _swing(board: Board) -> object:
    about = About(
        "Amplitude of power swings as a share of the power limit (from the histogram, or from instantaneous power), "
        "and the share of time with at most 1 % of the SMs active (needs `--metrics full`).",
        "swings below 20 %, SMs idle less than 15 % of the time.",
        "overlap data loading and communication with computation.",
    )
    gauges = q.selected(board, Over(s.POWER_INSTANT_USE, Fn.STDDEV, WINDOW))
    swing = f"{q.selected(board, s.POWER_SWING)} / {q.selected(board, s.POWER_LIMIT)} or {gauges}"
    queries = [
        Query(swing, f"{q.device_legend(board)} power swing", q.UNITS["ratio"]),
        Query(q.selected(board, s.SM_IDLE), f"{q.legend(board, s.SM_IDLE)} SMs idle", q.UNITS["ratio"]),
    ]
    return lines("Power swings and idle time", about, queries, GraphStyle(names=WIDE_NAMES), width=12)
