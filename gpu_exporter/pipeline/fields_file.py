"""Parse dcgm-exporter's file of fields: which classic families are exposed, and with which TYPE and HELP.

The format is that of dcgm-exporter's `--collectors`: CSV as Go's `encoding/csv` reads it, where a comment begins with
`#` and a row has name, Prometheus type and help, and may begin with a field id. Faults that make dcgm-exporter reject
the file only skip a row here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpu_exporter.catalogue.dcgm_exporter.fields import DcgmField, DcgmFields, load
from gpu_exporter.catalogue.dcgm_exporter.names import RENAMED
from gpu_exporter.catalogue.metrics import FB_RESERVED, FB_TOTAL, GPU_COUNT, METRICS, histograms, selected
from gpu_exporter.catalogue.selection import Family, Selection, ValueLabel, catalogue, hidden
from gpu_exporter.io.user_text import nearest
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import EntityKind, Kind, Metric, MetricSet, Pace, Schema

TYPES = ("gauge", "counter", "histogram", "summary", "label")
# The most lines of a quoted help text, so that a quote that is never closed does not hide the rest of the file.
MOST_LINES = 50


class FieldRow(NamedTuple):
    """A well-formed row. `id` is None if the row does not begin with a field id."""

    line: int
    id: int | None
    name: str
    type: str
    help: str


Warn = Callable[[int, str], None]


def rows(text: str, warn: Warn) -> Iterator[FieldRow]:
    """Yield the rows of a file. Call `warn` with the line number and the fault of each malformed one."""
    for line, record in _records(text.removeprefix("\ufeff"), warn):
        row = _row(line, [column.strip() for column in record])
        if isinstance(row, FieldRow):
            yield row
        else:
            warn(line, row)


def _records(text: str, warn: Warn) -> Iterator[tuple[int, list[str]]]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    number = 0
    while number < len(lines):
        line, last = lines[number], number + 1
        if line.strip() and not line.lstrip().startswith("#"):
            record = _record(line)
            if record is None:  # perhaps a quoted text of several lines, which ends where the number of quotes is even
                last = _end_of_quote(lines, number)
                record = _record("\n".join(lines[number:last]))
            if record is None:
                last = number + 1
                warn(last, "a quote is not closed, or is followed by more text; the row is skipped")
            else:
                yield number + 1, record
        number = last


def _end_of_quote(lines: Sequence[str], begin: int) -> int:
    quotes = 0
    for number in range(begin, min(len(lines), begin + MOST_LINES)):
        quotes += lines[number].count('"')
        if quotes % 2 == 0:
            return number + 1
    return begin + 1


def _record(line: str) -> list[str] | None:
    """Return the columns; None if the quotes are malformed."""
    try:
        return next(csv.reader([line], skipinitialspace=True, strict=True), [])
    except csv.Error:
        return None


def _row(line: int, columns: Sequence[str]) -> FieldRow | str:
    """Return the row, or what is wrong with it. After a field id, the name may be missing."""
    id, first = None, columns[0]
    if re.fullmatch(r"[0-9]{1,9}", first) and len(columns) > 1:
        id = int(first)
        columns = columns[1:] if columns[1].lower() not in TYPES else ["", *columns[1:]]
    if len(columns) != 3:
        hint = " (quote a help text that has commas)" if len(columns) > 3 else ""
        return f"{short(first)}: {len(columns)} columns instead of name, type, help{hint}; the row is skipped"
    name, type, help = columns
    if type.lower() not in TYPES:
        return f"{short(name)}: {short(type)} is not a type{nearest(type.lower(), TYPES)}; the row is skipped"
    return FieldRow(line, id, name, type.lower(), help)


def short(text: str) -> str:
    """Return the text quoted, shortened to what fits a message."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def decoded(content: bytes, warn: Warn) -> str:
    """Decode UTF-8. Replace invalid bytes, with one warning for the first line that has any."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        warn(line, "not UTF-8; the invalid bytes are replaced")
        return content.decode("utf-8", "replace")


# The most warnings about one file. A file in another format would cause one for each row.
MOST_WARNINGS = 20
LEVELS = {
    "gpu": EntityKind.GPU,
    "instance": EntityKind.GPU,
    "vgpu": EntityKind.GPU,
    "none": EntityKind.GPU,
    "link": EntityKind.NVLINK,
    "switch": EntityKind.NVSWITCH,
    "cpu": EntityKind.CPU,
    "cpu_core": EntityKind.CPU_CORE,
}
# Attributes of a GPU by field id, as labels; see `selection.detail`.
LABELS = {
    1: "driver",
    2: "nvml_version",
    3: "process",
    5: "cuda_driver_number",
    50: "model",
    51: "brand",
    52: "index",
    53: "serial",
    54: "uuid",
    55: "minor_number",
    56: "oem_inforom_version",
    57: "pci_bus_id",
    63: "compute_capability_number",
    80: "ecc_inforom_version",
    81: "power_inforom_version",
    82: "inforom_version",
    85: "vbios_version",
}
LOWEST, HIGHEST = -float(2**63), float(2**63 - 1)
BY_NAME = {row.name: row for row in reversed(METRICS)}
ROWS = frozenset(METRICS)
# Rows that are read at each collection, together with others, but do not change.
CONSTANT = frozenset({FB_TOTAL, FB_RESERVED, GPU_COUNT})
BY_FIELD = {row.dcgm: row for row in METRICS if row.classic and row.dcgm is not None}
MODERN = {new: (BY_NAME[old], factor) for old, (new, factor) in RENAMED.items() if old in BY_NAME}


@dataclass(slots=True)
class _Chosen:
    """The selection of the rows read so far."""

    metrics: list[Metric] = field(default_factory=list)
    families: dict[str, Family] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    value_labels: list[ValueLabel] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)

    def duplicate(self, key: str, row: FieldRow) -> str:
        """Return a problem if an earlier row has this field. The first one counts, as in dcgm-exporter."""
        first = self.lines.setdefault(key, row.line)
        return "" if first == row.line else f"{row.name}: line {first} already has this field; the row is skipped"


class FieldsFile:
    """A file of fields that may be parsed repeatedly: the same row yields the same metric object each time."""

    def __init__(
        self,
        path: Path,
        choice: MetricSet = MetricSet.DEFAULT,
        *,
        processes: bool = False,
        jobs: bool = False,
        schema: Schema = Schema.CLASSIC,
    ) -> None:
        self.path = path
        self._schema = schema
        self._base = (*selected(choice, processes=processes or jobs), *histograms(choice))
        self._default_families = {
            name: family
            for name, family in _families_of(self._base).items()
            if not hidden(BY_NAME[name], processes=processes, listed=jobs)
        }
        self._fields: DcgmFields | None = None
        self._made: dict[tuple[int, Kind], Metric] = {}

    def select(self, content: bytes) -> tuple[Selection, list[str]]:
        """Return the selection of this content of the file, and a warning for each faulty row.

        Raises GpuExporterError if no row selects anything.
        """
        faults: list[tuple[int, str]] = []

        def warn(line: int, message: str) -> None:
            faults.append((line, message))

        chosen = _Chosen()
        for row in rows(decoded(content, warn), warn):
            problem = self._take(row, chosen, quick=len(faults) >= MOST_WARNINGS)
            if problem:
                warn(row.line, problem)
        warnings = [f"{self.path}, line {line}: {message}" for line, message in sorted(faults)[:MOST_WARNINGS]]
        if len(faults) > MOST_WARNINGS:
            warnings.append(f"{self.path}: {len(faults) - MOST_WARNINGS} more faulty rows")
        if not chosen.lines:
            why = f"line {faults[0][0]}: {faults[0][1]}" if faults else "it is empty; add a row"
            raise GpuExporterError(f"{self.path} selects no field: {why}")
        return self._selection(chosen), warnings

    def _selection(self, chosen: _Chosen) -> Selection:
        added = tuple(metric for metric in chosen.metrics if metric not in self._base and _is_asked(metric))
        asked, families = (*self._base, *added), {**self._default_families, **chosen.families}
        labels, value_labels = tuple(chosen.labels.items()), tuple(chosen.value_labels)
        return Selection(asked, families, labels, added, self._schema, value_labels)

    def _take(self, row: FieldRow, chosen: _Chosen, *, quick: bool) -> str:
        """Add the selection of a row. Return what is wrong with the row; empty if nothing is."""
        fields = self._fields = self._fields or load()
        if not row.name and row.id is not None and row.id in fields.by_id:
            row = row._replace(name=fields.by_id[row.id].name)
        dcgm = fields.by_name.get(row.name)
        metric, factor = MODERN.get(row.name) or (BY_FIELD.get(dcgm.id) if dcgm else BY_NAME.get(row.name), 1.0)
        if dcgm is None and metric is None:
            guess = "" if quick else fields.nearest(row.name)
            return f"{short(row.name or str(row.id))} is not a field of DCGM{guess}; the row is skipped"
        if row.type == "label":
            problem = self._label(row, dcgm, metric, factor, chosen)
        elif metric is not None and not metric.classic:
            problem = f"{row.name}: only names that begin with DCGM_ belong here; use --metrics; the row is skipped"
        elif (metric := metric or self._dynamic(dcgm, row)) is None:
            problem = f"{row.name} is {_why_not(dcgm)}; the row is skipped"
        else:
            if self._schema is Schema.SI:
                row, factor = _renamed_row(row, metric)
            problem = _family(row, metric, factor, chosen)
        return problem or _id_problem(row, dcgm)

    def _label(
        self, row: FieldRow, dcgm: DcgmField | None, metric: Metric | None, factor: float, chosen: _Chosen
    ) -> str:
        constant = LABELS.get(dcgm.id) if dcgm else None
        metric = metric or self._dynamic(dcgm, row)
        of_gpu = metric is not None and metric.entity is EntityKind.GPU and _is_read(metric)
        if dcgm is None or not (constant or of_gpu):
            return f"{row.name} cannot be a label; the row is skipped"
        if problem := chosen.duplicate(dcgm.name, row):
            return problem
        if constant:
            chosen.labels[row.name] = constant
        elif metric is not None:
            chosen.metrics.append(metric)
            whole = dcgm.type == "int" and factor >= 1.0
            chosen.value_labels.append(ValueLabel(row.name, metric, factor, whole))
            return _label_problem(row, metric)
        return ""

    def _dynamic(self, dcgm: DcgmField | None, row: FieldRow) -> Metric | None:
        """Return a metric for a field without a catalogue row; None unless its value is a number of a known entity."""
        entity = LEVELS.get(dcgm.level) if dcgm else None
        if dcgm is None or entity is None or dcgm.type not in ("int", "double"):
            return None
        kind = Kind.COUNTER if row.type == "counter" else Kind.GAUGE
        if (dcgm.id, kind) not in self._made:
            self._made[dcgm.id, kind] = Metric(
                dcgm.name,
                kind,
                dcgm.unit,
                row.help,
                LOWEST,
                HIGHEST,
                entity,
                dcgm.id,
                per_instance=dcgm.level == "instance",
                rate=float("inf"),  # the file may call anything a counter
            )
        return self._made[dcgm.id, kind]


def _label_problem(row: FieldRow, metric: Metric) -> str:
    """Return why a value is a poor label; such a row is honoured all the same, as dcgm-exporter does."""
    problems = []
    if _is_changing(metric):
        problems.append("as a label, a value that changes makes every classic series of the GPU new at each change")
    if metric.per_instance:
        problems.append("a GPU in MIG mode has this value only per instance, so its series lack this label")
    return f"{row.name}: {'; '.join(problems)}; use type gauge or counter" if problems else ""


def _is_changing(metric: Metric) -> bool:
    """Return whether a row of the catalogue may have another value at each collection."""
    if metric not in ROWS or metric in CONSTANT:
        return False
    return metric.kind is Kind.COUNTER or metric.pace is Pace.FAST


def _renamed_row(row: FieldRow, metric: Metric) -> tuple[FieldRow, float]:
    """Return the row with its name since 4.9, and the factor. With another unit, use the help text of the catalogue."""
    name, factor = RENAMED.get(metric.name, (row.name, 1.0))
    help = BY_NAME[metric.name].help if factor != 1.0 and name != row.name and metric.name in BY_NAME else row.help
    return row._replace(name=name, help=help), factor


def _is_asked(metric: Metric) -> bool:
    """Return whether a source is asked for this metric. The collection loop makes others, such as the last XID."""
    return _is_read(metric) or metric.set is not MetricSet.DEFAULT


def _is_read(metric: Metric) -> bool:
    """Return whether a source has values of this metric, or of its parts; those of others are counts of events."""
    return metric not in ROWS or metric.nvml is not None or bool(metric.sum_of)


def _family(row: FieldRow, metric: Metric, factor: float, chosen: _Chosen) -> str:
    problem = chosen.duplicate(metric.name, row)
    if problem:
        return problem
    kind = "counter" if row.type == "counter" else "gauge"
    chosen.metrics.append(metric)
    chosen.families[metric.name] = Family(row.name, kind, row.help or metric.help, factor)
    if row.type in ("histogram", "summary"):
        return f"{row.name}: a field has one value, so it is exposed as a gauge, not as a {row.type}"
    return ""


def _families_of(base: Sequence[Metric]) -> Mapping[str, Family]:
    """Return the families that `--metrics` selects and that are not classic. Metrics of the file have no integrals and
    no peaks."""
    asked = frozenset(base)
    made_of = {name: BY_NAME[name].peak_of or (BY_NAME[name].integral_of,) for name in catalogue()}
    return {
        name: family
        for name, family in catalogue().items()
        if not BY_NAME[name].classic and (made_of[name] == (None,) or not asked.isdisjoint(made_of[name]))
    }


def _id_problem(row: FieldRow, dcgm: DcgmField | None) -> str:
    if row.id is None or dcgm is None or row.id == dcgm.id:
        return ""
    return f"{row.name} is field {dcgm.id}, not {row.id}; its name is used"


def _why_not(dcgm: DcgmField | None) -> str:
    if dcgm is not None and dcgm.type == "string" and dcgm.id in LABELS:
        return "text; only a row of type label can expose it"
    if dcgm is not None and dcgm.type in ("string", "binary"):
        return "not a number"
    return "a field of an unsupported entity"
