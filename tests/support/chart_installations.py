"""Installations of the chart: values, the namespace that they are for, and what a cluster says to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from content.chart.platforms import PLATFORMS
from tests.support.chart import BASIC_AUTH, HASH, MONITORED, USER, Values

RESTRICTED, BASELINE, PRIVILEGED = "restricted", "baseline", "privileged"


@dataclass(frozen=True, slots=True)
class Installation:
    """Values for a namespace that enforces a `level` of Pod Security.

    `refused` is a part of what the admission of the pods says; empty if they are admitted. `chart` is a part of the
    chart's own error, if it refuses the values because the API server, kubelet or the controller would.
    """

    values: Values = field(default_factory=dict)
    level: str = RESTRICTED
    refused: str = ""
    chart: str = ""


ATTRIBUTION: Values = {"attribution": {"enabled": True, "pods": True, "podLabels": ["team"], "dra": True}}
CREDENTIALS: Values = {
    "server_name": "gpu-exporter.example",
    "ca_file": "/etc/gpu-exporter-secret/ca.crt",
    "user": USER,
    "password_file": "/etc/gpu-exporter-secret/password",
}
SECURE: Values = {"web": {"tlsSecret": "tls", "config": {"basic_auth_users": {USER: HASH}}}}
TENANT: dict[str, Any] = {
    "enabled": True,
    "pools": [
        {"name": "training", "selector": "pool=training", "mode": "drain", "budget": {"nodes": 2, "share": 0.1}},
        {"name": "rest", "mode": "cordon"},
    ],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "system-cluster-critical",
    "podLabels": {"team": "sre"},
    "podAnnotations": {"example.com/owner": "sre"},
    "config": {"notify": {"url": "https://hooks.example/gpu"}, "breaker": {"nodes": 4}},
}
MONITORING: Values = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
INSTALLATIONS: Mapping[str, Installation] = {
    "defaults in a restricted namespace": Installation(),
    "all monitors, rules and dashboards": Installation(MONITORED),
    "attribution in a restricted namespace": Installation(
        {"attribution": {"enabled": True}}, refused='violates PodSecurity "restricted'
    ),
    "attribution in a baseline namespace": Installation(
        {"attribution": {"enabled": True}}, BASELINE, "hostPath volumes (volume"
    ),
    "attribution": Installation(ATTRIBUTION, PRIVILEGED),
    "evidence of the host": Installation(
        {
            "hostEvidence": {"enabled": True},
            "processes": {"enabled": True},
            "jobSocket": {"enabled": True},
            "profile": {"enabled": True},
            "ncclInspector": {"path": "/run/nccl"},
            "slurm": {"jobMappingPath": "/run/gpu-jobs"},
            "xids": {"keep": "node"},
        },
        PRIVILEGED,
    ),
    "kernel log": Installation({"kernelLog": {"mode": "kmsg"}}, PRIVILEGED),
    "a privileged container by hand": Installation({"securityContext": {"privileged": True}}, PRIVILEGED),
    "root by hand": Installation({"podSecurityContext": {"runAsUser": 0}}, BASELINE),
    "root by hand in a restricted namespace": Installation(
        {"podSecurityContext": {"runAsUser": 0}}, refused="runAsNonRoot != true"
    ),
    "a runtime class that nobody has created": Installation(
        {"gpuAccess": {"mode": "runtimeClass", "runtimeClassName": "missing"}},
        refused='RuntimeClass "missing" not found',
    ),
    "a priority class that nobody has created": Installation(
        {"priorityClassName": "gpu-infra"}, refused="no PriorityClass with name gpu-infra was found"
    ),
    "a service account that nobody has created": Installation(
        {"serviceAccount": {"create": False, "name": "given"}}, refused='serviceaccount "given" not found'
    ),
    "the node's network": Installation({"hostNetwork": True, "port": 9445, **SECURE}, PRIVILEGED),
    "the node's network in a baseline namespace": Installation(
        {"hostNetwork": True, "port": 9445}, BASELINE, "host namespaces (hostNetwork=true)"
    ),
    "new pods before old ones": Installation(
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"}}}
    ),
    "a controller as a tenant": Installation({"remediation": TENANT, "networkPolicy": {"enabled": True}, **MONITORED}),
    "a controller with credentials": Installation(
        {
            **SECURE,
            "remediation": {"enabled": True, "secret": "keys", "config": {"exporters": CREDENTIALS}},
            "podMonitor": {"enabled": True, "basicAuth": BASIC_AUTH, "tlsConfig": {"serverName": "gpus"}},
        }
    ),
    "IPv6 only": Installation(
        {
            "extraArgs": ["--address=[::]:9400"],
            "networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "fd00::/8"}}]},
        }
    ),
    "an air-gapped registry": Installation(
        {
            "global": {"imageRegistry": "harbor.local:5000", "imagePullSecrets": [{"name": "harbor"}]},
            "image": {"repository": "mirror/gpu-exporter", "digest": "sha256:" + "0" * 64},
            "test": {"gpus": 8},
        }
    ),
    "containers, volumes and variables of its own": Installation(
        {
            "initContainers": [
                {
                    "name": "wait",
                    "image": "busybox",
                    "command": ["true"],
                    "volumeMounts": [{"name": "own", "mountPath": "/own"}],
                }
            ],
            "extraContainers": [{"name": "beside", "image": "busybox"}],
            "extraVolumes": [{"name": "own", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
            "extraEnv": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "extraEnvFrom": [{"secretRef": {"name": "more", "optional": True}}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
            "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["dcgm.example"]}],
        },
        PRIVILEGED,
    ),
    "a Service for people and both IP families": Installation(
        {
            "service": {
                "type": "NodePort",
                "nodePort": 30940,
                "internalTrafficPolicy": "Local",
                "labels": {"team": "infra"},
            },
            "imagePullSecrets": ["registry", {"name": "mirror"}],
            "releaseLabel": True,
            "hostUsers": False,
            "podMonitor": {"enabled": True, "targetLimit": 500, "labelLimit": 60},
        }
    ),
    "a port of the node": Installation({"hostPort": 9400}, BASELINE, "hostPort (container"),
    "a port of the node where that is allowed": Installation({"hostPort": 9400}, PRIVILEGED),
    "affinity and taints": Installation(
        {
            "nodes": "any",
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "gpus", "operator": "Gt", "values": ["0"]}]}
                        ]
                    }
                }
            },
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "team", "value": "ml", "effect": "NoExecute", "tolerationSeconds": 60},
            ],
        }
    ),
    "labels, annotations and long names": Installation(
        {
            "fullnameOverride": "f" * 49,
            "commonLabels": {"team": "infra"},
            "commonAnnotations": {"argocd.argoproj.io/sync-wave": "5"},
            "remediation": {"enabled": True},
            "attribution": {"enabled": True, "pods": True},
        },
        PRIVILEGED,
    ),
    **{
        each.name: Installation(each.values, PRIVILEGED if each.name in ("gke", "eks-bottlerocket") else RESTRICTED)
        for each in PLATFORMS
    },
    "less memory than it requests": Installation(
        {"resources": {"limits": {"memory": "64Mi"}}}, chart="the request of memory, 96Mi, must not exceed the limit"
    ),
    "surge beside unavailable": Installation(
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, chart="refuses maxSurge 1 beside maxUnavailable 1"
    ),
    "privileged without escalation": Installation(
        {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}}, chart="privileged is true, which"
    ),
    "a controller without credentials": Installation(
        {**SECURE, "remediation": {"enabled": True}}, chart="remediation.config.exporters.server_name is empty"
    ),
    "a controller without pools": Installation(
        {"remediation": {"enabled": True, "pools": []}}, chart="remediation.pools is empty"
    ),
}
