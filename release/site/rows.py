"""Rows of reference tables: each gets an anchor, and an entry of its own in the search index."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import NamedTuple

# Tables whose rows are found by the name in their first column, by the head of that column, and the title of an entry.
NAMED = {"metric": "{}", "signal": "{}", "flag": "{}", "code": "XID {}"}
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>\s*<td[^>]*>(?P<name>.*?)</td>(?P<rest>.*?)</tr>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


class Row(NamedTuple):
    """A row that the search finds: its anchor on the page, its title, and the text of its other cells."""

    anchor: str
    title: str
    text: str


def with_anchors(page: str) -> tuple[str, list[Row]]:
    """Return the HTML of a page with an anchor on each row of its reference tables, and these rows."""
    found: list[Row] = []

    def table(match: re.Match[str]) -> str:
        heads = HEAD.findall(match[0])
        kind = _text(heads[0]).lower() if heads else ""
        if kind not in NAMED or len(heads) < 4:
            return match[0]
        return ROW.sub(lambda row: anchored(row, kind), match[0])

    def anchored(row: re.Match[str], kind: str) -> str:
        name = _text(row["name"])
        anchor = f"{kind}-{re.sub(r'[^a-z0-9_]+', '-', name.lower()).strip('-')}"
        found.append(Row(anchor, NAMED[kind].format(name), " · ".join(_cells(row["rest"]))))
        return row[0].replace("<tr>", f'<tr id="{anchor}">', 1)

    return TABLE.sub(table, page), found


def _cells(row: str) -> Iterator[str]:
    for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL):
        if text := _text(cell):
            yield html.escape(text, quote=False)


def _text(markup: str) -> str:
    return html.unescape(TAG.sub("", markup)).strip()
