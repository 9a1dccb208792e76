"""Markdown as this project's runbooks have it -> HTML: headings, paragraphs, lists, tables, code and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

_INLINE = re.compile(r"`([^`]+)`|\[([^\]]*)\]\(([^)\s]+)\)|\*\*(.+?)\*\*|(?<![\w*])\*([^*\s][^*]*)\*")
_ITEM = re.compile(r"( *)(-|\d+\.) +(.*)")
_HEADING = re.compile(r"(#{1,6}) +(.*)")
_HEAD_TAG = re.compile(r'<(/?)h([1-6])(?: id="([^"]*)")?>')
_CELL = re.compile(r"(?<!\\)\|")


def html_of(text: str, *, prefix: str = "", below: int = 0) -> str:
    """Return the HTML of a page, in which text is never markup. Headings have ids, as on GitHub.

    In another page, `prefix` makes the ids unique, and the headings are `below` one of its levels.
    """
    made = "".join(_blocks(iter(text.splitlines())))
    return _HEAD_TAG.sub(lambda found: _demoted(found, prefix, below), made) if prefix or below else made


def _demoted(found: re.Match[str], prefix: str, below: int) -> str:
    level = min(int(found[2]) + below, 6)
    return f"<{found[1]}h{level}" + (f' id="{prefix}{found[3]}"' if found[3] else "") + ">"


def inline(text: str) -> str:
    """Return the HTML of a line: code, links and emphasis."""
    parts, end = [], 0
    for found in _INLINE.finditer(text):
        code, label, target, strong, emphasis = found.groups()
        parts.append(escape(text[end : found.start()]))
        end = found.end()
        if code is not None:
            parts.append(f"<code>{escape(code)}</code>")
        elif target is not None:
            parts.append(f'<a href="{escape(target)}">{inline(label)}</a>')
        elif strong is not None:
            parts.append(f"<strong>{inline(strong)}</strong>")
        else:
            parts.append(f"<em>{inline(emphasis)}</em>")
    return "".join([*parts, escape(text[end:])])


def _blocks(lines: Iterator[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if line.startswith("```"):
            yield from _block(block)
            block = []
            yield f'<pre tabindex="0"><code>{escape(_fenced(lines))}</code></pre>\n'
        elif line.strip() and not line.startswith("<!--"):
            block.append(line)
        else:
            yield from _block(block)
            block = []
    yield from _block(block)


def _fenced(lines: Iterator[str]) -> str:
    """Return the lines of a code block, whose end is consumed."""
    content = []
    for line in lines:
        if line.startswith("```"):
            break
        content.append(line)
    return "\n".join(content)


def _block(lines: list[str]) -> Iterator[str]:
    """Yield lines without a blank one between them."""
    if not lines:
        return
    if heading := _HEADING.fullmatch(lines[0]):
        level, text = len(heading[1]), heading[2]
        name = re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-")
        yield f'<h{level} id="{name}">{inline(text)}</h{level}>\n'
        yield from _block(lines[1:])
    elif lines[0].startswith("|"):
        yield from _table(lines)
    elif _ITEM.match(lines[0]):
        yield from _list(lines)
    else:
        yield f"<p>{inline(' '.join(lines))}</p>\n"


def _cells(line: str) -> list[str]:
    return [inline(cell.strip().replace("\\|", "|")) for cell in _CELL.split(line.strip())[1:-1]]


def _table(lines: list[str]) -> Iterator[str]:
    head = "".join(f'<th scope="col">{cell}</th>' for cell in _cells(lines[0]))
    yield '<div class="scroll" tabindex="0" role="group" aria-label="Table">'
    yield f"<table><thead><tr>{head}</tr></thead><tbody>"
    for line in lines[2:]:
        first, *rest = _cells(line)
        yield f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
    yield "</tbody></table></div>\n"


def _list(lines: list[str]) -> Iterator[str]:
    """Yield a list, nested by indentation. A line that begins no item continues the last one."""
    items: list[tuple[int, str, str]] = []
    for line in lines:
        if found := _ITEM.fullmatch(line):
            items.append((len(found[1]), "ul" if found[2] == "-" else "ol", found[3]))
        else:
            depth, tag, text = items.pop()
            items.append((depth, tag, f"{text} {line.strip()}"))
    opened: list[tuple[int, str]] = []
    for depth, tag, text in items:
        while opened and depth < opened[-1][0]:
            yield f"</li></{opened.pop()[1]}>"
        if opened and depth == opened[-1][0]:
            yield "</li>"
        else:
            opened.append((depth, tag))
            yield f"<{tag}>"
        yield f"<li>{inline(text)}"
    while opened:
        yield f"</li></{opened.pop()[1]}>"
    yield "\n"
