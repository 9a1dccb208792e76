"""Copied JavaScript is unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from release import vendored
from release.vendored import PACKAGES, ROOT, Package, verify


@pytest.mark.drift
@pytest.mark.parametrize("name", PACKAGES)
def test_copies_have_their_checksums(name: str) -> None:
    assert verify(name) == [], "fix: python -m release.vendored says how"


@pytest.mark.drift
@pytest.mark.parametrize("name", PACKAGES)
def test_copies_are_listed_with_their_license(name: str) -> None:
    lock = json.loads(PACKAGES[name].lock.read_text())
    page = (ROOT / "docs" / "licenses.md").read_text()
    assert f"{name} {lock['version']}" in page, "fix: make licenses"
    assert lock["license"] in page, "fix: make licenses"


def test_a_changed_copy_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file, the version and the fix."""
    original = PACKAGES["uplot"]
    monkeypatch.setattr(vendored, "ROOT", tmp_path)
    files = {}
    for path, member in original.files.items():
        copy = tmp_path / path.relative_to(original.lock.parent)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
        files[copy] = member
    lock = tmp_path / "uplot.json"
    lock.write_bytes(original.lock.read_bytes())
    monkeypatch.setattr(vendored, "PACKAGES", {"uplot": Package(lock, files)})
    assert verify("uplot") == []
    (changed, *_) = files
    changed.write_bytes(changed.read_bytes() + b"\n")
    (problem,) = verify("uplot")
    assert changed.name in problem
    assert "fix: python -m release.vendored update uplot" in problem
