"""What `make` changes on a machine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpu_exporter.sources.simulated.inject import injections

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


def test_the_demo_of_faults() -> None:
    """It injects a straggler and a lost GPU, and names the page and three commands."""
    text = (ROOT / "Makefile").read_text()
    recipe = text.partition("\ndemo-fault:")[2].partition("\n\n")[0]
    serve = shlex.split(recipe.splitlines()[-1])
    injected = injections(serve[serve.index("--inject") + 1], ["node-000"], 8)["node-000"]
    assert injected.gpus[3].names == ("GpuStragglerSlow",)
    assert [(fault.kind, fault.gpu) for fault in injected.faults] == [("lost", "6")]
    assert "http://localhost:9400/" in recipe
    commands = re.findall(r"echo ['\"]  (\S+ \S+)", recipe)
    assert commands == ["$(BIN)/gpu-exporter diagnose", "$(BIN)/gpu-exporter top", "curl -s"]
