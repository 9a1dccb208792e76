"""The recipe in CONTRIBUTING works: one row, and the metric is on the page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fakes.driver import FakeDriver

ROOT = Path(__file__).parent.parent.parent


def test_a_metric_is_one_row(tmp_path: Path) -> None:
    """Apply the documented diff to a copy of the package, and read the new metric from the stand-in driver."""
    diff = (ROOT / "CONTRIBUTING.md").read_text().split("```diff\n")[1].split("```")[0]
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    context = next(line[1:] for line in diff.splitlines() if line.startswith(" "))
    shutil.copytree(ROOT / "gpu_exporter", tmp_path / "gpu_exporter")
    catalogue = tmp_path / "gpu_exporter/metrics.py"
    before = catalogue.read_text()
    assert before.count(context) == 1, "fix: the context line of the diff in CONTRIBUTING is not in metrics.py"
    catalogue.write_text(before.replace(context, "\n".join([context, *added])))
    driver = FakeDriver(tmp_path / "driver")
    driver.set("JpgUtilization", 42)

    result = subprocess.run(
        [sys.executable, "-m", "gpu_exporter", "once"],
        env={**os.environ, **driver.environment, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert len(added) == 1
    assert 'gpu_jpeg_utilization_ratio{gpu="0",' in result.stdout
    assert any(line.startswith("gpu_jpeg") and line.endswith(" 0.42") for line in result.stdout.splitlines())
