"""One panel per failure mode: the signals of its condition; and the network ports that some of them are about."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from content.dashboards import queries as q
from content.dashboards.frame import ABSENT, GREEN, ORANGE, RED, TO_GPU, About, BoardRow
from content.dashboards.graphs import NAMES, WIDE_NAMES, GraphStyle, lines
from content.dashboards.queries import Query
from content.dashboards.tables import Columns, table
from gpu_exporter.alerting.boards import GPU, Board, board_of, runbook
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import nic_signals
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.conditions.prose import title
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Fn, Limit, Over, comparisons

# The series of an XID begins with its first occurrence, that of an alert when it fires.
NONE_REPORTED, SILENT = "none reported", "not firing"
# Functions whose results are on the scale of the signal.
LEVELS = (Fn.LAST, Fn.MEAN, Fn.MIN, Fn.MAX)
# The labels that distinguish the alerts of a mode without signals, by what the mode requires.
LEGENDS = {
    "attribution": "{{instance}} {{source}}",
    "inference server": q.GPU_LEGEND,
    "training loop": "{{job_id}}",
}
LEGENDS_OF_LEVELS = {"rank:": "{{job_id}} rank {{rank}}", "job:lost:": "{{job_id}} {{activity}}"}
# What is between a GPU and a network port, as in `nvidia-smi topo -m`, the nearest first.
DISTANCES = {
    "PIX": "one switch",
    "PXB": "more switches",
    "PHB": "PCIe root",
    "NODE": "same NUMA",
    "SYS": "other NUMA",
}
# What the numbers of a signal mean.
MEANINGS = {
    nic_signals.UP: ("down", "up"),
    nic_signals.DISTANCE: ("", *DISTANCES.values()),
}


def mode_panel(board: Board, mode: FailureMode) -> Any:
    """Return a panel with the signals of a mode's condition, or with its alert if the condition has no signals."""
    signals = shown(mode)
    queries = [_query(board, signal, alone=len(signals) == 1) for signal in signals]
    if not queries:
        name = f'alertname="{mode.name}"'
        expr = q.alerts(board, [mode.domain], [mode.severity]).replace("{", f"{{{name}, ", 1)
        queries = [Query(expr, _legend(mode), "short")]
    about = About(
        f"{mode.name} ({mode.severity.value}): the signals of its condition.",
        "the alert does not fire." if mode.needs else "empty: the alert does not fire.",
        "the runbook, to which the panel links, says what to do.",
    )
    limits = _limits(mode, queries[0].unit)
    words = {place: MEANINGS[signal] for place, signal in enumerate(signals) if signal in MEANINGS}
    return lines(
        mode.name,
        about,
        queries,
        GraphStyle(
            most=max((*map(math.ceil, limits), *(len(texts) - 1 for texts in words.values())), default=None),
            limits=limits,
            empty=_empty(mode),
            axis=title(signals[0]) if len(signals) == 1 else "",
            names=WIDE_NAMES if len(signals) > 1 else NAMES,
            words=words,
        ),
        width=12,
        link=TO_GPU if mode.needs and board is not GPU else None,
        links=[{"title": "Runbook", "url": runbook(mode), "targetBlank": True}],
    )


def shown(mode: FailureMode) -> Sequence[Signal]:
    """Return the signals of a mode that its panel shows: those of the network only if the mode is about it."""
    if mode.domain is Domain.NETWORK:
        return mode.needs
    return [signal for signal in mode.needs if signal not in nic_signals.SIGNALS]


def _query(board: Board, signal: Signal, *, alone: bool) -> Query:
    """Return the query of a signal. Its legend begins with the GPU, because the end is cut off if it is too long."""
    plain = q.query(board, signal)
    return plain if alone else replace(plain, legend=f"{plain.legend} {title(signal)}")


def _empty(mode: FailureMode) -> str:
    """Return what the panel of a mode says without data."""
    if not mode.needs:
        return SILENT
    return NONE_REPORTED if all(signal.extra_labels for signal in mode.needs) else ABSENT


def _legend(mode: FailureMode) -> str:
    """Return the labels that distinguish the alerts of a mode without signals: those that its expression groups by."""
    if level := next((level for level in LEGENDS_OF_LEVELS if mode.fleet.startswith(level)), ""):
        return LEGENDS_OF_LEVELS[level]
    grouped = re.search(r"\bby \(cluster, ([a-z, ]+)\)", mode.fleet) if mode.requires else None
    by = " ".join(f"{{{{{label}}}}}" for label in grouped[1].split(", ")) if grouped else "{{instance}}"
    return LEGENDS.get(mode.requires, by)


def _limits(mode: FailureMode, unit: str) -> Sequence[float]:
    """Return the limits of a mode that signals in the unit of the left axis are compared with."""
    return sorted(
        {
            compare.right.value
            for compare in (comparisons(mode.condition) if mode.condition else ())
            if isinstance(compare.left, Over)
            and compare.left.fn in LEVELS
            and isinstance(compare.right, Limit)
            and q.unit(compare.left.signal) == unit
        }
    )


def mode_rows(board: Board, modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return one collapsed row per domain of the dashboard, with a panel for each of its modes that belongs there.

    The row about the network begins with the names of the ports.
    """
    shown_here = [mode for mode in modes if board_of(mode) is board]
    return [
        BoardRow(
            f"Signals behind the alerts: {domain.value}",
            [
                *([ports(board)] if domain is Domain.NETWORK else []),
                *(mode_panel(board, mode) for mode in shown_here if mode.domain is domain),
            ],
            True,
        )
        for domain in dict.fromkeys((*board.shows, *(mode.domain for mode in shown_here)))
    ]


def ports(board: Board) -> Any:
    """Return a table of the network ports of each GPU: the signals have no names of ports."""

    def gpu_query(signal: Signal, name: str) -> Query:
        state = f"max by (cluster, UUID, node, gpu) ({q.selected(board, signal)})"
        return Query(f"{m.NIC_INFO} * on (cluster, UUID) group_left (node, gpu) {state}", "", q.unit(signal), name)

    distances = {name: (f"{name}: {text}", ORANGE if name == "SYS" else "text") for name, text in DISTANCES.items()}
    return table(
        "Network ports of each GPU",
        About(
            "The ports nearest to each GPU, through which it reaches other nodes (its rail); what is between (PCIe "
            "switches, the PCIe root, a NUMA node), as in `nvidia-smi topo -m`; whether all of its ports are up, and "
            "the rate of the slowest as a share of what it should be.",
            "a port of its own for each GPU, behind PCIe switches only, up, at 100 %.",
            "the panels below show since when; docs/fabric.md explains how ports are assigned to GPUs.",
        ),
        [gpu_query(nic_signals.UP, "link"), gpu_query(nic_signals.RATE_SHARE, "rate")],
        Columns(
            ("node", "gpu", "device", "port", "distance"),
            shares=["rate"],
            words={"link": (("down", RED), ("up", GREEN))},
            texts={"distance": distances},
        ),
        width=24,
    )
