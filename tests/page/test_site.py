"""The documentation site in Chromium: it is found, it is complete, and it asks nobody."""

from __future__ import annotations

import json
import posixpath
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from release.site.__main__ import build, write_versions
from tests.page.conftest import OpenTab, Tab
from tests.support.shared import made_once

FIX = "fix: correct the link, or release/site/"
# Pages of each kind, for a phone: text, guides, wide tables, diagrams, long names, code.
PHONE = (
    "index.html",
    "pages.html",
    "guides/idle-gpu.html",
    "guides/costs.html",
    "comparison.html",
    "metrics.html",
    "configuration.html",
    "failure-modes.html",
    "architecture.html",
    "runbooks/gpumemoryexhaustionpredicted.html",
    "python.html",
    "repository/helm/gpu-exporter/index.html",
    "repository/setup.cfg.html",
)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site with this version and an older one; a dead link ends its build."""

    def make(folder: Path) -> None:
        build(folder / "9.9", in_versions=True)
        (folder / "0.1").mkdir()
        write_versions(folder)

    return made_once(tmp_path_factory, "site", make)


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of this version on a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/9.9/"
    server.shutdown()
    thread.join()
    server.server_close()


def search(page: Page, words: str, first: str) -> None:
    """Type words into the search, and expect that the first result is, or has, this title."""
    box = page.locator("input.md-search__input")
    box.fill(words)
    box.press("End")  # the page searches when a key is released
    expect(page.locator(".md-search-result__item").first.locator("h1, h2").get_by_text(first).first).to_be_visible()


def without_search(opened: Tab, site: Path) -> Tab:
    """Give its pages an index of no page: each spends half a second of CPU on the whole one, without being asked."""
    index = json.loads((site / "9.9/search/search_index.json").read_text("utf-8"))
    opened.page.route("**/search_index.json", lambda route: route.fulfill(json={**index, "docs": []}))
    return opened


LINK = re.compile(r'(?:href|src)="([^"]*)"')
ID = re.compile(r'\bid="?([^"\s>]+)')


@pytest.mark.slowest
def test_links(site: Path) -> None:
    """Each link of each page leads to a file and an anchor; nothing is loaded from elsewhere."""
    pages = {path.relative_to(site / "9.9").as_posix(): path.read_text("utf-8") for path in site.rglob("9.9/**/*.html")}
    anchors = {name: set(map(unquote, ID.findall(text))) for name, text in pages.items()}
    dead = set()
    for name, text in pages.items():
        if name == "404.html":  # its links are absolute, because any path can have it
            continue
        assert not re.search(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="?(?:https?:)?//', text), name
        for link in LINK.findall(text):
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(url.path))) if url.path else name
            )
            fragment = unquote(url.fragment)
            has_anchor = not fragment or target not in anchors or fragment in anchors[target]
            if not ((site / "9.9" / target).exists() and has_anchor):
                dead.add((name, link))
    assert len(pages) > 100
    assert dead == set(), FIX


def test_search(tab: OpenTab, address: str) -> None:
    """A metric and a setting lead to their row, an alert to its runbook, words of a question to their page."""
    page = tab().page
    page.goto(address + "index.html")
    search(page, "xid 79", "XID 79")
    search(page, "job-socket", "--job-socket")
    search(page, "GpuThermalThrottling", "GpuThermalThrottling")
    search(page, "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL")
    page.locator(".md-search-result__item a", has_text="DCGM_FI_DEV_GPU_UTIL").first.click()
    expect(page.locator("tr:target")).to_contain_text("a single thread is enough")


def test_tables_can_be_filtered(tab: OpenTab, address: str) -> None:
    page = tab().page
    page.goto(address + "metrics.html")
    page.get_by_placeholder("Filter").fill("nvlink crc")
    rows = page.locator("tbody tr:visible")
    expect(page.locator(".filter output")).to_have_text(re.compile(r"^[1-9] of \d+$"))
    assert all("crc" in text.lower() for text in rows.all_inner_texts())


def test_versions_and_diagrams(tab: OpenTab, address: str) -> None:
    """A page offers the other version; diagrams are drawn."""
    page = tab().page
    page.goto(address + "architecture.html")
    expect(page.locator(".md-version__current")).to_have_text("9.9")
    expect(page.locator(".md-version__link")).to_have_text(["9.9", "0.1"])
    expect(page.locator("div.mermaid")).to_have_count(1)
    expect(page.locator("pre.mermaid")).to_have_count(0)


def test_phone(tab: OpenTab, address: str, site: Path) -> None:
    """No page is wider than a small phone; tables and code scroll within it."""
    page = without_search(tab(viewport={"width": 360, "height": 760}), site).page
    for name in PHONE:
        page.goto(address + name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name


def test_without_a_server(tab: OpenTab, site: Path) -> None:
    """A copy of the folder is opened as files, and searched; only the choice of versions is missing."""
    opened = tab()
    opened.allowed = ("versions.json", "ERR_FAILED")
    opened.page.goto((site / "9.9" / "index.html").as_uri())
    search(opened.page, "GpuStragglerSlow", "GpuStragglerSlow")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(tab: OpenTab, address: str, site: Path, scheme: str) -> None:
    """axe-core finds nothing but faults of Material for MkDocs: names of its dialog, its landmarks and its version."""
    opened = without_search(tab(color_scheme=scheme), site)
    for name in ("guides/idle-gpu.html", "metrics.html", "python.html"):
        opened.page.goto(address + name)
        expect(opened.page.locator(".md-version__current")).to_be_visible()
        rules = {violation.split(":")[0] for violation in opened.violations()}
        assert rules <= {"aria-dialog-name", "label-content-name-mismatch", "landmark-unique"}, name
