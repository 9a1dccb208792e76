"""The table of the live view: one line per GPU, with the columns that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.diagnosis import summary_table
from gpu_exporter.diagnosis.headline import STYLES
from gpu_exporter.diagnosis.loss import lost
from gpu_exporter.diagnosis.measurements import BY_NAME
from gpu_exporter.reports.numbers import ABSENT, narrow, whole_duration
from gpu_exporter.top.lines import Glyphs, Line, Span, bar, cut, fit, padded, spark, width_of
from gpu_exporter.top.state import DEGRADED, HEALTHY, UNHEALTHY, GpuRow

HEALTH_STYLES = {HEALTHY: "good", DEGRADED: "warn", UNHEALTHY: "bad"}
# Classes whose style is not that of their cause.
CLASS_STYLES = {"idle": "idle", "fake-load": "bad"}
LONGEST_CLASS = len("data-loading-bound")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column: its title, its width, and what it shows of a GPU. `room` makes it wider where there is space."""

    title: str
    width: int
    cell: Callable[[GpuRow, int, Glyphs], Span]
    right: bool = False
    most: int = 0


def columns_for(width: int, rows: Sequence[GpuRow]) -> list[tuple[TableColumn, int]]:
    """Return the columns that fit, in order of display, with their widths. The most important ones come first."""
    names = max((width_of(row.name) for row in rows), default=1)
    owners = max((width_of(row.owner) for row in rows), default=0)
    chosen: dict[str, int] = {}
    left = width - 2
    least = {"GPU": min(names, 12), "OWNER": min(owners, 20)}
    for title in PRIORITY:
        column = COLUMNS[title]
        if column.width + 1 > left:
            continue
        wanted = min(max(column.width, least.get(title, 0)), left - 1)
        chosen[title] = wanted
        left -= wanted + 1
    for title, wish in (("OWNER", owners), *((title, COLUMNS[title].most) for title in chosen if title != "OWNER")):
        if title in chosen and COLUMNS[title].most:
            more = min(left, max(0, min(wish, COLUMNS[title].most) - chosen[title]))
            chosen[title] += more
            left -= more
    return [(column, chosen[title]) for title, column in COLUMNS.items() if title in chosen]


def heading(columns: Sequence[tuple[TableColumn, int]], width: int) -> Line:
    """Return the line with the titles."""
    cells = " ".join(fit(column.title, size, right=column.right) for column, size in columns)
    return cut((Span(f"  {cells}", "head"),), width)


def line(row: GpuRow, columns: Sequence[tuple[TableColumn, int]], width: int, marks: Glyphs, *, chosen: bool) -> Line:
    """Return the line of a GPU."""
    spans_of = [Span(f"{marks.chosen} " if chosen else "  ")]
    for column, size in columns:
        text, style = column.cell(row, size, marks)
        spans_of += [Span(fit(text, size, right=column.right), style), Span(" ")]
    return padded(tuple(spans_of), width, "chosen") if chosen else cut(spans_of, width)


# --- cells ------------------------------------------------------------------------------------------------------------


def class_style(row: GpuRow) -> str:
    """Return the style of the class of a GPU."""
    if row.diagnosis is None or row.diagnosis.bottleneck is None:
        return "unknown"
    return CLASS_STYLES.get(row.class_name, "good" if row.diagnosis.cause is Cause.USEFUL else "warn")


def worst(row: GpuRow) -> tuple[str, str]:
    """Return the name of the worst finding, with its style; a dash if there is none."""
    name, severity = summary_table.worst(row.diagnosis) if row.diagnosis else (ABSENT, None)
    return name, STYLES[severity.value] if severity else "dim"


def _class(row: GpuRow, width: int, marks: Glyphs) -> Span:
    if row.gone or row.down:
        return Span(ABSENT, "dim")
    if row.diagnosis is None:
        return Span("…" if marks.dot != "-" else "...", "dim")
    return Span(row.class_name or "unknown", class_style(row))


def _number(name: str) -> Callable[[GpuRow, int, Glyphs], Span]:
    def cell(row: GpuRow, width: int, marks: Glyphs) -> Span:
        return Span(narrow(row.values.get(name), BY_NAME[name].unit), "" if name in row.values else "dim")

    return cell


