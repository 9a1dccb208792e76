"""The chart's controller: its rights are those of its requests, its pods are restricted, its configuration is valid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from gpu_exporter.remediation.settings import Mode, parse
from tests.support.chart import NAME, NAMESPACE, beyond_restricted, kind, objects

pytestmark = pytest.mark.slow

OWN = f"{NAME}-remediation"
CLUSTER = f"{NAMESPACE}-{OWN}"
VALUES: Mapping[str, Any] = {"remediation": {"enabled": True, "secret": "keys"}}
# What `tests/e2e/remediation` sees the controller request: (namespace, group, resource, name, verbs).
REQUESTED = {
    ("", "", "nodes", "", "get list patch"),
    ("", "", "pods", "", "list"),
    ("", "", "pods/eviction", "", "create"),
    ("", "", "pods/status", "", "patch"),
    ("", "policy", "poddisruptionbudgets", "", "list"),
    ("", "batch", "jobs", "", "get"),
    (NAMESPACE, "", "pods", "", "list"),
    (NAMESPACE, "coordination.k8s.io", "leases", "", "create"),
    (NAMESPACE, "coordination.k8s.io", "leases", OWN, "get patch"),
    ("default", "", "events", "", "create"),
}


EVICTS = ("pods/eviction", "pods/status", "poddisruptionbudgets", "jobs")


@pytest.mark.parametrize(
    ("modes", "evicts"),
    [(("drain",), True), (("cordon", "observe"), True), (("cordon", ""), True), (("cordon", "off"), False)],
)
def test_rights_are_those_that_are_requested(modes: tuple[str, ...], evicts: bool) -> None:
    """No more, and for its own service account alone; no pod can be deleted, and none created.

    Without a pool that drains or tries to, nothing of pods elsewhere can even be read.
    """
    pools = [{"name": f"p{place}", **({"mode": mode} if mode else {})} for place, mode in enumerate(modes)]
    found = objects({"remediation": {**VALUES["remediation"], "pools": pools}})
    requested = {one for one in REQUESTED if evicts or (one[2] not in EVICTS and one[::2] != ("", "pods", "list"))}
    roles = [*kind(found, "ClusterRole"), *kind(found, "Role")]
    granted = {
        (role["metadata"].get("namespace", ""), group, resource, name, " ".join(rule["verbs"]))
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
    assert granted == requested
    bindings = [*kind(found, "ClusterRoleBinding"), *kind(found, "RoleBinding")]
    assert len(bindings) == len(roles)
    account = {"kind": "ServiceAccount", "name": OWN, "namespace": NAMESPACE}
    assert all(binding["subjects"] == [account] for binding in bindings)
    assert {binding["roleRef"]["name"] for binding in bindings} == {OWN, CLUSTER}


@pytest.mark.parametrize(
    ("remediation", "granted"),
    [({}, True), ({"events": False}, False), ({"pools": [{"name": "a", "mode": "off"}]}, False)],
)
def test_a_role_in_the_namespace_default_only_for_events(remediation: Mapping[str, Any], granted: bool) -> None:
    found = objects({"remediation": {"enabled": True, **remediation}})
    namespaces = {each["metadata"]["namespace"] for each in kind(found, "Role")}
    assert ("default" in namespaces) is granted


def test_pods_are_restricted() -> None:
    """The controller needs nothing of the node."""
    (deployment,) = kind(objects(VALUES), "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    assert beyond_restricted(spec) == set()
    assert spec["serviceAccountName"] == OWN
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


def spec(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec of the controller's pods."""
    (deployment,) = kind(objects(values), "Deployment")
    found: Mapping[str, Any] = deployment["spec"]["template"]["spec"]
    return found


def test_it_prefers_nodes_without_gpus() -> None:
    """By the labels by which the exporter recognises them; affinity of another kind is merged."""
    label: Mapping[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    found = spec({"remediation": {"enabled": True, "affinity": label}})["affinity"]
    (preferred,) = found["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    exporters = kind(objects({}), "DaemonSet")[0]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = exporters["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = {each["key"] for term in terms for each in term["matchExpressions"]}
    assert {each["key"] for each in preferred["preference"]["matchExpressions"]} == keys
    assert {each["operator"] for each in preferred["preference"]["matchExpressions"]} == {"NotIn", "DoesNotExist"}
    assert label.items() <= found.items()
    own = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}}
    assert spec({"remediation": {"enabled": True, "affinity": own}})["affinity"] == own


def test_openshift_chooses_the_user() -> None:
    """Its default constraints reject any other."""
    context = spec({**VALUES, "openShift": {"scc": True}})["securityContext"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & context.keys()
    assert context["runAsNonRoot"] is True


def test_a_drain_ends_one_controller_at_a_time() -> None:
    found = objects(VALUES)
    (budget,) = kind(found, "PodDisruptionBudget")
    (deployment,) = kind(found, "Deployment")
    assert budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]


def test_nothing_without_it() -> None:
    """By default, there is no controller, and no right to change anything."""
    found = objects({})
    assert not kind(found, "Deployment")
    assert not kind(found, "ClusterRole")


