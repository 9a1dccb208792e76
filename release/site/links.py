"""Where files of the repository are on the site: pages of docs/, other pages, and source files that pages link to."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from release.site.markdown import lines

ROOT = Path(__file__).parents[2]
DOCS = "docs/"
# Files outside docs/ that a page links to. Everything below `repository/` has the path that it has in the repository.
REPOSITORY = "repository/"
MOVED = {"README.md": "index.md", "docs/README.md": "pages.md"}
MOVED_BACK = {there: here for here, there in MOVED.items()}

# Code, which contains no links, or the target of a link.
LINK = re.compile(r"(?P<code>(`+)(?!`).*?(?<!`)\2(?!`))|\]\((?P<path>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)", re.DOTALL)


def site_path(file: str) -> str:
    """Return the path on the site, within the sources of MkDocs, of a file or folder of the repository."""
    if file in MOVED:
        return MOVED[file]
    if file.startswith(DOCS):
        return file.removeprefix(DOCS)
    if file.endswith(".md"):
        return REPOSITORY + file
    return f"{REPOSITORY}{file}/index.md" if (ROOT / file).is_dir() else f"{REPOSITORY}{file}.md"


def repository_path(page: str) -> str:
    """Return the file of the repository that a page shows. Every page but those of source files is one."""
    return MOVED_BACK.get(page) or (page.removeprefix(REPOSITORY) if page.startswith(REPOSITORY) else DOCS + page)


def rewrite(text: str, file: str) -> str:
    """Return the Markdown of a file of the repository with links that are valid on the site."""
    here = posixpath.dirname(site_path(file))

    def link(path: str, anchor: str) -> str:
        target = resolve(path, file)
        return f"]({posixpath.relpath(site_path(target), here or '.')}{anchor})" if target else f"]({path}{anchor})"

    return _with_links(text, link)


def targets(text: str, file: str) -> Iterator[str]:
    """Yield the files and folders of the repository that a file links to. Raises ValueError if one does not exist."""
    found: list[str] = []

    def link(path: str, anchor: str) -> str:
        if target := resolve(path, file):
            found.append(target)
        return ""

    _with_links(text, link)
    for target in found:
        if not (ROOT / target).exists():
            raise ValueError(f"{file} links to {target}, which does not exist")
        yield target


def resolve(path: str, file: str) -> str:
    """Return the file of the repository to which a relative link of `file` leads; "" for other links."""
    if not path or "://" in path or path.startswith(("mailto:", "/")):
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), path))


def _with_links(text: str, link: Callable[[str, str], str]) -> str:
    """Return the text with each link replaced, outside code."""

    def replaced(match: re.Match[str]) -> str:
        return match[0] if match["code"] else link(match["path"], match["anchor"] or "")

    parts: list[str] = []
    prose: list[str] = []
    for line, is_code in lines(text):
        if not is_code:
            prose.append(line)
            continue
        if prose:
            parts.append(LINK.sub(replaced, "\n".join(prose)))
            prose = []
        parts.append(line)
    return "\n".join([*parts, LINK.sub(replaced, "\n".join(prose))]) + "\n"
