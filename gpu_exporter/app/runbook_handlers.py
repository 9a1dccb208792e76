"""The runbooks of this version as pages, so that a link to one works without access to the project's docs.

What renders them is imported when the first one is requested.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache

from tornado.web import HTTPError

from gpu_exporter.app.handler import Handler
from gpu_exporter.app.page_handlers import set_page_policy
from gpu_exporter.live_page.page import HTML, LivePage


class RunbookHandler(Handler):
    """The index of the runbooks, or the runbook of a failure mode."""

    async def get(self) -> None:
        live: LivePage = self.settings["live_page"]
        name = self.request.path.removeprefix("/runbooks").strip("/")
        # Not on this thread: scrapes would wait for it.
        title, content, board = await asyncio.get_running_loop().run_in_executor(None, _runbook, name)
        if not title:
            raise HTTPError(404)
        set_page_policy(self)
        await self.send(live.of_runbook(title, content, board, is_index=not name), HTML)

    head = get


@lru_cache(maxsize=16)
def _runbook(name: str) -> tuple[str, str, str]:
    """Return the title of a runbook, its HTML, and the path of the dashboard with its alert; all are empty if there is
    none of this name."""
    from gpu_exporter.alerting import boards, runbooks
    from gpu_exporter.catalogue import project
    from gpu_exporter.catalogue.failure_modes import MODES
    from gpu_exporter.reports.markdown import relinked
    from gpu_exporter.reports.markdown_html import html_of

    pages = {mode.page: mode for mode in MODES}
    if name and name not in pages:
        return "", "", ""

    def target(link: str) -> str:
        """Return where a link leads: the exporter has no other pages of the docs."""
        file, _, place = link.partition("#")
        if file.startswith("../"):
            return project.page(link.removeprefix("../")) if file.count("../") == 1 else ""
        if file == "README.md":
            return f"../runbooks#{place}" if place else "../runbooks"
        return (file.removesuffix(".md") if name else f"runbooks/{file.removesuffix('.md')}") if file else link

    text = runbooks.runbook(pages[name]) if name else runbooks.index()
    title, board = (pages[name].name, boards.board_of(pages[name])) if name else ("Runbooks", boards.FLEET)
    return title, html_of(relinked(text, target, runbooks.FOLDER)), board.link()
