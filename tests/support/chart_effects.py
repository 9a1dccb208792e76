"""What each value of the chart changes: a value other than its default, and what is then rendered where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpu_exporter.alerting.boards import BOARDS
from gpu_exporter.version import __version__
from tests.support.chart import BASIC_AUTH, HASH, NAME, REPOSITORY, USER, Object, Values

# What is not rendered.
ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Effect:
    """With `value`, and with the values `beside` it, `rendered` is at `place`. With the values `before`, it is not.

    `before` are those `beside` the value, unless these are not valid without it. A place is the kind of an object, or
    kind:name, and its keys, separated by blanks. In a list, a key is an index or the name of an item. Text that a key
    follows is parsed as YAML.
    """

    value: Any
    place: str
    rendered: Any
    beside: Values = field(default_factory=dict)
    before: Values | None = None


def at(found: list[Object], place: str) -> Any:
    """Return what is rendered at a place; ABSENT if nothing is."""
    head, *keys = place.split()
    kind, _, name = head.partition(":")
    node: Any = [each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])][:1]
    for key in ("0", *keys):
        node = yaml.safe_load(node) if isinstance(node, str) else node
        if isinstance(node, list):
            items = {item["name"]: item for item in node if isinstance(item, Mapping) and "name" in item}
            node = dict(enumerate(node)).get(int(key), ABSENT) if key.isdecimal() else items.get(key, ABSENT)
        else:
            node = node.get(key, ABSENT)
        if node == ABSENT:
            return ABSENT
    return node


def nested(path: str, value: Any, beside: Values) -> dict[str, Any]:
    """Return values with this one at its path."""
    name, _, rest = path.partition(".")
    below = beside.get(name, {})
    return {**beside, name: nested(rest, value, below) if rest else value}


SPEC = "DaemonSet spec"
POD = f"{SPEC} template spec"
EXPORTER = f"{POD} containers exporter"
CONFIG = f"ConfigMap:{NAME} data config.yaml"
KUBELET = {"attribution": {"enabled": True}}
API = {"attribution": {"enabled": True, "pods": True}}
ENGINE = {"dcgm": {"enabled": True, "hostEngine": "dcgm"}}
POD_LABEL = {"matchLabels": {"app": "prometheus"}}
MONITORED = {"serviceMonitor": {"enabled": True}}
MONITOR = "ServiceMonitor spec endpoints 0"
WEB = "Secret stringData web.yml"

IMAGE: Mapping[str, Effect] = {
    "image.registry": Effect("mirror.example", f"{EXPORTER} image", f"mirror.example/{REPOSITORY}:{__version__}"),
    "image.repository": Effect("gpus/exporter", f"{EXPORTER} image", f"gpus/exporter:{__version__}"),
    "image.tag": Effect("v2", f"{EXPORTER} image", f"{REPOSITORY}:v2"),
    "image.digest": Effect(f"sha256:{'0' * 64}", f"{EXPORTER} image", f"{REPOSITORY}@sha256:{'0' * 64}"),
    "image.pullPolicy": Effect("Always", f"{EXPORTER} imagePullPolicy", "Always"),
    "imagePullSecrets": Effect(["registry"], f"{POD} imagePullSecrets", [{"name": "registry"}]),
}
NAMES: Mapping[str, Effect] = {
    "nameOverride": Effect("watch", "DaemonSet metadata name", "gpus-watch"),
    "fullnameOverride": Effect("watch", "DaemonSet metadata name", "watch"),
    "namespaceOverride": Effect("elsewhere", "DaemonSet metadata namespace", "elsewhere"),
    "releaseLabel": Effect(True, "Service metadata labels release", "gpus"),
    "commonLabels": Effect({"team": "gpu"}, "Service metadata labels team", "gpu"),
    "commonAnnotations": Effect({"owner": "gpu"}, "Service metadata annotations owner", "gpu"),
}
SETTINGS: Mapping[str, Effect] = {
    "port": Effect(9401, f"{EXPORTER} ports metrics containerPort", 9401),
    "metrics": Effect("full", f"{CONFIG} metrics", "full"),
    "interval": Effect("5s", f"{CONFIG} interval", "5s"),
    "logLevel": Effect("debug", f"{CONFIG} log_level", "debug"),
    "config": Effect({"gauge_window": "30s"}, f"{CONFIG} gauge_window", "30s"),
    "collectors": Effect("A, gauge, a.\n", f"ConfigMap:{NAME} data collectors.csv", "A, gauge, a.\n"),
    "xids.overrides": Effect({"63": {"drain": True}}, f"ConfigMap:{NAME} data xids.yaml 63", {"drain": True}),
    "xids.keep": Effect("node", f"{POD} volumes state hostPath path", "/var/lib/gpu-exporter"),
    "xids.path": Effect("/data/gpu", f"{POD} volumes state hostPath path", "/data/gpu", {"xids": {"keep": "node"}}),
    "handOver.enabled": Effect(False, f"{EXPORTER} env GPU_EXPORTER_TOKEN_FILE", ABSENT),
    "extraArgs": Effect(["--debug"], f"{EXPORTER} args", ["serve", "--debug"]),
    "extraEnv": Effect([{"name": "TZ", "value": "UTC"}], f"{EXPORTER} env TZ value", "UTC"),
    "extraEnvFrom": Effect([{"secretRef": {"name": "own"}}], f"{EXPORTER} envFrom", [{"secretRef": {"name": "own"}}]),
}
OWNERS: Mapping[str, Effect] = {
    "attribution.enabled": Effect(True, f"{POD} volumes pod-resources hostPath path", "/var/lib/kubelet/pod-resources"),
    "attribution.podResourcesPath": Effect(
        "/k/pods", f"{CONFIG} pod_resources_socket", "/k/pods/kubelet.sock", KUBELET
    ),
    "attribution.resourceNames": Effect(
        ["example.com/gpu"], f"{CONFIG} nvidia_resource_names", "example.com/gpu", KUBELET
    ),
    "attribution.pods": Effect(True, f"{CONFIG} kubernetes_pods", "true", KUBELET),
    "attribution.podLabels": Effect(["app", "team"], f"{CONFIG} kubernetes_pod_labels", "app,team", KUBELET),
    "attribution.dra": Effect(True, "ClusterRole rules 0 resources", ["resourceslices"], KUBELET),
    "slurm.jobMappingPath": Effect("/run/jobs", f"{POD} volumes jobs hostPath path", "/run/jobs"),
    "processes.enabled": Effect(True, f"{POD} hostPID", True),
    "hostEvidence.enabled": Effect(True, f"{POD} volumes sys hostPath path", "/sys"),
    "jobSocket.enabled": Effect(True, f"{CONFIG} job_socket", "/host/job-socket/jobs.sock"),
    "jobSocket.path": Effect(
        "/run/jobs", f"{POD} volumes job-socket hostPath path", "/run/jobs", {"jobSocket": {"enabled": True}}
    ),
    "ncclInspector.path": Effect("/run/nccl", f"{POD} volumes nccl-inspector hostPath path", "/run/nccl"),
    "profile.enabled": Effect(True, f"{POD} containers sampler securityContext capabilities add", ["SYS_PTRACE"]),
    "profile.reasons": Effect(["schedule"], f"{CONFIG} profile", "schedule", {"profile": {"enabled": True}}),
    "profile.users": Effect(
        ["mia"],
        f"{CONFIG} profile_users",
        "mia",
        {"profile": {"enabled": True}, "web": {"config": {"basic_auth_users": {"mia": HASH}}}},
    ),
    "profile.resources": Effect(
        {"limits": {"memory": "2Gi"}},
        f"{POD} containers sampler resources limits memory",
        "2Gi",
        {"profile": {"enabled": True}},
    ),
    "kernelLog.mode": Effect("kmsg", f"{EXPORTER} securityContext privileged", True),
    "kernelLog.path": Effect(
        "/logs/kernel", f"{POD} volumes kernel-log hostPath path", "/logs", {"kernelLog": {"mode": "file"}}
    ),
    "kernelLog.group": Effect(7, f"{POD} securityContext supplementalGroups", [7], {"kernelLog": {"mode": "file"}}),
}
GPUS: Mapping[str, Effect] = {
    "gpuAccess.mode": Effect("none", f"{EXPORTER} env NVIDIA_VISIBLE_DEVICES value", "void"),
    "gpuAccess.runtimeClassName": Effect(
        "gpu", f"{POD} runtimeClassName", "gpu", {"gpuAccess": {"mode": "runtimeClass"}}
    ),
    "gpuAccess.hostPath": Effect(
        "/opt/nvidia", f"{POD} volumes driver hostPath path", "/opt/nvidia", {"gpuAccess": {"mode": "hostPath"}}
    ),
    "gpuAccess.visibleDevices": Effect("0", f"{EXPORTER} env NVIDIA_VISIBLE_DEVICES value", "0"),
    "gpuAccess.driverCapabilities": Effect("all", f"{EXPORTER} env NVIDIA_DRIVER_CAPABILITIES value", "all"),
    "gpuAccess.cdiDevice": Effect(
        "nvidia.com/gpu=0",
        f"{SPEC} template metadata annotations cdi.k8s.io/gpu-exporter",
        "nvidia.com/gpu=0",
        {"gpuAccess": {"mode": "cdi"}},
    ),
    "dcgm.enabled": Effect(True, f"{CONFIG} source", "dcgm"),
    "dcgm.hostEngine": Effect("dcgm:1", f"{CONFIG} dcgm_hostengine", "dcgm:1", {"dcgm": {"enabled": True}}),
    "dcgm.bindings": Effect("/dcgm", f"{CONFIG} dcgm_bindings", "/dcgm", {"dcgm": {"enabled": True}}),
    "dcgm.profiling": Effect(
        True, f"{EXPORTER} securityContext capabilities add", ["SYS_ADMIN"], {"dcgm": {"enabled": True}}
    ),
}
PROBE = {"periodSeconds": 7}
PODS: Mapping[str, Effect] = {
    "nodes": Effect("any", f"{POD} affinity", ABSENT),
    "nodeSelector": Effect({"pool": "gpu"}, f"{POD} nodeSelector", {"pool": "gpu"}),
    "affinity": Effect({"podAffinity": {}}, f"{POD} affinity podAffinity", {}),
    "tolerations": Effect([], f"{POD} tolerations", ABSENT),
    "priorityClassName": Effect("high", f"{POD} priorityClassName", "high"),
    "updateStrategy": Effect({"type": "OnDelete"}, f"{SPEC} updateStrategy type", "OnDelete"),
    "minReadySeconds": Effect(5, f"{SPEC} minReadySeconds", 5),
    "revisionHistoryLimit": Effect(2, f"{SPEC} revisionHistoryLimit", 2),
    "terminationGracePeriodSeconds": Effect(5, f"{POD} terminationGracePeriodSeconds", 5),
    "hostPort": Effect(9500, f"{EXPORTER} ports metrics hostPort", 9500),
    "hostUsers": Effect(False, f"{POD} hostUsers", False),
    "hostNetwork": Effect(True, f"{POD} hostNetwork", True),
    "dnsConfig": Effect({"searches": ["a.example"]}, f"{POD} dnsConfig", {"searches": ["a.example"]}),
    "hostAliases": Effect(
        [{"ip": "10.0.0.7", "hostnames": ["a"]}], f"{POD} hostAliases", [{"ip": "10.0.0.7", "hostnames": ["a"]}]
    ),
    "podLabels": Effect({"app": "gpu"}, f"{SPEC} template metadata labels app", "gpu"),
    "podAnnotations": Effect({"a": "b"}, f"{SPEC} template metadata annotations a", "b"),
    "podSecurityContext": Effect({"fsGroup": 7}, f"{POD} securityContext fsGroup", 7),
    "securityContext": Effect({"runAsGroup": 7}, f"{EXPORTER} securityContext runAsGroup", 7),
    "resources": Effect({"limits": {"memory": "1Gi"}}, f"{EXPORTER} resources limits memory", "1Gi"),
    "livenessProbe": Effect(PROBE, f"{EXPORTER} livenessProbe periodSeconds", 7),
    "readinessProbe": Effect(PROBE, f"{EXPORTER} readinessProbe periodSeconds", 7),
    "startupProbe": Effect(
        PROBE,
        f"{EXPORTER} startupProbe",
        {"httpGet": {"path": "/healthz", "port": "metrics", "scheme": "HTTP"}, **PROBE},
    ),
    "initContainers": Effect([{"name": "wait", "image": "a"}], f"{POD} initContainers wait image", "a"),
    "extraContainers": Effect([{"name": "beside", "image": "a"}], f"{POD} containers beside image", "a"),
    "extraVolumes": Effect([{"name": "own", "emptyDir": {}}], f"{POD} volumes own emptyDir", {}),
    "extraVolumeMounts": Effect(
        [{"name": "own", "mountPath": "/own"}],
        f"{EXPORTER} volumeMounts own mountPath",
        "/own",
        {"extraVolumes": [{"name": "own", "emptyDir": {}}]},
    ),
    "extraManifests": Effect(
        ["{apiVersion: v1, kind: Secret, metadata: {name: '{{ .Release.Name }}'}}"], "Secret metadata name", "gpus"
    ),
}
ACCESS: Mapping[str, Effect] = {
    "serviceAccount.create": Effect(False, f"{POD} serviceAccountName", "default"),
    "serviceAccount.name": Effect("given", "ServiceAccount metadata name", "given"),
    "serviceAccount.annotations": Effect({"a": "b"}, "ServiceAccount metadata annotations a", "b"),
    "serviceAccount.automountToken": Effect(True, f"{POD} automountServiceAccountToken", True),
    "rbac.create": Effect(False, "ClusterRole kind", ABSENT, {"attribution": {"enabled": True, "dra": True}}),
    "openShift.scc": Effect(True, "SecurityContextConstraints runAsUser uid", 65534),
    "service.type": Effect("NodePort", "Service spec type", "NodePort"),
    "service.headless": Effect(False, "Service spec clusterIP", ABSENT),
    "service.nodePort": Effect(30940, "Service spec ports metrics nodePort", 30940, {"service": {"type": "NodePort"}}),
    "service.internalTrafficPolicy": Effect("Local", "Service spec internalTrafficPolicy", "Local"),
    "service.ipFamilyPolicy": Effect("PreferDualStack", "Service spec ipFamilyPolicy", "PreferDualStack"),
    "service.ipFamilies": Effect(["IPv6"], "Service spec ipFamilies", ["IPv6"]),
    "service.labels": Effect({"a": "b"}, "Service metadata labels a", "b"),
    "service.annotations": Effect({"a": "b"}, "Service metadata annotations a", "b"),
    "web.config": Effect({"basic_auth_users": {USER: HASH}}, f"{WEB} basic_auth_users {USER}", HASH),
    "web.tlsSecret": Effect("tls", f"{WEB} tls_server_config cert_file", "/etc/gpu-exporter/tls/tls.crt"),
    "web.existingSecret": Effect(
        "own", f"{POD} volumes config projected sources 1 secret name", "own", {"web": {"scheme": "http"}}, {}
    ),
    "web.scheme": Effect(
        "https", f"{MONITOR} scheme", "https", {**MONITORED, "web": {"existingSecret": "own"}}, MONITORED
    ),
    "web.lifecycle": Effect(True, f"{CONFIG} web_enable_lifecycle", "true"),
    "web.trustedProxies": Effect(["10.0.0.1", "fd00::/8"], f"{CONFIG} web_trusted_proxies", "10.0.0.1,fd00::/8"),
    "networkPolicy.enabled": Effect(True, "NetworkPolicy spec ingress 0 ports 0 port", "metrics"),
    "networkPolicy.from": Effect(
        [{"podSelector": POD_LABEL}],
        "NetworkPolicy spec ingress 0 from 0 podSelector",
        POD_LABEL,
        {"networkPolicy": {"enabled": True}},
    ),
    "networkPolicy.egress": Effect(
        [{"ports": [{"port": 53}]}],
        "NetworkPolicy spec egress 0 ports",
        [{"port": 53}],
        {"networkPolicy": {"enabled": True}},
    ),
    "networkPolicy.apiServerPorts": Effect(
        [7443], "NetworkPolicy spec egress 0 ports 0 port", 7443, {**API, "networkPolicy": {"enabled": True}}
    ),
    "networkPolicy.dnsPorts": Effect(
        [5353], "NetworkPolicy spec egress 1 ports 0 port", 5353, {**ENGINE, "networkPolicy": {"enabled": True}}
    ),
}
TLS = {"insecureSkipVerify": True}
DROP = {"action": "labeldrop", "regex": "a"}


LIMITS = ("sampleLimit", "targetLimit", "labelLimit", "labelNameLengthLimit", "labelValueLengthLimit")


def _of_monitor(value: str, kind: str, endpoints: str) -> Mapping[str, Effect]:
    """Return the effects of the values that ServiceMonitor and PodMonitor share."""
    on = {value: {"enabled": True}}
    endpoint = f"{kind} spec {endpoints} 0"
    plain = {value: {"enabled": True, "honorLabels": False}}
    labels = {"commonLabels": {"own": "gpu"}}
    effects = {
        "enabled": Effect(True, f"{endpoint} port", "metrics"),
        "namespace": Effect("elsewhere", f"{kind} metadata namespace", "elsewhere", on),
        "additionalLabels": Effect({"a": "b"}, f"{kind} metadata labels a", "b", on),
        "annotations": Effect({"a": "b"}, f"{kind} metadata annotations a", "b", on),
        "interval": Effect("30s", f"{endpoint} interval", "30s", on),
        "scrapeTimeout": Effect("5s", f"{endpoint} scrapeTimeout", "5s", on),
        "job": Effect("gpu", f"{endpoint} relabelings 0 replacement", "gpu", on),
        "jobLabel": Effect("own", f"{kind} spec jobLabel", "own", {**on, **labels}),
        "podTargetLabels": Effect(["own"], f"{kind} spec podTargetLabels", ["own"], on),
        "attachMetadata": Effect({"node": True}, f"{kind} spec attachMetadata", {"node": True}, on),
        "instance": Effect("address", f"{endpoint} relabelings 2 action", "labeldrop", on),
        "honorLabels": Effect(False, f"{endpoint} honorLabels", False, on),
        "dropTargetLabels": Effect(False, f"{endpoint} relabelings 3", ABSENT, on),
        "exportedLabels": Effect(False, f"{endpoint} metricRelabelings", ABSENT, on),
        "proxyUrl": Effect("http://proxy.example:3128", f"{endpoint} proxyUrl", "http://proxy.example:3128", on),
        "tlsConfig": Effect(TLS, f"{endpoint} tlsConfig", TLS, on),
        "basicAuth": Effect(BASIC_AUTH, f"{endpoint} basicAuth", BASIC_AUTH, on),
        "authorization": Effect({"type": "Bearer"}, f"{endpoint} authorization type", "Bearer", on),
        **{name: Effect(50000, f"{kind} spec {name}", 50000, on) for name in LIMITS},
        "oauth2": Effect({"tokenUrl": "https://a"}, f"{endpoint} oauth2", {"tokenUrl": "https://a"}, on),
        "relabelings": Effect([DROP], f"{endpoint} relabelings 4", DROP, on),
        "metricRelabelings": Effect([DROP], f"{endpoint} metricRelabelings 0", DROP, plain),
    }
    return {f"{value}.{name}": effect for name, effect in effects.items()}


RULES = {"prometheusRule": {"enabled": True}}
GROUP = {"name": "own", "rules": [{"record": "own:up", "expr": "up"}]}
# The first alert of the rules.
RULE = f"PrometheusRule:{NAME}"
ALERT = f"{RULE} spec groups gpu-health rules 0"
BOARD = f"ConfigMap:{NAME}-dashboard-fleet"
DASHBOARDS = {"dashboards": {"enabled": True}}
MONITORING: Mapping[str, Effect] = {
    **_of_monitor("serviceMonitor", "ServiceMonitor", "endpoints"),
    "serviceMonitor.bearerTokenFile": Effect("/token", f"{MONITOR} bearerTokenFile", "/token", MONITORED),
    "serviceMonitor.labels": Effect({"a": "b"}, "ServiceMonitor metadata labels a", "b", MONITORED),
    "serviceMonitor.targetLabels": Effect(["own"], "ServiceMonitor spec targetLabels", ["own"], MONITORED),
    **_of_monitor("podMonitor", "PodMonitor", "podMetricsEndpoints"),
    "dashboards.enabled": Effect(True, f"{BOARD} metadata labels grafana_dashboard", "1"),
    "dashboards.namespace": Effect("grafana", f"{BOARD} metadata namespace", "grafana", DASHBOARDS),
    "dashboards.labels": Effect({"a": "b"}, f"{BOARD} metadata labels a", "b", DASHBOARDS),
    "dashboards.annotations": Effect({"a": "b"}, f"{BOARD} metadata annotations a", "b", DASHBOARDS),
    **{
        f"dashboards.boards.{board.name}": Effect(
            False, f"ConfigMap:{NAME}-dashboard-{board.name} kind", ABSENT, DASHBOARDS
        )
        for board in BOARDS
    },
    "prometheusRule.enabled": Effect(True, f"{RULE} metadata name", NAME),
    "prometheusRule.namespace": Effect("rules", f"{RULE} metadata namespace", "rules", RULES),
    "prometheusRule.additionalLabels": Effect({"a": "b"}, f"{RULE} metadata labels a", "b", RULES),
    "prometheusRule.labels": Effect({"a": "b"}, f"{RULE} metadata labels a", "b", RULES),
    "prometheusRule.annotations": Effect({"a": "b"}, f"{RULE} metadata annotations a", "b", RULES),
    "prometheusRule.interval": Effect("30s", f"{RULE}-recording spec groups 0 interval", "30s", RULES),
    "prometheusRule.alertLabels": Effect({"team": "gpu"}, f"{ALERT} labels team", "gpu", RULES),
    "prometheusRule.severityLabels": Effect({"critical": {"priority": "P1"}}, f"{ALERT} labels priority", "P1", RULES),
    "prometheusRule.additionalRules": Effect([GROUP], f"{RULE} spec groups own", GROUP, RULES),
}
CONTROLLER = {"remediation": {"enabled": True}}
CONTROLLERS = f"Deployment:{NAME}-remediation spec"
CONTROLLER_CONFIG = f"ConfigMap:{NAME}-remediation data remediation.yaml"
CONTROLLER_POLICY = f"NetworkPolicy:{NAME}-remediation spec"
POLICED = {**CONTROLLER, "networkPolicy": {"enabled": True}}
CORDON = [{"name": "a", "mode": "cordon"}]
REMEDIATION: Mapping[str, Effect] = {
    "remediation.enabled": Effect(True, f"{CONTROLLERS} replicas", 2),
    "remediation.replicas": Effect(3, f"{CONTROLLERS} replicas", 3, CONTROLLER),
    "remediation.pools": Effect(CORDON, f"{CONTROLLER_CONFIG} pools", CORDON, CONTROLLER),
    "remediation.config": Effect({"interval": "1m"}, f"{CONTROLLER_CONFIG} interval", "1m", CONTROLLER),
    "remediation.secret": Effect(
        "keys", f"{CONTROLLERS} template spec volumes secret secret secretName", "keys", CONTROLLER
    ),
    "remediation.events": Effect(False, f"{CONTROLLER_CONFIG} events", False, CONTROLLER),
    "remediation.priorityClassName": Effect(
        "high", f"{CONTROLLERS} template spec priorityClassName", "high", CONTROLLER
    ),
    "remediation.nodeSelector": Effect(
        {"pool": "infra"}, f"{CONTROLLERS} template spec nodeSelector pool", "infra", CONTROLLER
    ),
    "remediation.affinity": Effect(
        {"podAntiAffinity": {}}, f"{CONTROLLERS} template spec affinity podAntiAffinity", {}, CONTROLLER
    ),
    "remediation.tolerations": Effect(
        [{"operator": "Exists"}], f"{CONTROLLERS} template spec tolerations", [{"operator": "Exists"}], CONTROLLER
    ),
    "remediation.podLabels": Effect({"team": "sre"}, f"{CONTROLLERS} template metadata labels team", "sre", CONTROLLER),
    "remediation.podAnnotations": Effect({"a": "b"}, f"{CONTROLLERS} template metadata annotations a", "b", CONTROLLER),
    "remediation.podDisruptionBudget.enabled": Effect(False, "PodDisruptionBudget kind", ABSENT, CONTROLLER),
    "remediation.networkPolicy.from": Effect(
        [{"podSelector": POD_LABEL}], f"{CONTROLLER_POLICY} ingress 0 from", [{"podSelector": POD_LABEL}], POLICED
    ),
    "remediation.networkPolicy.egress": Effect(
        [{"ports": [{"port": 514}]}], f"{CONTROLLER_POLICY} egress 2 ports 0 port", 514, POLICED
    ),
    "remediation.resources": Effect(
        {"limits": {"memory": "1Gi"}},
        f"{CONTROLLERS} template spec containers remediation resources",
        {"limits": {"memory": "1Gi"}, "requests": {"cpu": "20m", "memory": "64Mi"}},
        CONTROLLER,
    ),
}

TEST: Mapping[str, Effect] = {
    "test.enabled": Effect(False, "Pod kind", ABSENT),
    "test.gpus": Effect(2, f"Pod:{NAME}-test-gpus spec containers check resources limits nvidia.com/gpu", 2),
}
EFFECTS: Mapping[str, Effect] = {
    **IMAGE,
    **NAMES,
    **SETTINGS,
    **OWNERS,
    **GPUS,
    **PODS,
    **ACCESS,
    **MONITORING,
    **REMEDIATION,
    **TEST,
}
