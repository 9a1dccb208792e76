"""What MkDocs calls while it builds the site (https://www.mkdocs.org/user-guide/configuration/#hooks)."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path

from release.site import contents, links, rows, sources  # noqa: E402
from release.site.markdown import translate  # noqa: E402

# What mkdocstrings replaces by a reference is a comment in docs/, so that GitHub does not show it.
REFERENCE = re.compile(r"^<!-- (::: [\w.]+) -->$", re.MULTILINE)
MERMAID = '<script src="{}assets/mermaid.tiny.js"></script>'

# How much more a row, or the runbook of an alert, counts than other texts with the same words.
BOOST = 3

found: dict[str, list[rows.Row]] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Derive the navigation from docs/README.md, and let pages offer other versions where there are some."""
    found.clear()
    if "SITE_VERSIONS" in os.environ:
        config.extra["version"] = {"provider": "mike", "default": "latest"}
    config.nav = contents.navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, and what they link to."""
    for file in [*files]:
        if file.src_uri == "README.md":
            files.remove(file)
    try:
        pages = sources.pages()
    except ValueError as error:
        raise PluginError(f"{error}: correct the link") from None
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate a page, its links included, from GitHub's Markdown."""
    if sources.is_source(page.file.src_uri):
        return markdown
    if page.file.src_uri.startswith("runbooks/"):
        page.meta["search"] = {"boost": BOOST}
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    elif "\n## " not in markdown:
        page.meta["hide"] = ["toc"]  # an empty column
    text = links.rewrite(translate(markdown), links.repository_path(page.file.src_uri))
    return REFERENCE.sub(r"\1", text)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give rows of reference tables an anchor, and diagrams their script."""
    html, found[page.url] = rows.with_anchors(html, page.file.src_uri)
    if '<pre class="mermaid">' in html:
        html += MERMAID.format("../" * page.url.count("/"))
    return html


@event_priority(-50)  # after the search plugin, before the offline plugin, which copies the index
def on_post_build(config: MkDocsConfig) -> None:
    """Add the rows of reference tables to the search index."""
    file = Path(config.site_dir) / "search" / "search_index.json"
    index: dict[str, Any] = json.loads(file.read_text("utf-8"))
    for url, page in found.items():
        index["docs"] += [
            {"location": f"{url}#{row.anchor}", "title": row.title, "text": row.text, "boost": BOOST} for row in page
        ]
    file.write_text(json.dumps(index), "utf-8")
