"""The values of the chart, one row each, from which values.yaml, its schema and the chart's README are rendered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from content.chart import exporter_schemas, schemas
from content.chart.schemas import BOOL, COUNT, MAYBE, SPAN, TEXT, TEXTS, Schema, listed, one_of
from gpu_exporter.alerting.allocation import TOLERATED_TAINTS
from gpu_exporter.alerting.boards import BOARDS
from gpu_exporter.alerting.levels import RuleLevel
from gpu_exporter.alerting.limits import largest_of, user_limits
from gpu_exporter.alerting.selection import ALL
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.conditions.tree import Limit, duration
from gpu_exporter.model.profile_reason import AUTOMATIC, ProfileReason

# Settings of the exporter that belong to a feature of the chart, and the value to use instead of `config`.
MANAGED: Mapping[str, str] = {
    "address": "port",
    "node_name": "the node's own name",
    "metrics": "metrics",
    "interval": "interval",
    "log_level": "logLevel",
    "processes": "processes.enabled",
    "host_evidence": "hostEvidence.enabled",
    "sysfs": "hostEvidence.enabled",
    "job_socket": "jobSocket.enabled",
    "nccl_inspector_dir": "ncclInspector.path",
    "profile": "profile.reasons",
    "profile_users": "profile.users",
    "profile_dir": "profile.enabled",
    "profile_socket": "profile.enabled",
    "kernel_log": "kernelLog.mode",
    "state_dir": "xids.keep",
    "xid_overrides": "xids.overrides",
    "token_file": "handOver.enabled",
    "web_config_file": "web.config",
    "web_enable_lifecycle": "web.lifecycle",
    "web_trusted_proxies": "web.trustedProxies",
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


@dataclass(frozen=True, slots=True)
class Value:
    """A value: its `path` with dots, default, schema and help. With `flow`, values.yaml has it on one line.

    `successor` is the path of the value that replaces a deprecated one.
    """

    path: str
    default: Any
    schema: Schema
    help: str
    flow: bool = False
    successor: str = ""


def _probe(path: str, start: int, period: int, failures: int, help: str) -> Value:
    default = {
        "initialDelaySeconds": start,
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
    return Value(path, default, schemas.PROBE, help, flow=True)


def _deprecated(path: str, successor: str, default: Any, schema: Schema) -> Value:
    help = f"Deprecated: use `{successor}`, into which this is merged."
    return Value(path, default, schema, help, successor=successor)


def _of_pod_monitor(value: Value) -> Iterator[Value]:
    """Yield the value of the PodMonitor that means the same; nothing for what only a ServiceMonitor has."""
    name = value.path.removeprefix("serviceMonitor.")
    if name not in ("enabled", "targetLabels", "jobLabel", "bearerTokenFile") and not value.successor:
        schema = schemas.POD_TLS_CONFIG if name == "tlsConfig" else value.schema
        yield Value(f"podMonitor.{name}", value.default, schema, f"As `{value.path}`.")


# fmt: off
IMAGE = (
    Value("image.registry", "", schemas.REGISTRY, "Registry, put before `image.repository`, which then has none of its own; `global.imageRegistry` takes precedence."),
    Value("image.repository", "", schemas.REPOSITORY, "Where you pushed the image, such as `registry.example/gpu-exporter`. Required: no image is published."),
    Value("image.tag", "", schemas.TAG, "Tag; empty for the chart's appVersion."),
    Value("image.digest", "", schemas.DIGEST, "Digest, `sha256:…`; it takes precedence over the tag."),
    Value("image.pullPolicy", "IfNotPresent", one_of("Always", "IfNotPresent", "Never"), "When to pull the image."),
    Value("imagePullSecrets", [], schemas.PULL_SECRETS, "Secrets for the registry, by name: `[registry]`, or `[{name: registry}]`."),
)
NAMES = (
    Value("nameOverride", "", schemas.NAME, "Replaces the chart's name."),
    Value("fullnameOverride", "", schemas.NAME, "Replaces the names of release and chart."),
    Value("namespaceOverride", "", schemas.NAME, "Replaces the release's namespace."),
    Value("releaseLabel", False, BOOL, "Whether all objects have the label `release` with the name of the release, by which some Prometheus select their monitors and rules."),
    Value("commonLabels", {}, schemas.LABELS, "Labels of all objects."),
    Value("commonAnnotations", {}, schemas.ANNOTATIONS, "Annotations of all objects."),
)
EXPORTER = (
    Value("port", 9400, schemas.PORT, "Port on which the exporter listens. Each pod has its own address, so dcgm-exporter may use the same port, unless `hostNetwork` is on."),
    Value("metrics", "default", one_of("default", "full"), "Which metrics to expose."),
    Value("interval", "1s", schemas.SECONDS, "Time between two collections."),
    Value("logLevel", "info", one_of("debug", "info", "warning", "error"), "Log level."),
    Value("config", {}, exporter_schemas.settings(MANAGED), "Settings of docs/configuration.md, by key, other than those for which the chart has a value, such as `port` for `address`."),
    Value("collectors", "", TEXT, "Content of a dcgm-exporter CSV file; only its families are exposed."),
    Value("xids.overrides", {}, exporter_schemas.XID_OVERRIDES, "Changes to the table of XIDs, such as `\"63\": {action: gpu_reset, drain: true}`."),
    Value("xids.keep", "pod", one_of("none", "pod", "node"), "Where XIDs are stored across restarts: `none`, the pod's own volume (`pod`), or `xids.path` of the node (`node`; *hostPath, uid 0*)."),
    Value("xids.path", "/var/lib/gpu-exporter", schemas.FOLDER, "Folder of the node for `xids.keep: node`."),
    Value("handOver.enabled", True, BOOL, "Whether `kubectl exec … gpu-exporter release` may make the exporter release the driver."),
    Value("extraArgs", [], TEXTS, "More arguments of `gpu-exporter serve`; they take precedence over all other settings."),
    Value("extraEnv", [], schemas.VARIABLES, "More environment variables of the exporter."),
    Value("extraEnvFrom", [], schemas.VARIABLE_SOURCES, "ConfigMaps and Secrets whose keys become environment variables, such as `[{secretRef: {name: gpu-exporter}}]`."),
)
ATTRIBUTION = (
    Value("attribution.enabled", False, BOOL, "Whether the exporter asks kubelet, through its socket, which pod uses which GPU. Off, no metric has a pod. On, the exporter runs as uid 0 without capabilities and with a read-only hostPath of that socket, so its namespace must allow privileged pods (*hostPath, uid 0*)."),
    Value("attribution.podResourcesPath", "/var/lib/kubelet/pod-resources", schemas.FOLDER, "Folder of the node that contains kubelet's `kubelet.sock`."),
    Value("attribution.resourceNames", [], schemas.RESOURCE_NAMES, "Resources that are GPUs, other than `nvidia.com/gpu`, `nvidia.com/gpu.shared` and `nvidia.com/mig-*`. Rules and remediation count them, too."),
    Value("attribution.pods", False, BOOL, "Whether to add workload, rank and UID of pods, from the API server (*may read pods*)."),
    Value("attribution.podLabels", [], schemas.LISTED, "Pod labels to expose, as regular expressions (*may read pods*)."),
    Value("attribution.dra", False, BOOL, "Whether to find the GPUs of resource claims (*may read resource slices*)."),
    Value("slurm.jobMappingPath", "", schemas.NO_FOLDER, "Folder of the node in which a Slurm prolog records which job uses which GPU (*hostPath*)."),
    Value("processes.enabled", False, BOOL, "Whether to expose memory and SM share of each process (*hostPID*)."),
    Value("hostEvidence.enabled", False, BOOL, "Whether to read from procfs, sysfs and cgroups why GPUs wait for their processes: CPU limits, run queues, loader workers, storage (*hostPID, hostPath*)."),
    Value("jobSocket.enabled", False, BOOL, "Whether to receive step times and throughput of training loops, through `jobs.sock` in `jobSocket.path` (*hostPID, writable hostPath, uid 0*)."),
    Value("jobSocket.path", "/run/gpu-exporter-jobs", schemas.FOLDER, "Folder of the node for that socket; it is created if it does not exist. Pods of jobs mount it, too."),
    Value("ncclInspector.path", "", schemas.NO_FOLDER, "Folder of the node in which NCCL's Inspector plugin writes its files for Prometheus (*hostPath*); it is created if it does not exist. Pods of jobs mount it, too, writable."),
    Value("profile.enabled", False, BOOL, "Whether to sample the stacks of processes on GPUs that wait for their host, with py-spy in a container of its own, `sampler` (*SYS_PTRACE, hostPID and uid 0 in that container*). Its image needs the extra `profile`: see *Profiles*."),
    Value("profile.reasons", [reason.value for reason in AUTOMATIC if reason is not ProfileReason.SCHEDULE], {"type": "array", "minItems": 1, "uniqueItems": True, "items": one_of(*(reason.value for reason in AUTOMATIC))}, "When to take a profile: `stall`, `straggler`, `host-bound`, and `schedule` (every GPU, every ten minutes)."),
    Value("profile.users", [], TEXTS, "Users of `web.config` who may see profiles, which show code. Without any, only the metrics show them."),
    Value("profile.resources", {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}, schemas.RESOURCES, "Requests and limits of the container `sampler`."),
    Value("kernelLog.mode", "none", one_of("none", "file", "kmsg"), "Where XIDs are read in addition to the driver: `none`, `kernelLog.path` (`file`; *hostPath*), or /dev/kmsg (`kmsg`; *privileged*)."),
    Value("kernelLog.path", "/var/log/kern.log", schemas.FOLDER, "Kernel log of the node, for `kernelLog.mode: file`."),
    Value("kernelLog.group", 4, COUNT, "Group that may read that file; 4 is adm."),
)
GPUS = (
    Value("gpuAccess.mode", "env", one_of("env", "runtimeClass", "cdi", "volumeMounts", "hostPath", "none"), "How the container gets access to the GPUs. It never requests `nvidia.com/gpu`, which would take a GPU from a workload. `env`: the node's default runtime is NVIDIA's; `runtimeClass`: the runtime class `gpuAccess.runtimeClassName`; `cdi`: an annotation; `volumeMounts`: for nodes that ignore the environment variable of unprivileged pods (*hostPath*); `hostPath`: for nodes without NVIDIA's runtime, such as GKE's (*privileged, hostPath*); `none`: with a remote DCGM. See [which platform needs which](../../docs/kubernetes-platforms.md)."),
    Value("gpuAccess.runtimeClassName", "nvidia", schemas.DOMAIN, "For `gpuAccess.mode: runtimeClass`."),
    Value("gpuAccess.hostPath", "/home/kubernetes/bin/nvidia", schemas.FOLDER, "Folder of the node with the driver, whose libraries are in `lib64`, for `gpuAccess.mode: hostPath`. The default is that of GKE."),
    Value("gpuAccess.visibleDevices", "all", schemas.VISIBLE_DEVICES, "`NVIDIA_VISIBLE_DEVICES`."),
    Value("gpuAccess.driverCapabilities", "utility", schemas.CAPABILITIES, "`NVIDIA_DRIVER_CAPABILITIES`; NVML needs only `utility`."),
    Value("gpuAccess.cdiDevice", "nvidia.com/gpu=all", schemas.CDI_DEVICE, "Device for `gpuAccess.mode: cdi`."),
    Value("dcgm.enabled", False, BOOL, "Whether to read through DCGM, which the image does not contain: see *Through DCGM*."),
    Value("dcgm.hostEngine", "", exporter_schemas.HOST_ENGINE, "`host:port` of a running host engine, or a Unix socket that `extraVolumes` mounts; empty to run DCGM in the container."),
    Value("dcgm.bindings", "", TEXT, "Folder of DCGM's Python bindings in the container."),
    Value("dcgm.profiling", False, BOOL, "Whether DCGM in the container may read profiling metrics (*SYS_ADMIN, uid 0*)."),
)
PODS = (
    Value("nodes", "auto", one_of("auto", "nfd", "gpuOperator", "any"), "Nodes to run on. `auto`: those with NFD's label of NVIDIA's PCI vendor, GPU operator's `nvidia.com/gpu.present`, or a label that GKE, AKS or Karpenter on AWS gives nodes with NVIDIA GPUs. `any`: only `nodeSelector` and `affinity` decide."),
    Value("nodeSelector", {}, schemas.LABELS, "Labels that nodes must have in addition."),
    Value("affinity", {}, schemas.AFFINITY, "Affinity, merged with the node affinity that `nodes` creates; required node affinity of your own replaces that."),
    Value("tolerations", [{"operator": "Exists"}], schemas.TOLERATIONS, "Tolerations. With the default, the exporter also runs, and stays, on nodes that are tainted because they are broken."),
    Value("priorityClassName", "system-node-critical", schemas.DOMAIN, "Priority class; empty for none. GKE and some other clouds allow the default only in kube-system, or with a ResourceQuota: see *Priority class*."),
    Value("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}, schemas.UPDATE_STRATEGY, "How pods are replaced; on large fleets, use `maxUnavailable: 10%`."),
    Value("minReadySeconds", 0, COUNT, "How long a new pod must be ready before the next one is replaced."),
    Value("revisionHistoryLimit", 10, COUNT, "Number of old revisions to keep."),
    Value("terminationGracePeriodSeconds", 30, COUNT, "Time until Kubernetes kills the container; the exporter ends within 2 s."),
    Value("hostPort", 0, {"type": "integer", "minimum": 0, "maximum": 65535}, "Port of the node that is forwarded to the exporter (*host port*); 0 for none."),
    Value("hostUsers", None, MAYBE, "False runs the pods in a user namespace of their own, in which uid 0 is no root of the node. Kubernetes refuses that with features that need *hostPID* or the node's network. Not tried with `attribution.enabled`, whose socket belongs to the node's root. Empty for the cluster's default."),
    Value("hostNetwork", False, BOOL, "Whether to listen on the node's address (*host namespace*); choose a `port` that is free on every node."),
    Value("dnsConfig", {}, schemas.DNS_CONFIG, "Name servers, search domains and options of the resolver, such as `{options: [{name: ndots, value: \"1\"}]}`."),
    Value("hostAliases", [], schemas.HOST_ALIASES, "Entries of /etc/hosts, such as `[{ip: 10.0.0.7, hostnames: [dcgm.example]}]`."),
    Value("podLabels", {}, schemas.LABELS, "Labels of the pods, for example `app: gpu-dcgm-exporter` for OpenCost and Kubecost."),
    Value("podAnnotations", {}, schemas.ANNOTATIONS, "Annotations of the pods."),
    Value("podSecurityContext", {}, schemas.POD_SECURITY, "Merged into the pod security context that the features need; takes precedence."),
    Value("securityContext", {}, schemas.SECURITY, "Merged into the container security context that the features need; takes precedence."),
    Value("resources", {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}}, schemas.RESOURCES, "Requests and limits. There is no CPU limit, because throttling would cause gaps in the measurement."),
    _probe("livenessProbe", 10, 15, 8, "/healthz: it fails only until the first collection is complete, and if the exporter itself hangs; never because of a GPU."),
    _probe("readinessProbe", 0, 10, 3, "/healthz, too: with /readyz, a node whose GPUs do not answer would block the rollout of the DaemonSet."),
    Value("startupProbe", {}, schemas.PROBE, "/healthz, until it first succeeds; empty for none. A slow driver does not delay /healthz, but an image of your own that starts slowly may: `{periodSeconds: 5, failureThreshold: 60}` gives it 5 min."),
    Value("initContainers", [], schemas.CONTAINERS, "Init containers of the pods."),
    Value("extraContainers", [], schemas.CONTAINERS, "More containers of the pods."),
    Value("extraVolumes", [], schemas.VOLUMES, "More volumes of the pod."),
    Value("extraVolumeMounts", [], schemas.MOUNTS, "More mounts of the exporter."),
    Value("extraManifests", [], schemas.MANIFESTS, "More objects to install; text is rendered as a template."),
)
ACCESS = (
    Value("serviceAccount.create", True, BOOL, "Whether to create a service account."),
    Value("serviceAccount.name", "", schemas.DOMAIN, "Name of the service account; empty for the full name of the release, or `default` if none is created."),
    Value("serviceAccount.annotations", {}, schemas.ANNOTATIONS, "Annotations of the service account."),
    Value("serviceAccount.automountToken", None, MAYBE, "Whether the pods have the token of their service account; empty: only if a feature needs it. True is for containers of your own."),
    Value("rbac.create", True, BOOL, "Whether to grant the service account what `attribution.pods`, `attribution.podLabels` and `attribution.dra` need; without these it has no rights, and the pods no token."),
    Value("openShift.scc", False, BOOL, "Whether to create a SecurityContextConstraints with what the features need, and no more, that only the service account may use. The pods then demand it."),
    Value("service.type", "ClusterIP", one_of("ClusterIP", "NodePort", "LoadBalancer"), "Type of the Service. Through a Service that is not headless, a client reaches any one of the exporters."),
    Value("service.headless", True, BOOL, "Whether a Service of type ClusterIP has no address of its own, but those of all pods."),
    Value("service.nodePort", 0, {"type": "integer", "minimum": 0, "maximum": 65535}, "Port of the nodes, for the types NodePort and LoadBalancer; 0: Kubernetes chooses one."),
    Value("service.internalTrafficPolicy", "", one_of("", "Cluster", "Local"), "`Local`: clients reach only the exporter of their own node."),
    Value("service.ipFamilyPolicy", "", one_of("", "SingleStack", "PreferDualStack", "RequireDualStack"), "Whether the Service has addresses of both IP families; empty for the cluster's default."),
    Value("service.ipFamilies", [], {**listed(one_of("IPv4", "IPv6")), "uniqueItems": True}, "IP families of the Service, the preferred one first; empty for the cluster's."),
    Value("service.labels", {}, schemas.LABELS, "Labels of the Service."),
    Value("service.annotations", {}, schemas.ANNOTATIONS, "Annotations of the Service."),
    Value("web.config", {}, exporter_schemas.WEB_CONFIG, "TLS, passwords and headers, in the form of docs/security.md; stored as a Secret."),
    Value("web.tlsSecret", "", schemas.DOMAIN, "Secret with `tls.crt`, `tls.key` and, if needed, `ca.crt`, mounted at /etc/gpu-exporter/tls. It turns TLS on; certificate and key in `web.config` take precedence."),
    Value("web.existingSecret", "", schemas.DOMAIN, "Secret with a `web.yml` to use instead of `web.config`. With `web.tlsSecret`, it has to name the files itself."),
    Value("web.scheme", "", one_of("", "http", "https"), "Required with `web.existingSecret`, whose content the chart cannot see: `https` if its `web.yml` has a `tls_server_config`, otherwise `http`."),
    Value("web.lifecycle", False, BOOL, "Whether to enable POST /-/quit, /-/reload, /-/release and /-/resume. Protect them with a password (`web.config`)."),
    Value("web.trustedProxies", [], schemas.NETWORKS, "Addresses and networks of proxies, such as the pod network of an ingress: for limits and the log, the client of their requests is the one that X-Forwarded-For names. The remediation controller trusts them, too."),
    Value("networkPolicy.enabled", False, BOOL, "Whether to restrict who may reach the exporter and the remediation controller, and what they may reach to what their features need. Has no effect on the exporter with `hostNetwork`."),
    Value("networkPolicy.from", [], schemas.PEERS, "Who may scrape the exporter; anyone if empty."),
    Value("networkPolicy.egress", [], schemas.EGRESS, "What else the exporter may reach."),
    Value("networkPolicy.apiServerPorts", [443, 6443], schemas.PORTS, "Ports of the API server, if a feature or the controller needs it: those of its Service and of its endpoints."),
    Value("networkPolicy.dnsPorts", [53], schemas.PORTS, "Ports of the pods of the cluster's DNS, if a feature needs it; on OpenShift, 5353."),
)
SERVICE_MONITOR = (
    Value("serviceMonitor.enabled", False, BOOL, "Whether to create a ServiceMonitor, so that Prometheus Operator scrapes the exporter."),
    Value("serviceMonitor.namespace", "", schemas.NAME, "Namespace; empty for the release's."),
    Value("serviceMonitor.additionalLabels", {}, schemas.LABELS, "Labels by which your Prometheus selects it, such as `release: kube-prometheus-stack`."),
    _deprecated("serviceMonitor.labels", "serviceMonitor.additionalLabels", {}, schemas.LABELS),
    Value("serviceMonitor.annotations", {}, schemas.ANNOTATIONS, "Annotations."),
    Value("serviceMonitor.interval", "15s", schemas.POSITIVE_SPAN, "Time between two scrapes."),
    Value("serviceMonitor.scrapeTimeout", "10s", schemas.POSITIVE_SPAN, "Timeout of a scrape."),
    Value("serviceMonitor.job", "gpu-exporter", schemas.JOB, "The label `job`, by which the rules recognise a GPU exporter."),
    Value("serviceMonitor.jobLabel", "", schemas.LABEL_KEY, "Label of the Service to take the label `job` from, instead of `serviceMonitor.job`."),
    Value("serviceMonitor.targetLabels", [], schemas.LABEL_KEYS, "Labels of the Service, such as those of `commonLabels`, to copy to all series."),
    Value("serviceMonitor.podTargetLabels", [], schemas.LABEL_KEYS, "Labels of the exporter's pods, such as those of `podLabels`, to copy to all series."),
    Value("serviceMonitor.attachMetadata", {}, schemas.ATTACH_METADATA, "`{node: true}` offers the labels of nodes to `relabelings`, as `__meta_kubernetes_node_label_…`. Prometheus then needs to list and watch nodes."),
    Value("serviceMonitor.instance", "node", one_of("node", "address"), "The label `instance`: the node, which outlives pods, or the pod's address."),
    Value("serviceMonitor.honorLabels", True, BOOL, "Whether the exporter's labels win over those of the target. Otherwise they become `exported_…`."),
    Value("serviceMonitor.dropTargetLabels", True, BOOL, "Whether to drop pod, namespace, container, service and endpoint of the *exporter*. On a free GPU, they would look like those of its user."),
    Value("serviceMonitor.exportedLabels", True, BOOL, "Whether to copy namespace, pod and container of the GPU's user to `exported_…`, which public dashboards for dcgm-exporter read. Only with `honorLabels` and `dropTargetLabels`."),
    Value("serviceMonitor.tlsConfig", {}, schemas.TLS_CONFIG, "With TLS: how Prometheus verifies the certificate, such as `{ca: {secret: {name: tls, key: ca.crt}}, serverName: gpu-exporter}`."),
    Value("serviceMonitor.basicAuth", {}, schemas.BASIC_AUTH, "With a password: the Secret that has it, such as `{username: {name: login, key: user}, password: {name: login, key: password}}`."),
    Value("serviceMonitor.authorization", {}, schemas.AUTHORIZATION, "With an authenticating proxy: credentials."),
    Value("serviceMonitor.oauth2", {}, schemas.OBJECT, "With an authenticating proxy: OAuth 2.0, in the form of Prometheus Operator."),
    Value("serviceMonitor.bearerTokenFile", "", schemas.NO_FOLDER, "With an authenticating proxy such as kube-rbac-proxy: a file of Prometheus with its token."),
    Value("serviceMonitor.proxyUrl", "", schemas.URL, "Proxy through which Prometheus scrapes."),
    Value("serviceMonitor.sampleLimit", 0, COUNT, "A scrape with more samples fails; 0 for no limit."),
    Value("serviceMonitor.targetLimit", 0, COUNT, "With more targets, no scrape succeeds; 0 for no limit."),
    Value("serviceMonitor.labelLimit", 0, COUNT, "A scrape with a series of more labels fails; 0 for no limit."),
    Value("serviceMonitor.labelNameLengthLimit", 0, COUNT, "A scrape with a longer name of a label fails; 0 for no limit."),
    Value("serviceMonitor.labelValueLengthLimit", 0, COUNT, "A scrape with a longer value of a label fails; 0 for no limit."),
    Value("serviceMonitor.relabelings", [], schemas.RELABELINGS, "Relabelings, after those of the chart."),
    Value("serviceMonitor.metricRelabelings", [], schemas.RELABELINGS, "Metric relabelings, which drop or rename series."),
)
POD_MONITOR = (
    Value("podMonitor.enabled", False, BOOL, "Whether to create a PodMonitor instead of a ServiceMonitor, for a Prometheus that selects only PodMonitors. Only one of the two may be on."),
    *(each for value in SERVICE_MONITOR for each in _of_pod_monitor(value)),
    Value("podMonitor.jobLabel", "", schemas.LABEL_KEY, "Label of the pods to take the label `job` from, instead of `podMonitor.job`."),
)
DASHBOARDS = (
    Value("dashboards.enabled", False, BOOL, "Whether to create a ConfigMap for each dashboard, which Grafana's sidecar finds."),
    Value("dashboards.namespace", "", schemas.NAME, "Namespace; empty for the release's."),
    Value("dashboards.labels", {"grafana_dashboard": "1"}, schemas.LABELS, "Labels by which the sidecar finds them."),
    Value("dashboards.annotations", {"grafana_folder": "GPU"}, schemas.ANNOTATIONS, "Annotations; this one is the folder, if the sidecar has `folderAnnotation: grafana_folder`."),
    *(Value(f"dashboards.boards.{board.name}", True, BOOL, board.description) for board in BOARDS),
)
RULES = (
    Value("prometheusRule.enabled", False, BOOL, "Whether to create two PrometheusRules: one with the recording rules, one with the alerts."),
    Value("prometheusRule.namespace", "", schemas.NAME, "Namespace; empty for the release's."),
    Value("prometheusRule.additionalLabels", {}, schemas.LABELS, "Labels by which your Prometheus selects it."),
    _deprecated("prometheusRule.labels", "prometheusRule.additionalLabels", {}, schemas.LABELS),
    Value("prometheusRule.annotations", {}, schemas.ANNOTATIONS, "Annotations."),
    Value("prometheusRule.interval", "", schemas.NO_SPAN, "Time between two evaluations of a rule; empty for each group's own: Prometheus' default, or one minute. Groups whose samples are counted or added up or that must be prompt keep theirs: `gpu-classes`, `gpu-accounting`, `gpu-fleet`, `gpu-reports`, `gpu-alerts`, `gpu-health-prompt`."),
    Value("prometheusRule.level", ALL, one_of(ALL, *(level.value for level in RuleLevel)), "Rules of a Prometheus that sees all nodes (`all`), or of one of [two levels](../../docs/scale.md#how-do-i-shard-prometheus): `shard` for each that scrapes a share of the nodes, `global` for the one above."),
    Value("prometheusRule.domains", [domain.value for domain in Domain], listed(one_of(*(domain.value for domain in Domain))), "Domains whose alerts to create, with the recording rules that these and their dashboards need."),
    Value("prometheusRule.toleratedTaints", list(TOLERATED_TAINTS), schemas.TAINTS, "Keys of taints that pods with GPUs tolerate. GPUs of a node with another taint (`NoSchedule`, `NoExecute`) do not count as free."),
    Value("prometheusRule.alertLabels", {}, schemas.ALERT_LABELS, "More labels of all alerts."),
    Value("prometheusRule.severityLabels", {}, schemas.keyed("critical|warning|info", schemas.ALERT_LABELS), "More labels of alerts by their severity, for routes that know other words: `{critical: {priority: P1}}`. The label `severity` stays, because the dashboards select by it."),
    Value("prometheusRule.additionalRules", [], schemas.RULE_GROUPS, "Groups of rules of your own, added as they are: `[{name: own, rules: [{alert: …, expr: …}]}]`."),
    Value("prometheusRule.runbookUrl", "", schemas.URL, "URL of the folder with the runbooks, if you publish them, as `gpu-exporter bundle runbooks` writes them: alerts link to `URL/gpulost.md`. Without it, they link to the dashboard with all runbooks."),
    Value("prometheusRule.pageUrl", "", schemas.URL, "URL of an exporter's live page, with `{node}` for the node, such as `https://gpus.example/{node}/`. Alerts about a GPU then link to it (`page_url`), also to the line of code where its processes are."),
    Value("prometheusRule.grafanaUrl", "", schemas.URL, "URL of Grafana, for links in alerts. Without it, they have no host, and work only in Grafana."),
)
REMEDIATION = (
    Value("remediation.enabled", False, BOOL, "Whether to run the [remediation controller](../../docs/remediation.md), which cordons and drains nodes with unfit GPUs: a Deployment with its own service account, which may patch nodes, and evict pods if a pool has the mode `drain` or `observe`."),
    Value("remediation.replicas", 2, schemas.POSITIVE, "Controllers, of which one acts and the others wait."),
    Value("remediation.pools", [{"name": "all", "mode": "observe"}], schemas.POOLS, "Pools of nodes, each with its mode and bounds. In mode `observe`, nothing is changed."),
    Value("remediation.config", {}, exporter_schemas.CONTROLLER, "The other settings of docs/remediation.md, such as `interval`, `breaker`, `exporters` and `notify`."),
    Value("remediation.secret", "", schemas.DOMAIN, "Secret with the tokens, passwords and authorities that the settings name, mounted at /etc/gpu-exporter-secret."),
    Value("remediation.events", True, BOOL, "Whether the controller writes Events about nodes, for `kubectl describe node`. They belong to the namespace `default`, so this needs a Role there."),
    Value("remediation.priorityClassName", "", schemas.DOMAIN, "Priority class of the controller; empty for none."),
    Value("remediation.nodeSelector", {}, schemas.LABELS, "Labels that the controller's node must have."),
    Value("remediation.affinity", {}, schemas.AFFINITY, "Affinity of the controller, merged with its preference for nodes without GPUs; preferred node affinity of your own replaces that."),
    Value("remediation.tolerations", [], schemas.TOLERATIONS, "Tolerations of the controller."),
    Value("remediation.podLabels", {}, schemas.LABELS, "Labels of the controller's pods."),
    Value("remediation.podAnnotations", {}, schemas.ANNOTATIONS, "Annotations of the controller's pods."),
    Value("remediation.podDisruptionBudget.enabled", True, BOOL, "Whether a PodDisruptionBudget keeps a `kubectl drain` from ending more than one controller at a time."),
    Value("remediation.networkPolicy.from", [], schemas.PEERS, "With `networkPolicy.enabled`: who may scrape the controller and send it webhooks; those of `networkPolicy.from` if empty."),
    Value("remediation.networkPolicy.egress", [], schemas.EGRESS, "What else the controller may reach: it may reach the exporters, the API server and the port of `notify.url`."),
    Value("remediation.resources", {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}, schemas.RESOURCES, "Requests and limits of the controller."),
)
TEST = (
    Value("test.enabled", True, BOOL, "Whether `helm test` scrapes the exporter."),
    Value("test.gpus", 0, COUNT, "Number of GPUs of one node that `helm test` also [measures](../../docs/active-checks.md) with `gpu-exporter check --active`."),
)
# fmt: on
MONITORING = (*SERVICE_MONITOR, *POD_MONITOR, *DASHBOARDS, *RULES)
BY_HAND = (*IMAGE, *NAMES, *EXPORTER, *ATTRIBUTION, *GPUS, *PODS, *ACCESS, *MONITORING, *REMEDIATION, *TEST)


def limit(of: Limit) -> Value:
    """Return the value that sets a limit."""
    default = int(of.value) if of.value == int(of.value) else of.value
    largest = largest_of(of)
    schema = {"type": "number", "minimum": 0, **({} if largest is None else {"maximum": largest})}
    return Value(f"prometheusRule.limits.{of.name}", default, schema, f"{of.unit}: {of.help}")


def mode(of: FailureMode) -> Value:
    """Return the value that enables and changes the alert of a failure mode."""
    default = {"enabled": True, "severity": of.severity.value, "hold": span(of.pending), "keep": span(of.kept)}
    severity = one_of(*(each.value for each in Severity))
    schema = schemas.closed({"enabled": BOOL, "severity": severity, "hold": SPAN, "keep": SPAN})
    return Value(f"prometheusRule.modes.{of.name}", default, schema, "", flow=True)


def span(seconds: float) -> str:
    """Return a duration in Prometheus' form; 0s for none."""
    return duration(seconds) if seconds else "0s"


def values() -> Iterator[Value]:
    """Return all values, in the order of values.yaml."""
    yield from BY_HAND
    yield from map(limit, user_limits())
    yield from map(mode, MODES)
