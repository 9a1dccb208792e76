"""The chart's rendered scrape configuration in a real Prometheus, its `helm test`, its settings in a real exporter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Serve
from tests.support import chart
from tests.support.chart import CHART, NAME, NAMESPACE, Object, kind, objects, only
from tests.support.fakes.dcgm_exporter import serving
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import LIMIT, free_port, until

POD, NODE = f"{NAME}-x2x4z", "node-000"
# As the exporter writes it: GPU 0 is a pod's, GPU 1 is free, GPU 2 is shared by two pods.
PAGE = """\
gpu_exporter_build_info{version="1"} 1
gpu_info{gpu="0",UUID="GPU-0",node="node-000",model="NVIDIA H200"} 1
gpu_up{gpu="0",UUID="GPU-0"} 1
gpu_pod_info{gpu="0",UUID="GPU-0",namespace="research",pod="train-worker-0",container="main",workload="train"} 1
gpu_pod_info{gpu="2",UUID="GPU-2",namespace="research",pod="a-0",container="main",workload="a"} 1
gpu_pod_info{gpu="2",UUID="GPU-2",namespace="serving",pod="b-0",container="main",workload="b"} 1
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0",namespace="research",pod="train-worker-0",container="main"} 60
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-1",Hostname="node-000",namespace="",pod="",container=""} 30
DCGM_FI_DEV_GPU_TEMP{gpu="2",UUID="GPU-2",Hostname="node-000",namespace="",pod="",container=""} 50
"""
OWN = ("namespace", "pod", "container", "service", "endpoint")


def sanitized(text: str) -> str:
    """Return a Kubernetes label as service discovery spells it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


def discovered(port: int, service: str, labels: Mapping[str, str], port_name: str = "metrics") -> Object:
    """Return a target of Prometheus' service discovery with role endpoints for a pod behind a service."""
    meta = {
        "namespace": NAMESPACE,
        "service_name": service,
        "endpoint_port_name": port_name,
        "endpoint_ready": "false",
        "endpoint_address_target_kind": "Pod",
        "endpoint_address_target_name": POD,
        "pod_name": POD,
        "pod_container_name": "exporter",
        "pod_node_name": NODE,
        "pod_phase": "Running",
        **{f"service_label_{sanitized(key)}": value for key, value in labels.items()},
        **{f"service_labelpresent_{sanitized(key)}": "true" for key in labels},
    }
    return {
        "targets": [f"127.0.0.1:{port}"],
        "labels": {f"__meta_kubernetes_{key}": value for key, value in meta.items()},
    }


def discovered_pod(port: int, labels: Mapping[str, str], port_name: str) -> Object:
    """Return a target with role pod."""
    meta = {
        "pod_container_port_name": port_name,
        "pod_container_name": "exporter",
        "pod_node_name": NODE,
        "pod_name": POD,
        "namespace": NAMESPACE,
        **{f"pod_label_{sanitized(key)}": value for key, value in labels.items()},
        **{f"pod_labelpresent_{sanitized(key)}": "true" for key in labels},
    }
    return {
        "targets": [f"127.0.0.1:{port}"],
        "labels": {f"__meta_kubernetes_{key}": value for key, value in meta.items()},
    }


def scrape_config(monitor: Object, file: Path) -> dict[str, Any]:
    """Return what Prometheus Operator generates for a ServiceMonitor or PodMonitor, with targets from a file."""
    spec = monitor["spec"]
    role, port, own = ("pod", "pod_container_port_name", "podMetricsEndpoints")
    if monitor["kind"] == "ServiceMonitor":
        role, port, own = ("service", "endpoint_port_name", "endpoints")
    (endpoint,) = spec[own]
    steps: list[dict[str, Any]] = [
        {
            "action": "keep",
            "source_labels": [
                f"__meta_kubernetes_{role}_{what}_{sanitized(key)}" for what in ("label", "labelpresent")
            ],
            "regex": f"({value});true",
        }
        for key, value in spec["selector"]["matchLabels"].items()
    ]
    steps += [
        {"action": "keep", "source_labels": [f"__meta_kubernetes_{port}"], "regex": endpoint["port"]},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_service_name"], "target_label": "service"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        *(_copied(role, key) for key in spec.get("targetLabels", ())),
        *(_copied("pod", key) for key in spec.get("podTargetLabels", ())),
        {"source_labels": ["__meta_kubernetes_service_name"], "target_label": "job"},
        *({**_copied(role, key), "target_label": "job"} for key in filter(None, [spec.get("jobLabel")])),
        {"target_label": "endpoint", "replacement": endpoint["port"]},
        *map(_relabeling, endpoint["relabelings"]),
    ]
    return {
        "honor_labels": endpoint["honorLabels"],
        "metrics_path": endpoint["path"],
        "scheme": endpoint["scheme"],
        "file_sd_configs": [{"files": [str(file)]}],
        "relabel_configs": steps,
        "metric_relabel_configs": list(map(_relabeling, endpoint.get("metricRelabelings", ()))),
    }


