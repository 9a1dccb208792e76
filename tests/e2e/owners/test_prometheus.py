"""Owners in a real Prometheus with the recording rules, scraped like a pod of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import ROOT
from tests.conftest import Serve
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kubelet import FakeKubelet, Given, given, pod
from tests.support.owners import MIG, POWER, UUID
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until

RULES = ROOT / "alerts/recording.yaml"
TARGET = {"namespace": "monitoring", "pod": "gpu-exporter-x7k2p", "container": "gpu-exporter"}
Labels = dict[str, str]


def series(prometheus: Prometheus, promql: str) -> list[Labels]:
    """Return the labels of the series that a query returns."""
    return [found["metric"] for found in prometheus.api("query", query=promql)["result"]]


def owner(labels: Labels) -> tuple[str, str, str]:
    """Return namespace, pod and workload."""
    return labels.get("namespace", ""), labels.get("pod", ""), labels.get("workload", "")


@pytest.mark.parametrize("honor", [True, False], ids=["honor_labels", "exported_ labels"])
def test_each_device_has_its_owner(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, tmp_path: Path, honor: bool
) -> None:
    """A shared or free GPU has no pod, and never the exporter's own."""
    kubelet.pods = [
        given("bert-worker-0", UUID[0]),
        pod("a", Given("nvidia.com/gpu", [f"{UUID[1]}::0"])),
        pod("b", Given("nvidia.com/gpu", [f"{UUID[1]}::1"])),
        given("vllm-7d9c5b6f8d-x2k4p", str(MIG[0]["UUID"]), "nvidia.com/mig-3g.71gb"),
    ]
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--interval", "200ms")
    exporter = serve(*own, env=node.environment)
    exporter.until(lambda page: len(page.values("gpu_pod_info")) == 4 and len(page.values(POWER)) == 3)
    targets = [{"targets": [f"127.0.0.1:{exporter.port}"], "labels": TARGET}]
    settings = {"static_configs": targets, "honor_labels": honor}
    with scraping(tmp_path, "1s", settings, rule_files=[RULES]) as prometheus:
        info = "gpu:device:info"
        until(lambda: len([each for each in series(prometheus, info) if each.get("workload")]) == 2, 40, "the owners")
        devices = {(each["UUID"], each.get("GPU_I_ID", "")): owner(each) for each in series(prometheus, info)}
        assert devices[UUID[0], ""] == ("team", "bert-worker-0", "bert")
        assert devices[UUID[1], ""] == ("", "", "")
        assert devices[UUID[2], "9"] == ("team", "vllm-7d9c5b6f8d-x2k4p", "vllm")
        assert devices[UUID[2], "5"] == ("", "", "")
        exported = series(prometheus, '{__name__=~".+", exported_pod!=""}')
        assert bool(exported) is not honor
        if honor:  # a free GPU has no owner, not even the exporter, although that is the target's label
            assert series(prometheus, f'{POWER}{{pod!="", UUID="{UUID[1]}"}}') == []
            assert owner(series(prometheus, f'{POWER}{{UUID="{UUID[0]}"}}')[0])[1] == "bert-worker-0"
