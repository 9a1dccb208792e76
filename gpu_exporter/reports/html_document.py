"""What all HTML reports have in common: policy, style, head, and text and JSON that are harmless in HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from gpu_exporter.io.decoding import printable
from gpu_exporter.version import __version__

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
LONGEST = 400
STYLE = """
:root { font: 15px/1.5 system-ui, sans-serif; --line: #8885; color-scheme: light dark; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1060px; padding: 1rem; overflow-wrap: anywhere; }
h1 small, td small { font-weight: normal; opacity: .75; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wide { overflow-x: auto; }
.verdict { border-left: .4rem solid #d2691e; padding: .2rem .8rem; }
.verdict.compute-bound { border-color: #4f9d4f; }
svg { display: block; width: 100%; height: auto; margin: .2rem 0 1rem; }
svg.timeline { height: 44px; }
.step { stroke: #0006; stroke-width: 1; vector-effect: non-scaling-stroke; }
.flame text { font: 11px ui-monospace, monospace; fill: #1a1a1a; pointer-events: none; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
code, .frame { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
"""


def safe_text(text: str) -> str:
    """Return text from outside, without control characters and harmless in HTML."""
    return escape(printable(text, LONGEST), quote=True)


def page_head(title: str) -> Iterator[str]:
    """Yield the head of a page, which loads nothing, and the beginning of its body."""
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield f"<title>{safe_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
    yield "<body>\n<main>\n"


def page_foot(content: Any) -> Iterator[str]:
    """Yield the end of a page, with the JSON of its content."""
    yield f"<p><small>gpu-exporter {__version__}. The source of this page contains the analysis as JSON.</small></p>"
    safe = re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(content, indent=1))
    yield f'</main>\n<script type="application/json" id="analysis">{safe}</script>\n</body>\n</html>\n'
