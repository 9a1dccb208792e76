"""Markdown as HTML: what each construct becomes, and that text is never markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from gpu_exporter.alerting import runbooks
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.reports.markdown_html import html_of

VOID = {"br", "img"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# What to do first", '<h1 id="what-to-do-first">What to do first</h1>'),
        ("one\ntwo\n\nthree", "<p>one two</p>\n<p>three</p>"),
        ("<!-- a note -->\ntext", "<p>text</p>"),
        ("a < b & `c <d>`", "<p>a &lt; b &amp; <code>c &lt;d&gt;</code></p>"),
        ("[the `page`](x?a=1&b=2)", '<p><a href="x?a=1&amp;b=2">the <code>page</code></a></p>'),
        ("**bold**, *before*, 2 * 3 * 4", "<p><strong>bold</strong>, <em>before</em>, 2 * 3 * 4</p>"),
        ("- a\n  - b\n- c\n  d", "<ul><li>a<ul><li>b</li></ul></li><li>c d</li></ul>"),
        ("1. a\n2. b", "<ol><li>a</li><li>b</li></ol>"),
        ("```promql\na < 1\n# b\n```\nend", '<pre tabindex="0"><code>a &lt; 1\n# b</code></pre>\n<p>end</p>'),
    ],
)
def test_constructs(text: str, expected: str) -> None:
    assert html_of(text).strip() == expected


def test_tables() -> None:
    made = html_of("| A | B |\n| --- | --- |\n| `x` | y \\| z |\n")
    assert '<thead><tr><th scope="col">A</th><th scope="col">B</th></tr></thead>' in made
    assert '<tbody><tr><th scope="row"><code>x</code></th><td>y | z</td></tr></tbody>' in made


class Balance(HTMLParser):
    """Notes tags that are closed in another order than they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", ["", *(mode.page for mode in MODES)])
def test_every_runbook(name: str) -> None:
    """No mark of Markdown is left outside of code, and all tags are closed."""
    pages = {mode.page: mode for mode in MODES}
    made = html_of(runbooks.runbook(pages[name]) if name else runbooks.index())
    parser = Balance()
    parser.feed(made)
    assert parser.opened == []
    prose = re.sub(r"<(code)>.*?</\1>", "", made, flags=re.DOTALL)
    assert not re.search(r"`|\]\(|^\s*[|#-] ", prose, re.MULTILINE)