def _copied(role: str, label: str) -> dict[str, Any]:
    name = sanitized(label)
    return {"source_labels": [f"__meta_kubernetes_{role}_label_{name}"], "regex": "(.+)", "target_label": name}


def _relabeling(step: Mapping[str, Any]) -> dict[str, Any]:
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return {names.get(key, key): value for key, value in step.items()}


def config(folder: Path, port: int, values: chart.Values) -> dict[str, Any]:
    """Return a configuration that finds the exporter at this port among unrelated targets."""
    found = objects({"serviceMonitor": {"enabled": True, **values}})
    service = only(found, "Service")["metadata"]
    targets = [
        discovered(port, service["name"], service["labels"]),
        discovered(port, service["name"], service["labels"], port_name="other"),
        discovered(port, "nvidia-dcgm-exporter", {"app": "nvidia-dcgm-exporter"}),
    ]
    file = folder / "targets.json"
    file.write_text(json.dumps(targets))
    return scrape_config(only(found, "ServiceMonitor"), file)


def series(prometheus: Prometheus, selector: str) -> list[dict[str, str]]:
    """Return the labels of all series that a selector finds."""
    return [each["metric"] for each in prometheus.api("query", query=selector)["result"]]


def scraped(prometheus: Prometheus) -> None:
    """Wait for the second scrape."""
    until(lambda: prometheus.query("count_over_time(up[1m]) >= 2"), 30, "the second scrape")


def test_labels_do_not_collide(tmp_path: Path) -> None:
    """A busy GPU has its pod, a free one none; the target is the node. There are no copies of labels unless wanted."""
    values = {"exportedLabels": False}
    with serving({"metrics": PAGE}) as port, scraping(tmp_path, "1s", config(tmp_path, port, values)) as prometheus:
        scraped(prometheus)
        assert [each for each in prometheus.api("labels") if each.startswith("exported_")] == []
        target = {"job": "gpu-exporter", "instance": f"{NODE}:9400", "node": NODE}
        assert series(prometheus, "up") == [{"__name__": "up", **target}]
        temperatures = {each.pop("gpu"): each for each in series(prometheus, "DCGM_FI_DEV_GPU_TEMP")}
        pod = {"namespace": "research", "pod": "train-worker-0", "container": "main"}
        assert {key: temperatures["0"].get(key) for key in pod} == pod
        for free in ("1", "2"):
            assert not set(OWN) & set(temperatures[free])
        owners = {(each["namespace"], each["pod"]) for each in series(prometheus, "gpu_pod_info")}
        assert owners == {("research", "train-worker-0"), ("research", "a-0"), ("serving", "b-0")}
        assert [each["node"] for each in series(prometheus, "gpu_info")] == [NODE]
        assert {each["node"] for each in series(prometheus, '{__name__=~"gpu_.*|DCGM_.*"}')} == {NODE}


