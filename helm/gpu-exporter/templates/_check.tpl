{{/* Checks that a schema cannot express. Each error names the value and the fix. */}}
{{- define "gpu-exporter.check" -}}
{{- include "gpu-exporter.checkImage" . }}
{{- include "gpu-exporter.checkWeb" . }}
{{- include "gpu-exporter.checkPrivileges" . }}
{{- include "gpu-exporter.checkFeatures" . }}
{{- include "gpu-exporter.checkPods" . }}
{{- include "gpu-exporter.checkSecurity" . }}
{{- include "gpu-exporter.checkResources" . }}
{{- include "gpu-exporter.checkVolumes" . }}
{{- include "gpu-exporter.checkScheduling" (list .Values "") }}
{{- include "gpu-exporter.checkScheduling" (list .Values.remediation "remediation.") }}
{{- include "gpu-exporter.checkPeers" . }}
{{- include "gpu-exporter.checkInterval" . }}
{{- include "gpu-exporter.checkMonitors" . }}
{{- if .Values.remediation.enabled }}
{{- include "gpu-exporter.checkRemediation" . }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.checkImage" -}}
{{- if not .Values.image.repository }}
{{- fail (printf "image.repository is empty: no image is published; run `make image IMAGE=registry.example/gpu-exporter:%s`, push it, and set image.repository=registry.example/gpu-exporter" (include "gpu-exporter.tag" .)) }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.checkWeb" -}}
{{- $web := .Values.web }}
{{- if and $web.config $web.existingSecret }}
{{- fail "web.config and web.existingSecret: choose one" }}
{{- end }}
{{- if and $web.existingSecret (not $web.scheme) }}
{{- fail "web.scheme is empty: set it to https if the web.yml in web.existingSecret has a tls_server_config, otherwise to http" }}
{{- end }}
{{- if and $web.scheme (not $web.existingSecret) }}
{{- fail "web.scheme is only for web.existingSecret: remove it; web.config and web.tlsSecret decide" }}
{{- end }}
{{- $config := fromYaml (include "gpu-exporter.webConfig" .) }}
{{- $tls := default (dict) (get $config "tls_server_config") }}
{{- range $key := ternary (list "cert" "key") (list) (not (empty $tls)) }}
{{- if not (or (get $tls $key) (get $tls (printf "%s_file" $key))) }}
{{- fail (printf "web.config.tls_server_config: %s_file is missing: set it, or set web.tlsSecret" $key) }}
{{- end }}
{{- end }}
{{- range $key := list "cert" "key" "client_ca" }}
{{- if and (get $tls $key) (get $tls (printf "%s_file" $key)) }}
{{- fail (printf "web.config.tls_server_config: %s and %s_file are both set: keep one" $key $key) }}
{{- end }}
{{- end }}
{{- $verifies := has (get $tls "client_auth_type") (list "VerifyClientCertIfGiven" "RequireAndVerifyClientCert") }}
{{- if and $verifies (not (or (get $tls "client_ca") (get $tls "client_ca_file"))) }}
{{- fail "web.config.tls_server_config: client_auth_type needs client_ca_file, such as /etc/gpu-exporter/tls/ca.crt of web.tlsSecret" }}
{{- end }}
{{- $users := default (dict) (get $config "basic_auth_users") }}
{{- range $user, $hash := $users }}
{{- if not (regexMatch "^\\$2[aby]\\$(0[4-9]|1[0-6])\\$[./A-Za-z0-9]{53}$" $hash) }}
{{- fail (printf "web.config.basic_auth_users: the password of %s is not a bcrypt hash of cost 4 to 16: make one with `htpasswd -nBC 10 %s`" $user $user) }}
{{- end }}
{{- if contains ":" $user }}
{{- fail (printf "web.config.basic_auth_users: the name %s has a colon: choose another one" $user) }}
{{- end }}
{{- end }}
{{- range $name := list "serviceMonitor" "podMonitor" }}
{{- $monitor := default (dict) (get $.Values $name) }}
{{- if and $users $monitor.enabled (not $monitor.basicAuth) }}
{{- fail (printf "%s.basicAuth is empty, but web.config.basic_auth_users demands a password: set it to a Secret of yours, such as {username: {name: SECRET, key: username}, password: {name: SECRET, key: password}}" $name) }}
{{- end }}
{{- end }}
{{- $secret := or $users .Values.handOver.enabled $web.existingSecret (eq (toString (get $tls "client_auth_type")) "RequireAndVerifyClientCert") }}
{{- if and $web.lifecycle (not $secret) }}
{{- fail "web.lifecycle lets everyone end the exporter: set web.config.basic_auth_users or handOver.enabled, too" }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.checkPrivileges" -}}
{{- $root := splitList " " (trim (include "gpu-exporter.root" .)) | first }}
{{- range $name := list "podSecurityContext" "securityContext" }}
{{- $context := default (dict) (get $.Values $name) }}
{{- if and $root (or (ne (int (get $context "runAsUser")) 0) (get $context "runAsNonRoot")) }}
{{- fail (printf "%s: %s needs uid 0: remove runAsUser and runAsNonRoot, or switch it off" $name $root) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.checkFeatures" -}}
{{- if and .Values.profile.users (not .Values.profile.enabled) }}
{{- fail "profile.users needs profile.enabled" }}
{{- end }}
{{- range $user := .Values.profile.users }}
{{- if not (or $.Values.web.existingSecret (hasKey (default (dict) $.Values.web.config.basic_auth_users) $user)) }}
{{- fail (printf "profile.users: %s is no user of web.config.basic_auth_users: add the user there" $user) }}
{{- end }}
{{- end }}
{{- range $name := list "hostEngine" "bindings" "profiling" }}
{{- if and (get $.Values.dcgm $name) (not $.Values.dcgm.enabled) }}
{{- fail (printf "dcgm.%s needs dcgm.enabled" $name) }}
{{- end }}
{{- end }}
{{- if and .Values.dcgm.profiling (or .Values.dcgm.hostEngine (not .Values.dcgm.enabled)) }}
{{- fail "dcgm.profiling is for DCGM in the container: set dcgm.enabled, and leave dcgm.hostEngine empty" }}
{{- end }}
{{- if and .Values.dcgm.enabled .Values.config.source }}
{{- fail "dcgm.enabled and config.source: choose one" }}
{{- end }}
{{- if and (eq .Values.gpuAccess.mode "runtimeClass") (not .Values.gpuAccess.runtimeClassName) }}
{{- fail "gpuAccess.mode runtimeClass needs gpuAccess.runtimeClassName" }}
{{- end }}
{{- range $name := list "pods" "podLabels" "dra" }}
{{- if and (get $.Values.attribution $name) (not $.Values.attribution.enabled) }}
{{- fail (printf "attribution.%s needs attribution.enabled=true: set it, which needs uid 0 and a hostPath, or remove attribution.%s" $name $name) }}
{{- end }}
{{- end }}
{{- range .Values.attribution.podLabels }}
{{- /* Python knows more patterns than Go, so only brackets are checked: escapes, comments and sets have none to pair. */}}
{{- $bare := regexReplaceAll "\\[\\^?\\]?[^\\]]*\\]|\\(\\?#[^)]*\\)" (regexReplaceAll "\\\\." . "x") "x" }}
{{- if or (contains "[" $bare) (ne (regexReplaceAll "[^(]" $bare "" | len) (regexReplaceAll "[^)]" $bare "" | len)) (regexMatch "^[*+?]" $bare) }}
{{- fail (printf "attribution.podLabels: %s is not a regular expression: correct it, for example app[.]kubernetes[.]io/name" (quote .)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.checkPods" -}}
{{- range $of := list "requests" "limits" }}
{{- range $name := keys (default (dict) (get (default (dict) $.Values.resources) $of)) }}
{{- if hasPrefix "nvidia.com/" $name }}
{{- fail (printf "resources.%s: %s would take GPUs from workloads: remove it; the exporter reads all GPUs through gpuAccess.mode" $of $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- $rolling := default (dict) (.Values.updateStrategy).rollingUpdate }}
{{- $unavailable := not (has (toString $rolling.maxUnavailable) (list "" "0" "0%" "<nil>")) }}
{{- $surge := not (has (toString $rolling.maxSurge) (list "" "0" "0%" "<nil>")) }}
{{- if eq (toString (.Values.updateStrategy).type) "RollingUpdate" }}
{{- if and $surge $unavailable }}
{{- fail (printf "updateStrategy.rollingUpdate: Kubernetes refuses maxSurge %v beside maxUnavailable %v: set one of them to 0" $rolling.maxSurge $rolling.maxUnavailable) }}
{{- end }}
{{- if and (hasKey $rolling "maxUnavailable") (not $unavailable) (not $surge) }}
{{- fail "updateStrategy.rollingUpdate: maxUnavailable is 0, so no pod could ever be replaced: set it to 1, or set maxSurge" }}
{{- end }}
{{- end }}
{{- if and $surge (or .Values.hostNetwork .Values.hostPort) }}
{{- fail "updateStrategy.rollingUpdate.maxSurge: with hostNetwork or hostPort, two pods of a node cannot listen on one port: use maxUnavailable" }}
{{- end }}
{{- if and .Values.hostNetwork .Values.hostPort (ne (int .Values.hostPort) (int .Values.port)) }}
{{- fail "hostPort: with hostNetwork, the port of the node is `port`: remove hostPort" }}
{{- end }}
{{- $host := trim (include "gpu-exporter.hostPID" .) | splitList " " | first }}
{{- if .Values.hostNetwork }}{{ $host = "hostNetwork" }}{{ end }}
{{- if and (eq (toString .Values.hostUsers) "false") $host }}
{{- fail (printf "hostUsers: Kubernetes refuses false beside namespaces of the node, which %s needs: remove hostUsers, or switch %s off" $host $host) }}
{{- end }}
{{- if and (gt (len .Values.service.ipFamilies) 1) (not (hasSuffix "DualStack" .Values.service.ipFamilyPolicy)) }}
{{- fail "service.ipFamilies: two families need service.ipFamilyPolicy PreferDualStack or RequireDualStack: set it" }}
{{- end }}
{{- if and .Values.service.nodePort (eq .Values.service.type "ClusterIP") }}
{{- fail "service.nodePort needs service.type NodePort or LoadBalancer: set it, or remove service.nodePort" }}
{{- end }}
{{- if and (include "gpu-exporter.api" .) (eq (toString .Values.serviceAccount.automountToken) "false") }}
{{- fail (printf "serviceAccount.automountToken: %s needs the token: remove automountToken, or switch it off" (trim (include "gpu-exporter.api" .) | splitList " " | first)) }}
{{- end }}
{{- range .Values.extraArgs }}
{{- if and (hasPrefix "--address=" .) (not (hasSuffix (printf ":%v" $.Values.port) .)) }}
{{- fail (printf "extraArgs: %s has another port than `port`, which probes and Services use: set port" .) }}
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if and .value .valueFrom }}
{{- fail (printf "extraEnv: %s has both value and valueFrom: keep one" .name) }}
{{- end }}
{{- end }}
{{- range .Values.extraEnvFrom }}
{{- if eq (not .configMapRef) (not .secretRef) }}
{{- fail "extraEnvFrom: an item needs one of configMapRef and secretRef: make one item of each" }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the API server refuses in the security contexts of the pod and of each container, after merging. */}}
{{- define "gpu-exporter.checkSecurity" -}}
{{- $pod := fromYaml (include "gpu-exporter.podSecurityContext" .) }}
{{- $own := fromYaml (include "gpu-exporter.securityContext" .) }}
{{- $contexts := list (list "podSecurityContext" $pod) (list "securityContext" $own) }}
{{- range $list := list "initContainers" "extraContainers" }}
{{- range get $.Values $list }}{{ $contexts = append $contexts (list (printf "%s: %s: securityContext" $list .name) (default (dict) .securityContext)) }}{{ end }}
{{- end }}
{{- range $contexts }}
{{- $path := index . 0 }}
{{- $context := index . 1 }}
{{- $added := default (list) ($context.capabilities).add }}
{{- if and $context.privileged (eq (toString (get $context "allowPrivilegeEscalation")) "false") }}
{{- fail (printf "%s: privileged is true, which Kubernetes refuses beside allowPrivilegeEscalation false: remove one of them" $path) }}
{{- end }}
{{- range $added }}
{{- if hasPrefix "CAP_" . }}
{{- fail (printf "%s.capabilities.add: %s: Kubernetes names it %s" $path . (trimPrefix "CAP_" .)) }}
{{- end }}
{{- end }}
{{- range $key := list "seccompProfile" "appArmorProfile" }}
{{- with get $context $key }}
{{- if ne (eq (toString .type) "Localhost") (not (empty .localhostProfile)) }}
{{- fail (printf "%s.%s: localhostProfile belongs to type Localhost, and to no other: correct type %s" $path $key (quote .type)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $effective := merge (dict) (pick $context "runAsUser" "runAsNonRoot") (pick $pod "runAsUser" "runAsNonRoot") }}
{{- range $key := list "runAsUser" "runAsNonRoot" }}{{ if hasKey $context $key }}{{ $_ := set $effective $key (get $context $key) }}{{ end }}{{ end }}
{{- if and $effective.runAsNonRoot (hasKey $effective "runAsUser") (eq (int $effective.runAsUser) 0) }}
{{- fail (printf "%s: runAsNonRoot is true, so kubelet refuses runAsUser 0: remove one of them" $path) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Requests above limits, of each container of the chart. */}}
{{- define "gpu-exporter.checkResources" -}}
{{- range $path, $resources := dict "resources" .Values.resources "profile.resources" .Values.profile.resources "remediation.resources" .Values.remediation.resources }}
{{- $limits := default (dict) ($resources).limits }}
{{- range $name, $request := default (dict) ($resources).requests }}
{{- $limit := get $limits $name }}
{{- if $limit }}
{{- $least := float64 (include "gpu-exporter.quantity" $request) }}
{{- $most := float64 (include "gpu-exporter.quantity" $limit) }}
{{- if or (gt $least $most) (and (hasPrefix "hugepages-" $name) (ne $least $most)) }}
{{- fail (printf "%s: the request of %s, %v, must %s the limit, %v: change %s.requests.%s or %s.limits.%s" $path $name $request (ternary "equal" "not exceed" (hasPrefix "hugepages-" $name)) $limit $path $name $path $name) }}
{{- end }}
{{- else if hasPrefix "hugepages-" $name }}
{{- fail (printf "%s.requests: %s needs a limit of the same amount: set %s.limits.%s" $path $name $path $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A quantity of Kubernetes as a number. */}}
{{- define "gpu-exporter.quantity" -}}
{{- $units := dict "m" 0.001 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "E" 1000000000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 }}
{{- $suffix := regexFind "(m|[kMGTPE]|[KMGTPE]i)$" (toString .) }}
{{- mulf (float64 (trimSuffix $suffix (toString .))) (default 1 (get $units $suffix)) }}
{{- end }}

{{/* Names and places that must be unique, or must exist. */}}
{{- define "gpu-exporter.checkVolumes" -}}
{{- $own := list "config" "run" "state" "pod-resources" "jobs" "sys" "job-socket" "nccl-inspector" "profiles" "sampler" "sampler-tmp" "kernel-log" "gpus" "driver" }}
{{- $volumes := $own }}
{{- range .Values.extraVolumes }}
{{- if has .name $volumes }}
{{- fail (printf "extraVolumes: there is another volume with the name %s%s: choose another name" .name (ternary " in the chart" "" (has .name $own))) }}
{{- end }}
{{- $volumes = append $volumes .name }}
{{- end }}
{{- $paths := list "/etc/gpu-exporter" "/run/gpu-exporter" "/var/lib/gpu-exporter" .Values.attribution.podResourcesPath }}
{{- range .Values.extraVolumeMounts }}
{{- if has .mountPath $paths }}
{{- fail (printf "extraVolumeMounts: something else is mounted at %s: choose another mountPath" .mountPath) }}
{{- end }}
{{- $paths = append $paths .mountPath }}
{{- end }}
{{- $mounts := list (list "extraVolumeMounts" .Values.extraVolumeMounts) }}
{{- $names := list "exporter" "sampler" }}
{{- range $list := list "initContainers" "extraContainers" }}
{{- range get $.Values $list }}
{{- if has .name $names }}
{{- fail (printf "%s: there is another container with the name %s: choose another name" $list .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- $mounts = append $mounts (list (printf "%s: %s: volumeMounts" $list .name) (default (list) .volumeMounts)) }}
{{- end }}
{{- end }}
{{- range $mounts }}
{{- $path := index . 0 }}
{{- range index . 1 }}
{{- if not (has .name $volumes) }}
{{- fail (printf "%s: there is no volume %s: add it to extraVolumes" $path .name) }}
{{- end }}
{{- if contains ":" .mountPath }}
{{- fail (printf "%s: %s: Kubernetes refuses a colon in a mountPath: choose another one" $path .mountPath) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $path := list "attribution.podResourcesPath" "slurm.jobMappingPath" "jobSocket.path" "ncclInspector.path" "xids.path" "kernelLog.path" "gpuAccess.hostPath" }}
{{- $folder := toString (index $.Values (splitList "." $path | first) (splitList "." $path | last)) }}
{{- if or (has ".." (splitList "/" $folder)) (contains ":" $folder) }}
{{- fail (printf "%s: %s: Kubernetes refuses `..` and colons in the paths of volumes: write the path without them" $path $folder) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Tolerations and affinity: (list values prefix) */}}
{{- define "gpu-exporter.checkScheduling" -}}
{{- $values := index . 0 }}
{{- $prefix := index . 1 }}
{{- range $values.tolerations }}
{{- if and (eq (toString .operator) "Exists") .value }}
{{- fail (printf "%stolerations: operator Exists takes no value: remove %s, or use operator Equal" $prefix (quote .value)) }}
{{- end }}
{{- if and (ne (toString .operator) "Exists") (not .key) }}
{{- fail (printf "%stolerations: one has no key: set the key of a taint, or operator Exists for all taints" $prefix) }}
{{- end }}
{{- if and (hasKey . "tolerationSeconds") (ne (toString .effect) "NoExecute") }}
{{- fail (printf "%stolerations: tolerationSeconds needs the effect NoExecute: set it, or remove tolerationSeconds" $prefix) }}
{{- end }}
{{- end }}
{{- $node := default (dict) ($values.affinity).nodeAffinity }}
{{- $terms := default (list) ($node.requiredDuringSchedulingIgnoredDuringExecution).nodeSelectorTerms }}
{{- range $node.preferredDuringSchedulingIgnoredDuringExecution }}
{{- $terms = append $terms (default (dict) .preference) }}
{{- end }}
{{- range $terms }}
{{- range .matchExpressions }}
{{- $count := len (default (list) .values) }}
{{- $expected := get (dict "In" "one value or more" "NotIn" "one value or more" "Exists" "no values" "DoesNotExist" "no values" "Gt" "one whole number" "Lt" "one whole number") (toString .operator) }}
{{- if not (and .key $expected) }}
{{- fail (printf "%saffinity.nodeAffinity: %s is not an expression: give it a key, and one of the operators In, NotIn, Exists, DoesNotExist, Gt, Lt" $prefix (toJson .)) }}
{{- end }}
{{- if or (and (hasPrefix "one value" $expected) (eq $count 0)) (and (eq $expected "no values") (gt $count 0)) (and (hasPrefix "one whole" $expected) (not (and (eq $count 1) (regexMatch "^-?[0-9]+$" (toString (first .values)))))) }}
{{- fail (printf "%saffinity.nodeAffinity: operator %s of key %s takes %s: correct its values" $prefix .operator .key $expected) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $kind := list "nodeAffinity" "podAffinity" "podAntiAffinity" }}
{{- $affinity := default (dict) (get (default (dict) $values.affinity) $kind) }}
{{- $pods := list }}
{{- if ne $kind "nodeAffinity" }}{{ $pods = default (list) $affinity.requiredDuringSchedulingIgnoredDuringExecution }}{{ end }}
{{- range $affinity.preferredDuringSchedulingIgnoredDuringExecution }}
{{- if or (lt (int .weight) 1) (gt (int .weight) 100) }}
{{- fail (printf "%saffinity.%s: a preference needs a weight from 1 to 100: set weight" $prefix $kind) }}
{{- end }}
{{- if ne $kind "nodeAffinity" }}{{ $pods = append $pods (default (dict) .podAffinityTerm) }}{{ end }}
{{- end }}
{{- range $pods }}
{{- if not .topologyKey }}
{{- fail (printf "%saffinity.%s: a term has no topologyKey: set it, such as to kubernetes.io/hostname" $prefix $kind) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Peers of network policies: each is an ipBlock, or selectors. */}}
{{- define "gpu-exporter.checkPeers" -}}
{{- $peers := list (list "networkPolicy.from" .Values.networkPolicy.from) (list "remediation.networkPolicy.from" .Values.remediation.networkPolicy.from) }}
{{- range .Values.networkPolicy.egress }}{{ $peers = append $peers (list "networkPolicy.egress" (default (list) .to)) }}{{ end }}
{{- range .Values.remediation.networkPolicy.egress }}{{ $peers = append $peers (list "remediation.networkPolicy.egress" (default (list) .to)) }}{{ end }}
{{- range $peers }}
{{- $path := index . 0 }}
{{- range index . 1 }}
{{- if and (hasKey . "ipBlock") (or (hasKey . "podSelector") (hasKey . "namespaceSelector")) }}
{{- fail (printf "%s: Kubernetes refuses selectors beside an ipBlock: make two items of them" $path) }}
{{- end }}
{{- if not . }}
{{- fail (printf "%s: a peer is empty: give it an ipBlock or a selector, such as namespaceSelector: {}" $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.checkInterval" -}}
{{- $interval := float64 (include "gpu-exporter.milliseconds" .Values.interval) }}
{{- if or (lt $interval 100.0) (gt $interval 3600000.0) }}
{{- fail (printf "interval: %s is out of range: use 100ms to 1h" .Values.interval) }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.checkMonitors" -}}
{{- if and .Values.serviceMonitor.enabled (.Values.podMonitor).enabled }}
{{- fail "serviceMonitor.enabled and podMonitor.enabled: choose one; with both, Prometheus scrapes every exporter twice" }}
{{- end }}
{{- range $name := list "serviceMonitor" "podMonitor" }}
{{- $monitor := default (dict) (get $.Values $name) }}
{{- if and $monitor.enabled (gt (float64 (include "gpu-exporter.milliseconds" $monitor.scrapeTimeout)) (float64 (include "gpu-exporter.milliseconds" $monitor.interval))) }}
{{- fail (printf "%s.scrapeTimeout: %s is longer than %s.interval %s, which Prometheus refuses: use at most %s" $name $monitor.scrapeTimeout $name $monitor.interval $monitor.interval) }}
{{- end }}
{{- $ways := keys (pick (dict "basicAuth" $monitor.basicAuth "authorization" $monitor.authorization "oauth2" $monitor.oauth2 "bearerTokenFile" (get $monitor "bearerTokenFile")) "basicAuth" "authorization" "oauth2" "bearerTokenFile") | sortAlpha }}
{{- $used := list }}
{{- range $ways }}{{ if get $monitor . }}{{ $used = append $used . }}{{ end }}{{ end }}
{{- if gt (len $used) 1 }}
{{- fail (printf "%s: %s: Prometheus Operator accepts one of them: remove the other" $name (join " and " $used)) }}
{{- end }}
{{- range $key := list "relabelings" "metricRelabelings" }}
{{- range get $monitor $key }}
{{- $action := lower (default "replace" .action) }}
{{- if and (has $action (list "replace" "hashmod" "lowercase" "uppercase" "keepequal" "dropequal")) (not .targetLabel) }}
{{- fail (printf "%s.%s: action %s needs targetLabel: set it" $name $key $action) }}
{{- end }}
{{- if and (eq $action "hashmod") (not .modulus) }}
{{- fail (printf "%s.%s: action hashmod needs modulus: set it" $name $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- with $monitor.jobLabel }}
{{- $labels := fromYaml (include "gpu-exporter.labels" $) }}
{{- if eq $name "podMonitor" }}{{ $labels = merge $labels $.Values.podLabels }}{{ end }}
{{- $job := toString (default "" (get $labels .)) }}
{{- if not (regexMatch "^(gpu|.*(gpu.?exporter|dcgm).*)$" $job) }}
{{- fail (printf "%s.jobLabel: the label %s has the value %s, which the rules do not recognise as a GPU exporter: use a label whose value is gpu or contains gpu-exporter or dcgm, such as app.kubernetes.io/part-of" $name . (quote $job)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpu-exporter.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 "w" 604800000 "y" 31536000000 }}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+[a-z]+" . -1 }}
{{- $sum = addf $sum (mulf (float64 (regexFind "[0-9.]+" .)) (get $units (regexFind "[a-z]+" .))) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* What would leave every node unknown to the controller. */}}
{{- define "gpu-exporter.checkRemediation" -}}
{{- $config := fromYaml (include "gpu-exporter.remediationConfig" .) }}
{{- $exporters := $config.exporters }}
{{- $secret := "/etc/gpu-exporter-secret/" }}
{{- if not $config.pools }}
{{- fail "remediation.pools is empty, so no node belongs to the controller: name a pool, such as [{name: all, mode: observe}]" }}
{{- end }}
{{- $names := list }}
{{- range $config.pools }}
{{- if has .name $names }}
{{- fail (printf "remediation.pools: two pools have the name %s: rename one" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- if and .active_check (ne $.Values.xids.keep "node") }}
{{- fail (printf "remediation.pools: active_check of pool %s needs xids.keep=node: otherwise the exporter does not see the results of active checks, and no node returns to service" .name) }}
{{- end }}
{{- end }}
{{- if has (toString .Values.config.source) (list "simulated" "replay") }}
{{- fail (printf "config.source: %s shows no GPUs of the node, so the remediation controller would know nothing about it: remove config.source, or set remediation.enabled=false" .Values.config.source) }}
{{- end }}
{{- $web := fromYaml (include "gpu-exporter.webConfig" .) }}
{{- $users := default (dict) (get $web "basic_auth_users") }}
{{- $clients := toString (get (default (dict) (get $web "tls_server_config")) "client_auth_type") }}
{{- if has $clients (list "RequireAnyClientCert" "RequireAndVerifyClientCert") }}
{{- fail (printf "web.config.tls_server_config.client_auth_type: the remediation controller has no client certificate, which %s demands: use VerifyClientCertIfGiven with a password, or set remediation.enabled=false" $clients) }}
{{- end }}
{{- if and (eq $exporters.scheme "https") (not $exporters.server_name) }}
{{- fail "remediation.config.exporters.server_name is empty, but the exporters serve TLS: set it to a name in their certificate, because the controller asks them at the addresses of their pods, and ca_file to its authority, such as /etc/gpu-exporter-secret/ca.crt of remediation.secret" }}
{{- end }}
{{- if and $users (not (and $exporters.user $exporters.password_file)) }}
{{- fail "remediation.config.exporters: web.config.basic_auth_users demands a password, which the controller does not have: set user and password_file, such as /etc/gpu-exporter-secret/password of remediation.secret" }}
{{- end }}
{{- if and $users (not (hasKey $users $exporters.user)) }}
{{- fail (printf "remediation.config.exporters.user: %s is no user of web.config.basic_auth_users: add the user there" $exporters.user) }}
{{- end }}
{{- $files := dict "exporters.ca_file" $exporters.ca_file "exporters.password_file" $exporters.password_file "webhook_token_file" $config.webhook_token_file "notify.token_file" ($config.notify).token_file }}
{{- range $key, $file := $files }}
{{- if and (hasPrefix $secret (toString $file)) (not $.Values.remediation.secret) }}
{{- fail (printf "remediation.config.%s: %s does not exist without remediation.secret: set it to the Secret that has this file" $key $file) }}
{{- end }}
{{- end }}
{{- end }}
