"""OpenShift's SecurityContextConstraints of the chart: they admit the exporter's pods, and allow nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.chart import NAME, NAMESPACE, SETS, Object, Values, exporter, kind, made, objects, only, pod

pytestmark = pytest.mark.slow

OWN: Mapping[str, Values] = {
    "own-user": {
        "podSecurityContext": {"runAsUser": 7, "supplementalGroups": [8, 9]},
        "securityContext": {"runAsUser": 0},
    },
    "own-types": {
        "podSecurityContext": {"seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "Unconfined"}},
        "securityContext": {"readOnlyRootFilesystem": False, "capabilities": {"add": ["SYS_PTRACE"], "drop": ["ALL"]}},
    },
    "own-profile": {
        "podSecurityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "gpu.json"}},
        "extraVolumes": [{"name": "own", "nfs": {"server": "a", "path": "/b"}}],
    },
    "no-token": {"handOver": {"enabled": False}, "xids": {"keep": "node"}},
}
CASES = {**SETS, **OWN}
SWITCHES = (
    *("allowPrivilegedContainer", "allowPrivilegeEscalation", "allowHostDirVolumePlugin", "allowHostNetwork"),
    *("allowHostPorts", "allowHostPID"),
)
PROFILES = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined", "Localhost": "localhost/gpu.json"}


def on_openshift(name: str) -> list[Object]:
    """Return the objects of a case with an SCC."""
    return objects({**CASES[name], "openShift": {"scc": True}})


def refused(scc: Mapping[str, Any], found: list[Object]) -> set[str]:
    """Return why OpenShift would not admit the containers of the chart under an SCC."""
    spec = pod(found)
    own = [each for each in spec["containers"] if each["name"] in ("exporter", "sampler")]
    return {*_volumes(scc, spec), *_host(scc, spec), *(why for each in own for why in _context(scc, spec, each))}


def _volumes(scc: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    for volume in spec["volumes"]:
        for source in set(volume) - {"name"}:
            if source not in scc["volumes"] or (source == "hostPath" and not scc["allowHostDirVolumePlugin"]):
                yield f"volume {source}"


def _host(scc: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    for key, switches in (("hostNetwork", ("allowHostNetwork", "allowHostPorts")), ("hostPID", ("allowHostPID",))):
        if spec.get(key) and not all(scc[switch] for switch in switches):
            yield key


def _context(scc: Mapping[str, Any], spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    context = {**spec["securityContext"], **container["securityContext"]}
    users = scc["runAsUser"]
    if users["type"] != "RunAsAny" and context["runAsUser"] != users["uid"]:
        yield "user"
    if context.get("privileged") and not scc["allowPrivilegedContainer"]:
        yield "privileged"
    if context.get("allowPrivilegeEscalation") is not False and not scc["allowPrivilegeEscalation"]:
        yield "escalation"
    if scc["readOnlyRootFilesystem"] and not context["readOnlyRootFilesystem"]:
        yield "root file system"
    capabilities = context.get("capabilities", {})
    if not set(capabilities.get("add", ())) <= set(scc["allowedCapabilities"]):
        yield "capability"
    if not set(scc["requiredDropCapabilities"]) <= set(capabilities.get("drop", ())):
        yield "kept capability"
    if PROFILES[context["seccompProfile"]["type"]] not in scc["seccompProfiles"]:
        yield "seccomp"
    if context.get("seLinuxOptions") != scc["seLinuxContext"].get("seLinuxOptions"):
        yield "SELinux"
    allowed = [(each["min"], each["max"]) for each in scc["supplementalGroups"]["ranges"]]
    if any(not any(low <= group <= high for low, high in allowed) for group in context.get("supplementalGroups", ())):
        yield "group"


@pytest.mark.parametrize("name", CASES)
def test_the_pods_are_admitted(name: str) -> None:
    found = on_openshift(name)
    assert refused(only(found, "SecurityContextConstraints"), found) == set()


@pytest.mark.parametrize("name", CASES)
def test_nothing_else_is_allowed(name: str) -> None:
    """Without any of what it allows, it would not admit the pods."""
    found = on_openshift(name)
    scc = only(found, "SecurityContextConstraints")
    lists = ("volumes", "allowedCapabilities", "seccompProfiles")
    less = [{**scc, switch: False} for switch in SWITCHES if scc[switch]]
    less += [{**scc, key: [each for each in scc[key] if each != left_out]} for key in lists for left_out in scc[key]]

    assert [each for each in less if not refused(each, found)] == []
    assert scc["readOnlyRootFilesystem"] is exporter(found)["securityContext"]["readOnlyRootFilesystem"]
    assert scc["requiredDropCapabilities"] == ([] if name in ("kernel-log", "host-path") else ["ALL"])
    assert not scc["allowHostIPC"]


def test_only_the_service_account_may_use_it_and_its_pods_must() -> None:
    found = made("openshift")
    scc = only(found, "SecurityContextConstraints")
    assert scc["users"] == [f"system:serviceaccount:{NAMESPACE}:{NAME}"]
    assert scc["groups"] == []
    annotations = only(found, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["openshift.io/required-scc"] == scc["metadata"]["name"]
    given = {"openShift": {"scc": True}, "serviceAccount": {"create": False, "name": "own"}}
    assert only(objects(given), "SecurityContextConstraints")["users"] == [f"system:serviceaccount:{NAMESPACE}:own"]


def test_other_clusters_have_none() -> None:
    found = made("attribution")
    assert kind(found, "SecurityContextConstraints") == []
    annotations = only(found, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert "openshift.io/required-scc" not in annotations


def test_the_test_pod_fits_openshifts_default() -> None:
    """Its SCC `restricted-v2` gives each namespace users of its own, and refuses others."""
    context = only(made("openshift"), "Pod")["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
