"""The chart as Helm renders it, the values of the tests, and a check of its pods against Pod Security."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

from tests import ROOT

CHART = ROOT / "helm" / "gpu-exporter"
# The hash of PASSWORD, with a low cost.
USER, PASSWORD, HASH = "prometheus", "secret", "$2b$04$yu9GQs4QdIgpgq5uGT8bVehR/BrxjYwNpkpr0oDEEc4l.misvvlny"
REPOSITORY = "registry.example/gpu-exporter"
RELEASE, NAMESPACE = "gpus", "gpu-monitoring"
NAME = "gpus-gpu-exporter"

Values = Mapping[str, Any]
Object = Mapping[str, Any]


def of_readme(begin: str) -> Values:
    """Return the example of the chart's README that begins with this key."""
    (text,) = re.findall(rf"```yaml\n({begin}:.*?)```", (CHART / "README.md").read_text(), re.DOTALL)
    values: Values = yaml.safe_load(text)
    return values


# The Secret from which Prometheus reads a password.
BASIC_AUTH: Values = {"username": {"name": "login", "key": "user"}, "password": {"name": "login", "key": "password"}}
MONITORED: Values = {
    "serviceMonitor": {"enabled": True, "additionalLabels": {"release": "kube-prometheus-stack"}},
    "prometheusRule": {"enabled": True, "additionalLabels": {"release": "kube-prometheus-stack"}},
    "dashboards": {"enabled": True},
}
# Values of typical installations.
SETS: Mapping[str, Values] = {
    "defaults": {},
    "attribution": {"attribution": {"enabled": True}},
    "monitored": MONITORED,
    "pod-monitor": {"podMonitor": {"enabled": True, "attachMetadata": {"node": True}, "podTargetLabels": ["team"]}},
    "openshift": {**MONITORED, "openShift": {"scc": True}, "attribution": {"enabled": True}},
    "everything": {
        **MONITORED,
        "metrics": "full",
        "attribution": {
            "enabled": True,
            "podLabels": ["app", "team"],
            "dra": True,
            "resourceNames": ["example.com/gpu"],
        },
        "slurm": {"jobMappingPath": "/run/gpu-jobs"},
        "processes": {"enabled": True},
        "kernelLog": {"mode": "file", "path": "/var/log/kern.log"},
        "xids": {"overrides": {"63": {"action": "gpu_reset", "drain": True}}, "keep": "node"},
        "collectors": "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\nDCGM_FI_DEV_POWER_USAGE, gauge, Power.\n",
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}], "egress": [{"ports": [{"port": 53}]}]},
        "web": {"config": {"basic_auth_users": {USER: HASH}}, "tlsSecret": "tls", "lifecycle": True},
        "serviceMonitor": {
            **MONITORED["serviceMonitor"],
            "basicAuth": BASIC_AUTH,
            "attachMetadata": {"node": True},
            "jobLabel": "app.kubernetes.io/part-of",
            "targetLabels": ["team"],
            "podTargetLabels": ["zone"],
            "proxyUrl": "http://proxy.example:3128",
        },
        "commonLabels": {"team": "gpu"},
        "commonAnnotations": {"owner": "gpu"},
        "podLabels": {"app.kubernetes.io/component": "stolen", "zone": "a"},
        "podAnnotations": {"example.com/a": "b"},
        "nodeSelector": {"pool": "gpu"},
        "initContainers": [{"name": "wait", "image": "busybox", "command": ["true"]}],
        "extraContainers": [{"name": "beside", "image": "busybox"}],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraEnvFrom": [{"prefix": "X_", "secretRef": {"name": "more", "optional": True}}],
        "dnsConfig": {"nameservers": ["10.0.0.10"], "options": [{"name": "ndots", "value": "1"}]},
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["dcgm.example"]}],
        "minReadySeconds": 5,
        "startupProbe": {"periodSeconds": 5, "failureThreshold": 60},
        "extraArgs": ["--gauge-window=30s"],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "extraManifests": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "one"},
                "data": {"of": "{{ .Release.Name }}"},
            },
            'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "{{ .Release.Name }}-two"}\n',
        ],
        "imagePullSecrets": [{"name": "registry"}],
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
    },
    "mig": {
        "attribution": {"enabled": True, "resourceNames": ["example.com/mig-1g.10gb"], "pods": True},
        "config": {"expected_gpus": 8},
    },
    "dra": {"attribution": {"enabled": True, "dra": True}},
    "no-rbac": {
        "attribution": {"enabled": True, "podLabels": ["app"], "dra": True},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "given"},
    },
    "restricted": {**MONITORED, "networkPolicy": {"enabled": True}},
    "dcgm-remote": {
        **of_readme("dcgm"),
        "networkPolicy": {"enabled": True},
    },
    "dcgm-within": {
        "dcgm": {
            "enabled": True,
            "bindings": "/usr/share/datacenter-gpu-manager-4/bindings/python3",
            "profiling": True,
        },
        "gpuAccess": {"mode": "runtimeClass", "driverCapabilities": "compute,utility"},
    },
    "tls": {
        "web": {
            "config": {"tls_server_config": {"min_version": "TLS13"}},
            "tlsSecret": "gpu-exporter-tls",
        },
        "serviceMonitor": {
            "enabled": True,
            "instance": "address",
            "sampleLimit": 50000,
            "tlsConfig": {"ca": {"secret": {"name": "gpu-exporter-tls", "key": "ca.crt"}}, "serverName": "gpus"},
            "basicAuth": BASIC_AUTH,
            "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "python_.*"}],
        },
    },
    "host-path": {"gpuAccess": {"mode": "hostPath"}},
    "kernel-log": {"kernelLog": {"mode": "kmsg"}, "handOver": {"enabled": False}},
    "host-network": {
        "hostNetwork": True,
        "port": 9401,
        "gpuAccess": {"mode": "volumeMounts"},
        "processes": {"enabled": True},
    },
    "mirror": {
        "global": {"imageRegistry": "mirror.example", "imagePullSecrets": [{"name": "mirror"}]},
        "image": {"repository": "gpus/exporter", "digest": "sha256:" + "0" * 64},
        "gpuAccess": {"mode": "cdi"},
        "nodes": "any",
        "priorityClassName": "",
        "tolerations": [],
        "xids": {"keep": "none"},
        "web": {"existingSecret": "web", "scheme": "http"},
        "test": {"enabled": False},
        "fullnameOverride": "watch",
        "namespaceOverride": "elsewhere",
    },
    "remediation": {
        "remediation": {"enabled": True, "pools": [{"name": "all", "mode": "drain"}], "secret": "keys"},
        "podMonitor": {"enabled": True},
    },
    "host-evidence": {"hostEvidence": {"enabled": True}, "openShift": {"scc": True}},
    "job-socket": {"jobSocket": {"enabled": True}, "openShift": {"scc": True}},
    "profile": {"profile": {"enabled": True, "users": [USER]}, "web": {"config": {"basic_auth_users": {USER: HASH}}}},
    "jobs": {
        "slurm": {"jobMappingPath": "/run/gpu-jobs"},
        "ncclInspector": {"path": "/run/nccl-inspector"},
        "xids": {"keep": "none"},
    },
    "overridden": {
        "prometheusRule": {
            "enabled": True,
            "additionalRules": [{"name": "own", "interval": "2m", "rules": [{"record": "own:up", "expr": "up"}]}],
            "interval": "30s",
            "alertLabels": {"team": "gpu", "severity": "kept"},
            "runbookUrl": "https://runbooks.example/gpu/",
            "grafanaUrl": "https://grafana.example/",
            "pageUrl": "https://gpus.example/{node}/",
            "limits": {"heldMemory": 2000000000, "usdPerGpuHour": 3.25},
            "modes": {
                "GpuLost": {"severity": "warning", "hold": "10m", "keep": "5m"},
                "GpuFakeLoad": {"enabled": False},
            },
        },
        "dashboards": {"enabled": True, "namespace": "grafana", "boards": {"cost": False}},
    },
}


