"""One panel per failure mode: the signals of its condition."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpu_exporter.catalogue import nic_signals
from gpu_exporter.catalogue.condition_walks import comparisons
from gpu_exporter.catalogue.conditions import Fn, Limit, Over
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.signal import Signal
from gpu_exporter.render.boards import Board, runbook
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import ABSENT, TO_GPU, About, BoardRow
from gpu_exporter.render.dashboards.graphs import NAMES, WIDE_NAMES, Style, lines
from gpu_exporter.render.dashboards.queries import Query
from gpu_exporter.render.prose import title

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
# What the numbers of a signal mean.
MEANINGS = {
    nic_signals.UP: ("down", "up"),
    nic_signals.DISTANCE: ("", "PIX", "PXB", "PHB", "NODE", "SYS"),
}


def evidence(board: Board, mode: FailureMode) -> Any:
    """Return a panel with the signals of a mode's condition, or with its alert if the condition has no signals."""
    signals = shown(mode)
    queries = [_query(board, signal, alone=len(signals) == 1) for signal in signals]
    if not queries:
        name = f'alertname="{mode.name}"'
        expr = q.alerts(board, [mode.domain], [mode.severity]).replace("{", f"{{{name}, ", 1)
        queries = [Query(expr, _legend(mode), "short")]
    about = About(
        f"{mode.name} ({mode.severity.value}): the signals of its condition. {mode.meaning}".rstrip(),
        "the alert does not fire." if mode.needs else "empty: the alert does not fire.",
        mode.advice,
    )
    limits = _limits(mode, queries[0].unit)
    words = {place: MEANINGS[signal] for place, signal in enumerate(signals) if signal in MEANINGS}
    return lines(
        mode.name,
        about,
        queries,
        Style(
            most=max((*map(math.ceil, limits), *(len(texts) - 1 for texts in words.values())), default=None),
            limits=limits,
            empty=_empty(mode),
            axis=title(signals[0]) if len(signals) == 1 else "",
            names=WIDE_NAMES if len(signals) > 1 else NAMES,
            words=words,
        ),
        width=12,
        link=TO_GPU if mode.needs else None,
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


def evidence_rows(board: Board, modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return one collapsed row per domain of the dashboard, with a panel for each of its modes."""
    return [
        BoardRow(
            f"Signals behind the alerts: {domain.value}",
            [evidence(board, mode) for mode in modes if mode.domain is domain],
            True,
        )
        for domain in board.shows
    ]
