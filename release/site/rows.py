"""Rows of reference tables: each gets an anchor, and an entry of its own in the search index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from typing import NamedTuple

# The pages with these tables: the head of the first column, which has the names, and the title of an entry.
NAMED = {
    "configuration.md": ("flag", "{}"),
    "dcgm-exporter-flags.md": ("flag", "{} of dcgm-exporter"),
    "metrics.md": ("metric", "{}"),
    "signals.md": ("signal", "{}"),
    "xids.md": ("code", "XID {}"),
}
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEAD = re.compile(r"<th(?: [^>]*)?>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>\s*<td[^>]*>(?P<name>.*?)</td>(?P<rest>.*?)</tr>", re.DOTALL)
LINE = re.compile(r"<tr.*?</tr>", re.DOTALL)
CELL = re.compile(r"<t[dh](?: [^>]*)?>.*?</t[dh]>", re.DOTALL)
# In a table with so many columns, the meaning is moved to where it can be seen.
MEANING, MOST_COLUMNS = "meaning", 6
TAG = re.compile(r"<[^>]+>")


class Row(NamedTuple):
    """A row that the search finds: its anchor on the page, its title, and the text of its other cells."""

    anchor: str
    title: str
    text: str


def with_anchors(html: str, page: str) -> tuple[str, list[Row]]:
    """Return the HTML of a page with an anchor on each row of its reference tables, and these rows."""
    found: list[Row] = []
    if page not in NAMED:
        return html, found
    kind, title = NAMED[page]

    def table(match: re.Match[str]) -> str:
        heads = [_text(head).lower() for head in HEAD.findall(match[0])]
        if not heads or heads[0] != kind:
            return match[0]
        made = ROW.sub(anchored, match[0])
        return LINE.sub(_last_cell_second, made) if heads[-1] == MEANING and len(heads) > MOST_COLUMNS else made

    def anchored(row: re.Match[str]) -> str:
        name = _text(row["name"])
        anchor = f"{kind}-{re.sub(r'[^a-z0-9_]+', '-', name.lower()).strip('-')}"
        found.append(Row(anchor, title.format(name), " · ".join(_cells(row["rest"]))))
        return row[0].replace("<tr>", f'<tr id="{anchor}">', 1)

    return TABLE.sub(table, html), found


def _last_cell_second(line: re.Match[str]) -> str:
    first, *others, last = CELL.findall(line[0])
    cells = iter((first, last, *others))
    return CELL.sub(lambda _: next(cells), line[0])


def _cells(row: str) -> Iterator[str]:
    for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL):
        if text := _text(cell):
            yield escape(text, quote=False)


def _text(markup: str) -> str:
    return unescape(TAG.sub("", markup)).strip()