def test_a_pod_monitor_scrapes_the_same(tmp_path: Path) -> None:
    """Labels of the pods are copied, and one of them is the job."""
    wanted = {"enabled": True, "podTargetLabels": ["zone"], "jobLabel": "app.kubernetes.io/part-of"}
    found = objects({"podMonitor": wanted, "podLabels": {"zone": "a"}})
    labels = only(found, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    file = tmp_path / "targets.json"
    with serving({"metrics": PAGE}) as port:
        other = {**labels, "app.kubernetes.io/component": "test"}
        pods = [(labels, "metrics"), (labels, "other"), (other, "metrics")]
        file.write_text(json.dumps([discovered_pod(port, of, name) for of, name in pods]))
        with scraping(tmp_path, "1s", scrape_config(only(found, "PodMonitor"), file)) as prometheus:
            scraped(prometheus)
            target = {"job": "gpu-exporter", "instance": f"{NODE}:9400", "node": NODE, "zone": "a"}
            assert series(prometheus, "up") == [{"__name__": "up", **target}]
            (free,) = series(prometheus, 'DCGM_FI_DEV_GPU_TEMP{gpu="1"}')
            assert not set(OWN) & set(free)
            query = 'DCGM_FI_DEV_GPU_TEMP{exported_namespace="research", exported_pod="train-worker-0"}'
            assert [each["pod"] for each in series(prometheus, query)] == ["train-worker-0"]


def test_labels_have_copies_for_public_dashboards(tmp_path: Path) -> None:
    """As with NVIDIA's chart, which does not honour labels. A free GPU has no copies."""
    with serving({"metrics": PAGE}) as port, scraping(tmp_path, "1s", config(tmp_path, port, {})) as prometheus:
        scraped(prometheus)
        query = 'DCGM_FI_DEV_GPU_TEMP{exported_namespace="research", exported_pod="train-worker-0"}'
        (busy,) = series(prometheus, query)
        assert (busy["exported_container"], busy["pod"], busy["namespace"]) == ("main", "train-worker-0", "research")
        assert [each["gpu"] for each in series(prometheus, '{__name__=~"DCGM_.*", exported_pod!=""}')] == ["0"]
        assert series(prometheus, '{__name__=~"gpu_up|gpu_info|up", exported_pod!=""}') == []


def test_labels_collide_with_the_operators_defaults(tmp_path: Path) -> None:
    """With them, `test_labels_do_not_collide` would fail."""
    values = {"honorLabels": False, "dropTargetLabels": False, "instance": "address"}
    with serving({"metrics": PAGE}) as port, scraping(tmp_path, "1s", config(tmp_path, port, values)) as prometheus:
        scraped(prometheus)
        assert {"exported_pod", "exported_namespace", "exported_container"} <= set(prometheus.api("labels"))
        (free,) = series(prometheus, 'DCGM_FI_DEV_GPU_TEMP{gpu="1"}')
        assert free["pod"] == POD
        assert free["instance"] == f"127.0.0.1:{port}"


def test_a_real_exporter_is_scraped_with_the_rules(serve: Serve, tmp_path: Path) -> None:
    """Rendered settings, scrape configuration and rules together: signals have node and owner."""
    found = objects(chart.SETS["restricted"])
    (data,) = (each["data"] for each in kind(found, "ConfigMap") if "config.yaml" in each["data"])
    (tmp_path / "config.yaml").write_text(data["config.yaml"])
    here = ("--state-dir", str(tmp_path / "state"), "--interval", "500ms")
    exporter = serve("--config", str(tmp_path / "config.yaml"), "--source", "simulated", "--gpus", "2", *here)
    rules = tmp_path / "rules.yaml"
    rules.write_text(json.dumps(chart.rules({})))
    settings = config(tmp_path, exporter.port, {})
    with scraping(tmp_path, "1s", settings, rule_files=[rules]) as prometheus:
        until(lambda: prometheus.query("count(gpu:device:info)") == [2.0], 30, "two devices")
        devices = series(prometheus, "gpu:device:info")
        assert {each["node"] for each in devices} == {NODE}
        assert all(each["workload"] and each["namespace"] == "simulated" for each in devices)
        failing = [
            rule for group in prometheus.api("rules")["groups"] for rule in group["rules"] if rule.get("lastError")
        ]
        assert failing == []


# All components on one node.
INSTALLED: chart.Values = {"remediation": {"enabled": True}, "test": {"gpus": 1}, "attribution": {"enabled": True}}
CONTROLLER = "gpu_remediation_leader 1\ngpu_remediation_last_cycle_timestamp_seconds 1\n"


def pods(found: Sequence[Object]) -> Iterator[Object]:
    """Yield the template of each pod of the chart, as a pod."""
    for each in found:
        if each["kind"] == "Pod":
            yield each
        elif "template" in each.get("spec", {}):
            yield each["spec"]["template"]


def documented(folder: Path, ports: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the jobs of the chart's README, with all pods as targets: Debian's Prometheus discovers no Kubernetes.

    `ports` are those on which the components listen; a component without one is not there.
    """
    targets = []
    for each in pods(objects(INSTALLED)):
        labels = each["metadata"]["labels"]
        port = ports.get(labels["app.kubernetes.io/component"])
        names = [one["name"] for container in each["spec"]["containers"] for one in container.get("ports", ())]
        targets += [discovered_pod(port, labels, name) for name in names or [""] if port]
    (folder / "targets.json").write_text(json.dumps(targets))
    (text,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", (CHART / "README.md").read_text(), re.DOTALL)
    jobs: list[dict[str, Any]] = yaml.safe_load(text)["scrape_configs"]
    for job in jobs:
        assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
        job |= {"file_sd_configs": [{"files": [str(folder / "targets.json")]}], "scrape_interval": "1s"}
    return jobs


@contextmanager
def documented_prometheus(folder: Path, ports: Mapping[str, int]) -> Iterator[Prometheus]:
    """Run a Prometheus with the jobs of the README, and the chart's rules."""
    rules = folder / "rules.yaml"
    rules.write_text(json.dumps(chart.rules({})))
    jobs = {"scrape_configs": documented(folder, ports)}
    with scraping(folder, "1s", {}, rule_files=[rules], more=jobs) as prometheus:
        yield prometheus


def test_without_the_operator(tmp_path: Path) -> None:
    """The jobs in the chart's README: the exporter and the controller are one target each, and `helm test` is none."""
    with serving({"metrics": PAGE}) as port, serving({"metrics": CONTROLLER}) as other:
        ports = {"exporter": port, "remediation": other, "test": other}
        with documented_prometheus(tmp_path, ports) as prometheus:
            scraped(prometheus)
            target = {"job": "gpu-exporter", "instance": f"{NODE}:9400", "node": NODE}
            assert series(prometheus, 'up{job="gpu-exporter"}') == [{"__name__": "up", **target}]
            assert len(series(prometheus, "up")) == 2
            assert [each for each in prometheus.api("labels") if each.startswith("exported_")] == []
            (free,) = series(prometheus, 'DCGM_FI_DEV_GPU_TEMP{gpu="1"}')
            assert not set(OWN) & set(free)
            (leader,) = series(prometheus, "gpu_remediation_leader")
            owner = {"job": "gpu-remediation", "namespace": NAMESPACE, "pod": POD}
            assert owner.items() <= leader.items()
            assert leader["instance"] != target["instance"]


def test_a_stopped_exporter_is_noticed_beside_the_controller(tmp_path: Path) -> None:
    """Both run on one node. GpuExporterDown is pending, although the controller of the same release answers."""
    pending = 'ALERTS{alertname="GpuExporterDown", alertstate="pending"}'
    with ExitStack() as stack, serving({"metrics": CONTROLLER}) as other:
        port = stack.enter_context(serving({"metrics": PAGE}))
        ports = {"exporter": port, "remediation": other, "test": other}
        with documented_prometheus(tmp_path, ports) as prometheus:
            until(lambda: prometheus.query("count(gpu:exporter:info)") == [1.0], 30, "the exporter")
            assert series(prometheus, pending) == []
            stack.close()
            until(lambda: prometheus.query('up{job="gpu-exporter"}') == [0.0], 30, "the failed scrape")
            (alert,) = until(lambda: series(prometheus, pending), 5, "the alert")
            assert (alert["node"], alert["instance"]) == (NODE, f"{NODE}:9400")
            assert prometheus.query('up{job="gpu-remediation"}') == [1.0]


@pytest.mark.parametrize("name", ["monitored", "tls"])
def test_the_interval_is_the_rendered_one(name: str) -> None:
    """The tests above use a shorter one."""
    (endpoint,) = only(objects(chart.SETS[name]), "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("15s", "10s")
    assert endpoint["scheme"] == ("https" if name == "tls" else "http")


def helm_test(port: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return the rendered command of the pod of `helm test`."""
    (container,) = only(objects({}), "Pod")["spec"]["containers"]
    program = [sys.executable, *container["command"][1:], *container["args"]]
    env = {**os.environ, "HOST": "127.0.0.1", "PORT": str(port), "PATIENCE": "1", "PORT_ONLY": "", **environment}
    return subprocess.run(program, env=env, capture_output=True, text=True, timeout=LIMIT)


def test_helm_test(serve: Serve) -> None:
    """It succeeds only on an exporter; with a password, it checks only that the port is open."""
    exporter = serve("--source", "simulated", "--gpus", "2", "--interval", "200ms")
    exporter.until(lambda page: len(page.values("gpu_up")) == 2)
    good = helm_test(exporter.port)
    assert (good.returncode, good.stdout.count("gpu_up{")) == (0, 2), good.stderr
    assert "is open" in helm_test(exporter.port, PORT_ONLY="yes").stdout
    closed = helm_test(free_port())
    assert closed.returncode == 1
    assert "does not answer" in closed.stderr
    with serving({"metrics": "node_load1 1\n"}) as port:
        other = helm_test(port)
    assert other.returncode == 1
    assert "is not a gpu-exporter" in other.stderr


def test_the_script_is_in_the_chart() -> None:
    """Templates of Helm would have changed it."""
    (container,) = only(objects({}), "Pod")["spec"]["containers"]
    assert container["args"][0].strip() == (CHART / "files/scrape.py").read_text().strip()
