"""What happens between two scrapes, of all GPUs that a board has chosen: from histograms, and beside it from gauges."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import WINDOW
from gpu_exporter.catalogue.conditions import Fn, Over
from gpu_exporter.render.boards import Board
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import About, BoardRow
from gpu_exporter.render.dashboards.panels import heatmap, lines
from gpu_exporter.render.dashboards.queries import Query

NEEDS = " Needs `--metrics full`; without it, see"
QUANTILES = {0.5: "half", 0.9: "nine of ten", 0.99: "99 of 100"}


def row(board: Board) -> BoardRow:
    """Distributions are of all chosen GPUs together: choose one to see it alone."""
    return BoardRow("Between two scrapes", [_activity(board), _power(board), _gaps(board), _swing(board)], True)


def _activity(board: Board) -> object:
    about = About(
        f"How much of the time how large a share of the SMs was active, tick by tick.{NEEDS} SM activity, a mean.",
        "one band, high up.",
        "two bands, one of them at the bottom: work in bursts, and waiting between them.",
    )
    return heatmap("SM activity", about, Query(q.buckets(board, m.SM_SHARES), "{{le}}", "percentunit"))


def _power(board: Board) -> object:
    about = About(
        f"How much of the time at which board power, of 50 samples a second.{NEEDS} power of the moment.",
        "one band, near the limit under load.",
        "two bands far apart: power swings, however flat its mean is; GpuPowerOscillation has more.",
    )
    return heatmap("Board power", about, Query(q.buckets(board, m.POWER_SAMPLES), "{{le}}", "watt"))


def _gaps(board: Board) -> object:
    about = About(
        f"How long no SM was active each time, in whole ticks; of those gaps that ended.{NEEDS} engine activity.",
        "nothing longer than a tick while a job runs.",
        "gaps of one length, again and again: the loop waits at each step; see GpuDataLoadingBound and GpuHostBound.",
    )
    return lines("Idle gaps", about, [_quantile(board, each) for each in QUANTILES], width=12, link=None)


def _quantile(board: Board, share: float) -> Query:
    # Without a gap it is no number.
    expr = f"histogram_quantile({share:g}, {q.buckets(board, m.IDLE_GAPS)}) >= 0"
    return Query(expr, f"{QUANTILES[share]} are shorter", q.UNITS[m.IDLE_GAPS.unit])


def _swing(board: Board) -> object:
    about = About(
        "How far power swings up and down, over its limit: from the histogram, else from power of the moment. "
        "And the share of time in which the SMs rest.",
        "below 20 %; rest below 15 %.",
        "overlap loading and communication with computing.",
    )
    gauges = q.of(board, Over(s.POWER_INSTANT_USE, Fn.STDDEV, WINDOW))
    swing = f"{q.of(board, s.POWER_SWING)} / {q.of(board, s.POWER_LIMIT)} or {gauges}"
    queries = [
        Query(swing, f"power swing {q.DEVICE_LEGEND}", q.UNITS["ratio"]),
        q.query(board, s.SM_IDLE, "SMs at rest"),
    ]
    return lines("Swing of power, and time at rest", about, queries, width=12)
