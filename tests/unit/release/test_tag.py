"""Which tags can be released, and how the tag is made."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_exporter.catalogue import project
from gpu_exporter.version import __version__
from release import tag
from release.source import commit_time
from tests import ROOT

pytestmark = pytest.mark.slow

FIX = "fix: write the section of this version in CHANGELOG.md, with the heading that release/tag.py expects"
NAMES = {
    "REPOSITORY": "https://git.invalid/Some-Owner/Exporter",
    "DOCS": "https://docs.invalid",
    "IMAGE": "ghcr.io/some-owner/exporter",
    "CHART": "oci://ghcr.io/some-owner/charts/gpu-exporter",
}
CHANGELOG = """\
# Changelog

## 0.3.0 / not released yet

* [FEATURE] Third.

## 0.2.0 / 2026-01-02

* [FEATURE] Second.
* [BUGFIX] Fixed.

## 0.1.0 / 2025-01-02
"""


def test_section() -> None:
    """Up to the next version."""
    assert tag.section(CHANGELOG, "0.2.0") == ("2026-01-02", "* [FEATURE] Second.\n* [BUGFIX] Fixed.")
    assert tag.section(CHANGELOG, "0.2") is None
    assert tag.section(CHANGELOG, "0x2.0") is None


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        ("v0.2.0", "0.2.0", ""),
        ("v0.2.1", "0.2.0", "does not match the version 0.2.0"),
        ("0.2.0", "0.2.0", "tag v0.2.0"),
        ("v0.3.0", "0.3.0", "has no date: run `make release`"),
        ("v0.1.0", "0.1.0", "has no entries"),
        ("v0.4.0", "0.4.0", "has no entries"),
        ("v0.2.0rc1", "0.2.0rc1", "not of the form 1.2.3"),
    ],
)
def test_problem(name: str, version: str, why: str) -> None:
    """One line with the fix."""
    assert why in tag.problem(name, version, CHANGELOG)
    assert (why == "") is (tag.problem(name, version, CHANGELOG) == "")


@pytest.mark.drift
def test_changelog_has_entries_for_this_version() -> None:
    """In the form that `make release` expects."""
    entry = tag.section((ROOT / "CHANGELOG.md").read_text(), __version__)
    assert entry, FIX
    assert entry.text, FIX
    assert entry.date == tag.OPEN or re.fullmatch(r"\d{4}-\d\d-\d\d", entry.date), FIX


def test_links_of_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They lead to the files of the tag."""
    link = "[page](docs/page.md), [site](https://example.invalid)"
    (tmp_path / "CHANGELOG.md").write_text(f"## {__version__} / 2026-01-02\n\n* [FEATURE] {link}\n")
    monkeypatch.setattr(tag, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.invalid")
    monkeypatch.setenv("GITHUB_REPOSITORY", "owner/name")
    tag.notes()
    page = f"[page](https://git.invalid/owner/name/blob/v{__version__}/docs/page.md)"
    assert capsys.readouterr().out == f"* [FEATURE] {page}, [site](https://example.invalid)\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A repository with a changelog; returns a function that runs git in it."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Tester")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "tester@example.invalid")

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {__version__} / {tag.OPEN}\n\n* [FEATURE] All.\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "Begin")
    return git


