"""Reads two sources over the same time, and reports how far they agree."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpu_exporter.diagnosis.comparison import (
    PRESENCE,
    Agreement,
    ComparedMetric,
    Comparison,
    IdentityDifference,
    Side,
    compared,
)
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError, SourceLost
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.renderer import number
from gpu_exporter.pipeline.settings import CollectionSettings

INTERVAL_SECONDS = 1.0
# How long a source may take until it has read each GPU.
PATIENCE_SECONDS = 15.0
EXIT_DIFFERS = 3


def compare_sources(
    a: tuple[str, Source], b: tuple[str, Source], metrics: Sequence[Metric], seconds: float
) -> tuple[Comparison, bool]:
    """Read both sources for `seconds`. Returns the comparison, and False if a driver call is stuck.

    Raises GpuExporterError if one has no GPU.
    """
    sides, lock = (Side(a[0]), Side(b[0])), threading.Lock()
    loops = [
        Collector(source, metrics, _taking(side, lock), CollectionSettings(INTERVAL_SECONDS, gauge_window=seconds))
        for (_, source), side in zip((a, b), sides, strict=True)
    ]
    try:
        for loop, side in zip(loops, sides, strict=True):
            loop.start()
            _await(side)
        with lock:
            for side in sides:
                side.begin()
        time.sleep(seconds)
        with lock:
            result = compared(*sides, seconds)
    except GpuExporterError:
        for loop in loops:
            loop.stop()
        raise
    return result, all([loop.stop() for loop in loops])


def _taking(side: Side, lock: threading.Lock) -> Callable[[Snapshot], None]:
    def take(snapshot: Snapshot) -> None:
        with lock:
            side.add(snapshot, time.monotonic())

    return take


def _await(side: Side) -> None:
    """Wait until each GPU was read or is down. Raises SourceLost if none answers in time."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (side.gpus and (side.settled or time.monotonic() > end)):
        if time.monotonic() > end:
            message = f"{side.name}: no GPU answered within {PATIENCE_SECONDS:g} s"
            raise SourceLost(message, fix="`gpu-exporter doctor` says why")
        time.sleep(0.05)


def as_dict(result: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON."""
    return {
        "a": result.a,
        "b": result.b,
        "seconds": result.seconds,
        "gpus": result.gpus,
        "same": not result.differs,
        "identities": [{"UUID": item.uuid, "what": item.what, "a": item.a, "b": item.b} for item in result.identities],
        "metrics": [
            {
                "gpu": row.gpu.index if row.gpu else None,
                "UUID": row.gpu.uuid if row.gpu else None,
                "metric": row.name,
                "unit": row.metric.unit,
                "compared": row.how,
                "a": row.a,
                "b": row.b,
                "difference": row.difference,
                "tolerance": row.tolerance,
                "verdict": row.agreement.value,
            }
            for row in result.metrics
        ],
    }


def lines(result: Comparison) -> Iterable[str]:
    """Yield a table: first what is the same, then what only one source has, last what differs."""
    yield f"a: {result.a}, b: {result.b}; {result.gpus} GPU{'s' * (result.gpus != 1)} in both, {result.seconds:g} s"
    table: list[tuple[str, ...]] = [("GPU", "METRIC", "COMPARED", "A", "B", "DIFFERENCE", "TOLERANCE", "VERDICT")]
    for agreement in Agreement:
        table += [_cells(row) for row in result.metrics if row.agreement is agreement]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for cells in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    for item in result.identities:
        yield f"differs: {_difference(item)}"
    yield ", ".join(
        f"{result.count(agreement)} {words}"
        for agreement, words in (
            (Agreement.SAME, "the same"),
            (Agreement.ONLY_A, "only in a"),
            (Agreement.ONLY_B, "only in b"),
            (Agreement.DIFFERS, "differ"),
        )
    )


def _difference(item: IdentityDifference) -> str:
    what, uuid, a, b = (printable(text, 100) for text in (item.what, item.uuid, item.a, item.b))
    if item.what == PRESENCE:
        return f"{uuid} exists only in {'a' if item.a == 'yes' else 'b'}"
    return f"{what} of {uuid} is {a} in a and {b} in b"


def _cells(row: ComparedMetric) -> tuple[str, ...]:
    values = (row.a, row.b, row.difference, row.tolerance)
    shown = ("-" if value is None else number(float(f"{value:.6g}")) for value in values)
    return ("-" if row.gpu is None else str(row.gpu.index), row.name, row.how, *shown, row.agreement.value)
