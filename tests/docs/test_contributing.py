"""The recipes in CONTRIBUTING work: one row adds a metric, and one entry adds a failure mode with its files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_exporter.render.boards import panel_link
from tests import ROOT
from tests.support.fakes.driver import FakeDriver

pytestmark = pytest.mark.slow

FIX = "fix: make the diff in CONTRIBUTING.md apply again, or name its results in tests/docs/test_contributing.py"

NAME = "GpuMemoryHot"
RUNBOOK = f"docs/runbooks/{NAME.lower()}.md"
# The files that are rendered from an entry, each with a pattern that it must match. Add further files here.
MADE = {
    "alerts/health.yaml": rf"- alert: {NAME}\n +expr: gpu:memory_temp:celsius >= 95\n",
    "dashboards/runbooks.json": rf'"title": "{NAME}"',
    RUNBOOK: rf"# {NAME}\n(.|\n)*at least 95 °C \(`hotMemory`\)",
    "docs/runbooks/README.md": rf"\[{NAME}\]\({NAME.lower()}\.md\) \| warning ",
    "dashboards/gpu.json": rf'"title": "{NAME}"',
    "helm/gpu-exporter/values.yaml": rf"hotMemory: 95\n(.|\n)*{NAME}: \{{enabled: true, severity: warning, hold: 10m",
    "helm/gpu-exporter/files/rules.yaml": r"gpu:memory_temp:celsius >= \$\(hotMemory\)\n",
    "helm/gpu-exporter/README.md": rf"\[{NAME}\]",
    "deploy/kubernetes/monitored/monitoring.yaml": rf"- alert: {NAME}\n",
    "docs/failure-modes.md": rf"\[{NAME}\]\(runbooks/{NAME.lower()}\.md\) (.|\n)*`hotMemory` \| 95 \| celsius ",
}
# Diagnose a healthy GPU, and one with the values that the entry injects, each over ten minutes.
DIAGNOSE = f"""
from gpu_exporter.diagnosis.judge import diagnose
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen

def found(values):
    labels = {{"UUID": "GPU-1", "gpu": "0", "modelName": "NVIDIA H200", "Hostname": "node-1"}}
    rows = [
        ScrapedSample(metric.name, {{**labels, **dict(metric.labels)}}, value)
        for metric, value in values.items()
        if isinstance(value, float)
    ]
    (of,) = diagnose(seen([Scrape(1000.0 + 15 * tick, rows) for tick in range(41)], {{}}))
    return {{
        match.mode.name: {{over.signal.name: value for over, value in match.because.items()}} for match in of.matches
    }}

(mode,) = (mode for mode in MODES if mode.name == "{NAME}")
print(found(HEALTHY), found({{**HEALTHY, **mode.inject.values}}))
"""

# Run the promtool test of the entry, with the rules of the copy.
PROVE = f"""
import sys
from pathlib import Path
sys.path.append("{ROOT}")
from gpu_exporter.catalogue.failure_modes import MODES
from tests.rules import promtool
from tests.rules.series import Generation
from tests.rules.test_modes import case

promtool.RULES = sorted(Path("alerts").resolve().glob("*.yaml"))
modes = [mode for mode in MODES if mode.name == "{NAME}"]
promtool.check(Path(sys.argv[1]), [case(Generation.GPU_EXPORTER, modes)], promtool.promtools()[:1])
"""


def apply(number: int, to: Path) -> int:
    """Apply the diff of that number in CONTRIBUTING to a copy of the package; return how many lines it adds."""
    diff = (ROOT / "CONTRIBUTING.md").read_text().split("```diff\n")[1 + number].split("```")[0]
    file = re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)[0]
    hunk = diff.split("@@\n")[1].splitlines()
    before, after = ("\n".join(line[1:] for line in hunk if line[0] in signs) for signs in (" -", " +"))
    shutil.copytree(ROOT / "gpu_exporter", to / "gpu_exporter")
    text = (to / file).read_text()
    assert text.count(before) == 1, f"{file} does not have the context of the diff once: {FIX}"
    (to / file).write_text(text.replace(before, after))
    return sum(line.startswith("+") for line in hunk)


def run(copy: Path, *arguments: str, **environment: str) -> str:
    """Run Python with the changed copy of the package, and return its output."""
    env = {**os.environ, **environment, "PYTHONPATH": str(copy)}
    return subprocess.run(
        [sys.executable, *arguments], env=env, cwd=copy, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.drift
def test_a_metric_is_one_row(tmp_path: Path) -> None:
    """Apply the documented diff to a copy of the package, and read the new metric from the fake driver."""
    added = apply(0, tmp_path)
    driver = FakeDriver(tmp_path / "driver")
    driver.set("JpgUtilization", 42)

    page = run(tmp_path, "-m", "gpu_exporter", "once", **driver.environment)

    assert added == 1, FIX
    assert 'gpu_jpeg_utilization_ratio{gpu="0",' in page, FIX
    assert any(line.startswith("gpu_jpeg") and line.endswith(" 0.42") for line in page.splitlines()), FIX


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A copy with the documented failure mode, and which files `generate` changed in it."""
    copy = tmp_path_factory.mktemp("copy")
    apply(1, copy)
    for folder in ("alerts", "dashboards", "docs", "helm"):
        shutil.copytree(ROOT / folder, copy / folder)
    lines = run(copy, "-m", "gpu_exporter", "generate").splitlines()
    return copy, {line.split(": ")[0] for line in lines}


@pytest.mark.drift
def test_a_failure_mode_is_one_entry(changed: tuple[Path, set[str]]) -> None:
    """The alert, the runbook and all rows are rendered from the entry; nothing else has to be edited."""
    copy, files = changed

    assert files >= set(MADE), FIX
    assert [name for name, says in MADE.items() if not re.search(says, (copy / name).read_text())] == [], FIX
    assert f"{panel_link(NAME.lower())}\n" in (copy / "alerts/health.yaml").read_text(), FIX


@pytest.mark.drift
def test_diagnosis_finds_a_new_failure_mode(changed: tuple[Path, set[str]]) -> None:
    """A healthy GPU has no finding. With the injected values, it has only this failure mode, with its value."""
    assert run(changed[0], "-c", DIAGNOSE).strip() == f"{{}} {{'{NAME}': {{'memory_temp': 101.0}}}}", FIX


def test_promtool_tests_a_new_failure_mode(changed: tuple[Path, set[str]], tmp_path: Path) -> None:
    """The alert fires if the failure mode is injected, and not for a healthy GPU."""
    run(changed[0], "-c", PROVE, str(tmp_path))