def test_release(repository: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It dates the section, and tags the commit that has the date, so that the tag can be released."""
    tag.release(tmp_path)
    name = f"v{__version__}"
    assert f"git push --atomic origin HEAD {name}" in capsys.readouterr().out
    assert repository("log", "--format=%s").splitlines() == [f"Release {__version__}", "Begin"]
    assert repository("rev-parse", f"{name}^{{commit}}") == repository("rev-parse", "HEAD")
    assert tag.problem(name, __version__, repository("show", f"{name}:CHANGELOG.md")) == ""
    with pytest.raises(SystemExit, match=f"the tag {name} exists"):
        tag.release(tmp_path)
    repository("tag", "--delete", name)
    tag.release(tmp_path)
    assert len(repository("log", "--format=%s").splitlines()) == 2


def test_release_refuses(repository: Callable[..., str], tmp_path: Path) -> None:
    """Uncommitted changes, and a version without entries."""
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")
    with pytest.raises(SystemExit, match="not committed"):
        tag.release(tmp_path)
    repository("commit", "--quiet", "--all", "--message", "Remove entries")
    with pytest.raises(SystemExit, match="has no entries"):
        tag.release(tmp_path)
    assert repository("tag", "--list") == ""


@pytest.fixture
def workflow(repository: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The release workflow of a repository whose names are set; returns the file of its outputs."""
    (tmp_path / "CHANGELOG.md").write_text(f"## {__version__} / 2026-01-02\n\n* [FEATURE] All.\n")
    monkeypatch.setattr(tag, "CHANGELOG", tmp_path / "CHANGELOG.md")
    for name, value in NAMES.items():
        monkeypatch.setattr(project, name, value)
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.invalid")
    monkeypatch.setenv("GITHUB_REPOSITORY", "Some-Owner/Exporter")
    monkeypatch.setenv("DEFAULT_BRANCH", "main")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    repository("update-ref", "refs/remotes/origin/main", "HEAD")
    return tmp_path / "output"


def test_verify_sets_the_outputs(workflow: Path, tmp_path: Path) -> None:
    """Names follow the repository, in lower case."""
    tag.verify(f"v{__version__}", tmp_path)
    assert workflow.read_text().splitlines() == [
        f"version={__version__}",
        f"time={commit_time(tmp_path)}",
        "image=ghcr.io/some-owner/exporter",
        "charts=oci://ghcr.io/some-owner/charts",
    ]
    with pytest.raises(SystemExit, match="does not match"):
        tag.verify("v9.9.9", tmp_path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["", "registry.invalid/other"])
def test_verify_refuses_wrong_names(
    workflow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Empty ones, and those that differ from what is published; only DOCS may be any page."""
    if (name, value) == ("DOCS", "registry.invalid/other"):
        return
    monkeypatch.setattr(project, name, value)
    with pytest.raises(SystemExit, match=rf"^{name} is .*: set it in gpu_exporter/catalogue/project.py, and run"):
        tag.verify(f"v{__version__}", tmp_path)
    assert not workflow.exists()


def test_verify_refuses_a_commit_outside_of_the_default_branch(
    workflow: Path, repository: Callable[..., str], tmp_path: Path
) -> None:
    """An older commit of the branch can be released."""
    repository("commit", "--quiet", "--allow-empty", "--message", "Not merged")
    with pytest.raises(SystemExit, match=f"the commit of v{__version__} is not on the branch main: merge it"):
        tag.verify(f"v{__version__}", tmp_path)
    repository("update-ref", "refs/remotes/origin/main", "HEAD")
    repository("checkout", "--quiet", "HEAD~1")
    tag.verify(f"v{__version__}", tmp_path)
    repository("update-ref", "-d", "refs/remotes/origin/main")
    with pytest.raises(SystemExit, match="git rev-list failed"):
        tag.verify(f"v{__version__}", tmp_path)


@pytest.mark.parametrize("name", ["v1;touch${IFS}x", "v$(shell touch y)", "v`touch${IFS}x`", 'v1"&&touch${IFS}x'])
def test_name_of_a_tag_is_never_run(tmp_path: Path, name: str) -> None:
    """Neither make nor the shell expands it, so `make verify` refuses it as it is."""
    command = ["make", "--silent", "--file", str(ROOT / "Makefile"), f"PYTHON={sys.executable}", "verify"]
    environment = {**os.environ, "TAG": name, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert [*tmp_path.iterdir()] == []
    assert ran.returncode, ran.stdout
    assert f"the tag {name} does not match the version {__version__}" in ran.stderr
