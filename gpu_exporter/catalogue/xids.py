"""NVIDIA's XID codes: what each means, whose fault it usually is, and what repairs it. The data is `xids.csv`.

Codes and mnemonics are those of NVIDIA's Xid catalog (as of the `date` column). Codes that it calls unused have the
meaning of the Xid document for driver R545. `action` is the catalog's immediate action in NVML's words. The exception
is 109: the catalog asks for a reset, but NVIDIA's own device plugin treats it as an application's error. The driver's
recovery action (NVML field 230, XID 154) outranks this table. `drain` marks the codes on which the catalog and clouds
that drain automatically agree.

An SXid (NVSwitch) needs no table: its line in the kernel log says whether it is fatal.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gpu_exporter.io.file_access import FileWorker, cause, read
from gpu_exporter.io.user_text import MAX_FILE_BYTES, boolean, choice, nearest
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.verdict import Action

PACKAGED = Path(__file__).with_name("xids.csv")
HIGHEST = 65535


class XidKind(Enum):
    """Whose fault an XID usually is. UNKNOWN: NVIDIA did not document the code; it alerts and never drains."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    DRIVER = "driver"
    INFORMATIONAL = "informational"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Xid:
    """One code. `source` and `date` (ISO 8601) say where its facts come from, and as of when."""

    code: int
    mnemonic: str
    meaning: str
    kind: XidKind
    action: Action
    drain: bool
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The known codes, in order."""

    rows: Mapping[int, Xid]

    def __getitem__(self, code: int) -> Xid:
        """Return the row of a code, or that of an undocumented code."""
        return self.rows.get(code) or unknown(code)

    def __iter__(self) -> Iterator[Xid]:
        return iter(self.rows.values())

    @property
    def drain_codes(self) -> tuple[int, ...]:
        """Return the codes that require a drain."""
        return tuple(xid.code for xid in self if xid.drain)


def unknown(code: int) -> Xid:
    """Return the row of a code that NVIDIA did not document: it alerts, and never drains."""
    return Xid(code, "", "Not documented by NVIDIA", XidKind.UNKNOWN, Action.NONE, False, "", "")


def load(overrides: Path | None = None) -> Catalogue:
    """Return the packaged table with the user's changes.

    The overrides are YAML (`63: {action: gpu_reset, drain: true}`) or CSV (columns `code` and those to change; an empty
    cell changes nothing). Raises GpuExporterError that names file, line, value and what is accepted.
    """
    if overrides is None:
        return _packaged()
    rows = dict(_packaged().rows)
    changes = _csv if overrides.suffix.lower() == ".csv" else _yaml
    _apply(rows, changes(overrides), overrides.name)
    return Catalogue(dict(sorted(rows.items())))


@cache
def _packaged() -> Catalogue:
    """Return the packaged table. All simulated nodes of a process share it."""
    rows: dict[int, Xid] = {}
    _apply(rows, _csv(PACKAGED), str(PACKAGED))
    return Catalogue(dict(sorted(rows.items())))


class _Change(NamedTuple):
    where: str
    code: str
    column: str
    value: str


def _code(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) <= HIGHEST):
        raise ValueError(f"{text!r} is not an XID code; use 1 to {HIGHEST}")
    return int(text)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(f"{text!r} is empty; leave the column out to keep its value")
    return " ".join(text.split())


def _date(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ValueError(f"{text!r} is not a date; use for example 2025-10-29") from error


KINDS = tuple(kind.value for kind in XidKind if kind is not XidKind.UNKNOWN)
_KIND = choice(*KINDS)
_ACTION = choice(*(action.value for action in Action))
COLUMNS: Mapping[str, Callable[[str], Any]] = {
    "mnemonic": _text,
    "meaning": _text,
    "kind": lambda text: XidKind(_KIND(text)),
    "action": lambda text: Action(_ACTION(text)),
    "drain": boolean,
    "source": _text,
    "date": _date,
}


def _apply(rows: dict[int, Xid], changes: Iterator[_Change], origin: str) -> None:
    """Apply changes. A changed row names `origin` as its source, unless the change names another one."""
    changed: dict[int, dict[str, Any]] = {}
    for change in changes:
        if change.column not in COLUMNS:
            known = ", ".join(COLUMNS)
            hint = nearest(change.column, COLUMNS)
            raise GpuExporterError(f"{change.where}: {change.column!r} is not one of the columns {known}{hint}")
        try:
            code = _code(change.code)
            value = COLUMNS[change.column](change.value)
        except ValueError as error:
            subject = "code" if "XID code" in str(error) else f"{change.column} of {change.code}"
            raise GpuExporterError(f"{change.where}: {subject}: {error}") from error
        changed.setdefault(code, {"source": origin, "date": ""})[change.column] = value
    for code, values in changed.items():
        rows[code] = replace(rows.get(code) or unknown(code), **values)


def _csv(path: Path) -> Iterator[_Change]:
    """Yield a change for every cell that is not empty."""
    reader = csv.DictReader(io.StringIO(_content(path), newline=""), strict=True)
    try:
        if "code" not in (reader.fieldnames or ()):
            raise GpuExporterError(f"{path}:1: no column 'code'")
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row:
                raise GpuExporterError(f"{where}: more cells than columns; quote a text that contains a comma")
            code = row.pop("code") or ""
            yield from (_Change(where, code.strip(), name.strip(), text) for name, text in row.items() if text)
    except csv.Error as error:
        raise GpuExporterError(f"{path}: {error}") from error


def _content(path: Path) -> str:
    """Return the text of a file, of limited size and read within a deadline. Raises GpuExporterError."""
    try:
        return FileWorker("xid-overrides").call(lambda: read(path, MAX_FILE_BYTES)).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise GpuExporterError(f"{path}: {cause(error)}", fix="check --xid-overrides") from error


def _yaml(path: Path) -> Iterator[_Change]:
    """Yield a change for every value of `code: {column: value}`."""
    from gpu_exporter.catalogue.xid_yaml import cells

    return (_Change(*cell) for cell in cells(path, _content(path)))
