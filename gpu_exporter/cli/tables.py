"""Tables of metrics for a terminal. What is piped into another program stays as it is."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpu_exporter.catalogue.metrics import BY_KEY, NON_GPU_ENTITIES, read_from
from gpu_exporter.model.metric import Metric, MetricSet

if TYPE_CHECKING:
    from gpu_exporter.app.library import GpuReading

SYMBOLS = {"celsius": "°C", "percent": "%", "watts": "W", "joules": "J", "millijoules": "mJ", "seconds": "s"}
# What exposes the metrics of a set.
SETS = {
    MetricSet.DEFAULT: "default",
    MetricSet.FULL: "--metrics full",
    MetricSet.NAMED: "--collectors",
    MetricSet.HOST: "--host-evidence",
    MetricSet.JOB: "--job-socket",
    MetricSet.PROFILE: "--profile",
    MetricSet.CHECK: "check --active",
    MetricSet.NIC: "default, with NICs",
    MetricSet.NCCL: "--nccl-inspector-dir",
}
# Units that say what a number stands for, not how large it is.
NO_UNITS = ("bitmask", "bool", "code", "info", "ratio", "state", "status", "generation")


def terminal_width() -> int:
    """Return the width of the terminal, or what lines need at least to be readable."""
    return max(40, shutil.get_terminal_size().columns)


def metric_table(metrics: Sequence[Metric]) -> Iterator[str]:
    """Yield one line per metric, with a head; columns are at least two blanks apart."""
    rows = [("METRIC", "TYPE", "UNIT", "SET", "READ", "DCGM", "NVML", "HELP"), *map(_row, metrics)]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[7]])


def _row(metric: Metric) -> tuple[str, str, str, str, str, str, str, str]:
    read = metric.nvml_pace.name.lower() if metric.nvml or metric.entity in NON_GPU_ENTITIES else "-"
    dcgm = "-" if metric.dcgm is None else str(metric.dcgm)
    return (metric.key, metric.kind.value, metric.unit, metric.set.value, read, dcgm, read_from(metric), metric.help)


def metric_list(metrics: Sequence[Metric], width: int) -> Iterator[str]:
    """Yield a table for a terminal of `width` columns, with the help text below each metric.

    A name that is too long for its column has a line of its own.
    """
    cells = [(metric.key, metric.kind.value, metric.unit, SETS[metric.set]) for metric in metrics]
    rows = [("METRIC", "TYPE", "UNIT", "EXPOSED BY"), *cells]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    widths[0] = max(10, min(widths[0], width - sum(widths[1:]) - 6))
    for row, help in zip(rows, ("", *(metric.help for metric in metrics)), strict=True):
        name = row[0] if len(row[0]) <= widths[0] else ""
        line = "  ".join(cell.ljust(space) for cell, space in zip((name, *row[1:]), widths, strict=True)).rstrip()
        for text in (line,) if name else (row[0], line):
            yield from (text,) if len(text) <= width else textwrap.wrap(text, width, break_on_hyphens=False)
        yield from textwrap.wrap(help, width, initial_indent="    ", subsequent_indent="    ")


def matching(metrics: Sequence[Metric], text: str) -> list[Metric]:
    """Return the metrics with this text in their name, labels or help, whatever its case."""
    return [metric for metric in metrics if text.lower() in f"{metric.key} {metric.help}".lower()]


def reading_table(readings: Sequence[GpuReading], width: int) -> Iterator[str]:
    """Yield the values of each GPU with their units, aligned in a terminal of `width` columns."""
    for reading in readings:
        state = "up" if reading.up else f"down: {reading.reason}"
        head = f"GPU {reading.index}  {reading.gpu.model}  {reading.gpu.uuid}  {state}"
        yield from textwrap.wrap(head, width, break_on_hyphens=False, subsequent_indent="  ")
        values = [(key, *_value(key, value)) for key, value in reading.as_dict().items()]
        numbers = max((len(number) for _, number, _ in values), default=0)
        units = max((len(unit) for _, _, unit in values), default=0)
        longest = max((len(key) for key, _, _ in values), default=0)
        names = max(10, min(longest, width - numbers - units - 5))
        for key, number, unit in values:
            *above, last = textwrap.wrap(key, names, break_on_hyphens=False, subsequent_indent="  ")
            yield from (f"  {line}" for line in above)
            yield f"  {last.ljust(names)}  {number.rjust(numbers)} {unit}".rstrip()


def _value(key: str, value: float) -> tuple[str, str]:
    """Return a value and its unit as text. The key of a histogram's series is not in the catalogue: it has no unit."""
    metric = BY_KEY.get(key) or BY_KEY.get(key.partition("{")[0])
    unit = metric.unit if metric else ""
    number = f"{value:,.0f}" if value == int(value) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return number, "" if unit in NO_UNITS else SYMBOLS.get(unit, unit)
