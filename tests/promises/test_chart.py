"""Helm renders the chart; Kubernetes accepts the objects; the exporter starts with the rendered settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gpu_exporter.version import __version__
from tests.conftest import run
from tests.support import chart
from tests.support.chart import kind, objects, only


@pytest.mark.parametrize("name", ["defaults", "everything"])
def test_kubernetes_accepts_what_helm_renders(name: str) -> None:
    """Every object that is not a custom resource, for the newest Kubernetes whose schemas are installed."""
    import kubernetes_validate  # takes seconds, which each worker would pay

    found = [
        each
        for each in objects(chart.SETS[name])
        if "." not in each["apiVersion"].partition("/")[0] or ".k8s.io/" in each["apiVersion"]
    ]
    assert {"DaemonSet", "Service", "ServiceAccount"} <= {each["kind"] for each in found}
    newest = kubernetes_validate.latest_version()
    for each in found:
        kubernetes_validate.validate(each, newest, strict=True)


def test_the_daemonset_runs_this_version_on_each_node() -> None:
    (container,) = only(objects({"image": {"repository": chart.REPOSITORY}}), "DaemonSet")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["image"] == f"{chart.REPOSITORY}:{__version__}"
    assert [port["containerPort"] for port in container["ports"]] == [9400]


def test_the_exporter_starts_with_the_rendered_settings(tmp_path: Path) -> None:
    (data,) = (
        each["data"] for each in kind(objects(chart.SETS["restricted"]), "ConfigMap") if "config.yaml" in each["data"]
    )
    settings = {**yaml.safe_load(data["config.yaml"]), "source": "simulated", "state_dir": str(tmp_path / "state")}
    (tmp_path / "config.yaml").write_text(json.dumps(settings))

    ran = run("once", "--config", str(tmp_path / "config.yaml"))
    assert ran.returncode == 0, ran.stderr
    assert 'gpu_up{gpu="0"' in ran.stdout
