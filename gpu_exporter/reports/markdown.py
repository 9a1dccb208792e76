"""Build Markdown as GitHub renders it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from posixpath import normpath

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_TEMPLATE = re.compile(r"\{\{\s*(.*?)\s*\}\}")
# A block of a template without another one inside.
_BLOCK = re.compile(r"\{\{ (?:if|with) (?:(?!\{\{ (?:if|with|end) ).)*\{\{ end \}\}")
_ELSE, _END = "{{ else }}", "{{ end }}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars within cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    """Return a bulleted list."""
    return "".join(f"- {line}\n" for line in lines)


def numbered(lines: Iterable[str]) -> str:
    """Return a numbered list."""
    return "".join(f"{number}. {line}\n" for number, line in enumerate(lines, 1))


def code(language: str, text: str) -> str:
    """Return a code block."""
    return f"```{language}\n{text}\n```\n"


def ticked(names: Iterable[str]) -> str:
    """Return names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def untemplated(text: str) -> str:
    """Return a text of an alert with *n* for its value, *<label>* for its labels, and only its default branches."""
    while (plain := _BLOCK.sub(lambda found: found[0].removesuffix(_END).partition(_ELSE)[2], text)) != text:
        text = plain
    return _TEMPLATE.sub(lambda found: f"*{'n' if '$value' in found[1] else found[1].removeprefix('$labels.')}*", text)


def relinked(text: str, resolve: Callable[[str], str], folder: str) -> str:
    """Return a page with the target of each link replaced.

    If a target becomes empty, the path of the file in the repository follows the text; `folder` is that of the page.
    """

    def link(found: re.Match[str]) -> str:
        target = resolve(found[2])
        if target:
            return f"[{found[1]}]({target})"
        file = found[2].partition("#")[0]
        return f"{found[1]} (`{normpath(f'{folder}/{file}')}`)" if file else found[1]

    return _LINK.sub(link, text)


def outside(link: str) -> str:
    """Return the target of a link that leads out of the repository or to the same page, and no other."""
    return link if "://" in link or link.startswith("#") else ""
