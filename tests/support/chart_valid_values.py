"""Valid edge cases of the chart's values."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.chart import HASH, USER, Values
from tests.support.chart_values import CERTIFICATE, attributed, endpoint, rule, tls

VALID: Mapping[str, Values] = {
    "resource names for the rules alone": {"attribution": {"resourceNames": ["example.com/gpu"]}},
    "job of a label": {"podMonitor": {"enabled": True, "jobLabel": "app"}, "podLabels": {"app": "gpu-dcgm-exporter"}},
    "aliases": {"hostAliases": [{"ip": "fd00::1", "hostnames": ["dcgm.example", "dcgm"]}]},
    "image of this machine": {"image": {"repository": "gpu-exporter", "tag": "local", "pullPolicy": "Never"}},
    "registry with a port": {"image": {"repository": "registry.example:5000/a/b_c/d--e.f", "tag": "v1.0_rc.1"}},
    "registry by address": {"image": {"registry": "[fd00::1]:5000", "repository": "gpu-exporter"}},
    "registry with a path": {"global": {"imageRegistry": "mirror.example/docker"}},
    "qualified labels": {"podLabels": {"example.com/Team_1.x": "A.b_c-9", "empty": ""}},
    "long label": {"commonLabels": {"a" * 63: "x" * 63}},
    "annotation with any text": {"podAnnotations": {"example.com/note": "a b: {c}\n"}},
    "interval in milliseconds": {"interval": "100ms"},
    "interval with a fraction": {"interval": "0.5s"},
    "longest interval": {"interval": "1h"},
    "settings as numbers": {"config": {"gauge_window": 0.5, "expected_gpus": 0, "seed": -1, "speed": 0.25}},
    "settings as text": {"config": {"gauge_window": "15", "expected_gpus": "8", "loop": "off", "speed": ".5"}},
    "devices": {"config": {"devices": "g:0, 2-3,GPU-0a1b", "switch_devices": "i", "cpu_devices": "f"}},
    "look-around": attributed(podLabels=["(?!pod-).*", "a(?<=b)", "(?P<x>a)", "app[.]kubernetes[.]io/.+"]),
    "patterns of Python alone": attributed(podLabels=[r"app\Z", "a++", r"(a)\1", "(?#:()a", r"[]([]\(", "(?>a)"]),
    "resource names": {"attribution": {"resourceNames": ["example.com/MIG-1g.10gb", "a.b.c/d"]}},
    "codes of XIDs": {
        "xids": {"overrides": {"1": {"action": "none"}, "65535": {"drain": False, "date": "2025-10-29"}}}
    },
    "CPU as a number": {"resources": {"requests": {"cpu": 0.1, "memory": 134217728}, "limits": {"cpu": 1}}},
    "CPU as text": {"resources": {"requests": {"cpu": ".5", "memory": "134217728"}, "limits": {"memory": "0.5Gi"}}},
    "decimal units": {"resources": {"limits": {"memory": "256M", "ephemeral-storage": "1G"}}},
    "exponents": {"resources": {"requests": {"memory": 1e9}, "limits": {"memory": "1e9", "ephemeral-storage": "2E"}}},
    "huge pages": {"resources": {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}},
    "a request that equals its limit": {"resources": {"requests": {"memory": "0.25Gi"}, "limits": {"memory": "256Mi"}}},
    "privileged": {"securityContext": {"privileged": True}},
    "root": {"podSecurityContext": {"runAsUser": 0}},
    "root in one container": {"securityContext": {"runAsUser": 0, "capabilities": {"add": ["SYS_PTRACE"]}}},
    "a new pod beside the old one": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
    "expressions": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "gpus", "operator": "Gt", "values": ["3"]},
                                {"key": "spot", "operator": "DoesNotExist"},
                                {"key": "zone", "operator": "NotIn", "values": ["a", "b"]},
                            ]
                        }
                    ]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
                ]
            },
        }
    },
    "volumes of its own": {
        "extraVolumes": [{"name": "certificates", "secret": {"secretName": "own"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/certificates", "readOnly": True}],
        "initContainers": [
            {"name": "a", "image": "b", "volumeMounts": [{"name": "certificates", "mountPath": "/x"}]},
        ],
    },
    "peers": {
        "networkPolicy": {
            "enabled": True,
            "from": [{"ipBlock": {"cidr": "fd00::/8", "except": ["fd00:1::/32"]}}, {"namespaceSelector": {}}],
            "egress": [{"ports": [{"port": 8000, "endPort": 8010}, {"port": "dns", "protocol": "UDP"}]}],
        }
    },
    "no resources": {"resources": {}},
    "resources removed": {"resources": None},
    "tolerations": {
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "dedicated", "value": "gpu"},
            {"key": "dedicated", "operator": "", "value": "gpu"},
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -1},
        ]
    },
    "update strategy": {"updateStrategy": {"type": "OnDelete"}},
    "all at once": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}},
    "probe from the start": {"livenessProbe": {"initialDelaySeconds": 0}},
    "environment": {
        "extraEnv": [
            {"name": "A.b-c", "value": ""},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ]
    },
    "empty web configuration": {"web": {"config": {}}},
    "sections without keys": {"web": {"config": {"tls_server_config": {}, "basic_auth_users": {}}}},
    "certificates in text": {"web": {"config": {"tls_server_config": {"cert": "a", "key": "b"}}}},
    "certificates in files": {"web": {"config": {"tls_server_config": CERTIFICATE}}},
    "client certificates": tls(
        client_auth_type="RequireAndVerifyClientCert", client_ca_file="ca.crt", client_allowed_sans=["a.example"]
    ),
    "ciphers": tls(cipher_suites=["TLS_AES_128_GCM_SHA256"], curve_preferences=["X25519"], max_version="TLS13"),
    "headers": {
        "web": {"config": {"http_server_config": {"http2": False, "headers": {"X-Frame-Options": "sameorigin"}}}}
    },
    "rate limits": {"web": {"config": {"rate_limit": {"interval": "0.5s", "burst": 20}}}},
    "no rate limit": {"web": {"config": {"rate_limit": {"interval": 0}}}},
    "other bcrypt": {"web": {"config": {"basic_auth_users": {"a b": HASH.replace("$2b$04", "$2y$16")}}}},
    "lifecycle with a password": {
        "web": {"lifecycle": True, "config": {"basic_auth_users": {USER: HASH}}},
        "handOver": {"enabled": False},
    },
    "spans": endpoint(interval="1m30s", scrapeTimeout="90s"),
    "span of milliseconds": endpoint(interval="1500ms", scrapeTimeout="1s500ms"),
    "relabelings": endpoint(
        metricRelabelings=[{"sourceLabels": ["__name__"], "regex": "python_(?:gc|info).*", "action": "Drop"}]
    ),
    "no hold": rule(modes={"GpuLost": {"hold": "0s", "keep": "1d12h"}}),
    "limits at their ends": rule(limits={"busySm": 1, "idleEngine": 0, "alike": 7.5, "heldMemory": 1e12}),
    "taints": rule(toleratedTaints=["dedicated", "kubernetes.azure.com/scalesetpriority"]),
    "labels of alerts": rule(alertLabels={"_team": "any text, also {braces}", "A1": ""}),
    "controller with the password of exporters": {
        "web": {"tlsSecret": "tls", "config": {"basic_auth_users": {USER: HASH}}},
        "remediation": {
            "enabled": True,
            "secret": "keys",
            "config": {
                "breaker": {"nodes": 4, "share": 0.1},
                "exporters": {
                    "server_name": "gpus.example",
                    "ca_file": "/etc/gpu-exporter-secret/ca.crt",
                    "user": USER,
                    "password_file": "/etc/gpu-exporter-secret/password",
                },
            },
        },
    },
}
