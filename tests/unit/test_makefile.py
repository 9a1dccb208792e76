"""What `make` changes on a machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
while not (ROOT / "Makefile").is_file():  # wherever this file is moved to
    ROOT = ROOT.parent
SCRIPTS = [ROOT / "Makefile", *(ROOT / "tests").glob("*.sh")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_only_packages_are_installed(script: Path) -> None:
    """Root rights are used for packages only, and nothing else is written outside of the checkout."""
    recipes = [line for line in script.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(line for line in recipes if not line.startswith("SUDO "))

    asked = re.findall(r"(?:\$\(SUDO\)|\bsudo\b) +(\S+ +\S+)", text)
    assert {*asked} <= {"apt-get update", "apt-get install"}, "unpack it below .tools instead"
    outside = re.findall(r"\b(?:install|cp|mv|ln|mkdir|touch|tee)\b[^\n;&|]* (/[a-z]\S*)|>+ *(/(?!dev/)\S+)", text)
    assert outside == [], "write below the checkout instead"
