"""The navigation of the site: the tables of docs/README.md, and the runbooks in their order."""

from __future__ import annotations

import re
from typing import Any

from release.site.links import ROOT, resolve, site_path

ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\((?P<path>[^)#\s]+)(?:#[^)]*)?\)", re.MULTILINE)
RUNBOOKS = "runbooks/README.md"


def navigation() -> list[Any]:
    """Return the navigation: a tab for each heading of docs/README.md, in which each page has its first place."""
    placed: set[str] = set()
    tabs: list[Any] = [{"Home": "index.md"}]
    for section in re.split(r"^## ", (ROOT / "docs" / "README.md").read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, table = section.partition("\n")
        entries: list[Any] = []
        for row in ROW.finditer(table):
            page = site_path(resolve(row["path"], "docs/README.md"))
            if page not in placed:
                placed.add(page)
                entries.append({row["title"]: _runbooks() if page == RUNBOOKS else page})
        tabs.append({heading.strip(): entries})
    tabs[-1][next(iter(tabs[-1]))].append({"All pages": "pages.md"})
    return tabs


def _runbooks() -> list[Any]:
    """Return the pages of the alerts in triage order, by domain, after their index."""
    text = (ROOT / "docs" / RUNBOOKS).read_text("utf-8")
    made: list[Any] = [{"Runbooks": RUNBOOKS}]
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        alerts = [{row["title"]: f"runbooks/{row['path']}"} for row in ROW.finditer(section)]
        if alerts:
            made.append({section.partition("\n")[0].partition(":")[0].strip(): alerts})
    return made
