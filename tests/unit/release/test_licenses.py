"""docs/licenses.md lists every dependency and every copied file."""

from __future__ import annotations

import pytest

from release import licenses
from tests import ROOT

FIX = "fix: correct COPIED in release/licenses.py"


@pytest.mark.drift
def test_page_is_current() -> None:
    """For the dependencies of setup.cfg and the licenses that installed packages state."""
    assert licenses.PAGE.read_text() == licenses.page(), "fix: run `make licenses`"


@pytest.mark.drift
def test_copied_files_are_listed() -> None:
    """Each folder whose README names a copyright has its row, and each row has its files."""
    for copied in licenses.COPIED:
        assert [*ROOT.glob(copied.files)], f"{copied.files}: {FIX}"
    folders = ("benchmarks", "deploy", "gpu_exporter", "helm", "tests")
    notes = [
        path for folder in folders for path in (ROOT / folder).rglob("README.md") if "Copyright" in path.read_text()
    ]
    assert len(notes) > 1, FIX
    for note in notes:
        name = str(note.parent.relative_to(ROOT))
        assert any(copied.files.startswith(name) for copied in licenses.COPIED), f"{name}: {FIX}"


def test_indirect_dependencies_are_listed() -> None:
    """Those that the image installs; not those of other extras or systems."""
    installed = licenses.closure(["grpcio", "click; sys_platform == 'win32'", "pygal; extra == 'plots'"])
    assert installed == {"grpcio", "typing-extensions"}


@pytest.mark.parametrize(
    ("name", "license"),
    [("click", "BSD-3-Clause"), ("bcrypt", "Apache-2.0"), ("pyyaml", "MIT"), ("nvidia-ml-py", "BSD-3-Clause")],
)
def test_license(name: str, license: str) -> None:
    """As an SPDX expression, whether the metadata has an expression, a text, a classifier or too little."""
    assert licenses.license_of(name) == license
