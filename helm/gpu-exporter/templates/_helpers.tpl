{{/* Restores values that an empty key such as `web:` removes, or that the values of an older release lack. */}}
{{- define "gpu-exporter.complete" -}}
{{- include "gpu-exporter.fill" (list .Values (fromYaml (.Files.Get "files/defaults.yaml"))) }}
{{- end }}

{{- define "gpu-exporter.fill" -}}
{{- $values := index . 0 }}
{{- range $key, $default := index . 1 }}
{{- if kindIs "invalid" (index $values $key) }}
{{- $_ := set $values $key $default }}
{{- else if kindIs "map" $default }}
{{- include "gpu-exporter.fill" (list (get $values $key) $default) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Names are cut to the length of a label. A release name may contain dots, a service name may not. */}}
{{- define "gpu-exporter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "gpu-exporter.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "gpu-exporter.serviceAccount" -}}
{{- default (ternary (include "gpu-exporter.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{/* Labels that only the exporter's pods have: the pod of `helm test` is another component. */}}
{{- define "gpu-exporter.selector" -}}
app.kubernetes.io/name: {{ include "gpu-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: exporter
{{- end }}

{{- define "gpu-exporter.labels" -}}
{{- $own := fromYaml (include "gpu-exporter.selector" .) }}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service }}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion }}
{{- $_ := set $own "app.kubernetes.io/part-of" "gpu-exporter" }}
{{- if .Values.releaseLabel }}{{ $_ := set $own "release" .Release.Name }}{{ end }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_")) }}
{{- toYaml (merge $own .Values.commonLabels) }}
{{- end }}

{{/* metadata of an object: (list root name namespace more-labels more-annotations) */}}
{{- define "gpu-exporter.metadata" -}}
{{- $root := index . 0 }}
{{- $labels := merge (dict) (fromYaml (include "gpu-exporter.labels" $root)) (index . 3) }}
{{- $annotations := merge (dict) (index . 4) $root.Values.commonAnnotations -}}
name: {{ index . 1 }}
namespace: {{ default (include "gpu-exporter.namespace" $root) (index . 2) }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The image without its tag. */}}
{{- define "gpu-exporter.repository" -}}
{{- $global := default (dict) .Values.global }}
{{- with default .Values.image.registry $global.imageRegistry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- end }}

{{- define "gpu-exporter.tag" -}}
{{- default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "gpu-exporter.image" -}}
{{- include "gpu-exporter.repository" . }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}
{{- else }}:{{ include "gpu-exporter.tag" . }}{{ end }}
{{- end }}

{{- define "gpu-exporter.pullSecrets" -}}
{{- $global := default (dict) .Values.global }}
{{- with concat .Values.imagePullSecrets (default (list) $global.imagePullSecrets) }}
imagePullSecrets:
  {{- range . }}
  - name: {{ ternary . (get (ternary (dict) . (kindIs "string" .)) "name") (kindIs "string" .) }}
  {{- end }}
{{- end }}
{{- end }}

{{/* A number without an exponent: Helm parses every number as a float. */}}
{{- define "gpu-exporter.number" -}}
{{- if kindIs "float64" . }}{{ printf "%.15g" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Features that need uid 0; empty if 65534 will do. */}}
{{- define "gpu-exporter.root" -}}
{{- if .Values.attribution.enabled }}attribution.enabled {{ end }}
{{- if eq .Values.kernelLog.mode "kmsg" }}kernelLog.mode {{ end }}
{{- if eq .Values.xids.keep "node" }}xids.keep {{ end }}
{{- if .Values.jobSocket.enabled }}jobSocket.enabled {{ end }}
{{- if .Values.dcgm.profiling }}dcgm.profiling {{ end }}
{{- end }}

{{/* Features that need the PIDs of the host. */}}
{{- define "gpu-exporter.hostPID" -}}
{{- if .Values.processes.enabled }}processes.enabled {{ end }}
{{- if .Values.hostEvidence.enabled }}hostEvidence.enabled {{ end }}
{{- if .Values.jobSocket.enabled }}jobSocket.enabled {{ end }}
{{- if .Values.profile.enabled }}profile.enabled {{ end }}
{{- end }}

{{/* The container that samples stacks: the only one that may read other processes. It listens on no port. */}}
{{- define "gpu-exporter.sampler" -}}
name: sampler
image: {{ include "gpu-exporter.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- $pod := fromYaml (include "gpu-exporter.podSecurityContext" .) }}
{{- $container := fromYaml (include "gpu-exporter.securityContext" .) }}
{{- $uid := ternary $container.runAsUser $pod.runAsUser (hasKey $container "runAsUser") }}
args: [sampler, --socket, /run/gpu-exporter-sampler/sampler.sock, --client-uid, "{{ int64 $uid }}"]
env:
  # Overrides the image, which has all: it needs no GPU.
  - name: NVIDIA_VISIBLE_DEVICES
    value: void
{{- with .Values.profile.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "gpu-exporter.samplerSecurityContext" . | nindent 2 }}
volumeMounts:
  - name: sampler
    mountPath: /run/gpu-exporter-sampler
  # Where py-spy writes what it has sampled.
  - name: sampler-tmp
    mountPath: /tmp
{{- end }}

{{- define "gpu-exporter.samplerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  add: [SYS_PTRACE]
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: false
runAsUser: 0
{{- end }}

{{/* Whether a feature mounts a part of the node. */}}
{{- define "gpu-exporter.hostPath" -}}
{{- if or .Values.attribution.enabled .Values.hostEvidence.enabled .Values.jobSocket.enabled .Values.slurm.jobMappingPath .Values.ncclInspector.path (ne .Values.kernelLog.mode "none") (eq .Values.xids.keep "node") (has .Values.gpuAccess.mode (list "volumeMounts" "hostPath")) }}hostPath{{ end }}
{{- end }}

{{/* A name for objects that belong to no namespace. */}}
{{- define "gpu-exporter.clusterName" -}}
{{- printf "%s-%s" (include "gpu-exporter.namespace" .) (include "gpu-exporter.fullname" .) }}
{{- end }}

{{/* Features that Pod Security "restricted" does not allow; empty if the pods meet it. */}}
{{- define "gpu-exporter.beyondRestricted" -}}
{{- include "gpu-exporter.root" . }}
{{- if .Values.slurm.jobMappingPath }}slurm.jobMappingPath {{ end }}
{{- if .Values.ncclInspector.path }}ncclInspector.path {{ end }}
{{- if .Values.processes.enabled }}processes.enabled {{ end }}
{{- if .Values.hostEvidence.enabled }}hostEvidence.enabled {{ end }}
{{- if .Values.profile.enabled }}profile.enabled {{ end }}
{{- if eq .Values.kernelLog.mode "file" }}kernelLog.mode {{ end }}
{{- if has .Values.gpuAccess.mode (list "volumeMounts" "hostPath") }}gpuAccess.mode {{ end }}
{{- if .Values.hostNetwork }}hostNetwork {{ end }}
{{- if .Values.hostPort }}hostPort {{ end }}
{{- end }}

{{/* Features that read from the API server. */}}
{{- define "gpu-exporter.api" -}}
{{- if and .Values.attribution.enabled .Values.attribution.pods }}attribution.pods {{ end }}
{{- if and .Values.attribution.enabled .Values.attribution.podLabels }}attribution.podLabels {{ end }}
{{- if and .Values.attribution.enabled .Values.attribution.dra }}attribution.dra {{ end }}
{{- end }}

{{- define "gpu-exporter.podSecurityContext" -}}
{{- $root := trim (include "gpu-exporter.root" .) }}
{{- $own := dict "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if $root }}
{{- $_ := set $own "runAsUser" 0 }}
{{- $_ := set $own "runAsGroup" 0 }}
{{- $_ := set $own "runAsNonRoot" false }}
{{- else }}
{{- $_ := set $own "runAsUser" 65534 }}
{{- $_ := set $own "runAsGroup" 65534 }}
{{- $_ := set $own "runAsNonRoot" true }}
{{- end }}
{{- if eq .Values.kernelLog.mode "file" }}
{{- $_ := set $own "supplementalGroups" (list (int .Values.kernelLog.group)) }}
{{- end }}
{{- include "gpu-exporter.override" (list $own .Values.podSecurityContext) }}
{{- toYaml $own }}
{{- end }}

{{- define "gpu-exporter.securityContext" -}}
{{- $own := dict "readOnlyRootFilesystem" true }}
{{- if or (eq .Values.kernelLog.mode "kmsg") (eq .Values.gpuAccess.mode "hostPath") }}
{{- $_ := set $own "privileged" true }}
{{- else if not .Values.securityContext.privileged }}
{{- $_ := set $own "allowPrivilegeEscalation" false }}
{{- $_ := set $own "capabilities" (dict "drop" (list "ALL")) }}
{{- if .Values.dcgm.profiling }}
{{- $_ := set $own.capabilities "add" (list "SYS_ADMIN") }}
{{- end }}
{{- end }}
{{- include "gpu-exporter.override" (list $own .Values.securityContext) }}
{{- toYaml $own }}
{{- end }}

{{/* Overrides a security context by the user's; kubelet refuses uid 0 with runAsNonRoot: (list context user's) */}}
{{- define "gpu-exporter.override" -}}
{{- $context := index . 0 }}
{{- range $key, $value := index . 1 }}{{ $_ := set $context $key $value }}{{ end }}
{{- if and (hasKey (index . 1) "runAsUser") (eq (int $context.runAsUser) 0) (not (hasKey (index . 1) "runAsNonRoot")) }}
{{- $_ := set $context "runAsNonRoot" false }}
{{- end }}
{{- end }}

{{/* The web configuration: the user's, with the certificate of web.tlsSecret unless it names another one. */}}
{{- define "gpu-exporter.webConfig" -}}
{{- $config := deepCopy .Values.web.config }}
{{- if and .Values.web.tlsSecret (not .Values.web.existingSecret) }}
{{- $tls := default (dict) (get $config "tls_server_config") }}
{{- range $key, $file := dict "cert" "tls.crt" "key" "tls.key" }}
{{- if not (or (get $tls $key) (get $tls (printf "%s_file" $key))) }}
{{- $_ := set $tls (printf "%s_file" $key) (printf "/etc/gpu-exporter/tls/%s" $file) }}
{{- end }}
{{- end }}
{{- $_ := set $config "tls_server_config" $tls }}
{{- end }}
{{- with $config }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Whether there is a web configuration. */}}
{{- define "gpu-exporter.web" -}}
{{- if or (include "gpu-exporter.webConfig" .) .Values.web.existingSecret }}web{{ end }}
{{- end }}

{{- define "gpu-exporter.scheme" -}}
{{- $config := fromYaml (include "gpu-exporter.webConfig" .) }}
{{- if .Values.web.existingSecret }}{{ .Values.web.scheme }}
{{- else if get $config "tls_server_config" }}https
{{- else }}http{{ end }}
{{- end }}

{{/* A probe cannot send a password or a certificate. Where one is needed, it only checks that the port is open. */}}
{{- define "gpu-exporter.probe" -}}
{{- $tls := default (dict) (get .Values.web.config "tls_server_config") }}
{{- if or .Values.web.existingSecret .Values.web.config.basic_auth_users $tls.client_auth_type -}}
tcpSocket:
  port: metrics
{{- else -}}
httpGet:
  path: /healthz
  port: metrics
  scheme: {{ include "gpu-exporter.scheme" . | upper }}
{{- end }}
{{- end }}

{{/* The exporter's settings: those of the chart's features, overridden by the user's. */}}
{{- define "gpu-exporter.config" -}}
{{- $found := dict "address" (printf ":%d" (int .Values.port)) "metrics" .Values.metrics "interval" .Values.interval "log_level" .Values.logLevel }}
{{- if .Values.attribution.enabled }}
{{- $_ := set $found "kubernetes" "true" }}
{{- $_ := set $found "pod_resources_socket" (printf "%s/kubelet.sock" .Values.attribution.podResourcesPath) }}
{{- with .Values.attribution.resourceNames }}{{ $_ := set $found "nvidia_resource_names" (join "," .) }}{{ end }}
{{- if .Values.attribution.pods }}{{ $_ := set $found "kubernetes_pods" "true" }}{{ end }}
{{- with .Values.attribution.podLabels }}{{ $_ := set $found "kubernetes_pod_labels" (join "," .) }}{{ end }}
{{- if .Values.attribution.dra }}{{ $_ := set $found "kubernetes_dra" "true" }}{{ end }}
{{- end }}
{{- if .Values.slurm.jobMappingPath }}{{ $_ := set $found "hpc_job_mapping_dir" "/host/jobs" }}{{ end }}
{{- if .Values.processes.enabled }}{{ $_ := set $found "processes" "true" }}{{ end }}
{{- if .Values.hostEvidence.enabled }}{{ $_ := set $found "host_evidence" "true" }}{{ $_ := set $found "sysfs" "/host/sys" }}{{ end }}
{{- if .Values.jobSocket.enabled }}{{ $_ := set $found "job_socket" "/host/job-socket/jobs.sock" }}{{ end }}
{{- if .Values.ncclInspector.path }}{{ $_ := set $found "nccl_inspector_dir" "/host/nccl-inspector" }}{{ end }}
{{- if .Values.profile.enabled }}
{{- $_ := set $found "profile" (join "," .Values.profile.reasons) }}
{{- $_ := set $found "profile_dir" "/var/lib/gpu-exporter-profiles/profiles" }}
{{- $_ := set $found "profile_socket" "/run/gpu-exporter-sampler/sampler.sock" }}
{{- with .Values.profile.users }}{{ $_ := set $found "profile_users" (join "," .) }}{{ end }}
{{- end }}
{{- if eq .Values.kernelLog.mode "kmsg" }}{{ $_ := set $found "kernel_log" "/dev/kmsg" }}
{{- else if eq .Values.kernelLog.mode "file" }}{{ $_ := set $found "kernel_log" (printf "/host/log/%s" (base .Values.kernelLog.path)) }}
{{- else }}{{ $_ := set $found "kernel_log" "none" }}{{ end }}
{{- if ne .Values.xids.keep "none" }}{{ $_ := set $found "state_dir" "/var/lib/gpu-exporter" }}{{ end }}
{{- if .Values.xids.overrides }}{{ $_ := set $found "xid_overrides" "/etc/gpu-exporter/xids.yaml" }}{{ end }}
{{- if .Values.collectors }}{{ $_ := set $found "collectors" "/etc/gpu-exporter/collectors.csv" }}{{ end }}
{{- if .Values.dcgm.enabled }}
{{- $_ := set $found "source" "dcgm" }}
{{- with .Values.dcgm.hostEngine }}{{ $_ := set $found "dcgm_hostengine" . }}{{ end }}
{{- with .Values.dcgm.bindings }}{{ $_ := set $found "dcgm_bindings" . }}{{ end }}
{{- end }}
{{- if include "gpu-exporter.web" . }}{{ $_ := set $found "web_config_file" "/etc/gpu-exporter/web/web.yml" }}{{ end }}
{{- if .Values.web.lifecycle }}{{ $_ := set $found "web_enable_lifecycle" "true" }}{{ end }}
{{- with .Values.web.trustedProxies }}{{ $_ := set $found "web_trusted_proxies" (join "," .) }}{{ end }}
{{- range $key, $value := .Values.config }}{{ $_ := set $found $key (include "gpu-exporter.number" $value) }}{{ end }}
{{- toYaml $found }}
{{- end }}

{{- define "gpu-exporter.configData" -}}
config.yaml: |
  {{- include "gpu-exporter.config" . | nindent 2 }}
{{- with .Values.xids.overrides }}
xids.yaml: |
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.collectors }}
{{ dict "collectors.csv" . | toYaml }}
{{- end }}
{{- end }}

{{/* Node labels, one of which a node must have. */}}
{{- define "gpu-exporter.affinity" -}}
{{- $terms := list }}
{{- range get (fromYaml (include "gpu-exporter.gpuLabels" .)) .Values.nodes }}
{{- $terms = append $terms (dict "matchExpressions" (list .)) }}
{{- end }}
{{- $affinity := deepCopy .Values.affinity }}
{{- if $terms }}
{{- $required := dict "nodeSelectorTerms" $terms }}
{{- $affinity = merge $affinity (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $required)) }}
{{- end }}
{{- with $affinity }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Labels of nodes with GPUs as expressions, by the value `nodes`. */}}
{{- define "gpu-exporter.gpuLabels" -}}
{{- $nfd := list }}
{{- range list "pci-10de" "pci-0302_10de" "pci-0300_10de" }}
{{- $nfd = append $nfd (dict "key" (printf "feature.node.kubernetes.io/%s.present" .) "operator" "In" "values" (list "true")) }}
{{- end }}
{{- $operator := list (dict "key" "nvidia.com/gpu.present" "operator" "In" "values" (list "true")) }}
{{- $clouds := list (dict "key" "cloud.google.com/gke-accelerator" "operator" "Exists") }}
{{- range list "kubernetes.azure.com/accelerator" "karpenter.k8s.aws/instance-gpu-manufacturer" }}
{{- $clouds = append $clouds (dict "key" . "operator" "In" "values" (list "nvidia")) }}
{{- end }}
{{- dict "nfd" $nfd "gpuOperator" $operator "auto" (concat $nfd $operator $clouds) "any" (list) | toYaml }}
{{- end }}

{{/* The controller's affinity: it prefers nodes without GPUs, because those with GPUs may be drained. */}}
{{- define "gpu-exporter.remediationAffinity" -}}
{{- $without := list }}
{{- range (fromYaml (include "gpu-exporter.gpuLabels" .)).auto }}
{{- $not := ternary (dict "operator" "DoesNotExist") (dict "operator" "NotIn" "values" .values) (eq .operator "Exists") }}
{{- $without = append $without (merge $not (dict "key" .key)) }}
{{- end }}
{{- $preferred := list (dict "weight" 100 "preference" (dict "matchExpressions" $without)) }}
{{- $own := dict "nodeAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred) }}
{{- toYaml (merge (deepCopy .Values.remediation.affinity) $own) }}
{{- end }}

{{/* The controller's settings: those of the chart, overridden by the user's. */}}
{{- define "gpu-exporter.remediationConfig" -}}
{{- $namespace := include "gpu-exporter.namespace" . }}
{{- $terms := list }}
{{- range $key, $value := fromYaml (include "gpu-exporter.selector" .) }}
{{- $terms = append $terms (printf "%s=%s" $key $value) }}
{{- end }}
{{- $exporters := dict "namespace" $namespace "selector" (join "," $terms) "port" (int .Values.port) "scheme" (include "gpu-exporter.scheme" .) }}
{{- $own := dict "namespace" $namespace "lease" (include "gpu-exporter.remediationName" .) "address" ":9401" "pools" .Values.remediation.pools "exporters" $exporters "events" .Values.remediation.events }}
{{- with .Values.attribution.resourceNames }}{{ $_ := set $own "gpu_resources" . }}{{ end }}
{{- with .Values.web.trustedProxies }}{{ $_ := set $own "web_trusted_proxies" . }}{{ end }}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.remediation.config)) }}
{{- end }}

{{- define "gpu-exporter.remediationName" -}}
{{- printf "%s-remediation" (include "gpu-exporter.fullname" .) }}
{{- end }}

{{/* A rule of egress to these ports: (list ports protocols) */}}
{{- define "gpu-exporter.egress" -}}
{{- $ports := list }}
{{- range $protocol := index . 1 }}
{{- range $port := index $ 0 }}{{ $ports = append $ports (dict "port" (int $port) "protocol" $protocol) }}{{ end }}
{{- end }}
{{- dict "ports" $ports | toYaml }}
{{- end }}

{{/* The API server, behind whatever address. */}}
{{- define "gpu-exporter.egressApi" -}}
{{- include "gpu-exporter.egress" (list (default (list 443 6443) .Values.networkPolicy.apiServerPorts) (list "TCP")) }}
{{- end }}

{{- define "gpu-exporter.egressDns" -}}
{{- include "gpu-exporter.egress" (list (default (list 53) .Values.networkPolicy.dnsPorts) (list "UDP" "TCP")) }}
{{- end }}
