"""Check that a version can be released, and make its commit and its tag: `make verify`, `make release`.

Needs the standard library only.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from gpu_exporter.catalogue import project
from gpu_exporter.version import __version__
from release.source import ROOT, commit_time, git

CHANGELOG = ROOT / "CHANGELOG.md"
OPEN = "not released yet"
REGISTRY = "ghcr.io"


class Section(NamedTuple):
    """A version's section of the changelog."""

    date: str  # or OPEN
    text: str


def section(changelog: str, version: str) -> Section | None:
    """Return a version's section, if it has one."""
    heading = rf"^## {re.escape(version)} / (?P<date>.+)$"
    match = re.search(heading + r"(?P<text>(?:\n(?!## ).*)*)", changelog, re.MULTILINE)
    return Section(match["date"], match["text"].strip()) if match else None


def problem(tag: str, version: str, changelog: str) -> str:
    """Return why a tag cannot be released, with the fix, in one line; "" if it can."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return f"the version {version} is not of the form 1.2.3: correct gpu_exporter/version.py"
    if tag != f"v{version}":
        return f"the tag {tag} does not match the version {version} of gpu_exporter/version.py: tag v{version}"
    entry = section(changelog, version)
    if not entry or not entry.text:
        return f"CHANGELOG.md has no entries for {version}: write a section that begins with `## {version} / {OPEN}`"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", entry.date):
        return f"the section {version} of CHANGELOG.md has no date: run `make release`, which sets it and makes the tag"
    return ""


def places(repository: str) -> dict[str, str]:
    """Return where a repository's workflow publishes its image and its charts; registries want lower case."""
    owner = repository.partition("/")[0]
    return {"image": f"{REGISTRY}/{repository}".lower(), "charts": f"oci://{REGISTRY}/{owner}/charts".lower()}


def wrong_names(page: str, published: dict[str, str]) -> list[str]:
    """Return which names of this project are empty or differ from what the workflow publishes, one line each."""
    fix = "set it in gpu_exporter/catalogue/project.py, and run `make generate`"
    names = {"REPOSITORY": page, "IMAGE": published["image"], "CHART": f"{published['charts']}/gpu-exporter"}
    lines = [
        f'{name} is "{have}", but this release publishes "{name_here}": {fix}'
        for name, name_here in names.items()
        if (have := getattr(project, name)) != name_here
    ]
    return lines if project.DOCS else [*lines, f"DOCS is empty, so alerts would have no links to runbooks: {fix}"]


def verify(tag: str, root: Path = ROOT) -> None:
    """Exit with one line per problem if the tag cannot be released; in a workflow, set its outputs."""
    if why := problem(tag, __version__, CHANGELOG.read_text(encoding="utf-8")):
        sys.exit(why)
    if output := os.environ.get("GITHUB_OUTPUT"):
        branch, repository = os.environ["DEFAULT_BRANCH"], os.environ["GITHUB_REPOSITORY"]
        if git("rev-list", "--max-count=1", f"refs/remotes/origin/{branch}..HEAD", root=root):
            sys.exit(f"the commit of {tag} is not on the branch {branch}: merge it, and tag the next patch version")
        published = places(repository)
        if lines := wrong_names(f"{os.environ['GITHUB_SERVER_URL']}/{repository}", published):
            sys.exit("\n".join(lines))
        outputs = {"version": __version__, "time": commit_time(root), **published}
        with Path(output).open("a", encoding="utf-8") as file:
            file.writelines(f"{key}={value}\n" for key, value in outputs.items())
    print(f"{tag} can be released")


def release(root: Path = ROOT) -> None:
    """Date the section of the changelog, commit that and tag the commit; print the command that publishes."""
    tag, path = f"v{__version__}", root / "CHANGELOG.md"
    if git("status", "--short", root=root):
        sys.exit("there are changes that are not committed: commit or remove them (`git status`)")
    if git("tag", "--list", tag, root=root):
        sys.exit(f"the tag {tag} exists: raise the version in gpu_exporter/version.py, and run `make generate`")
    today = datetime.now(timezone.utc).date().isoformat()
    changelog = path.read_text(encoding="utf-8")
    dated = changelog.replace(f"## {__version__} / {OPEN}\n", f"## {__version__} / {today}\n")
    if why := problem(tag, __version__, dated):
        sys.exit(why)
    if dated != changelog:
        path.write_text(dated, encoding="utf-8")
        git("commit", "--quiet", "--message", f"Release {__version__}", "CHANGELOG.md", root=root)
    git("tag", "--annotate", "--message", f"gpu-exporter {__version__}", tag, root=root)
    print(f"Tagged {tag}. This publishes it: git push --atomic origin HEAD {tag}")


def notes() -> None:
    """Print the entries of this version, with links that work outside of the repository."""
    if not (entry := section(CHANGELOG.read_text(encoding="utf-8"), __version__)):
        sys.exit(f"CHANGELOG.md has no section for {__version__}")
    server, repository = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    print(re.sub(r"\]\((?!https?:)", f"]({server}/{repository}/blob/v{__version__}/", entry.text))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["verify", tag]:
            verify(tag)
        case ["release"]:
            release()
        case ["notes"]:
            notes()
        case _:
            sys.exit("usage: python -m release.tag verify TAG | release | notes")
