"""The values of the chart: one row a value, from which values.yaml, its schema and the chart's README are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpu_exporter.catalogue.conditions import Limit, duration
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Severity
from gpu_exporter.config import Config
from gpu_exporter.inputs import boolean
from gpu_exporter.render.boards import BOARDS, DOCS
from gpu_exporter.render.docs.failure_modes import all_limits

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
BOOL: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS: Schema = {"type": "array", "items": TEXT}
STRINGS: Schema = {"type": "object", "additionalProperties": TEXT}
SCALARS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
# What Kubernetes or Prometheus Operator check themselves.
OBJECT: Schema = {"type": "object"}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
NAME: Schema = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"}
FOLDER: Schema = {"type": "string", "pattern": "^/.+$"}
NO_FOLDER: Schema = {"type": "string", "pattern": "^(/.+)?$"}
# They become one setting, with commas between.
LISTED: Schema = {"type": "array", "items": {"type": "string", "pattern": "^[^,]+$"}}
# As Prometheus writes them.
SPAN: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}
# As the exporter's settings write them.
SECONDS: Schema = {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?(ms|s|m|h)$"}
# What the rules take for the job of a GPU exporter.
JOB: Schema = {"type": "string", "pattern": "^(gpu|.*(gpu.?exporter|dcgm).*)$"}
HOST_ENGINE: Schema = {"type": "string", "pattern": "^(|(unix://)?/.+|([^][:/ ]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]+)?)$"}

# Settings of the exporter that belong to a feature of the chart, and the value to use instead of `config`.
MANAGED: Mapping[str, str] = {
    "address": "port",
    "node_name": "the node's own name",
    "metrics": "metrics",
    "interval": "interval",
    "log_level": "logLevel",
    "processes": "processes.enabled",
    "kernel_log": "kernelLog.mode",
    "state_dir": "xids.keep",
    "xid_overrides": "xids.overrides",
    "token_file": "handOver.enabled",
    "web_config_file": "web.config",
    "web_enable_lifecycle": "web.lifecycle",
    "kubernetes": "attribution.enabled",
    "pod_resources_socket": "attribution.podResourcesPath",
    "kubernetes_pods": "attribution.pods",
    "kubernetes_pod_labels": "attribution.podLabels",
    "kubernetes_dra": "attribution.dra",
    "nvidia_resource_names": "attribution.resourceNames",
    "hpc_job_mapping_dir": "slurm.jobMappingPath",
    "dcgm_hostengine": "dcgm.hostEngine",
    "dcgm_bindings": "dcgm.bindings",
    "collectors": "collectors",
}


def one_of(*names: str) -> Schema:
    """One of these words."""
    return {"type": "string", "enum": list(names)}


@dataclass(frozen=True, slots=True)
class Value:
    """One value: `path` with dots, its default, what it may be, what it is for. `flow`: on one line in values.yaml."""

    path: str
    default: Any
    schema: Schema
    help: str
    flow: bool = False


def _settings() -> Schema:
    """The keys that `config` may have: every setting that no value of the chart is for."""
    known = {
        setting.name: {
            "type": ["boolean", "string"] if setting.metadata["parse"] is boolean else ["string", "number", "boolean"],
            "description": setting.metadata["help"],
        }
        for setting in fields(Config)
        if setting.name not in MANAGED
    }
    return {"type": "object", "additionalProperties": False, "properties": known}


def _probe(path: str, start: int, period: int, failures: int, help: str) -> Value:
    default = {
        "initialDelaySeconds": start,
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
    schema = {"type": "object", "additionalProperties": False, "properties": dict.fromkeys(default, COUNT)}
    return Value(path, default, schema, help, flow=True)


# fmt: off
IMAGE = (
    Value("image.registry", "", TEXT, "Registry, where `make image` was pushed to; the container runtime's default if blank. `global.imageRegistry` beats it."),
    Value("image.repository", "gpu-exporter/gpu-exporter", TEXT, "Repository; the Dockerfile makes the image."),
    Value("image.tag", "", TEXT, "Tag; the chart's appVersion if blank."),
    Value("image.digest", "", {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}, "Digest, `sha256:…`; it beats the tag."),
    Value("image.pullPolicy", "IfNotPresent", one_of("Always", "IfNotPresent", "Never"), "When it is pulled."),
    Value("imagePullSecrets", [], OBJECTS, "Secrets for the registry, such as `[{name: registry}]`."),
)
NAMES = (
    Value("nameOverride", "", NAME, "In place of the chart's name."),
    Value("fullnameOverride", "", NAME, "In place of release and chart name."),
    Value("namespaceOverride", "", NAME, "In place of the release's namespace."),
    Value("commonLabels", {}, STRINGS, "Labels of everything."),
    Value("commonAnnotations", {}, STRINGS, "Annotations of everything."),
)
EXPORTER = (
    Value("port", 9400, PORT, "Where it listens. Pods have addresses of their own, so dcgm-exporter may have the same; with `hostNetwork` it may not."),
    Value("metrics", "default", one_of("default", "full"), "Which metrics are exposed."),
    Value("interval", "1s", SECONDS, "Time between two collections."),
    Value("logLevel", "info", one_of("debug", "info", "warning", "error"), "How much is logged."),
    Value("config", {}, _settings(), "Any other setting of docs/configuration.md, by its key."),
    Value("collectors", "", TEXT, "The text of a dcgm-exporter CSV file: only these families are exposed."),
    Value("xids.overrides", {}, {"type": "object", "additionalProperties": False, "patternProperties": {"^[0-9]{1,5}$": SCALARS}}, "Changes to the table of Xids, such as `\"63\": {action: gpu_reset, drain: true}`."),
    Value("xids.keep", "pod", one_of("none", "pod", "node"), "Where Xids outlive a restart: nowhere, in the pod's own volume, or in `xids.path` of the node (*hostPath, uid 0*)."),
    Value("xids.path", "/var/lib/gpu-exporter", FOLDER, "The folder of the node for `xids.keep: node`."),
    Value("handOver.enabled", True, BOOL, "Whether `kubectl exec … gpu-exporter release` may have it let go of the driver."),
    Value("extraArgs", [], TEXTS, "More arguments of `gpu-exporter serve`; they beat everything else."),
    Value("extraEnv", [], OBJECTS, "More environment of the exporter."),
)
ATTRIBUTION = (
    Value("attribution.enabled", True, BOOL, "Whether the exporter asks kubelet which pod has which GPU, at its socket (*hostPath, uid 0 without capabilities*)."),
    Value("attribution.podResourcesPath", "/var/lib/kubelet/pod-resources", FOLDER, "The folder of the node with kubelet's `kubelet.sock`."),
    Value("attribution.resourceNames", [], LISTED, "Resources beside `nvidia.com/*` that are GPUs."),
    Value("attribution.pods", False, BOOL, "Whether pods also have their workload, rank and UID, from the API server (*may read pods*)."),
    Value("attribution.podLabels", [], LISTED, "Labels of pods that are exposed, as regular expressions (*may read pods*)."),
    Value("attribution.dra", False, BOOL, "Whether GPUs of resource claims are resolved (*may read resource slices*)."),
    Value("slurm.jobMappingPath", "", NO_FOLDER, "The folder of the node in which a prolog says which job has which GPU (*hostPath*)."),
    Value("processes.enabled", False, BOOL, "Whether memory and SM share of each process are exposed (*hostPID*)."),
    Value("kernelLog.mode", "none", one_of("none", "file", "kmsg"), "Where Xids are read beside the driver: nowhere, `kernelLog.path` (*hostPath*), or /dev/kmsg (*privileged*)."),
    Value("kernelLog.path", "/var/log/kern.log", FOLDER, "The kernel's log on the node, for `kernelLog.mode: file`."),
    Value("kernelLog.group", 4, COUNT, "The group that may read that file: adm."),
)
GPUS = (
    Value("gpuAccess.mode", "env", one_of("env", "runtimeClass", "cdi", "volumeMounts", "none"), "How the container gets the GPUs. It never asks for `nvidia.com/gpu`, which would take one from somebody. `env`: the node's default runtime is NVIDIA's; `runtimeClass`: it is that of `gpuAccess.runtimeClassName`; `cdi`: an annotation; `volumeMounts`: nodes that ignore the variable of unprivileged pods (*hostPath*); `none`: with a remote DCGM."),
    Value("gpuAccess.runtimeClassName", "nvidia", TEXT, "For `gpuAccess.mode: runtimeClass`."),
    Value("gpuAccess.visibleDevices", "all", TEXT, "`NVIDIA_VISIBLE_DEVICES`."),
    Value("gpuAccess.driverCapabilities", "utility", TEXT, "`NVIDIA_DRIVER_CAPABILITIES`; NVML needs no other."),
    Value("gpuAccess.cdiDevice", "nvidia.com/gpu=all", TEXT, "The device for `gpuAccess.mode: cdi`."),
    Value("dcgm.enabled", False, BOOL, "Whether it reads through DCGM, which the image does not have: see *Through DCGM*."),
    Value("dcgm.hostEngine", "", HOST_ENGINE, "`host:port` of a running host engine, or a Unix socket that `extraVolumes` brings; blank for DCGM within the container."),
    Value("dcgm.bindings", "", TEXT, "The folder of DCGM's Python bindings in the container."),
    Value("dcgm.profiling", False, BOOL, "Profiling through DCGM within the container (*SYS_ADMIN, uid 0*)."),
)
PODS = (
    Value("nodes", "auto", one_of("auto", "nfd", "gpuOperator", "any"), "Which nodes: `auto` has one of NFD's label of NVIDIA's PCI vendor, GPU operator's `nvidia.com/gpu.present`, GKE's accelerator label; `any` is left to `nodeSelector` and `affinity`."),
    Value("nodeSelector", {}, STRINGS, "More labels that nodes must have."),
    Value("affinity", {}, OBJECT, "In place of what `nodes` makes."),
    Value("tolerations", [{"operator": "Exists", "effect": "NoSchedule"}], OBJECTS, "A sick node that is tainted needs its exporter the most."),
    Value("priorityClassName", "system-node-critical", TEXT, "Some clouds allow this in kube-system only, or with a quota; blank for none."),
    Value("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}, OBJECT, "How pods are replaced; on large fleets `maxUnavailable: 10%`."),
    Value("revisionHistoryLimit", 10, COUNT, "Old revisions that are kept."),
    Value("terminationGracePeriodSeconds", 30, COUNT, "Time to end in."),
    Value("hostNetwork", False, BOOL, "Whether it listens on the node's own address (*host namespace*); then choose a `port` that is free on every node."),
    Value("podLabels", {}, STRINGS, "Labels of the pods."),
    Value("podAnnotations", {}, STRINGS, "Annotations of the pods."),
    Value("podSecurityContext", {}, OBJECT, "Merged over what the features need."),
    Value("securityContext", {}, OBJECT, "Merged over what the features need."),
    Value("resources", {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}, OBJECT, "No CPU limit: it would make gaps in the measurement."),
    _probe("livenessProbe", 10, 15, 8, "/healthz: fails only if the exporter's own loop stands still, never for what a GPU does."),
    _probe("readinessProbe", 0, 10, 3, "/healthz too: a node whose GPUs do not answer is still scraped, and does not stop an update."),
    Value("initContainers", [], OBJECTS, "Containers that run before."),
    Value("extraContainers", [], OBJECTS, "Containers that run beside."),
    Value("extraVolumes", [], OBJECTS, "More volumes of the pod."),
    Value("extraVolumeMounts", [], OBJECTS, "More mounts of the exporter."),
    Value("extraManifests", [], {"type": "array", "items": {"type": ["object", "string"]}}, "More objects; text is a template."),
)
ACCESS = (
    Value("serviceAccount.create", True, BOOL, "Whether there is one of its own."),
    Value("serviceAccount.name", "", TEXT, "Its name."),
    Value("serviceAccount.annotations", {}, STRINGS, "Its annotations."),
    Value("rbac.create", True, BOOL, "Whether it is given the rights that `attribution.podLabels` and `attribution.dra` need; without these it has none, and no token."),
    Value("service.annotations", {}, STRINGS, "Annotations of the headless service."),
    Value("web.config", {}, OBJECT, "TLS, passwords and headers, as docs/security.md has them; becomes a Secret."),
    Value("web.existingSecret", "", TEXT, "A Secret with `web.yml` in place of `web.config`."),
    Value("web.tlsSecret", "", TEXT, "A Secret with certificates, mounted at /etc/gpu-exporter/tls."),
    Value("web.lifecycle", False, BOOL, "Whether POST /-/quit, /-/reload, /-/release and /-/resume do anything."),
    Value("networkPolicy.enabled", False, BOOL, "Who may reach it, and whom it may reach: nobody but what its features need. Without effect with `hostNetwork`."),
    Value("networkPolicy.from", [], OBJECTS, "Who may scrape it; everybody if empty."),
    Value("networkPolicy.egress", [], OBJECTS, "What else it may reach."),
)
MONITORING = (
    Value("serviceMonitor.enabled", False, BOOL, "Whether to create a ServiceMonitor, so that Prometheus Operator scrapes it."),
    Value("serviceMonitor.namespace", "", TEXT, "Where; the release's namespace if blank."),
    Value("serviceMonitor.labels", {}, STRINGS, "Labels by which your Prometheus selects it, such as `release: kube-prometheus-stack`."),
    Value("serviceMonitor.annotations", {}, STRINGS, "Annotations."),
    Value("serviceMonitor.interval", "15s", SPAN, "Time between two scrapes."),
    Value("serviceMonitor.scrapeTimeout", "10s", SPAN, "Time that one may take."),
    Value("serviceMonitor.job", "gpu-exporter", JOB, "The label `job`, by which the alerts know a GPU exporter."),
    Value("serviceMonitor.instance", "node", one_of("node", "address"), "The label `instance`: the node, which outlives pods, or the pod's address."),
    Value("serviceMonitor.honorLabels", True, BOOL, "Whose labels stay if both have one: the exporter's. Else they become `exported_…`."),
    Value("serviceMonitor.dropTargetLabels", True, BOOL, "Whether pod, namespace, container, service and endpoint of the *exporter* are left out, which would pass for those of a free GPU."),
    Value("serviceMonitor.tlsConfig", {}, OBJECT, "With `web`: how Prometheus trusts it."),
    Value("serviceMonitor.basicAuth", {}, OBJECT, "With `web`: user and password."),
    Value("serviceMonitor.authorization", {}, OBJECT, "With a proxy: credentials."),
    Value("serviceMonitor.sampleLimit", 0, COUNT, "Samples of a scrape from which on it fails; 0 for none."),
    Value("serviceMonitor.relabelings", [], OBJECTS, "After those of the chart."),
    Value("serviceMonitor.metricRelabelings", [], OBJECTS, "What is left out of a scrape, or renamed."),
    Value("dashboards.enabled", False, BOOL, "Whether Grafana's sidecar finds the dashboards, a ConfigMap each."),
    Value("dashboards.namespace", "", TEXT, "Where; the release's namespace if blank."),
    Value("dashboards.labels", {"grafana_dashboard": "1"}, STRINGS, "By which the sidecar finds them."),
    Value("dashboards.annotations", {"grafana_folder": "GPU"}, STRINGS, "The folder, if the sidecar has `folderAnnotation: grafana_folder`."),
    *(Value(f"dashboards.boards.{board.name}", True, BOOL, board.description) for board in BOARDS),
    Value("prometheusRule.enabled", False, BOOL, "Whether Prometheus Operator is given the recording rules and alerts."),
    Value("prometheusRule.namespace", "", TEXT, "Where; the release's namespace if blank."),
    Value("prometheusRule.labels", {}, STRINGS, "Labels by which your Prometheus selects it."),
    Value("prometheusRule.annotations", {}, STRINGS, "Annotations."),
    Value("prometheusRule.interval", "", {"type": "string", "pattern": f"^$|{SPAN['pattern']}"}, "Time between two evaluations of every rule; if blank, Prometheus' own, and a minute for what looks at means."),
    Value("prometheusRule.alertLabels", {}, STRINGS, "More labels of every alert."),
    Value("prometheusRule.runbookUrl", DOCS, TEXT, "Where the runbooks are."),
    Value("prometheusRule.grafanaUrl", "", TEXT, "Where Grafana is, for links in alerts."),
)
TEST = (Value("test.enabled", True, BOOL, "Whether `helm test` scrapes it."),)
# fmt: on
BY_HAND = (*IMAGE, *NAMES, *EXPORTER, *ATTRIBUTION, *GPUS, *PODS, *ACCESS, *MONITORING, *TEST)


def limits() -> tuple[Limit, ...]:
    """Every number that rules compare with or reckon with."""
    return (*all_limits(), *PRICES)


def limit(of: Limit) -> Value:
    """The value that changes a limit."""
    default = int(of.value) if of.value == int(of.value) else of.value
    return Value(f"prometheusRule.limits.{of.name}", default, NUMBER, f"{of.unit}: {of.help}")


def mode(of: FailureMode) -> Value:
    """The value that switches and changes the alert of a failure mode."""
    default = {"enabled": True, "severity": of.severity.value, "hold": span(of.hold), "keep": span(of.kept)}
    properties = {"enabled": BOOL, "severity": one_of(*(each.value for each in Severity)), "hold": SPAN, "keep": SPAN}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return Value(f"prometheusRule.modes.{of.name}", default, schema, "", flow=True)


def span(seconds: float) -> str:
    """As Prometheus writes it; 0s for none."""
    return duration(seconds) if seconds else "0s"


def values() -> Iterator[Value]:
    """All of them, in the order of values.yaml."""
    yield from BY_HAND
    yield from map(limit, limits())
    yield from map(mode, MODES)