def _bar(name: str) -> Callable[[GpuRow, int, Glyphs], Span]:
    def cell(row: GpuRow, width: int, marks: Glyphs) -> Span:
        value = row.values.get(name)
        limit = row.limits.get(name)
        share = value / limit if value is not None and limit else None
        text = narrow(value, BY_NAME[name].unit)
        drawn = f"{bar(share, width - 6, marks)}{text:>6}" if width > 6 else f"{text:>{width}}"
        return Span(drawn, class_style(row) if value is not None else "dim")

    return cell


def _spark(name: str) -> Callable[[GpuRow, int, Glyphs], Span]:
    def cell(row: GpuRow, width: int, marks: Glyphs) -> Span:
        return Span(spark(row.history.get(name, ()), 1.0, width, marks), class_style(row))

    return cell


def _lost(row: GpuRow, width: int, marks: Glyphs) -> Span:
    if not (row.diagnosis and row.diagnosis.shares):
        return Span(ABSENT, "dim")
    share = lost(row.diagnosis.shares)
    return Span(narrow(share, "ratio"), "warn" if share >= 0.1 else "")


def _health(row: GpuRow, width: int, marks: Glyphs) -> Span:
    return Span(row.health, HEALTH_STYLES.get(row.health, "dim"))


def _finding(row: GpuRow, width: int, marks: Glyphs) -> Span:
    """Return the worst finding, without what all names begin with if it does not fit; without one, a bad verdict.

    Of a GPU that does not answer, return why, in one word if there is no room for more. Of a GPU that others hit, they
    say more than info does.
    """
    if row.gone:
        return Span(f"gone for {whole_duration(row.gone)}", "bad")
    if row.down:
        return Span(row.down.partition(":")[0] if width_of(row.down) > width else row.down, "bad")
    name, style = worst(row)
    if name == ABSENT and row.health in (DEGRADED, UNHEALTHY):
        return Span(row.health, HEALTH_STYLES[row.health])
    if row.hit_by and style in ("dim", STYLES[Severity.INFO.value]):
        return Span(row.hit_by, "idle")
    return Span(name.removeprefix("Gpu") if width_of(name) > width else name, style)


def _owner(row: GpuRow, width: int, marks: Glyphs) -> Span:
    """Return the owner; without its namespace if both do not fit."""
    short_of = row.owner.partition("/")[2] if width_of(row.owner) > width else ""
    return Span(short_of or row.owner or ABSENT, "" if row.owner else "dim")


def _process(row: GpuRow, width: int, marks: Glyphs) -> Span:
    return Span(row.processes[0].command if row.processes else ABSENT, "" if row.processes else "dim")


# In order of display.
COLUMNS = {
    column.title: column
    for column in (
        TableColumn("GPU", 3, lambda row, width, marks: Span(row.name, "title")),
        TableColumn("MODEL", 12, lambda row, width, marks: Span(row.model.removeprefix("NVIDIA ") or ABSENT), most=16),
        TableColumn("FINDING", 16, _finding, most=32),
        TableColumn("HEALTH", 9, _health),
        TableColumn("CLASS", LONGEST_CLASS, _class),
        TableColumn("SM", 5, _bar("sm_active"), most=20),
        TableColumn("SM HISTORY", 10, _spark("sm_active"), most=60),
        TableColumn("TENSOR", 6, _number("tensor_active"), right=True),
        TableColumn("DRAM", 5, _number("dram_active"), right=True),
        TableColumn("NVLINK/S", 8, _number("nvlink"), right=True),
        TableColumn("PCIE/S", 6, _number("pcie"), right=True),
        TableColumn("POWER", 6, _number("power"), right=True),
        TableColumn("TEMP", 6, _number("temperature"), right=True),
        TableColumn("MEMORY", 6, _number("memory_used"), right=True),
        TableColumn("LOSS", 5, _lost, right=True),
        TableColumn("OWNER", 8, _owner, most=48),
        TableColumn("PROCESS", 20, _process, most=70),
    )
}
# Which columns a narrow terminal keeps.
PRIORITY = (
    *("GPU", "FINDING", "CLASS", "SM", "POWER", "TEMP", "MEMORY", "OWNER", "HEALTH", "LOSS", "TENSOR", "DRAM"),
    *("SM HISTORY", "NVLINK/S", "PCIE/S", "MODEL", "PROCESS"),
)
