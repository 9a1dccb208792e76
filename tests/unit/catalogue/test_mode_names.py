"""Names of failure modes have one place."""

from __future__ import annotations

import ast

from gpu_exporter.catalogue.failure_modes import MODES
from tests import ROOT

NAMES = {mode.name for mode in MODES}
PACKAGE = ROOT / "gpu_exporter"


def test_only_the_catalogue_names_failure_modes() -> None:
    """A misspelt name would match no mode and say nothing; one that is imported cannot be misspelt."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "catalogue" in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in NAMES:
                found.add((str(path.relative_to(ROOT)), node.value))
    assert found == set(), "fix: import the name from gpu_exporter/catalogue/"
