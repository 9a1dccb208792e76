"""What all HTML reports have in common: policy, styles, head, tables, and text and JSON that are harmless in HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from gpu_exporter.io.decoding import printable
from gpu_exporter.version import __version__

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
LONGEST = 400
# Light and dark, for screens and for paper. A page adds the rules of what only it has.
STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2024;--soft:#5b6470;--edge:#d5d9de;--plot:#f4f6f8;--line:#1f6feb;
--band:#1f6feb33;--critical:#b42318;--warning:#9a6700;--info:#0b6bcb;--ok:#1a7f37}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--text:#e6e9ec;--soft:#a3acb7;--edge:#373d44;--plot:#1d2125;
--line:#6cb0ff;--band:#6cb0ff33;--critical:#ff8a80;--warning:#e3b341;--info:#79c0ff;--ok:#7ee787}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:1200px;margin:auto;padding:16px}
h1{font-size:1.6em;margin:.4em 0}h2{font-size:1.25em;margin:1.6em 0 .4em}h3{font-size:1em;margin:1.2em 0 .2em}
h1,h2,h3,p,li,dd{overflow-wrap:anywhere}ul{margin:.2em 0 .6em;padding-left:1.4em}
small{color:var(--soft);font-weight:normal}
a{color:var(--line)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid var(--edge)}
td.number,th.number{text-align:right;white-space:nowrap}
svg{display:block;width:100%;height:auto}
code,.frame{font-family:ui-monospace,monospace}.frame{font-size:.9em;overflow-wrap:anywhere}
.verdict{border-left:6px solid var(--warning);padding:2px 12px}.verdict h2{margin:.2em 0}
.verdict.critical{border-color:var(--critical)}.verdict.info{border-color:var(--info)}.verdict.ok{border-color:var(--ok)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:0 1.2em;margin:.2em 0 .8em;padding:0}
.legend svg{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}
"""


def safe_text(text: str) -> str:
    """Return text from outside, without control characters and harmless in HTML."""
    return escape(printable(text, LONGEST), quote=True)


def frame(text: str) -> str:
    """Return a frame of a stack, or another name of code, in the font of code."""
    return f'<span class="frame">{safe_text(text)}</span>'


def page_head(title: str, style: str = "") -> Iterator[str]:
    """Yield the head of a page, which loads nothing, and the beginning of its body. `style` has its own rules."""
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield f"<title>{safe_text(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n"
    yield "<body>\n<main>\n"


def verdict(kind: str, title: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield what a report says first: a title, and paragraphs. `kind` chooses the colour of its border."""
    yield f'<div class="verdict {kind}"><h2>{safe_text(title)}</h2>\n'
    yield from (f"<p>{safe_text(text)}</p>\n" for text in texts)
    yield "</div>\n"


def legend(colours: Mapping[str, str]) -> str:
    """Return what the colours of a picture mean: a mark and words for each."""
    marks = (
        f'<li><svg viewBox="0 0 1 1" aria-hidden="true"><rect width="1" height="1" fill="{colour}"/></svg>'
        f"{safe_text(words)}</li>"
        for words, colour in colours.items()
    )
    return f'<ul class="legend">{"".join(marks)}</ul>\n'


def analysis_foot(content: Any) -> Iterator[str]:
    """Yield the end of a page with an analysis, and what wrote it."""
    yield f"<p><small>gpu-exporter {__version__}. The source of this page contains the analysis as JSON.</small></p>"
    yield from page_foot(content, "analysis")


def page_foot(content: Any, name: str) -> Iterator[str]:
    """Yield the end of a page, with its content as JSON in an element with this id."""
    safe = re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(content, indent=1))
    yield f'</main>\n<script type="application/json" id="{name}">{safe}</script>\n</body>\n</html>\n'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> Iterator[str]:
    """Yield a table; its first column is a name, the others are numbers. Cells are HTML."""
    yield f'<div class="wide" role="group" aria-label="{safe_text(label)}" tabindex="0"><table>\n<thead><tr>'
    yield "".join(f'<th scope="col"{_number(at)}>{safe_text(name)}</th>' for at, name in enumerate(head))
    yield "</tr></thead>\n<tbody>\n"
    for row in rows:
        yield f"<tr>{''.join(f'<td{_number(at)}>{cell}</td>' for at, cell in enumerate(row))}</tr>\n"
    yield "</tbody></table></div>\n"


def _number(column: int) -> str:
    return ' class="number"' if column else ""
