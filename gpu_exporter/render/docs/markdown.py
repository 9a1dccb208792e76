"""Markdown that GitHub shows as it is meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_TEMPLATE = re.compile(r"\{\{\s*(.*?)\s*\}\}")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar within a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    """A list."""
    return "".join(f"- {line}\n" for line in lines)


def numbered(lines: Iterable[str]) -> str:
    """Steps."""
    return "".join(f"{number}. {line}\n" for number, line in enumerate(lines, 1))


def code(language: str, text: str) -> str:
    """A block of code."""
    return f"```{language}\n{text}\n```\n"


def ticked(names: Iterable[str]) -> str:
    """Names as code, in a row."""
    return ", ".join(f"`{name}`" for name in names)


def untemplated(text: str) -> str:
    """Text of an alert with *n* for its value and *<label>* for its labels."""
    return _TEMPLATE.sub(lambda found: f"*{'n' if '$value' in found[1] else found[1].removeprefix('$labels.')}*", text)
