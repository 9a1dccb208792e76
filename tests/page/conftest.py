"""Fixtures: Chromium, and tabs that note everything a page must not do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from tests.support.tools import PATIENCE

AXE = Path(__file__).with_name("axe.min.js")
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Nothing but the server of the test can be reached, and what Chromium itself asks for on the network is off.
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
# What Chromium itself logs when a request fails, as it must while the server is away.
NO_CONNECTION = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED")
WAIT = 4_000 * PATIENCE
expect.set_options(timeout=WAIT)


def chromium_path() -> str:
    """Return the path of Debian's Chromium."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path, "no Chromium: fix: run `make tools`"
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A running Chromium. Until its end, this thread has an event loop, so tests of other modules cannot make one."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=OPTIONS)
        yield browser
        browser.close()


class Tab:
    """A tab of Chromium. `faults` are errors on its console, blocked content, and requests to other hosts."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        self.allowed: tuple[str, ...] = ()
        self.asked: list[str] = []
        page.set_default_timeout(WAIT)
        page.on("console", self._read)
        page.on("pageerror", lambda error: self._note(f"uncaught: {error}"))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.asked.append(request.url))

    def _read(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note(message.text)

    def _dismiss(self, dialog: Dialog) -> None:
        self._note(f"a script ran: {dialog.message}")
        dialog.dismiss()

    def _note(self, text: str) -> None:
        if not any(part in text for part in self.allowed):
            self.faults.append(text)

    def open(self, url: str) -> Page:
        """Open a live page and wait for its first row."""
        self.page.goto(url)
        expect(self.page.locator(".gpu").first).to_be_visible()
        return self.page

    def violations(self) -> list[str]:
        """Return what axe-core finds on the page as it is now."""
        self.page.context.new_cdp_session(self.page).send("Page.setBypassCSP", {"enabled": True})
        found: dict[str, Any] = self.page.evaluate(
            f"{AXE.read_text('utf-8')}; axe.run(document, {{resultTypes: ['violations']}})"
        )
        return [
            f"{rule['id']}: {rule['help']}: {node['html'][:150]} {node['failureSummary']}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]


OpenTab = Callable[..., Tab]


@pytest.fixture
def tab(chromium: Browser) -> Iterator[OpenTab]:
    """Open tabs, each with its own settings, such as `color_scheme`. At the end, none may have faults."""
    with ExitStack() as stack:
        tabs = []

        def opened(**settings: Any) -> Tab:
            context = chromium.new_context(**{"viewport": {"width": 1440, "height": 900}, **settings})
            stack.callback(context.close)
            tabs.append(Tab(context.new_page()))
            return tabs[-1]

        yield opened
        for each in tabs:
            assert each.faults == []
            assert {urlsplit(url).hostname for url in each.asked} <= {"127.0.0.1", None}
