"""Privileges of the chart's pods: none without the feature that needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.support.chart import (
    CHART,
    NAME,
    NAMESPACE,
    SETS,
    beyond_restricted,
    exporter,
    kind,
    made,
    objects,
    only,
    pod,
)

pytestmark = pytest.mark.slow

KUBELET = {"hostPath /var/lib/kubelet/pod-resources", "not runAsNonRoot", "uid 0"}
BEYOND: Mapping[str, set[str]] = {
    "defaults": set(),
    "attribution": KUBELET,
    "monitored": set(),
    "pod-monitor": set(),
    "openshift": KUBELET,
    "mig": KUBELET,
    "dra": KUBELET,
    "no-rbac": KUBELET,
    "tls": set(),
    "mirror": set(),
    "overridden": set(),
    "restricted": set(),
    "dcgm-remote": set(),
    "dcgm-within": {"uid 0", "not runAsNonRoot", "capability SYS_ADMIN"},
    "jobs": {"hostPath /run/gpu-jobs", "hostPath /run/nccl-inspector"},
    "kernel-log": {
        "privileged",
        "hostPath /dev/kmsg",
        "uid 0",
        "not runAsNonRoot",
        "allowPrivilegeEscalation",
        "capabilities kept",
    },
    "host-path": {
        "privileged",
        "hostPath /home/kubernetes/bin/nvidia",
        "allowPrivilegeEscalation",
        "capabilities kept",
    },
    "remediation": set(),
    "host-evidence": {"hostPID", "hostPath /sys"},
    "job-socket": {"hostPID", "hostPath /run/gpu-exporter-jobs", "uid 0", "not runAsNonRoot"},
    "profile": {"hostPID", "uid 0", "not runAsNonRoot", "capability SYS_PTRACE"},
    "host-network": {"hostNetwork", "hostPID", "hostPath /dev/null"},
}


@pytest.mark.parametrize("name", sorted({*SETS} - {"everything"}))
def test_privileges_are_those_of_the_features(name: str) -> None:
    """By default, pods meet Pod Security "restricted"; with attribution, all but hostPath and uid 0."""
    assert beyond_restricted(pod(made(name))) == BEYOND[name]


def test_all_features_have_all_privileges() -> None:
    """Return the exporter's container, without those of the user."""
    found = pod(made("everything"))
    alone = {**found, "initContainers": [], "containers": [exporter(made("everything"))]}
    paths = {f"hostPath {path}" for path in ("/run/gpu-jobs", "/var/log", "/var/lib/gpu-exporter")}
    assert beyond_restricted(alone) == KUBELET | paths | {"hostPID"}
    assert found["securityContext"]["supplementalGroups"] == [4]


def test_the_namespace_of_the_manifests_is_restricted() -> None:
    """deploy/kubernetes enforces what the pods meet."""
    (namespace,) = yaml.safe_load_all((CHART.parent.parent / "deploy/kubernetes/plain/namespace.yaml").read_text())
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    plain = list(yaml.safe_load_all((CHART.parent.parent / "deploy/kubernetes/plain/gpu-exporter.yaml").read_text()))
    assert beyond_restricted(pod(plain)) == set()


