"""Everything about one GPU: its class and since when, values, findings with numbers and advice, and processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Severity
from gpu_exporter.diagnosis.headline import STYLES
from gpu_exporter.diagnosis.loss import breakdown, no_limit
from gpu_exporter.diagnosis.measurements import MEASUREMENTS, Measurement
from gpu_exporter.diagnosis.presence import no_data
from gpu_exporter.diagnosis.report import because, class_words, runbook
from gpu_exporter.diagnosis.words import hit_words, named
from gpu_exporter.reports.numbers import ABSENT, capitalised, measured, narrow, whole_duration
from gpu_exporter.top.lines import Glyphs, Line, Span, bar, cut, fit, spark, wrapped
from gpu_exporter.top.state import GpuRow, View
from gpu_exporter.top.table import HEALTH_STYLES, class_style

VALUE, GAUGE = 26, 16


def detail(row: GpuRow, now: float, width: int, marks: Glyphs, view: View) -> list[Line]:
    """Return all lines about a GPU of a view. The beginning is the most important."""
    lines = [cut(line, width) for line in _head(row)]
    if row.gone or row.down:
        why = capitalised(no_data(row.gone)) if row.gone else f"It does not answer: {row.down}"
        lines += wrapped(f"{why}.", width, "  ", "bad", first="  ")
        return [*lines, *_hits(row, width, view), *_findings(row, width, view)]
    lines += _class(row, now, width, view.since)
    lines += wrapped(row.hit_by, width, "  ", first="  ") if row.hit_by else []
    lines += _hits(row, width, view)
    lines += _findings(row, width, view)
    lines += _gauges(row, width, marks)
    lines += _time(row, width)
    lines += _processes(row, width)
    return lines


def _head(row: GpuRow) -> Iterator[Line]:
    about = [text for text in (row.model, row.key.uuid, row.node) if text]
    held = "  last held by " if row.gone or row.down else "  held by "
    owner = (Span(held, "dim"), Span(row.owner)) if row.owner else ()
    yield (Span(f"GPU {row.name}", "title"), Span("  " + "  ".join(about), "dim"), *owner)


def _class(row: GpuRow, now: float, width: int, first: float) -> Iterator[Line]:
    diagnosis = row.diagnosis
    if diagnosis is None:
        yield (Span("  no diagnosis yet", "dim"),)
    elif diagnosis.bottleneck is None:
        yield from wrapped(class_words(diagnosis), width, "  ", "unknown", first="  ")
    else:
        since = f" ({lasted(row.class_since, now, first)})" if row.class_since else ""
        yield from wrapped(class_words(diagnosis, since), width, "  ", class_style(row), first="  ")
    if row.reasons:
        text = f"{row.health}: {', '.join(row.reasons)}"
        yield from wrapped(text, width, "  ", HEALTH_STYLES.get(row.health, ""), first="  ")


def _hits(row: GpuRow, width: int, view: View) -> Iterator[Line]:
    """Yield which other GPUs the incidents hit that this GPU causes."""
    gpu = row.key.uuid, row.key.instance
    for each in view.incidents:
        if hit := hit_by_incident(each, gpu):
            yield from wrapped(hit, width, "  ", first="  ")


def hit_by_incident(incident: Mapping[str, Any], culprit: tuple[str, str] | None = None) -> str:
    """Return which other GPUs an incident hits, in words; empty if it hits none, or if `culprit` does not cause it."""
    causes = ((gpu.get("UUID", ""), gpu.get("GPU_I_ID", "")) for gpu in incident["culprits"])
    others = [(gpu.get("gpu", ""), gpu.get("GPU_I_ID", "")) for gpu in incident["hit"]]
    return hit_words(named(others)) if others and (culprit is None or culprit in causes) else ""


def lasted(begin: float, now: float, first: float) -> str:
    """Return how long something lasts: for at least 20 s, if the first diagnosis, at the time `first`, found it."""
    return f"for {'at least ' if begin <= first else ''}{whole_duration(now - begin)}"


def _findings(row: GpuRow, width: int, view: View) -> Iterator[Line]:
    diagnosis = row.diagnosis
    if diagnosis is None:
        return
    for match in diagnosis.matches:
        numbers = ", ".join(because(match, [diagnosis], set()))
        yield from _finding(match.mode, numbers, row.explained.get(match.mode.name, ""), width, view)


def _finding(mode: FailureMode, numbers: str, explained: str, width: int, view: View) -> Iterator[Line]:
    yield from wrapped(
        f"{mode.name} ({mode.severity.value}): {numbers}", width, "    ", STYLES[mode.severity.value], first="  "
    )
    if explained:
        yield from wrapped(explained, width, "       ", first="    ")
        return
    yield from wrapped(mode.advice, width, "       ", first="    -> ")
    place = f"{view.runbooks}/{mode.page}" if view.runbooks else runbook(mode)
    yield (Span(f"    runbook: {place}", "dim"),)


def _gauges(row: GpuRow, width: int, marks: Glyphs) -> Iterator[Line]:
    """Yield a line per measurement: a bar, the value with its limit, and a sparkline."""
    room = width - 10 - GAUGE - VALUE - 2
    for measurement in MEASUREMENTS:
        value, limit = row.values.get(measurement.name), row.limits.get(measurement.name)
        history = row.history.get(measurement.name, ())
        top = limit or max((point for point in history if point is not None), default=0.0) or 1.0
        share = value / limit if value is not None and limit else None
        drawn = bar(share, GAUGE, marks) if limit else " " * GAUGE
        style = class_style(row) if measurement.unit == "ratio" else ""
        yield cut(
            (
                Span(f"  {fit(measurement.short, 7)} "),
                Span(drawn, style),
                Span(f" {fit(with_limit(measurement, value, limit), VALUE)}", "" if value is not None else "dim"),
                Span(spark(history, top, max(0, room), marks), style or "info"),
            ),
            width,
        )


def with_limit(measurement: Measurement, value: float | None, limit: float | None) -> str:
    """Return a value with its unit and, if it has one, its limit: 642 W of 700 W."""
    if value is None:
        return "not measured"
    text = measured(value, measurement.unit)
    if limit is None or measurement.unit == "ratio":
        return text
    between = ", slowdown at " if measurement.unit == "celsius" else " of "
    return f"{text}{between}{measured(limit, measurement.unit)}"


def _time(row: GpuRow, width: int) -> Iterator[Line]:
    diagnosis = row.diagnosis
    if diagnosis and (shares := breakdown([diagnosis.shares])):
        yield from wrapped(f"time: {shares}", width, "        ", first="  ")
    faulty = diagnosis and any(match.mode.severity is not Severity.INFO for match in diagnosis.matches)
    if diagnosis and not faulty and (text := no_limit(diagnosis.headroom)):
        yield from wrapped(text, width, "    ", first="  ")


def _processes(row: GpuRow, width: int) -> Iterator[Line]:
    if not row.processes:
        return
    yield (Span(f"  {'PID':>8} {'MEMORY':>7} {'BUSY':>5} COMMAND", "head"),)
    for process in row.processes:
        memory, busy = narrow(process.memory, "bytes"), narrow(process.sm, "ratio")
        yield cut((Span(f"  {process.pid:>8} {memory:>7} {busy:>5} {process.command or ABSENT}"),), width)
