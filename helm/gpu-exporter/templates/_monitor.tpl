{{/* A ServiceMonitor or a PodMonitor: (list root kind) */}}
{{- define "gpu-exporter.monitor" -}}
{{- $root := index . 0 }}
{{- $kind := index . 1 }}
{{- $monitor := $root.Values.serviceMonitor }}
{{- if eq $kind "PodMonitor" }}{{ $monitor = $root.Values.podMonitor }}{{ end }}
{{- $labels := merge (dict) (default (dict) $monitor.additionalLabels) (default (dict) (get $monitor "labels")) }}
apiVersion: monitoring.coreos.com/v1
kind: {{ $kind }}
metadata:
  {{- include "gpu-exporter.metadata" (list $root (include "gpu-exporter.fullname" $root) $monitor.namespace $labels $monitor.annotations) | nindent 2 }}
spec:
  namespaceSelector:
    matchNames: [{{ include "gpu-exporter.namespace" $root }}]
  selector:
    matchLabels:
      {{- include "gpu-exporter.selector" $root | nindent 6 }}
  {{- range $key := list "jobLabel" "targetLabels" "podTargetLabels" "attachMetadata" }}
  {{- with get $monitor $key }}
  {{ $key }}: {{ toJson . }}
  {{- end }}
  {{- end }}
  {{- range $key := list "sampleLimit" "targetLimit" "labelLimit" "labelNameLengthLimit" "labelValueLengthLimit" }}
  {{- with get $monitor $key }}
  {{ $key }}: {{ int . }}
  {{- end }}
  {{- end }}
  {{ ternary "podMetricsEndpoints" "endpoints" (eq $kind "PodMonitor") }}:
    - port: metrics
      path: /metrics
      {{- include "gpu-exporter.endpoint" (list $root $monitor) | nindent 6 }}
{{- end }}

{{/* How Prometheus scrapes the port: (list root monitor) */}}
{{- define "gpu-exporter.endpoint" -}}
{{- $root := index . 0 }}
{{- $monitor := index . 1 -}}
scheme: {{ ternary "https" (include "gpu-exporter.scheme" $root) (not (empty $monitor.tlsConfig)) }}
interval: {{ $monitor.interval }}
scrapeTimeout: {{ $monitor.scrapeTimeout }}
honorLabels: {{ $monitor.honorLabels }}
{{- with $monitor.proxyUrl }}
proxyUrl: {{ . }}
{{- end }}
{{- with get $monitor "bearerTokenFile" }}
bearerTokenFile: {{ . }}
{{- end }}
{{- range $key := list "tlsConfig" "basicAuth" "authorization" "oauth2" }}
{{- with get $monitor $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
# Each has its action: Argo CD would report the default, which the API server adds, as a difference.
relabelings:
  {{- if not $monitor.jobLabel }}
  - action: replace
    targetLabel: job
    replacement: {{ $monitor.job }}
  {{- end }}
  - action: replace
    sourceLabels: [__meta_kubernetes_pod_node_name]
    regex: (.+)
    targetLabel: node
  {{- if eq $monitor.instance "node" }}
  - action: replace
    sourceLabels: [__meta_kubernetes_pod_node_name]
    regex: (.+)
    targetLabel: instance
    replacement: $1:{{ int $root.Values.port }}
  {{- end }}
  {{- if $monitor.dropTargetLabels }}
  # These are the exporter's own, and would look like those of the GPU's user.
  - action: labeldrop
    regex: pod|namespace|container|service|endpoint
  {{- end }}
  {{- with $monitor.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $copied := and $monitor.honorLabels $monitor.dropTargetLabels $monitor.exportedLabels }}
{{- if or $copied $monitor.metricRelabelings }}
metricRelabelings:
  {{- if $copied }}
  # NVIDIA's chart does not honour labels, so public dashboards read these names.
  {{- range list "namespace" "pod" "container" }}
  - action: replace
    sourceLabels: [{{ . }}]
    regex: (.+)
    targetLabel: exported_{{ . }}
  {{- end }}
  {{- end }}
  {{- with $monitor.metricRelabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
