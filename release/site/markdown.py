"""Translate the Markdown of GitHub to that of Python-Markdown, which MkDocs uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

ITEM = re.compile(r"( *)([-*+]|\d{1,9}[.)])( {1,4})(?=\S)")
FENCE = re.compile(r" *(`{3,}|~{3,})")
PIECE = re.compile(r"(`+)(?:(?!`).)+?\1|\] \[")
WIDTH = 4  # how far Python-Markdown wants the content of a list item to be indented


class Line(NamedTuple):
    """A line of Markdown, and whether it belongs to a block of code."""

    text: str
    is_code: bool


def lines(text: str) -> Iterator[Line]:
    """Yield the lines; the fences of a block of code belong to it."""
    fence = ""
    for line in text.splitlines():
        match = FENCE.match(line)
        if not fence and match:
            fence = match[1]
            yield Line(line, True)
        elif fence and match and match[1].startswith(fence) and line.strip() == match[1]:
            fence = ""
            yield Line(line, True)
        else:
            yield Line(line, bool(fence))


def translate(text: str) -> str:
    """Return Markdown that Python-Markdown renders as GitHub renders the text.

    GitHub indents the content of a list item as far as its text begins, and lets a list follow a paragraph without an
    empty line. In a table, it needs `\\|` even within code.
    """
    made: list[str] = []
    items: list[int] = []  # where the text of each open list item begins
    has_blocks = False  # whether the last item has several blocks: then the next one needs an empty line
    for line, is_code in lines(text):
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            made.append("")
            has_blocks = bool(items)
            continue
        item = None if is_code else ITEM.match(line)
        follows_text = bool(made and made[-1])
        if not (follows_text and not item and not is_code):  # else the line continues a paragraph
            while items and indent < items[-1]:
                items.pop()
        if item and follows_text and (has_blocks or (_ends_paragraph(made[-1]) and not items)):
            made.append("")
        rest = line[items[-1] :] if items and indent >= items[-1] else line if is_code else line.lstrip()
        made.append(" " * (WIDTH * len(items)) + (rest if is_code else _inline(rest)))
        if item:
            items.append(len(item[0]))
            has_blocks = False
    return "\n".join(made) + "\n"


def _ends_paragraph(line: str) -> bool:
    return not ITEM.match(line) and not line.startswith(" ")


def _inline(line: str) -> str:
    """Return a line without what only Python-Markdown reads differently.

    In a row of a table, these are backslashes before bars within code. Elsewhere, `[a] [b]` is not a link.
    """
    is_row = line.startswith("|")

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "] [":
            return "]&#32;["
        return match[0].replace("\\|", "|") if is_row else match[0]

    return PIECE.sub(replaced, line)
