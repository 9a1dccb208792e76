"""Files outside docs/ that pages link to, as pages of the site: other Markdown, source files, lists of folders."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import PurePosixPath

from release.site.links import DOCS, REPOSITORY, ROOT, site_path, targets

FRONT = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n"
# Names of Pygments' lexers, by suffix.
LEXERS = {".csv": "text", ".js": "javascript", ".json": "json", ".prom": "text", ".py": "python", ".yaml": "yaml"}


def is_source(page: str) -> bool:
    """Return whether a page shows a source file or a folder, not a Markdown file of the repository."""
    if not page.startswith(REPOSITORY):
        return False
    return not (ROOT / page.removeprefix(REPOSITORY)).is_file()


def pages() -> Mapping[str, str]:
    """Return the Markdown of each page outside docs/ by its path on the site. Raises ValueError for a dead link."""
    made = {}
    queue = ["README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / DOCS).rglob("*.md"))]
    queued = set(queue)
    while queue:
        file = queue.pop()
        is_page = file.endswith(".md")
        if not file.startswith(DOCS) or site_path(file) != file.removeprefix(DOCS):
            made[site_path(file)] = (ROOT / file).read_text("utf-8") if is_page else _source(file)
        if is_page:
            linked = set(targets((ROOT / file).read_text("utf-8"), file)) - queued
            queue += sorted(each for each in linked if not each.startswith(DOCS))
            queued |= linked
    return made


def _source(file: str) -> str:
    """Return the page of a source file, or of a folder."""
    path = ROOT / file
    if path.is_dir():
        listed = subprocess.run(["git", "ls-files", "."], cwd=path, capture_output=True, text=True, check=True).stdout
        names = sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in listed.splitlines()})
        return f"{FRONT}# {file}/\n\nFiles of this folder in the repository:\n\n" + "".join(f"- `{n}`\n" for n in names)
    lexer = LEXERS.get(PurePosixPath(file).suffix, "text")
    text = path.read_text("utf-8")
    fence = "`" * 5
    return f"{FRONT}# {file}\n\n{fence}{lexer}\n{text}{fence}\n"
