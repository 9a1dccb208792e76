"""Queries for what limits each device: its bottleneck class, or a state that says more."""

from __future__ import annotations

from gpu_exporter.conditions.signal import DEVICE
from gpu_exporter.render.boards import Board
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.queries import Query


def limit_of(board: Board) -> str:
    """Return the number of the bottleneck class of each device, or that of `THROTTLED` or `LOST`, which say more.

    A device can have several; the highest counts.
    """
    states = ((q.LOST, q.lost(board)), (q.THROTTLED, f"{q.throttled(board)} > {q.THROTTLED_SHARE}"))
    return " or ".join((*(f"(0 * ({of_state}) + {state})" for state, of_state in states), q.class_of(board)))


def classes_of(board: Board) -> Query:
    """Return a query for what limits each device, in their natural order."""
    return Query(in_order(limit_of(board)), f"{q.device_legend(board)} {{{{GPU_I_ID}}}}", "short")


def classes_of_ranks(board: Board, culprits: str, culprits_now: str, rank: str) -> Query:
    """Return the same for a job, also which devices hold it up, with the ranks: the culprits of now come first.

    `rank` has the number of each rank as a label.
    """
    device = ", ".join(DEVICE)
    # Of now, so that a device has one row.
    known = f"topk by ({device}) (1, last_over_time({rank}[$__range] @ end())) or on ({device}) {q.devices(board)}"
    blamed = f'label_replace(({known}) and on ({device}) ({culprits_now}), "Culprit", "0", "", "")'
    known = f'{blamed} or on ({device}) label_replace({known}, "Culprit", "1", "", "")'
    known = f'label_replace({known}, "Rank", "rank $1 · ", "rank", "(.+)")'
    limits = f"(0 * ({culprits}) + {q.CULPRIT}) or {limit_of(board)}"
    joined = f"({limits}) * on ({device}) group_left (Culprit, Rank) ({known})"
    # VictoriaMetrics copies a label that is missing as an empty one, and drops it here.
    joined = f'label_replace({joined}, "Rank", "$1", "Rank", "(.*)")'
    return Query(in_order(joined, "Culprit", "Rank"), f"{{{{Rank}}}}{q.DEVICE_LEGEND} {{{{GPU_I_ID}}}}", "short")


def in_order(expr: str, *labels: str) -> str:
    """Return series of devices in the natural order of node, GPU and instance; Grafana keeps Prometheus' order.

    Prometheus sorts by the first label: this is the added one, because its name comes first, unless that of one of the
    further labels does.
    """
    by = ", ".join(("cluster", "node", "gpu", "GPU_I_ID", *labels))
    padded = f'label_replace(max by ({by}) ({expr}), "Digits", "0$1", "gpu", "(.)")'
    padded = f'label_replace({padded}, "Digits", "$1", "gpu", "(..+)")'
    return f'label_join({padded}, "Device", " ", "cluster", "node", "Digits", "GPU_I_ID")'
