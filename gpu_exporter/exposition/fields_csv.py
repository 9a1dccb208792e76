"""Parse the CSV of dcgm-exporter's file of fields into rows, as Go's `encoding/csv` reads it, row by row.

A comment begins with `#`; a row has name, Prometheus type and help, and may begin with a field id.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpu_exporter.io.user_text import nearest

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