def test_the_configuration_is_valid() -> None:
    """It finds the exporter's pods by their labels, and observes by default."""
    named = {"config": {"exporters": {"server_name": "gpus.example"}}}
    found = objects({"remediation": {**VALUES["remediation"], **named}, "web": {"tlsSecret": "tls"}})
    (config,) = (each for each in kind(found, "ConfigMap") if each["metadata"]["name"] == OWN)
    settings = parse(config["data"]["remediation.yaml"].encode())
    assert [pool.mode for pool in settings.pools] == [Mode.OBSERVE]
    exporters = settings.exporters
    assert (settings.lease, exporters.scheme, exporters.server_name) == (OWN, "https", "gpus.example")
    (daemonset,) = kind(found, "DaemonSet")
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert all(
        labels[key] == value for key, value in (term.split("=") for term in settings.exporters.selector.split(","))
    )
    assert yaml.safe_load(config["data"]["remediation.yaml"])["namespace"] == NAMESPACE


def test_mode_off_survives_yaml() -> None:
    """An unquoted `off` is false in YAML 1.1."""
    found = objects({"remediation": {"enabled": True, "pools": [{"name": "a", "mode": "off"}]}})
    (config,) = (each for each in kind(found, "ConfigMap") if each["metadata"]["name"] == OWN)
    assert parse(config["data"]["remediation.yaml"].encode()).pools[0].mode is Mode.OFF


PROMETHEUS = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
NOTIFY = {"remediation": {"enabled": True, "config": {"notify": {"url": "https://hooks.example:8443/x"}}}}


def policies(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the network policies of the exporter and of the controller."""
    found = kind(objects({"networkPolicy": {"enabled": True, "from": [PROMETHEUS]}, **values}), "NetworkPolicy")
    by_name = {each["metadata"]["name"]: each["spec"] for each in found}
    return by_name[NAME], by_name[OWN]


def test_the_network_policies_let_the_controller_ask_the_exporters() -> None:
    """Otherwise every node would be unknown: each policy selects the pods that the other one names."""
    exporter, controller = policies(VALUES)
    selectors = [each["podSelector"]["matchLabels"] for each in exporter["ingress"][0]["from"] if "podSelector" in each]
    assert any(each.items() <= controller["podSelector"]["matchLabels"].items() for each in selectors)
    (asks, api) = controller["egress"]
    assert asks["to"] == [{"podSelector": exporter["podSelector"]}]
    assert [each["port"] for each in asks["ports"]] == [9400]
    assert {each["port"] for each in api["ports"]} == {443, 6443}
    assert "to" not in policies({**VALUES, "hostNetwork": True})[1]["egress"][0], "these pods have the node's address"


def test_who_may_reach_the_controller() -> None:
    """Those who may scrape the exporter, or others: its port takes webhooks."""
    alertmanager = {"podSelector": {"matchLabels": {"app": "alertmanager"}}}
    (ingress,) = policies(VALUES)[1]["ingress"]
    assert (ingress["from"], [each["port"] for each in ingress["ports"]]) == ([PROMETHEUS], ["http"])
    others = {"remediation": {"enabled": True, "networkPolicy": {"from": [alertmanager]}}}
    assert policies(others)[1]["ingress"][0]["from"] == [alertmanager]


def test_it_may_notify() -> None:
    """At the port of the URL, with DNS."""
    ports = {each["port"] for rule in policies(NOTIFY)[1]["egress"] for each in rule["ports"]}
    assert ports == {9400, 443, 6443, 53, 8443}


@pytest.mark.parametrize(("value", "operated"), [("serviceMonitor", "ServiceMonitor"), ("podMonitor", "PodMonitor")])
def test_prometheus_finds_the_controller(value: str, operated: str) -> None:
    """By a monitor with a job of its own: with that of the exporters, GpuExporterDown would fire for it."""
    found = objects({**VALUES, value: {"enabled": True, "additionalLabels": {"release": "prometheus"}}})
    monitors = {each["metadata"]["name"]: each for each in kind(found, operated)}
    monitor = monitors[OWN]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    (job,) = (each["replacement"] for each in endpoint["relabelings"] if each["targetLabel"] == "job")
    assert not re.fullmatch("gpu|.*(gpu.?exporter|dcgm).*", job)
    (deployment,) = kind(found, "Deployment")
    pods = deployment["spec"]["template"]
    (service,) = (each for each in kind(found, "Service") if each["metadata"]["name"] == OWN)
    labels = service["metadata"]["labels"] if operated == "ServiceMonitor" else pods["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert not monitors[NAME]["spec"]["selector"]["matchLabels"].items() <= labels.items(), "scraped twice"
    assert "prometheus.io/scrape" not in pods["metadata"]["annotations"]


def test_without_a_monitor_there_are_annotations() -> None:
    """For a Prometheus that finds pods by these."""
    (deployment,) = kind(objects(VALUES), "Deployment")
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert (annotations["prometheus.io/scrape"], annotations["prometheus.io/port"]) == ("true", "9401")