@pytest.mark.parametrize("name", SETS)
def test_no_other_privileges(name: str) -> None:
    """No feature changes these."""
    found = made(name)
    context = exporter(found)["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context.get("privileged", False) is (name in ("kernel-log", "host-path"))
    writable = {
        "/run/gpu-exporter",
        "/var/lib/gpu-exporter",
        "/var/lib/gpu-exporter-profiles",
        "/more",
        "/host/job-socket",
    }
    mounts = exporter(found)["volumeMounts"]
    assert {each["mountPath"] for each in mounts if not each.get("readOnly")} - writable <= {
        "/var/run/nvidia-container-devices/all"
    }
    of_others = {"sampler-tmp"}
    assert {each["name"] for each in mounts} == {each["name"] for each in pod(found)["volumes"]} - of_others


def test_only_the_sampler_may_read_other_processes() -> None:
    """It has no GPU, no port and no configuration, and shares only its socket; the exporter cannot replace that."""
    found = pod(made("profile"))
    exporter_, sampler = (
        next(each for each in found["containers"] if each["name"] == name) for name in ("exporter", "sampler")
    )
    assert beyond_restricted({**found, "containers": [exporter_]}) == {"hostPID"}
    assert sampler["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert not {"ports", "envFrom", "livenessProbe"} & sampler.keys()
    assert sampler["securityContext"]["readOnlyRootFilesystem"] is True
    shared = {each["name"] for each in sampler["volumeMounts"]} & {each["name"] for each in exporter_["volumeMounts"]}
    assert shared == {"sampler"}
    (mount,) = [each for each in exporter_["volumeMounts"] if each["name"] == "sampler"]
    assert mount["readOnly"] is True
    assert sampler["args"][3:] == ["--client-uid", str(found["securityContext"]["runAsUser"])]
    settings = yaml.safe_load(only(made("profile"), "ConfigMap")["data"]["config.yaml"])
    assert sampler["args"][2] == settings["profile_socket"]
    assert settings["profile_dir"].startswith("/var/lib/gpu-exporter-profiles/")


def test_the_test_pod_is_restricted() -> None:
    """It meets the profile whatever the exporter needs, and no selector matches it."""
    found = made("host-network")
    test = only(found, "Pod")
    assert beyond_restricted(test["spec"]) == set()
    for selector in (
        only(found, "DaemonSet")["spec"]["selector"]["matchLabels"],
        only(found, "Service")["spec"]["selector"],
    ):
        assert not selector.items() <= test["metadata"]["labels"].items()
        assert selector.items() <= only(found, "DaemonSet")["spec"]["template"]["metadata"]["labels"].items()


GOOD_POD = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [{"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}],
    "volumes": [{"name": "a", "emptyDir": {}}],
}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, set()),
        ({"hostIPC": True}, {"hostIPC"}),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, {"hostPath /"}),
        ({"volumes": [{"name": "a", "nfs": {"path": "/x"}}]}, {"nfs /x"}),
        ({"securityContext": {"runAsNonRoot": True}}, {"seccomp"}),
        ({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}, {"not runAsNonRoot"}),
        ({"initContainers": [{}]}, {"allowPrivilegeEscalation", "capabilities kept"}),
        (
            {"containers": [{"securityContext": {"privileged": True}}]},
            {"privileged", "allowPrivilegeEscalation", "capabilities kept"},
        ),
    ],
)
def test_the_checker_finds_privileges(change: Mapping[str, Any], found: set[str]) -> None:
    """Otherwise the tests above would prove little."""
    assert beyond_restricted({**GOOD_POD, **change}) == found


def test_own_security_context_wins() -> None:
    """Key by key, also 0 and false, which Go treats as empty."""
    values = {
        "podSecurityContext": {"runAsUser": 0, "runAsNonRoot": False, "fsGroup": 7},
        "securityContext": {"readOnlyRootFilesystem": False},
    }
    found = objects(values)
    assert pod(found)["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 65534,
        "runAsNonRoot": False,
        "fsGroup": 7,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert exporter(found)["securityContext"]["readOnlyRootFilesystem"] is False
    assert exporter(found)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_role_only_with_the_api_server() -> None:
    """Without such a feature, there is no role and no token; otherwise only what the feature reads."""
    for name in {*SETS} - {"remediation"}:  # its controller has rights of its own
        found = made(name)
        asks = name in ("everything", "dra", "mig", "no-rbac")
        assert pod(found)["automountServiceAccountToken"] is asks
        assert len(kind(found, "ClusterRole")) == (asks and name != "no-rbac")
    (role,) = kind(made("everything"), "ClusterRole")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch"]},
    ]
    assert [rule["resources"] for rule in only(made("dra"), "ClusterRole")["rules"]] == [["resourceslices"]]
    (binding,) = kind(made("everything"), "ClusterRoleBinding")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]
    assert pod(made("no-rbac"))["serviceAccountName"] == "given"
    assert kind(made("no-rbac"), "ServiceAccount") == []
