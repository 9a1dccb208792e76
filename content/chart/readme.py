"""The text of the chart's README; its tables are rendered from the values."""

README = """# gpu-exporter

A DaemonSet that exposes metrics of NVIDIA GPUs, with rules, alerts and dashboards that show why GPUs are slow, broken
or wasted.

Requirements: Kubernetes {kubernetes}, the NVIDIA driver on the nodes, and a way for the container to access the GPUs
(`gpuAccess.mode`). Neither GPU operator nor DCGM is needed.

## Install

No image is published. Build it in the root of the repository, push it to your registry, and name it in
`image.repository`, without which nothing is rendered.

```
make image IMAGE=registry.example/gpu-exporter:{version}
docker push registry.example/gpu-exporter:{version}
kubectl create namespace gpu-monitoring
kubectl label namespace gpu-monitoring pod-security.kubernetes.io/enforce=restricted
helm install gpu-exporter helm/gpu-exporter --namespace gpu-monitoring --set image.repository=registry.example/gpu-exporter \\
  --set serviceMonitor.enabled=true --set prometheusRule.enabled=true --set dashboards.enabled=true \\
  --set serviceMonitor.additionalLabels.release=kube-prometheus-stack \\
  --set prometheusRule.additionalLabels.release=kube-prometheus-stack
helm test gpu-exporter --namespace gpu-monitoring
```

The labels are those by which your Prometheus selects its ServiceMonitors and rules: for kube-prometheus-stack, the label
`release` with the name of its own release. A Prometheus that selects only PodMonitors needs `podMonitor.enabled` instead
of `serviceMonitor.enabled`; its values mean the same.

If `gpu-exporter doctor` in the pod finds no GPU, set `gpuAccess.mode`: `runtimeClass` if the cluster has a runtime class
`nvidia` (GPU operator creates it), `cdi` if the nodes use CDI. For GKE, EKS, AKS, OpenShift, Talos, k3s and kubeadm there
are [presets](../../docs/kubernetes-platforms.md), such as `--values helm/gpu-exporter/presets/gke.yaml`.

### Argo CD and Flux

Rendering needs no cluster, and the same values always give the same objects. Create first: the namespace with its labels,
Prometheus Operator's CRDs, and the Secrets that you name (`web.existingSecret`, `remediation.secret`, and those of
`serviceMonitor.basicAuth`). The order of all else does not matter. The largest objects have 230 kB, below the 256 KiB that
client-side apply allows.

Set `test.enabled: false` and `prometheusRule.grafanaUrl`, since nobody reads the notes that ask for it, and name the
release as the Application: older versions of Argo CD put its name into the label by which the ServiceMonitor selects. The
project must allow ClusterRoles and, with `remediation.events`, a Role in the namespace `default`. With passwords:

```yaml
dashboards: {{enabled: true}}
web: {{existingSecret: gpu-exporter-web, scheme: http}}   # its web.yml has the users prometheus and remediation
serviceMonitor:
  enabled: true
  basicAuth: {{username: {{name: gpu-exporter-login, key: username}}, password: {{name: gpu-exporter-login, key: password}}}}
prometheusRule: {{enabled: true, grafanaUrl: "https://grafana.example"}}
test: {{enabled: false}}
remediation:
  enabled: true
  secret: gpu-remediation
  config: {{exporters: {{user: remediation, password_file: /etc/gpu-exporter-secret/password}}}}
```

### Without internet access

All objects use the one image, and the chart has no subcharts. Where there is a network, build the image as above, and
`make chart` packages the chart into `dist/`. Then push both to your registry (`docker save` and `docker load` carry the
image, `helm push` the chart), and set `image.repository` to the image there. `global.imageRegistry` and
`global.imagePullSecrets` also work. The dashboards need only the panels that come with Grafana, and links of alerts lead
to your `prometheusRule.grafanaUrl`, whose dashboard *Runbooks* has all runbooks.

### IPv6

The exporter and the controller listen on all IPv4 and IPv6 addresses, so a cluster with IPv6 alone needs no values.
`service.ipFamilyPolicy` and `service.ipFamilies` choose the addresses of both Services.

## Which pod uses a GPU?

By default, the metrics do not say so, because that needs uid 0: kubelet creates its socket so that only root can connect,
whatever group the container has. Without it, the labels `namespace`, `pod` and `container` are empty, the Job dashboard
and the alerts that compare the ranks of a job stay empty, and waste and costs are not split by namespace. To turn it on:

```
kubectl label namespace gpu-monitoring pod-security.kubernetes.io/enforce=privileged --overwrite
helm upgrade gpu-exporter helm/gpu-exporter --namespace gpu-monitoring --reuse-values --set attribution.enabled=true
```

If you must stay *restricted*, you do without pods, processes (also that of an XID), evidence of the host, step times, and
what only the kernel log has (SXids). `gpuAccess.mode` may then be `env`, `runtimeClass`, `cdi` or `none`.

With attribution, the container still has no capabilities, and sees of the node only the folder with the socket, read-only:
[what can be read with that](../../docs/security.md#attribution).

## What each feature costs

By default, the pods run as uid 65534 and meet Pod Security *restricted*. The container has no capabilities, a read-only
root file system and the runtime's seccomp profile, and cannot gain privileges. A feature that needs more gets it only
while it is on:

| feature | needs |
| --- | --- |
| none of the below (the default) | uid 65534, no hostPath: Pod Security *restricted* |
| `attribution.enabled` | uid 0 without capabilities, read-only hostPath of kubelet's socket: the namespace must be `enforce: privileged` |
| `attribution.pods`, `attribution.podLabels` | a token that may list and watch pods |
| `attribution.dra` | a token that may list and watch resource slices |
| `slurm.jobMappingPath` | read-only hostPath |
| `processes.enabled` | hostPID |
| `hostEvidence.enabled` | hostPID, read-only hostPath of /sys; storage reads and /dev/shm of other users also need SYS_PTRACE (`securityContext`) |
| `jobSocket.enabled` | hostPID, writable hostPath, uid 0 |
| `ncclInspector.path` | read-only hostPath |
| `profile.enabled` | hostPID; in a container of its own, `sampler`, SYS_PTRACE and uid 0, without other capabilities, ports or GPUs. The exporter's own container gets no more than hostPID |
| `kernelLog.mode: file` | read-only hostPath, the group of the file |
| `kernelLog.mode: kmsg` | `privileged`: other containers may not open /dev/kmsg |
| `xids.keep: node` | writable hostPath, uid 0 |
| `gpuAccess.mode: volumeMounts` | hostPath of /dev/null |
| `gpuAccess.mode: hostPath` | `privileged`, because nothing else opens the device files; read-only hostPath of the driver |
| `dcgm.profiling` | SYS_ADMIN, uid 0; not with a remote host engine |
| `hostNetwork` | the node's network |
| `hostPort` | a port of the node |

## Priority class

The default, `system-node-critical`, lets the exporter run on full nodes. GKE and some other clouds allow it outside
kube-system only if the namespace has a ResourceQuota for it; otherwise the DaemonSet has the event `insufficient quota to
match these scopes`. Create one with the release, or set `priorityClassName: ""`:

```yaml
extraManifests:
  - apiVersion: v1
    kind: ResourceQuota
    metadata: {{name: gpu-exporter-critical, namespace: gpu-monitoring}}
    spec:
      hard: {{pods: 1G}}
      scopeSelector:
        matchExpressions: [{{operator: In, scopeName: PriorityClass, values: [system-node-critical]}}]
```

## OpenShift

`openShift.scc: true` creates a SecurityContextConstraints that allows what the features need, and nothing else, and that
only the exporter's service account may use. The pods demand it (`openshift.io/required-scc`), so no other one applies.
Containers and volumes of your own must fit in: the SCC allows the types of `extraVolumes`, and the user, capabilities and
SELinux options of `podSecurityContext` and `securityContext`. If SELinux denies a hostPath, set
`podSecurityContext.seLinuxOptions.type` to a type that may read it.

## Health checks

Both probes use `/healthz`, which fails only until the first collection is complete, and if the exporter itself hangs.
With a password, client certificates or `web.existingSecret`, they only check that the port is open. A GPU that does not answer neither restarts the container nor stops scrapes: see [health endpoints](../../docs/probes.md).
There is no startup probe, because a slow driver does not delay `/healthz`: `startupProbe` is for images that start slowly.

## TLS and passwords

`web.tlsSecret` alone turns TLS on. `web.config` adds what [security](../../docs/security.md#tls-and-passwords) describes,
such as passwords. Prometheus then needs the authority of the certificate and the password:

```yaml
web:
  tlsSecret: gpu-exporter-tls   # tls.crt and tls.key, for example from cert-manager
  config: {{basic_auth_users: {{prometheus: "$2y$10$…"}}}}   # htpasswd -nBC 10 prometheus
serviceMonitor:
  enabled: true
  tlsConfig: {{ca: {{secret: {{name: gpu-exporter-tls, key: ca.crt}}}}, serverName: gpu-exporter.example}}
  basicAuth: {{username: {{name: gpu-exporter-login, key: username}}, password: {{name: gpu-exporter-login, key: password}}}}
```

With `web.existingSecret`, `web.scheme` says whether its `web.yml` turns TLS on. For a Prometheus without the operator,
set `scheme`, `tls_config` and `basic_auth` in its job.

## Target labels

ServiceMonitor and PodMonitor drop the labels pod, namespace and container of the exporter itself. On a free GPU, they
would look like those of its user. `node` is the node, `instance` the node and port, and `exported_pod` and the like are copies
of the labels of the user (`serviceMonitor.exportedLabels`), because public dashboards read those. A Prometheus
with `enforcedNamespaceLabel` still overwrites `namespace`; the rules then read `exported_namespace`.

For a Prometheus without the operator, with a job for the exporters and, if `remediation.enabled`, one for the controller.
Both select pods by the label `app.kubernetes.io/component`, because all pods of a release share the other labels:

```yaml
scrape_configs:
  - job_name: gpu-exporter
    honor_labels: true
    kubernetes_sd_configs: [{{role: pod}}]
    relabel_configs:
      - source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_part_of, __meta_kubernetes_pod_label_app_kubernetes_io_component]
        regex: gpu-exporter;exporter
        action: keep
      - {{source_labels: [__meta_kubernetes_pod_container_port_name], regex: metrics, action: keep}}
      - {{source_labels: [__meta_kubernetes_pod_node_name], target_label: node}}
      - {{source_labels: [__meta_kubernetes_pod_node_name], regex: (.+), target_label: instance, replacement: "$1:9400"}}
  - job_name: gpu-remediation
    honor_labels: true
    kubernetes_sd_configs: [{{role: pod}}]
    relabel_configs:
      - source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_part_of, __meta_kubernetes_pod_label_app_kubernetes_io_component]
        regex: gpu-exporter;remediation
        action: keep
      - {{source_labels: [__meta_kubernetes_pod_container_port_name], regex: http, action: keep}}
      - {{source_labels: [__meta_kubernetes_namespace], target_label: namespace}}
      - {{source_labels: [__meta_kubernetes_pod_name], target_label: pod}}
```

## With dcgm-exporter or GPU operator

dcgm-exporter may run on the same nodes: its objects have other names and selectors, and each pod has its own address. The
rules count each GPU once. To switch off the dcgm-exporter that GPU operator installs, set GPU operator's value
`dcgmExporter.enabled=false`. GPU nodes are recognised by the labels of NFD or GPU operator (`nodes`).

## OpenCost and Kubecost

Both find GPU metrics by a label of the pods: `app`, `app.kubernetes.io/name` or `app.kubernetes.io/component` must contain
`dcgm-exporter`. Give the pods such a label:

```yaml
podLabels: {{app: gpu-dcgm-exporter}}
```

Do not use `nvidia-dcgm-exporter` itself: GPU operator's Service selects it. The collector in OpenCost and in
Kubecost's FinOps agent connects to port 9400 without TLS or password, so keep both off. Kubecost 2's own Prometheus
finds the pods with the job `kubecost-dcgm-exporter`. An OpenCost that reads your Prometheus needs no label.

## Through DCGM

The image does not contain DCGM. Copy its Python bindings and `libdcgm.so` from the image of your host engine, because the
versions must be equal. For GPU operator's host engine:

```yaml
dcgm: {{enabled: true, hostEngine: "nvidia-dcgm.gpu-operator:5555", bindings: /dcgm/python3}}
gpuAccess: {{mode: none}}
initContainers:
  - name: dcgm
    image: registry.example/dcgm:4
    command: [sh, -c, "cp -R /usr/share/datacenter-gpu-manager-4/bindings/python3 /dcgm/ && cp $(find /usr/lib* -name 'libdcgm.so.?') /dcgm/python3/"]
    securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}
    volumeMounts: [{{name: dcgm, mountPath: /dcgm}}]
extraVolumes: [{{name: dcgm, emptyDir: {{}}}}]
extraVolumeMounts: [{{name: dcgm, mountPath: /dcgm, readOnly: true}}]
```

Without `dcgm.hostEngine`, the exporter runs DCGM itself. That needs a complete DCGM in the image: build one `FROM` this
image.

## Profiles

With `profile.enabled`, the container `sampler` samples the processes of a GPU when the GPU waits for its host, is a
straggler or stalls: [continuous profiling](../../docs/continuous-profiling.md). It is the only container that may read
other processes. It accepts requests only from the exporter's container, through a socket that no other container mounts,
and samples only processes that have a GPU's device file open, for at most 5 s.

The image needs py-spy: build it with `docker build --build-arg EXTRAS=kubernetes,profile`. If the nodes use AppArmor, the
profile of a container may forbid reading other processes: the log then says `not permitted`.

```yaml
profile: {{enabled: true, users: [mia]}}
web: {{config: {{basic_auth_users: {{mia: "$2y$10$…", prometheus: "$2y$10$…"}}}}}}
```

## Driver upgrades and GPU resets

Make the exporter on that node release the driver before the change, and resume afterwards. Also stop the device plugin,
DCGM and nvidia-persistenced: [release the driver](../../docs/hand-over.md).

```
kubectl exec -n gpu-monitoring POD -- gpu-exporter release --for 10m
kubectl exec -n gpu-monitoring POD -- gpu-exporter resume
```

## Rules

Every alert is a failure mode, and every threshold in the rules is a limit with a name. `prometheusRule.modes.<mode>` has
`enabled`, `severity`, `hold` (how long the condition must last; `0s`: not at all) and `keep` (how long the alert stays
after the condition has ended); the defaults are in [values.yaml](values.yaml). For example:

```yaml
prometheusRule:
  enabled: true
  limits: {{usdPerGpuHour: 3.2, heldMemory: 2000000000}}
  modes:
    GpuAllocatedIdle: {{severity: info, hold: 1h}}
    GpuPowerOscillation: {{enabled: false}}
```

`attribution.resourceNames` are GPUs in the rules, too. GPUs of a node with a taint that is not in
`prometheusRule.toleratedTaints` do not count as free: if you keep GPU nodes for some teams with a taint of your own, add
its key.

Rules on allocated, free and pending GPUs read kube-state-metrics, which is a part of kube-prometheus-stack. To distinguish
node pools, let it expose their label: `--metric-labels-allowlist=nodes=[cloud.google.com/gke-nodepool]`, or another one of
[docs/signals.md](../../docs/signals.md#allocation).

## Values

{values}
### Deprecated values

They still work, and the notes after `helm install` name those that you set.

{deprecated}
### prometheusRule.limits and prometheusRule.modes

[values.yaml](values.yaml) has every limit with its default, unit and meaning, and every mode with its defaults.
[docs/failure-modes.md](../../docs/failure-modes.md) says which limits a mode reads.
"""
