"""What a user has who installs a release without its repository: wheel, bundle and chart, from files alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import venv
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml
from helm_python import Chart

from gpu_exporter.alerting.boards import BOARDS
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.catalogue.signals import SM_ACTIVE
from gpu_exporter.version import __version__
from tests import ROOT
from tests.e2e.release.conftest import pip, run
from tests.support.grafana_sdk import through_sdk
from tests.support.prometheus import scraping
from tests.support.shared import made_once
from tests.support.tools import LIMIT, free_port, tool, until

SETTINGS = ROOT / "tests/data/settings_0.1.0.yaml"
CHART_VALUES = ROOT / "tests/data/chart_values_0.1.0.yaml"


@pytest.fixture(scope="module")
def bundle(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `gpu-exporter bundle` of the installed package writes."""
    command = [str(installed / "bin/gpu-exporter"), "bundle", "--out", "gpu"]
    return made_once(tmp_path_factory, "bundle", lambda folder: run(command, folder)) / "gpu"


def page(port: int) -> str:
    """Return /metrics, or an empty text if nobody listens yet."""
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def test_rules_and_exporter_in_prometheus(installed: Path, bundle: Path, tmp_path: Path) -> None:
    """The installed exporter starts with every setting of 0.1.0; Prometheus evaluates the rules of the bundle on it."""
    rules = sorted((bundle / "alerts").glob("*.yaml"))
    assert len(rules) == 1 + len(Domain)
    subprocess.run([tool("promtool"), "check", "rules", *rules], check=True, capture_output=True)
    port = free_port()
    settings = yaml.safe_load(SETTINGS.read_text())
    assert len(settings) > 25
    changed = {"address": f"127.0.0.1:{port}", "source": "simulated", "gpus": 2, "kernel_log": "none"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**settings, **changed}))
    command = [str(installed / "bin/gpu-exporter"), "serve", "--config", str(tmp_path / "config.yaml")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log, env=clean, cwd=tmp_path) as process:
        try:
            until(lambda: 'source="simulated"' in page(port), 30, "a page")
            target = {"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            with scraping(tmp_path, "500ms", target, rule_files=rules) as prometheus:
                until(lambda: len(prometheus.query(SM_ACTIVE.record)) == 2, 60, "the signal of both GPUs")
                groups = prometheus.api("rules")["groups"]
                until(lambda: all(rule["health"] == "ok" for group in groups for rule in group["rules"]), 30, "rules")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0
    assert " is not a setting" not in (tmp_path / "log").read_text()


def test_dashboards(bundle: Path) -> None:
    """Grafana's own types read all of them without a loss."""
    boards = {path.stem: json.loads(path.read_text()) for path in (bundle / "dashboards").glob("*.json")}
    assert set(boards) == {board.name for board in BOARDS}
    for name, board in boards.items():
        read = through_sdk(board)
        assert (read["uid"], len(read["panels"])) == (f"gpu-{name}", len(board["panels"]))


def objects(path: Path, values: dict[str, object]) -> list[dict[str, object]]:
    """Return what a chart renders."""
    with Chart.load(path) as chart:
        texts = chart.render(values, name="gpu", namespace="monitoring")
    return [each for name, text in texts.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text) if each]


def test_chart(built: Path, bundle: Path) -> None:
    """The archive and the bundle have the same chart; it takes over all values of 0.1.0, which keep their effect."""
    (archive,) = (built / "dist").glob("*.tgz")
    values = yaml.safe_load(CHART_VALUES.read_text())
    own = {"interval": "2s", "port": 9555, "podLabels": {"zone": "a"}, "serviceMonitor": {"enabled": True}}
    upgraded = {**values, **own, "serviceMonitor": {**values["serviceMonitor"], "enabled": True}}
    upgraded["image"] = {**values["image"], "repository": "registry.example/gpu-exporter"}
    rendered = objects(archive, upgraded)
    assert rendered == objects(bundle / "chart", upgraded)
    found = {each["kind"]: each for each in rendered}
    assert {"DaemonSet", "ConfigMap", "ServiceAccount", "Service", "ServiceMonitor"} <= set(found)
    assert "interval: 2s" in str(found["ConfigMap"])
    text = json.dumps(found["DaemonSet"])
    assert '"containerPort": 9555' in text
    assert '"zone": "a"' in text
    assert f'"image": "registry.example/gpu-exporter:{__version__}"' in text


def test_uninstall(index: Path, bundle: Path, tmp_path: Path) -> None:
    """Neither the environment nor the folder of the bundle keeps a file."""
    copy = tmp_path / "venv"
    venv.create(copy, with_pip=False)
    before = files(copy)
    pip(copy, "install", "--compile", "--no-deps", "--no-index", "--find-links", str(index), "gpu-exporter")
    run([str(copy / "bin/python"), "-c", "import gpu_exporter"], copy)
    assert len(files(copy) - before) > 300
    pip(copy, "uninstall", "--yes", "gpu-exporter")
    assert files(copy) == before
    listed = set(json.loads((bundle / "bundle.json").read_text())["files"])
    assert {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()} == {
        *listed,
        "bundle.json",
    }


def files(folder: Path) -> set[Path]:
    """Return all files and folders below a folder."""
    return {path.relative_to(folder) for path in folder.rglob("*")}
