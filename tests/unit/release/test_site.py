"""How pages of the repository become pages of the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown import markdown
from markdown_it import MarkdownIt

import gpu_exporter
from release.site import contents, links, rows, sources
from release.site.__main__ import listed, minor
from release.site.markdown import translate
from tests import ROOT
from tests.support.table import table_test

FIX = "fix: release/site/markdown.py does not translate this page correctly"
GITHUB = MarkdownIt("commonmark").enable("table")
EXTENSIONS = ["sane_lists", "tables", "pymdownx.superfences"]
PAGES = sorted(
    path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("helm/*/README.md")] if path.is_file()
)


WIDE = {"h": ["metric", *"bcdef", "meaning"], "d": [*"1234567"]}


def shape(html: str) -> list[str]:
    """Return the tags that structure a page, in their order."""
    return re.findall(r"<(h[1-6]|li|ul|ol|table|tr|pre|img)\b", html.replace("<thead>", "").replace("<tbody>", ""))


@pytest.mark.drift
@table_test("page", PAGES, lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_shape_that_github_gives_it(page: Path) -> None:
    """Headings, lists and their items, tables and their rows, code and pictures, in the same order."""
    text = page.read_text("utf-8")
    assert shape(markdown(translate(text), extensions=EXTENSIONS)) == shape(GITHUB.render(text)), FIX


def test_translation() -> None:
    """Code in a list item, a list after a paragraph, and a bar within code of a table."""
    text = "Text:\n- one\n  more\n  - two\n\n    ```sh\n    ls\n      -l\n    ```\n- three\n"
    text += "\n| a |\n| --- |\n| `b \\| c` |\n"
    html = markdown(translate(text), extensions=EXTENSIONS)
    assert shape(html) == shape(GITHUB.render(text))
    assert "<code>b | c</code>" in html
    assert translate("* [A] [B](c)\n") == "* [A]&#32;[B](c)\n"


def test_links() -> None:
    """Pages of docs/ are at the root of the site, everything else at its path in the repository; code is no link."""
    text = (
        "[a](../README.md#b) [c](health.md) [d](../setup.cfg) ![e](images/f.png) [g](https://h.i) `[j](k.md)` [l](#m)"
    )
    assert links.rewrite(text, "docs/api.md").strip() == (
        "[a](index.md#b) [c](health.md) [d](repository/setup.cfg.md) ![e](images/f.png) [g](https://h.i) `[j](k.md)` "
        "[l](#m)"
    )
    assert links.rewrite("[a](../../docs/health.md)", "helm/gpu-exporter/README.md").strip() == (
        "[a](../../../health.md)"
    )
    for file in ("README.md", "docs/README.md", "docs/api.md", "CONTRIBUTING.md", "helm/gpu-exporter/README.md"):
        assert links.repository_path(links.site_path(file)) == file


def test_a_dead_link_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"docs/api\.md links to docs/none\.md, which does not exist"):
        list(links.targets("[a](none.md)", "docs/api.md"))


def test_sources_become_pages() -> None:
    """A file shows its text, a folder its names; Markdown remains a page."""
    made = sources.pages()
    assert "# Contributing" in made["repository/CONTRIBUTING.md"]
    assert "packages = find:" in made["repository/setup.cfg.md"]
    assert "- `plain.py`" in made["repository/examples/index.md"]
    assert not sources.is_source("repository/CONTRIBUTING.md")
    assert sources.is_source("repository/setup.cfg.md")


def test_rows_are_found_by_their_name() -> None:
    row = "<tr>\n<td><code>A_x</code></td><td>5 &lt; 6</td></tr>"
    table = f"<table><tr><th>{{}}</th><th>b</th></tr>{row}</table>"
    html, found = rows.with_anchors(table.format("metric"), "metrics.md")
    assert found == [rows.Row("metric-a_x", "A_x", "5 &lt; 6")]
    assert '<tr id="metric-a_x">' in html
    assert rows.with_anchors(table.format("other"), "metrics.md") == (table.format("other"), [])
    assert rows.with_anchors(table.format("metric"), "other.md") == (table.format("metric"), [])


def test_the_meaning_of_a_metric_can_be_seen() -> None:
    """It comes second; the other columns keep their order."""
    lines = ["".join(f"<t{kind}>{cell}</t{kind}>" for cell in cells) for kind, cells in WIDE.items()]
    html, _ = rows.with_anchors(f"<table><tr>{lines[0]}</tr><tr>\n{lines[1]}\n</tr></table>", "metrics.md")
    shown = [re.sub(r"<.*?>", " ", line).split() for line in html.split("</tr>")]
    assert shown[:2] == [["metric", "meaning", *"bcdef"], [*"1723456"]]


@pytest.mark.drift
def test_navigation_has_every_page_once() -> None:
    """In the order of docs/README.md; runbooks are below their index."""
    text = str(contents.navigation())
    pages = re.findall(r"'([\w./-]+\.md)'", text)
    assert len(pages) == len(set(pages)), "fix: correct release/site/contents.py"
    missing = {links.site_path(path.relative_to(ROOT).as_posix()) for path in ROOT.glob("docs/**/*.md")} - set(pages)
    assert missing == set(), "fix: list these pages in docs/README.md"


def test_versions(tmp_path: Path) -> None:
    """The newest comes first, by number; other folders are none."""
    for name in ("0.9", "0.10", "x"):
        (tmp_path / name).mkdir()
    assert [(each["version"], each["aliases"]) for each in listed(tmp_path)] == [("0.10", ["latest"]), ("0.9", [])]
    assert minor("0.10.3") == "0.10"


@pytest.mark.drift
def test_the_page_of_the_library_has_every_public_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    named = set(re.findall(r"<!-- ::: [\w.]+\.(\w+) -->", page))
    assert named == {*gpu_exporter.__all__, "StepTimer"} - {"__version__", "training"}, "fix: correct docs/python.md"
