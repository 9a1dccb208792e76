"""The wheel alone, without this repository, serves GPUs and writes the rules and dashboards."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests import ROOT
from tests.e2e.release.conftest import copy_committed, run
from tests.support.tools import tool


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment with the wheel and the dependencies of these tests: nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_committed(folder / "source")
    run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", ".", "source"], folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = str(folder / "venv/bin/python")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)], folder)
    (own,) = (folder / "venv/lib").glob("python*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv/bin/gpu-exporter"


def test_it_reads_gpus(installed: Path, tmp_path: Path) -> None:
    page = run([str(installed), "once", "--source", "simulated", "--gpus", "2"], tmp_path)
    assert page.count("\ngpu_up{") == 2
    where = run(
        [str(installed.with_name("python")), "-c", "import gpu_exporter; print(gpu_exporter.__file__)"], tmp_path
    )
    assert Path(where).is_relative_to(installed.parents[1])


def test_it_writes_the_bundle(installed: Path, tmp_path: Path) -> None:
    """promtool accepts the rules, which are those of the repository; dashboards, runbooks and the chart are there."""
    run([str(installed), "bundle", "--out", "gpu"], tmp_path)
    written = sorted((tmp_path / "gpu/alerts").glob("*.yaml"))
    assert [path.name for path in written] == [path.name for path in sorted((ROOT / "alerts").glob("*.yaml"))]
    run([str(tool("promtool")), "check", "rules", *map(str, written)], tmp_path)
    for path in ("dashboards/fleet.json", "chart/Chart.yaml", "runbooks/gpulost.md"):
        assert any((tmp_path / "gpu").rglob(path)), path
