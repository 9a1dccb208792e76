"""The words of the chart's README; the tables are made from the values."""

README = """# gpu-exporter

A DaemonSet that exposes what NVIDIA GPUs do, with the rules, alerts and dashboards that say why they are slow, broken or
wasted. Kubernetes {kubernetes}. It needs a driver on the nodes, and one of the ways in which a container gets the GPUs
(`gpuAccess.mode`); not GPU operator, not DCGM.

```
kubectl create namespace gpu-monitoring
kubectl label namespace gpu-monitoring pod-security.kubernetes.io/enforce=privileged   # for pod names, see below
helm install gpu-exporter helm/gpu-exporter --namespace gpu-monitoring \\
  --set serviceMonitor.enabled=true --set prometheusRule.enabled=true --set dashboards.enabled=true \\
  --set serviceMonitor.labels.release=kube-prometheus-stack --set prometheusRule.labels.release=kube-prometheus-stack
helm test gpu-exporter --namespace gpu-monitoring
```

The labels are those by which your Prometheus selects what it scrapes; kube-prometheus-stack asks for `release` with the
name of its own release.

## What each feature costs

The container has no capability, a read-only root file system, the runtime's seccomp profile and no way to more. What a
feature needs beyond that it has only while the feature is on:

| feature | needs |
| --- | --- |
| nothing of the below, `attribution.enabled: false` | uid 65534, no hostPath: Pod Security *restricted* |
| `attribution.enabled` (the default) | uid 0 without capabilities, read-only hostPath of kubelet's socket: the namespace must be `enforce: privileged` |
| `attribution.pods`, `attribution.podLabels` | list and watch pods, a token |
| `attribution.dra` | list and watch resource slices, a token |
| `slurm.jobMappingPath` | read-only hostPath |
| `processes.enabled` | hostPID |
| `kernelLog.mode: file` | read-only hostPath, the group of the file |
| `kernelLog.mode: kmsg` | `privileged`: no other container may open /dev/kmsg |
| `xids.keep: node` | hostPath that it writes to, uid 0 |
| `gpuAccess.mode: volumeMounts` | hostPath of /dev/null |
| `dcgm.profiling` | SYS_ADMIN, uid 0; not with a remote host engine |
| `hostNetwork` | the node's network |

## Labels that do not collide

The ServiceMonitor leaves out the exporter's own pod, namespace and container: on a free GPU they would pass for those of
its user. `node` is the node, `instance` the node and port, and no label becomes `exported_…`. A Prometheus with
`enforcedNamespaceLabel` overwrites `namespace` all the same; then the rules read `exported_namespace`.

For a Prometheus without the operator:

```yaml
scrape_configs:
  - job_name: gpu-exporter
    honor_labels: true
    kubernetes_sd_configs: [{{role: pod}}]
    relabel_configs:
      - {{source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_name], regex: gpu-exporter, action: keep}}
      - {{source_labels: [__meta_kubernetes_pod_container_port_name], regex: metrics, action: keep}}
      - {{source_labels: [__meta_kubernetes_pod_node_name], target_label: node}}
      - {{source_labels: [__meta_kubernetes_pod_node_name], regex: (.+), target_label: instance, replacement: "$1:9400"}}
```

## Beside dcgm-exporter and GPU operator

Names, selectors and addresses differ, so both may run on a node; each GPU counts once in the rules. GPU operator's own
is switched off with `dcgmExporter.enabled=false`. Nodes are found by the labels of either NFD or GPU operator (`nodes`).

## Through DCGM

The image has no DCGM, so its Python bindings and `libdcgm.so` come from an image that has: that of your host engine, for
both must be of one version. For GPU operator's host engine:

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

Without `dcgm.hostEngine` DCGM runs within the exporter, which needs all of it: build an image on this one.

## A driver upgrade, a GPU reset

```
kubectl exec -n gpu-monitoring ds/gpu-exporter -- gpu-exporter release --for 10m   # or the pod of one node; then: resume
```

## Rules

Every alert is a failure mode; every number in the rules has a name. `prometheusRule.modes.<mode>` has `enabled`,
`severity`, `hold` (how long it must last; `0s` is at once) and `keep` (how long it stays after). For example:

```yaml
prometheusRule:
  enabled: true
  limits: {{usdPerGpuHour: 3.2, heldMemory: 2000000000}}
  modes:
    GpuAllocatedIdle: {{severity: info, hold: 1h}}
    GpuPowerOscillation: {{enabled: false}}
```

What is allocated, free and pending is read from kube-state-metrics (kube-prometheus-stack has it). To distinguish node pools, have it expose their label:
`--metric-labels-allowlist=nodes=[cloud.google.com/gke-nodepool]`, or another of
[docs/signals.md](../../docs/signals.md#allocation).

## Values

{values}
### prometheusRule.limits

{limits}
### prometheusRule.modes

{modes}"""
