"""deploy/kubernetes is rendered and checked with all other files, or skipped with the reason and the fix."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from content import artifacts as render
from content.__main__ import generate as generate_command
from content.chart import manifests
from tests import ROOT

MONITOR = f"{manifests.FOLDER}/monitored/servicemonitor.yaml"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a copy of the chart and the manifests, without other rendered files."""
    monkeypatch.setattr(render, "ARTIFACTS", {})
    for folder in ("helm", manifests.FOLDER):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def generate(root: Path, *arguments: str) -> Result:
    """Run `python -m content` on a copy of the repository."""
    return CliRunner().invoke(generate_command, ["--root", str(root), *arguments])


@pytest.mark.slow
def test_a_stale_manifest_is_reported_and_written(copy: Path) -> None:
    """`--check` names it and fails; `generate` restores it."""
    before = (copy / MONITOR).read_text()
    (copy / MONITOR).write_text(before.replace("honorLabels: true", "honorLabels: false"))

    checked = generate(copy, "--check")
    assert (checked.exit_code, checked.output) == (1, f"{MONITOR}: stale; run `make generate`\n")
    assert generate(copy).output == f"{MONITOR}: written\n"
    assert (copy / MONITOR).read_text() == before
    again = generate(copy, "--check")
    assert (again.exit_code, again.output) == (0, "")


@pytest.mark.slow
def test_a_changed_template_makes_a_manifest_stale(copy: Path) -> None:
    """The manifests depend on the chart's templates, not only on the catalogues."""
    template = copy / "helm/gpu-exporter/templates/service.yaml"
    template.write_text(template.read_text().replace("name: metrics", "name: gpu-metrics"))

    assert generate(copy, "--check").output == (
        f"{manifests.FOLDER}/plain/gpu-exporter.yaml: stale; run `make generate`\n"
    )


def test_without_helm_one_line_names_the_fix(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other files are still checked."""
    (copy / MONITOR).unlink()
    monkeypatch.setitem(sys.modules, "helm_python", None)

    checked = generate(copy, "--check")
    assert checked.exit_code == 0
    assert checked.output.splitlines() == [
        "deploy/kubernetes: left out, the Python module helm_python is missing; run `pip install -e '.[dev]'`"
    ]


def test_without_a_chart_one_line_names_the_fix(copy: Path) -> None:
    """As outside of the repository."""
    shutil.rmtree(copy / "helm")

    (line,) = generate(copy, "--check").output.splitlines()
    assert line.startswith("deploy/kubernetes: left out, ")
    assert "--root" in line
