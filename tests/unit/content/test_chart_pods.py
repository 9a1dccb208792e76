"""The pods of the chart: GPUs, nodes, probes, and what restarts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.support.chart import HASH, SETS, USER, exporter, kind, made, objects, only, pod, texts
from tests.support.chart_effects import nested

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SETS)
def test_it_never_takes_a_gpu(name: str) -> None:
    """A request for nvidia.com/gpu would take a GPU from a workload."""
    for container in pod(made(name))["containers"]:
        for amounts in container.get("resources", {}).values():
            assert set(amounts) <= {"cpu", "memory"}


@pytest.mark.parametrize(
    ("mode", "visible", "elsewhere"),
    [
        ("env", "all", ""),
        ("runtimeClass", "all", "runtimeClassName: nvidia"),
        ("cdi", "void", "cdi.k8s.io/gpu-exporter: nvidia.com/gpu=all"),
        ("volumeMounts", "/var/run/nvidia-container-devices", "mountPath: /var/run/nvidia-container-devices/all"),
        ("hostPath", "void", "mountPath: /usr/local/nvidia"),
        ("none", "void", ""),
    ],
)
def test_access_to_gpus(mode: str, visible: str, elsewhere: str) -> None:
    """Only one way is used: the image sets the variable to all GPUs, so other ways must override it."""
    text = texts({"gpuAccess": {"mode": mode}})["daemonset.yaml"]
    (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": visible} in container["env"]
    others = ("runtimeClassName", "cdi.k8s.io", "/var/run/nvidia-container-devices/all", "mountPath: /usr/local/nvidia")
    for other in others:
        assert (other in text) is (other in elsewhere)
    assert elsewhere in text


@pytest.mark.parametrize(
    ("nodes", "labels"),
    [
        ("nfd", {"feature.node.kubernetes.io/pci-10de.present"}),
        ("gpuOperator", {"nvidia.com/gpu.present"}),
        (
            "auto",
            {
                "feature.node.kubernetes.io/pci-10de.present",
                "nvidia.com/gpu.present",
                "cloud.google.com/gke-accelerator",
                "kubernetes.azure.com/accelerator",
                "karpenter.k8s.aws/instance-gpu-manufacturer",
            },
        ),
    ],
)
def test_nodes_need_one_of_some_labels(nodes: str, labels: set[str]) -> None:
    """Each label is a term of its own: a node needs only one."""
    affinity = pod(objects({"nodes": nodes}))["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    found = {each["key"] for term in terms for each in term["matchExpressions"]}
    assert all(len(term["matchExpressions"]) == 1 for term in terms)
    assert found >= labels
    assert all(key in labels or "pci-03" in key for key in found)


def test_own_affinity() -> None:
    """It is merged with that of GPU nodes; required node affinity replaces that."""
    preferred: Mapping[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    of_gpus = pod(objects({}))["affinity"]["nodeAffinity"]
    found = pod(objects({"affinity": preferred}))["affinity"]
    assert found == {"nodeAffinity": {**preferred["nodeAffinity"], **of_gpus}}
    assert pod(objects({"affinity": preferred, "nodes": "any"}))["affinity"] == preferred
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu"]}]}]
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert pod(objects({"affinity": required}))["affinity"] == required
    assert "affinity" not in pod(objects({"nodes": "any"}))


def test_taints_do_not_evict_the_exporter() -> None:
    """A node that is drained with NoExecute needs it most."""
    assert pod(objects({}))["tolerations"] == [{"operator": "Exists"}]


def test_version_of_the_chart_alone_restarts_nothing() -> None:
    (daemon_set,) = kind(objects({}), "DaemonSet")
    assert "helm.sh/chart" in daemon_set["metadata"]["labels"]
    assert "helm.sh/chart" not in daemon_set["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("web", "probe"),
    [
        ({}, {"httpGet": {"path": "/healthz", "port": "metrics", "scheme": "HTTP"}}),
        (
            {"config": {"http_server_config": {}}},
            {"httpGet": {"path": "/healthz", "port": "metrics", "scheme": "HTTP"}},
        ),
        ({"tlsSecret": "tls"}, {"httpGet": {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"}}),
        (
            {
                "config": {
                    "tls_server_config": {
                        "client_auth_type": "RequireAndVerifyClientCert",
                        "client_ca_file": "/etc/gpu-exporter/tls/ca.crt",
                    }
                },
                "tlsSecret": "tls",
            },
            {"tcpSocket": {"port": "metrics"}},
        ),
        ({"config": {"basic_auth_users": {USER: HASH}}}, {"tcpSocket": {"port": "metrics"}}),
        ({"existingSecret": "web", "scheme": "https"}, {"tcpSocket": {"port": "metrics"}}),
    ],
)
def test_probes_check_only_the_process(web: Mapping[str, Any], probe: Mapping[str, Any]) -> None:
    """/readyz fails because of GPUs: as readiness it would stop a rollout, as liveness restart the process."""
    container = exporter(objects({"web": web}))
    startup = exporter(objects({"web": web, "startupProbe": {"periodSeconds": 5}}))["startupProbe"]
    assert startup == {**probe, "periodSeconds": 5}
    for name in ("livenessProbe", "readinessProbe"):
        assert probe.items() <= container[name].items()
        assert set(container[name]) - set(probe) == {
            "initialDelaySeconds",
            "periodSeconds",
            "timeoutSeconds",
            "failureThreshold",
        }
    # As in docs/probes.md: a restart after two minutes.
    assert container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"] >= 120
    assert only(objects({"web": web}), "Service")["spec"]["publishNotReadyAddresses"] is True


def test_a_probe_can_be_left_out() -> None:
    """With null, as usual in Helm."""
    container = exporter(objects({"livenessProbe": None}))
    assert "livenessProbe" not in container
    assert "readinessProbe" in container


def test_next_to_gpu_operator() -> None:
    """Selectors do not match each other's pods, and pods have their own network, so the port is free."""
    found = made("defaults")
    of_dcgm_exporter = {"app": "nvidia-dcgm-exporter", "app.kubernetes.io/name": "dcgm-exporter"}
    own = only(found, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert not only(found, "Service")["spec"]["selector"].items() <= of_dcgm_exporter.items()
    assert not set(of_dcgm_exporter.items()) & set(own.items())
    assert "hostNetwork" not in pod(found)
    assert all("hostPort" not in port for port in exporter(found)["ports"])


def test_a_changed_setting_restarts_the_pods() -> None:
    """A changed ConfigMap alone does not."""

    def sums(values: Mapping[str, Any]) -> Mapping[str, str]:
        annotations: Mapping[str, str] = only(objects(values), "DaemonSet")["spec"]["template"]["metadata"][
            "annotations"
        ]
        return annotations

    assert sums({})["checksum/config"] != sums({"metrics": "full"})["checksum/config"]
    webs = [sums({"web": {"config": {"basic_auth_users": {text: HASH}}}})["checksum/web"] for text in "bc"]
    assert webs[0] != webs[1]


# Values that 0.1.0 did not have: `helm upgrade --reuse-values` passes none, not even their defaults.
NEW = (
    *("extraEnvFrom", "minReadySeconds", "dnsConfig", "hostAliases", "startupProbe", "openShift", "podMonitor"),
    *(f"serviceMonitor.{name}" for name in ("additionalLabels", "jobLabel", "targetLabels", "podTargetLabels")),
    *(f"serviceMonitor.{name}" for name in ("attachMetadata", "proxyUrl")),
    *("prometheusRule.additionalLabels", "prometheusRule.additionalRules"),
)


def test_values_of_an_older_release() -> None:
    """They render the same, without the values that are new."""
    older: Mapping[str, Any] = {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
    values = older
    for path in NEW:
        values = nested(path, None, values)
    assert objects(values) == objects(older)
    assert texts(values)["NOTES.txt"] == texts(older)["NOTES.txt"]