def with_image(values: Values) -> dict[str, Any]:
    """Return values that name an image, as the chart requires."""
    return {**values, "image": {"repository": REPOSITORY, **values.get("image", {})}}


def texts(values: Values, chart: Path = CHART) -> Mapping[str, str]:
    """Return the output of each template with these values and an image, by its file's name."""
    return _rendered(json.dumps(with_image(values)), chart)


@lru_cache(maxsize=128)
def _rendered(values: str, chart: Path) -> Mapping[str, str]:
    with Chart.load(chart) as loaded:
        made = loaded.render(json.loads(values), name=RELEASE, namespace=NAMESPACE)
    return {name.partition("/templates/")[2]: text for name, text in made.items()}


def objects(values: Values, chart: Path = CHART) -> list[Object]:
    """Return all objects as Kubernetes gets them."""
    return [
        document
        for name, text in texts(values, chart).items()
        if name.endswith(".yaml")
        for document in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if document
    ]


def kind(found: Sequence[Object], name: str) -> list[Object]:
    """Return the objects of one kind."""
    return [each for each in found if each["kind"] == name]


def only(found: Sequence[Object], name: str) -> Object:
    """Return the only object of a kind."""
    (one,) = kind(found, name)
    return one


def groups(found: Sequence[Object]) -> list[Object]:
    """Return the groups of both PrometheusRules."""
    return [group for each in kind(found, "PrometheusRule") for group in each["spec"]["groups"]]


