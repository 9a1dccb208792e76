"""Lines of styled text for a terminal, measured in columns: some characters take two, some none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

# The names of styles, as Rich writes them. Without colour, only weight and reverse video remain.
STYLES = {
    "": "",
    "dim": "bright_black",
    "head": "bold",
    "title": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "info": "cyan",
    "idle": "bright_black",
    "unknown": "magenta",
    "chosen": "bold reverse",
    "banner": "bold black on yellow",
    "problem": "bold white on red",
    "keys": "reverse",
}


class Span(NamedTuple):
    """Text in one style."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


class Glyphs(NamedTuple):
    """The characters of bars, sparklines and marks, from empty to full."""

    bar: str
    spark: str
    chosen: str
    dot: str
    rule: str


UNICODE = Glyphs(" ▏▎▍▌▋▊▉█", "▁▂▃▄▅▆▇█", "▶", "·", "─")
ASCII = Glyphs(" -=#", "_.-=+*#@", ">", "-", "-")


def glyphs(encoding: str | None) -> Glyphs:
    """Return the characters that this encoding has."""
    try:
        "".join(UNICODE).encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return ASCII
    return UNICODE


def width_of(text: str) -> int:
    """Return how many columns a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return the text in exactly `width` columns: padded, or cut with an ellipsis."""
    length = width_of(text)
    if length > width:
        mark = "…" if width > 1 else ""
        return set_cell_size(text, max(0, width - len(mark))) + mark if width else ""
    return " " * (width - length) + text if right else text + " " * (width - length)


def cut(line: Iterable[Span], width: int) -> Line:
    """Return a line that takes at most `width` columns."""
    spans: list[Span] = []
    left = width
    for text, style in line:
        length = width_of(text)
        if length > left:
            if left:
                spans.append(Span(fit(text, left), style))
            break
        spans.append(Span(text, style))
        left -= length
    return tuple(spans)


def padded(line: Line, width: int, style: str) -> Line:
    """Return a line of exactly `width` columns, in one style."""
    return (Span(fit("".join(span.text for span in line), width), style),)


def bar(share: float | None, width: int, marks: Glyphs) -> str:
    """Return a bar of `width` columns for a share from 0 to 1; dots if it is unknown."""
    if share is None:
        return marks.dot * width
    steps = len(marks.bar) - 1
    filled = round(min(max(share, 0.0), 1.0) * width * steps)
    whole, part = divmod(filled, steps)
    return (marks.bar[-1] * whole + (marks.bar[part] if part else "")).ljust(width)


def spark(values: Sequence[float | None], top: float, width: int, marks: Glyphs) -> str:
    """Return the last `width` values as a sparkline up to `top`; blank where a value is missing."""
    shown = list(values)[-width:] if width > 0 else []
    levels = len(marks.spark) - 1
    drawn = (" " if value is None else marks.spark[round(min(max(value / top, 0.0), 1.0) * levels)] for value in shown)
    return "".join(drawn).rjust(width)


def wrapped(text: str, width: int, indent: str = "", style: str = "", first: str | None = None) -> list[Line]:
    """Return a text as lines of at most `width` columns, broken between words. A longer word is cut."""
    lines: list[Line] = []
    start = indent if first is None else first
    current = start
    empty = True
    for word in text.split():
        if not empty and width_of(current) + 1 + width_of(word) > width:
            lines.append((Span(current, style),))
            current, empty = indent, True
        current += word if empty else f" {word}"
        empty = False
    if not empty:
        lines.append((Span(current, style),))
    return [cut(line, width) for line in lines]