def rules(values: Values) -> Object:
    """Return the groups of rules that these values make, in the format of a rule file."""
    own = {"enabled": True, **values.get("prometheusRule", {})}
    return {"groups": groups(objects({**values, "prometheusRule": own}))}


@cache
def made(name: str) -> list[Object]:
    """Return the objects of one set of values."""
    return objects(SETS[name])


def pod(found: list[Object]) -> Mapping[str, Any]:
    """Return the spec of the exporter's pods."""
    spec: Mapping[str, Any] = only(found, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def exporter(found: list[Object]) -> Mapping[str, Any]:
    """Return the exporter's container."""
    one: Mapping[str, Any]
    (one,) = (each for each in pod(found)["containers"] if each["name"] == "exporter")
    return one


# The volumes that Pod Security "restricted" allows.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def beyond_restricted(pod: Mapping[str, Any]) -> set[str]:
    """Return what Pod Security "restricted" does not allow in a pod's spec.

    Stricter than the standard: seccomp must be set, and no capability may be added. See
    https://kubernetes.io/docs/concepts/security/pod-security-standards/.
    """
    return {*_of_pod(pod), *(what for container in _containers(pod) for what in _of_container(pod, container))}


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for key in ("initContainers", "containers", "ephemeralContainers") for each in pod.get(key, ())]


def _of_pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    for volume in pod.get("volumes", ()):
        for what in set(volume) - {"name"} - VOLUMES:
            yield f"{what} {volume[what].get('path', '')}".strip()
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls"


def _of_container(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    own, shared = container.get("securityContext", {}), pod.get("securityContext", {})
    context = {**{key: shared[key] for key in ("runAsUser", "runAsNonRoot", "seccompProfile") if key in shared}, **own}
    if context.get("privileged"):
        yield "privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if context.get("runAsNonRoot") is not True:
        yield "not runAsNonRoot"
    if context.get("runAsUser") == 0:
        yield "uid 0"
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccomp"
    capabilities = context.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"]:
        yield "capabilities kept"
    for added in capabilities.get("add", ()):
        yield f"capability {added}"
    if context.get("procMount", "Default") != "Default":
        yield "procMount"
    if context.get("seLinuxOptions") or context.get("appArmorProfile", {}).get("type") == "Unconfined":
        yield "SELinux or AppArmor"
    for port in container.get("ports", ()):
        if port.get("hostPort"):
            yield "hostPort"
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        for handler in ("httpGet", "tcpSocket"):
            if container.get(key, {}).get(handler, {}).get("host"):
                yield "a probe of another host"
