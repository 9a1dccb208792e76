"""Values that the chart has to reject, with a part of the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.chart import BASIC_AUTH, HASH, USER, Values

CERTIFICATE = {"cert_file": "/tls.crt", "key_file": "/tls.key"}


def tls(**keys: Any) -> Values:
    """Return values with a certificate, and these keys of TLS."""
    return {"web": {"config": {"tls_server_config": keys}, "tlsSecret": "tls"}}


def override(**columns: Any) -> Values:
    """Return values that change an XID."""
    return {"xids": {"overrides": {"63": columns}}}


def attributed(**keys: Any) -> Values:
    """Return values with attribution."""
    return {"attribution": {"enabled": True, **keys}}


def endpoint(**keys: Any) -> Values:
    """Return values of an enabled ServiceMonitor."""
    return {"serviceMonitor": {"enabled": True, **keys}}


def rule(**keys: Any) -> Values:
    """Return values of an enabled PrometheusRule."""
    return {"prometheusRule": {"enabled": True, **keys}}


PATTERN = "does not match pattern"
UNKNOWN = "additional properties"

NAMES: Sequence[tuple[Values, str]] = [
    ({"prot": 9400}, f"at '': {UNKNOWN} 'prot' not allowed"),
    ({"image": {"repository": ""}}, "image.repository is empty: no image is published; run `make image IMAGE="),
    ({"image": {"repository": "", "digest": f"sha256:{'0' * 64}"}}, "set image.repository=registry.example/gpu-"),
    ({"image": {"repository": "Registry/GPU"}}, f"at '/image/repository': 'Registry/GPU' {PATTERN}"),
    ({"image": {"repository": "https://registry.example/gpu"}}, "at '/image/repository': 'https://registry"),
    ({"image": {"repository": "registry.example/gpu:1.0"}}, "at '/image/repository': 'registry.example/gpu:1.0'"),
    ({"image": {"registry": "registry.example/"}}, f"at '/image/registry': 'registry.example/' {PATTERN}"),
    ({"image": {"tag": "a b"}}, f"at '/image/tag': 'a b' {PATTERN}"),
    ({"image": {"tag": 1.2}}, "at '/image/tag': got number, want string"),
    ({"image": {"digest": "latest"}}, f"at '/image/digest': 'latest' {PATTERN}"),
    ({"image": {"pullPolicy": "always"}}, "at '/image/pullPolicy': value must be one of 'Always'"),
    ({"imagePullSecrets": [{"secret": "a"}]}, "at '/imagePullSecrets/0': missing property 'name'"),
    ({"global": {"imageRegistry": "https://mirror.example"}}, "at '/global/imageRegistry': 'https://mirror.example'"),
    ({"fullnameOverride": "My_GPUs"}, f"at '/fullnameOverride': 'My_GPUs' {PATTERN}"),
    ({"commonLabels": {"a label": "x"}}, f"at '/commonLabels': {UNKNOWN} 'a label' not allowed"),
    ({"commonLabels": {"team": "a b"}}, f"at '/commonLabels/team': 'a b' {PATTERN}"),
    ({"podLabels": {"team": "x" * 64}}, f"at '/podLabels/team': '{'x' * 64}' {PATTERN}"),
    ({"podLabels": {"-team": "x"}}, f"at '/podLabels': {UNKNOWN} '-team' not allowed"),
    ({"podLabels": {"team": 7}}, "at '/podLabels/team': got number, want string"),
    ({"podAnnotations": {"a/b/c": "x"}}, f"at '/podAnnotations': {UNKNOWN} 'a/b/c' not allowed"),
    ({"nodeSelector": {"pool": "gpu!"}}, f"at '/nodeSelector/pool': 'gpu!' {PATTERN}"),
    ({"serviceAccount": {"name": "My Account"}}, f"at '/serviceAccount/name': 'My Account' {PATTERN}"),
    ({"priorityClassName": "High!"}, f"at '/priorityClassName': 'High!' {PATTERN}"),
]
EXPORTER: Sequence[tuple[Values, str]] = [
    (
        {"remediation": {"pools": [{"name": "a", "mode": "delete"}]}},
        "at '/remediation/pools/0/mode': value must be one",
    ),
    ({"remediation": {"pools": [{"name": "a", "budget": {"share": 2}}]}}, "at '/remediation/pools/0/budget/share'"),
    ({"port": "9400"}, "at '/port': got string, want integer"),
    ({"port": 0}, "at '/port': minimum: got 0, want 1"),
    ({"interval": "1"}, f"at '/interval': '1' {PATTERN}"),
    ({"interval": "0s"}, f"at '/interval': '0s' {PATTERN} '[1-9]'"),
    ({"interval": "50ms"}, "interval: 50ms is out of range: use 100ms to 1h"),
    ({"interval": "2h"}, "interval: 2h is out of range: use 100ms to 1h"),
    ({"config": {"gauge_windw": "1s"}}, f"at '/config': {UNKNOWN} 'gauge_windw' not allowed"),
    ({"config": {"address": ":1"}}, f"at '/config': {UNKNOWN} 'address' not allowed"),
    ({"config": {"nodes": [1]}}, "at '/config/nodes': got array, want"),
    ({"config": {"gauge_window": "0s"}}, f"at '/config/gauge_window': '0s' {PATTERN} '[1-9]'"),
    ({"config": {"gauge_window": 0}}, "at '/config/gauge_window': exclusiveMinimum: got 0, want 0"),
    ({"config": {"expected_gpus": -1}}, "at '/config/expected_gpus': minimum: got -1, want 0"),
    ({"config": {"expected_gpus": "eight"}}, f"at '/config/expected_gpus': 'eight' {PATTERN}"),
    ({"config": {"source": "dcmg"}}, "at '/config/source': value must be one of 'auto', 'nvml', 'dcgm'"),
    ({"config": {"log_format": "xml"}}, "at '/config/log_format': value must be one of 'text', 'json'"),
    ({"config": {"schema": "new"}}, "at '/config/schema': value must be one of 'classic', 'si'"),
    ({"config": {"devices": "g:0-"}}, f"at '/config/devices': 'g:0-' {PATTERN}"),
    ({"config": {"loop": "maybe"}}, "at '/config/loop': value must be one of true, false, 'true'"),
    ({"gpuAccess": {"mode": "magic"}}, "at '/gpuAccess/mode': value must be one of 'env', 'runtimeClass', 'cdi'"),
    ({"gpuAccess": {"driverCapabilities": "utilty"}}, f"at '/gpuAccess/driverCapabilities': 'utilty' {PATTERN}"),
    ({"gpuAccess": {"cdiDevice": "all"}}, f"at '/gpuAccess/cdiDevice': 'all' {PATTERN}"),
    ({"gpuAccess": {"mode": "runtimeClass", "runtimeClassName": ""}}, "needs gpuAccess.runtimeClassName"),
    ({"kernelLog": {"mode": "yes"}}, "at '/kernelLog/mode': value must be one of"),
    ({"dcgm": {"hostEngine": "a:b"}}, f"at '/dcgm/hostEngine': 'a:b' {PATTERN}"),
    ({"dcgm": {"hostEngine": "dcgm:5555"}}, "dcgm.hostEngine needs dcgm.enabled"),
    ({"dcgm": {"bindings": "/dcgm"}}, "dcgm.bindings needs dcgm.enabled"),
    ({"dcgm": {"profiling": True}}, "dcgm.profiling needs dcgm.enabled"),
    (
        {"dcgm": {"enabled": True, "hostEngine": "dcgm", "profiling": True}},
        "dcgm.profiling is for DCGM in the container",
    ),
    ({"dcgm": {"enabled": True}, "config": {"source": "nvml"}}, "dcgm.enabled and config.source: choose one"),
    (
        {"attribution": {"podLabels": ["app"]}},
        "attribution.podLabels needs attribution.enabled=true: set it, which needs uid 0 and a hostPath, or remove",
    ),
    ({"attribution": {"podLabels": ["a{1,2}"]}}, f"at '/attribution/podLabels/0': 'a{{1,2}}' {PATTERN}"),
    (attributed(podLabels=["app", "a("]), 'attribution.podLabels: "a(" is not a regular expression'),
    (attributed(podLabels=["*"]), 'attribution.podLabels: "*" is not a regular expression'),
    (attributed(podLabels=["[a"]), 'attribution.podLabels: "[a" is not a regular expression'),
    (attributed(podLabels=["a)"]), 'attribution.podLabels: "a)" is not a regular expression'),
    ({"attribution": {"podResourcesPath": ""}}, f"at '/attribution/podResourcesPath': '' {PATTERN}"),
    ({"attribution": {"resourceNames": ["gpu"]}}, f"at '/attribution/resourceNames/0': 'gpu' {PATTERN}"),
    ({"xids": {"path": "lib"}}, f"at '/xids/path': 'lib' {PATTERN}"),
    ({"xids": {"overrides": {"x": {}}}}, f"at '/xids/overrides': {UNKNOWN} 'x' not allowed"),
    ({"xids": {"overrides": {"0": {"drain": True}}}}, f"at '/xids/overrides': {UNKNOWN} '0' not allowed"),
    ({"xids": {"overrides": {"65536": {"drain": True}}}}, f"at '/xids/overrides': {UNKNOWN} '65536' not allowed"),
    (
        override(action="reboot"),
        "at '/xids/overrides/63/action': value must be one of 'none', 'restart_app', 'gpu_reset'",
    ),
    (override(acton="none"), f"at '/xids/overrides/63': {UNKNOWN} 'acton' not allowed"),
    (override(kind="unknown"), "at '/xids/overrides/63/kind': value must be one of 'application', 'hardware'"),
    (override(drain="maybe"), "at '/xids/overrides/63/drain': got string, want boolean"),
    (override(date="today"), f"at '/xids/overrides/63/date': 'today' {PATTERN}"),
]
PODS: Sequence[tuple[Values, str]] = [
    ({"resources": {"limit": {"memory": "256Mi"}}}, f"at '/resources': {UNKNOWN} 'limit' not allowed"),
    ({"resources": {"limits": {"memory": "256mb"}}}, f"at '/resources/limits/memory': '256mb' {PATTERN}"),
    ({"resources": {"limits": {"memory": "256MB"}}}, f"at '/resources/limits/memory': '256MB' {PATTERN}"),
    ({"resources": {"limits": {"memory": "256m"}}}, f"at '/resources/limits/memory': '256m' {PATTERN}"),
    ({"resources": {"limits": {"memory": 256}}}, "at '/resources/limits/memory': minimum: got 256, want 1.048576"),
    ({"resources": {"limits": {"ram": "1Gi"}}}, f"at '/resources/limits': {UNKNOWN} 'ram' not allowed"),
    ({"resources": {"requests": {"cpu": "50 m"}}}, f"at '/resources/requests/cpu': '50 m' {PATTERN}"),
    ({"resources": {"requests": {"cpu": -1}}}, "at '/resources/requests/cpu': minimum: got -1, want 0"),
    (
        {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        "resources.limits: nvidia.com/gpu would take GPUs from workloads",
    ),
    ({"resources": {"requests": {"nvidia.com/mig-1g.10gb": "1"}}}, "resources.requests: nvidia.com/mig-1g.10gb would"),
    ({"resources": {"limits": "nvidia.com/gpu"}}, "at '/resources/limits': got string, want object"),
    ({"tolerations": [{"operater": "Exists"}]}, f"at '/tolerations/0': {UNKNOWN} 'operater' not allowed"),
    ({"tolerations": [{"operator": "exists"}]}, "at '/tolerations/0/operator': value must be one of 'Exists', 'Equal'"),
    ({"tolerations": [{"key": "a", "effect": "NoRun"}]}, "at '/tolerations/0/effect': value must be one of ''"),
    (
        {"tolerations": [{"key": "gpu", "operator": "Exists", "value": "yes"}]},
        'tolerations: operator Exists takes no value: remove "yes"',
    ),
    ({"tolerations": [{"effect": "NoSchedule"}]}, "tolerations: one has no key: set the key of a taint, or operator"),
    ({"affinity": {"nodeAfinity": {}}}, f"at '/affinity': {UNKNOWN} 'nodeAfinity' not allowed"),
    (
        {"affinity": {"nodeAffinity": {"required": {}}}},
        f"at '/affinity/nodeAffinity': {UNKNOWN} 'required' not allowed",
    ),
    ({"updateStrategy": {"type": "Rolling"}}, "at '/updateStrategy/type': value must be one of 'RollingUpdate'"),
    (
        {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10"}}},
        f"at '/updateStrategy/rollingUpdate/maxUnavailable': '10' {PATTERN}",
    ),
    ({"livenessProbe": {"periodSeconds": 0}}, "at '/livenessProbe/periodSeconds': minimum: got 0, want 1"),
    ({"podSecurityContext": {"runAsUsr": 1}}, f"at '/podSecurityContext': {UNKNOWN} 'runAsUsr' not allowed"),
    (
        {**attributed(), "podSecurityContext": {"runAsUser": 65534}},
        "podSecurityContext: attribution.enabled needs uid 0",
    ),
    ({**attributed(), "securityContext": {"runAsNonRoot": True}}, "securityContext: attribution.enabled needs uid 0"),
    ({"securityContext": {"capabilities": ["ALL"]}}, "at '/securityContext/capabilities': got array, want object"),
    (
        {"xids": {"keep": "node"}, "securityContext": {"runAsUser": 7}},
        "securityContext: xids.keep needs uid 0",
    ),
    ({"extraEnv": [{"name": "A", "vaule": "b"}]}, f"at '/extraEnv/0': {UNKNOWN} 'vaule' not allowed"),
    ({"extraEnv": [{"name": "A", "value": 1}]}, "at '/extraEnv/0/value': got number, want string"),
    ({"extraEnvFrom": [{"secret": "a"}]}, f"at '/extraEnvFrom/0': {UNKNOWN} 'secret' not allowed"),
    ({"extraEnvFrom": [{"secretRef": {}}]}, "at '/extraEnvFrom/0/secretRef': missing property 'name'"),
    ({"dnsConfig": {"nameserver": []}}, f"at '/dnsConfig': {UNKNOWN} 'nameserver' not allowed"),
    ({"dnsConfig": {"options": [{"name": "ndots", "value": 1}]}}, "at '/dnsConfig/options/0/value': got number, want"),
    ({"hostAliases": [{"ip": "dcgm", "hostnames": ["a"]}]}, f"at '/hostAliases/0/ip': 'dcgm' {PATTERN}"),
    ({"hostAliases": [{"ip": "10.0.0.7"}]}, "at '/hostAliases/0': missing property 'hostnames'"),
    ({"minReadySeconds": -1}, "at '/minReadySeconds': minimum: got -1, want 0"),
    (
        {"terminationGracePeriodSeconds": 2**31},
        "at '/terminationGracePeriodSeconds': maximum: got 2.147483648",
    ),
    ({"remediation": {"replicas": 2**31}}, "at '/remediation/replicas': maximum: got 2.147483648"),
    (
        {"remediation": {"config": {"exporters": {"port": 0}}}},
        "at '/remediation/config/exporters/port': minimum: got 0",
    ),
    ({"startupProbe": {"timeout": 1}}, f"at '/startupProbe': {UNKNOWN} 'timeout' not allowed"),
    ({"openShift": {"scc": "yes"}}, "at '/openShift/scc': got string, want boolean"),
    ({"extraVolumeMounts": [{"name": "a"}]}, "at '/extraVolumeMounts/0': missing property 'mountPath'"),
    ({"extraContainers": [{"name": "a"}]}, "at '/extraContainers/0': missing property 'image'"),
    ({"extraManifests": [{"kind": "Secret"}]}, "at '/extraManifests/0': missing property 'apiVersion'"),
    ({"networkPolicy": {"from": [{"podSelecter": {}}]}}, f"at '/networkPolicy/from/0': {UNKNOWN} 'podSelecter'"),
]


def term(**expression: Any) -> Values:
    """Return values with required node affinity of one expression."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def rolling(**update: Any) -> Values:
    return {"updateStrategy": {"rollingUpdate": update}}


CONTAINER: Values = {"name": "a", "image": "b"}
MOUNT: Values = {"name": "own", "mountPath": "/own"}
# What a schema cannot express: Kubernetes' own rules, after the values are merged.
SEMANTIC: Sequence[tuple[Values, str]] = [
    (
        {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}},
        "securityContext: privileged is true, which Kubernetes refuses beside allowPrivilegeEscalation false: remove",
    ),
    (
        {"kernelLog": {"mode": "kmsg"}, "securityContext": {"allowPrivilegeEscalation": False}},
        "securityContext: privileged is true, which Kubernetes refuses",
    ),
    (
        {
            "extraContainers": [
                {**CONTAINER, "securityContext": {"privileged": True, "allowPrivilegeEscalation": False}}
            ]
        },
        "extraContainers: a: securityContext: privileged is true",
    ),
    (
        {"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}},
        "securityContext.capabilities.add: CAP_SYS_ADMIN: Kubernetes names it SYS_ADMIN",
    ),
    (
        {"podSecurityContext": {"runAsUser": 0, "runAsNonRoot": True}},
        "podSecurityContext: runAsNonRoot is true, so kubelet refuses runAsUser 0: remove one of them",
    ),
    (
        {"initContainers": [{**CONTAINER, "securityContext": {"runAsUser": 0}}]},
        "initContainers: a: securityContext: runAsNonRoot is true, so kubelet refuses runAsUser 0",
    ),
    (
        {"podSecurityContext": {"seccompProfile": {"type": "Localhost"}}},
        "podSecurityContext.seccompProfile: localhostProfile belongs to type Localhost, and to no other: correct",
    ),
    (
        {"resources": {"limits": {"memory": "64Mi"}}},
        "resources: the request of memory, 96Mi, must not exceed the limit, 64Mi: change resources.requests.memory or",
    ),
    (
        {"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": 1}}},
        "resources: the request of cpu, 1500m, must not exceed the limit, 1: change",
    ),
    (
        {"resources": {"requests": {"hugepages-2Mi": "4Mi"}}},
        "resources.requests: hugepages-2Mi needs a limit of the same amount: set resources.limits.hugepages-2Mi",
    ),
    (
        {"remediation": {"resources": {"requests": {"memory": "1G"}}}},
        "remediation.resources: the request of memory, 1G, must not exceed the limit, 256Mi",
    ),
    (
        rolling(maxSurge=1),
        "updateStrategy.rollingUpdate: Kubernetes refuses maxSurge 1 beside maxUnavailable 1: set one of them to 0",
    ),
    (
        rolling(maxUnavailable=0),
        "updateStrategy.rollingUpdate: maxUnavailable is 0, so no pod could ever be replaced: set it to 1, or set maxS",
    ),
    (
        {**rolling(maxSurge=1, maxUnavailable=0), "hostNetwork": True, "port": 9445},
        "updateStrategy.rollingUpdate.maxSurge: with hostNetwork or hostPort, two pods of a node cannot",
    ),
    (
        {"hostUsers": False, "hostNetwork": True, "port": 9445},
        "hostUsers: Kubernetes refuses false beside namespaces of the node, which hostNetwork needs: remove hostUsers",
    ),
    (
        {"hostUsers": False, "processes": {"enabled": True}},
        "hostUsers: Kubernetes refuses false beside namespaces of the node, which processes.enabled needs",
    ),
    (
        {"hostNetwork": True, "port": 9445, "hostPort": 9446},
        "hostPort: with hostNetwork, the port of the node is `port`: remove hostPort",
    ),
    (
        {**rolling(maxSurge=1, maxUnavailable=0), "hostPort": 9400},
        "updateStrategy.rollingUpdate.maxSurge: with hostNetwork or hostPort, two pods",
    ),
    (
        {"service": {"nodePort": 30940}},
        "service.nodePort needs service.type NodePort or LoadBalancer: set it, or remove",
    ),
    (
        {"service": {"type": "NodePort", "ipFamilies": ["IPv6", "IPv4"]}},
        "service.ipFamilies: two families need service.ipFamilyPolicy PreferDualStack or RequireDualStack: set it",
    ),
    (
        {"attribution": {"enabled": True, "dra": True}, "serviceAccount": {"automountToken": False}},
        "serviceAccount.automountToken: attribution.dra needs the token: remove automountToken, or switch it off",
    ),
    ({"imagePullSecrets": ["My Secret"]}, f"at '/imagePullSecrets/0': 'My Secret' {PATTERN}"),
    (
        {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 60}]},
        "tolerations: tolerationSeconds needs the effect NoExecute: set it, or remove tolerationSeconds",
    ),
    (
        {"remediation": {"tolerations": [{"effect": "NoSchedule"}]}},
        "remediation.tolerations: one has no key: set the key of a taint",
    ),
    (
        term(key="gpu", operator="In"),
        "affinity.nodeAffinity: operator In of key gpu takes one value or more: correct its values",
    ),
    (
        term(key="gpu", operator="Exists", values=["true"]),
        "affinity.nodeAffinity: operator Exists of key gpu takes no values: correct its values",
    ),
    (
        term(key="gpus", operator="Gt", values=["many"]),
        "affinity.nodeAffinity: operator Gt of key gpus takes one whole number: correct its values",
    ),
    (term(key="gpu", operator="Is"), "is not an expression: give it a key, and one of the operators In, NotIn, Exists"),
    (
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}},
        "affinity.podAffinity: a term has no topologyKey: set it, such as to kubernetes.io/hostname",
    ),
    (
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"preference": {}}]}}},
        "affinity.nodeAffinity: a preference needs a weight from 1 to 100: set weight",
    ),
    (
        {"extraVolumes": [{"name": "config", "emptyDir": {}}]},
        "extraVolumes: there is another volume with the name config in the chart: choose another name",
    ),
    (
        {"extraVolumes": [{"name": "own", "emptyDir": {}}] * 2},
        "extraVolumes: there is another volume with the name own: choose another name",
    ),
    ({"extraVolumeMounts": [MOUNT]}, "extraVolumeMounts: there is no volume own: add it to extraVolumes"),
    (
        {"extraContainers": [{**CONTAINER, "volumeMounts": [MOUNT]}]},
        "extraContainers: a: volumeMounts: there is no volume own: add it to extraVolumes",
    ),
    (
        {"extraVolumeMounts": [{"name": "config", "mountPath": "/etc/gpu-exporter"}]},
        "extraVolumeMounts: something else is mounted at /etc/gpu-exporter: choose another mountPath",
    ),
    (
        {"initContainers": [CONTAINER], "extraContainers": [CONTAINER]},
        "extraContainers: there is another container with the name a: choose another name",
    ),
    (
        {"extraContainers": [{**CONTAINER, "name": "exporter"}]},
        "extraContainers: there is another container with the name exporter",
    ),
    (
        {"xids": {"keep": "node", "path": "/var/lib/../gpu"}},
        "xids.path: /var/lib/../gpu: Kubernetes refuses `..` and colons in the paths of volumes",
    ),
    (
        {"extraArgs": ["--debug", "--address=[::]:9401"]},
        "extraArgs: --address=[::]:9401 has another port than `port`, which probes and Services use: set port",
    ),
    (
        {"extraEnv": [{"name": "A", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
        "extraEnv: A has both value and valueFrom: keep one",
    ),
    (
        {"extraEnvFrom": [{"secretRef": {"name": "a"}, "configMapRef": {"name": "a"}}]},
        "extraEnvFrom: an item needs one of configMapRef and secretRef: make one item of each",
    ),
    (
        {"networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}},
        "networkPolicy.from: Kubernetes refuses selectors beside an ipBlock: make two items of them",
    ),
    (
        {"networkPolicy": {"egress": [{"to": [{}]}]}},
        "networkPolicy.egress: a peer is empty: give it an ipBlock or a selector",
    ),
    (
        {"networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.1"}}]}},
        f"at '/networkPolicy/from/0/ipBlock/cidr': '10.0.0.1' {PATTERN}",
    ),
    ({"dnsConfig": {"nameservers": ["10.0.0.1"] * 4}}, "at '/dnsConfig/nameservers': maxItems: got 4, want 3"),
    ({"resources": {"claims": [{"name": "gpu"}]}}, f"at '/resources': {UNKNOWN} 'claims' not allowed"),
    (
        {"extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
        "at '/extraEnv/0/valueFrom/fieldRef': missing property 'fieldPath'",
    ),
]
WEB: Sequence[tuple[Values, str]] = [
    ({"web": {"config": {"basic_auth_user": {}}}}, f"at '/web/config': {UNKNOWN} 'basic_auth_user' not allowed"),
    (tls(certfile="/a"), f"at '/web/config/tls_server_config': {UNKNOWN} 'certfile' not allowed"),
    (tls(min_version="TLS11"), "at '/web/config/tls_server_config/min_version': value must be one of 'TLS12', 'TLS13'"),
    (tls(client_auth_type="Require"), "at '/web/config/tls_server_config/client_auth_type': value must be one of"),
    (tls(cipher_suites=["RC4"]), "at '/web/config/tls_server_config/cipher_suites/0': value must be one of"),
    (tls(curve_preferences="X25519"), "at '/web/config/tls_server_config/curve_preferences': got string, want array"),
    (tls(cert="a", cert_file="/a"), "web.config.tls_server_config: cert and cert_file are both set: keep one"),
    (
        {"web": {"config": {"tls_server_config": {"key_file": "/tls.key"}}}},
        "web.config.tls_server_config: cert_file is missing: set it, or set web.tlsSecret",
    ),
    (
        tls(client_auth_type="RequireAndVerifyClientCert"),
        "web.config.tls_server_config: client_auth_type needs client_ca_file",
    ),
    (
        {"web": {"config": {"http_server_config": {"header": {}}}}},
        f"at '/web/config/http_server_config': {UNKNOWN} 'header' not allowed",
    ),
    (
        {"web": {"config": {"http_server_config": {"headers": {"X-Powered-By": "gpu"}}}}},
        f"at '/web/config/http_server_config/headers': {UNKNOWN} 'X-Powered-By' not allowed",
    ),
    (
        {"web": {"config": {"rate_limit": {"interval": "soon", "burst": 1}}}},
        f"at '/web/config/rate_limit/interval': 'soon' {PATTERN}",
    ),
    ({"web": {"config": {"rate_limit": {"burst": 0}}}}, "at '/web/config/rate_limit/burst': minimum: got 0, want 1"),
    (
        {"web": {"config": {"basic_auth_users": {USER: "hunter2"}}}},
        f"web.config.basic_auth_users: the password of {USER} is not a bcrypt hash of cost 4 to 16: make one with `htp",
    ),
    ({"web": {"config": {"basic_auth_users": {"a:b": HASH}}}}, "web.config.basic_auth_users: the name a:b has a colon"),
    (
        {**endpoint(), "web": {"config": {"basic_auth_users": {USER: HASH}}}},
        "serviceMonitor.basicAuth is empty, but web.config.basic_auth_users demands a password: set it to a Secret",
    ),
    (
        {"web": {"config": {"rate_limit": {}}, "existingSecret": "b", "scheme": "http"}},
        "web.existingSecret: choose one",
    ),
    ({"web": {"existingSecret": "web"}}, "web.scheme is empty: set it to https if the web.yml in web.existingSecret"),
    ({"web": {"scheme": "https"}}, "web.scheme is only for web.existingSecret: remove it"),
    ({"web": {"existingSecret": "web", "scheme": "tls"}}, "at '/web/scheme': value must be one of '', 'http', 'https'"),
    ({"web": {"tlsSecret": "My Secret"}}, f"at '/web/tlsSecret': 'My Secret' {PATTERN}"),
    ({"web": {"lifecycle": True}, "handOver": {"enabled": False}}, "web.lifecycle lets everyone end the exporter: set"),
]
MONITORING: Sequence[tuple[Values, str]] = [
    (
        {**endpoint(), "podMonitor": {"enabled": True}},
        "serviceMonitor.enabled and podMonitor.enabled: choose one; with both, Prometheus scrapes every exporter twice",
    ),
    (
        {"podMonitor": {"enabled": True}, "web": {"config": {"basic_auth_users": {USER: HASH}}}},
        "podMonitor.basicAuth is empty, but web.config.basic_auth_users demands a password",
    ),
    (
        {"podMonitor": {"enabled": True, "interval": "5s"}},
        "podMonitor.scrapeTimeout: 10s is longer than podMonitor.interval 5s",
    ),
    ({"podMonitor": {"tlsConfig": {"caFile": "/ca"}}}, f"at '/podMonitor/tlsConfig': {UNKNOWN} 'caFile' not allowed"),
    ({"podMonitor": {"targetLabels": ["a"]}}, f"at '/podMonitor': {UNKNOWN} 'targetLabels' not allowed"),
    (
        {**endpoint(jobLabel="team"), "commonLabels": {"team": "ml"}},
        'serviceMonitor.jobLabel: the label team has the value "ml", which the rules do not',
    ),
    ({"podMonitor": {"enabled": True, "jobLabel": "none"}}, 'podMonitor.jobLabel: the label none has the value ""'),
    (endpoint(jobLabel="a label"), f"at '/serviceMonitor/jobLabel': 'a label' {PATTERN}"),
    (endpoint(targetLabels=["a b"]), f"at '/serviceMonitor/targetLabels/0': 'a b' {PATTERN}"),
    (endpoint(attachMetadata=True), "at '/serviceMonitor/attachMetadata': got boolean, want object"),
    (endpoint(proxyUrl="proxy:3128"), f"at '/serviceMonitor/proxyUrl': 'proxy:3128' {PATTERN}"),
    (rule(additionalRules=[{"rules": []}]), "at '/prometheusRule/additionalRules/0': missing property 'name'"),
    (endpoint(interval="0s"), f"at '/serviceMonitor/interval': '0s' {PATTERN} '[1-9]'"),
    (endpoint(interval="15"), f"at '/serviceMonitor/interval': '15' {PATTERN}"),
    (endpoint(interval="5s1m"), f"at '/serviceMonitor/interval': '5s1m' {PATTERN}"),
    (endpoint(scrapeTimeout="0ms"), f"at '/serviceMonitor/scrapeTimeout': '0ms' {PATTERN} '[1-9]'"),
    (
        endpoint(interval="5s"),
        "serviceMonitor.scrapeTimeout: 10s is longer than serviceMonitor.interval 5s, which Prometheus refuses: use at",
    ),
    (
        endpoint(basicAuth=BASIC_AUTH, authorization={"credentials": {"name": "a", "key": "b"}}),
        "serviceMonitor: authorization and basicAuth: Prometheus Operator accepts one of them: remove the other",
    ),
    (
        endpoint(relabelings=[{"sourceLabels": ["a"], "action": "lowercase"}]),
        "serviceMonitor.relabelings: action lowercase needs targetLabel: set it",
    ),
    (
        endpoint(metricRelabelings=[{"sourceLabels": ["a"], "targetLabel": "b", "action": "HashMod"}]),
        "serviceMonitor.metricRelabelings: action hashmod needs modulus: set it",
    ),
    (endpoint(job="node"), f"at '/serviceMonitor/job': 'node' {PATTERN}"),
    (endpoint(labels={"release": "my release"}), f"at '/serviceMonitor/labels/release': 'my release' {PATTERN}"),
    (endpoint(tlsConfig={"caSecret": {}}), f"at '/serviceMonitor/tlsConfig': {UNKNOWN} 'caSecret' not allowed"),
    (
        endpoint(basicAuth={"username": "prometheus"}),
        "at '/serviceMonitor/basicAuth/username': got string, want object",
    ),
    (
        endpoint(relabelings=[{"regex": "a(", "action": "drop"}]),
        "at '/serviceMonitor/relabelings/0/regex': 'a(' is not valid regex",
    ),
    (
        endpoint(metricRelabelings=[{"regexp": "a", "action": "drop"}]),
        f"at '/serviceMonitor/metricRelabelings/0': {UNKNOWN} 'regexp' not allowed",
    ),
    (
        endpoint(metricRelabelings=[{"action": "remove"}]),
        "at '/serviceMonitor/metricRelabelings/0/action': value must be one of 'replace'",
    ),
    (rule(interval="0s"), f"at '/prometheusRule/interval': '0s' {PATTERN}"),
    (rule(alertLabels={"my-team": "a"}), f"at '/prometheusRule/alertLabels': {UNKNOWN} 'my-team' not allowed"),
    (rule(alertLabels={"__name__": "a"}), f"at '/prometheusRule/alertLabels': {UNKNOWN} '__name__' not allowed"),
    (rule(grafanaUrl="grafana.example"), f"at '/prometheusRule/grafanaUrl': 'grafana.example' {PATTERN}"),
    (rule(toleratedTaints=["a=b:NoSchedule"]), f"at '/prometheusRule/toleratedTaints/0': 'a=b:NoSchedule' {PATTERN}"),
    (rule(limits={"busySM": 0.5}), f"at '/prometheusRule/limits': {UNKNOWN} 'busySM'"),
    (rule(limits={"busySm": "half"}), "at '/prometheusRule/limits/busySm': got string, want number"),
    (rule(limits={"busySm": 60}), "at '/prometheusRule/limits/busySm': maximum: got 60, want 1"),
    (rule(limits={"stale": -1}), "at '/prometheusRule/limits/stale': minimum: got -1, want 0"),
    (rule(modes={"GpuLots": {}}), f"at '/prometheusRule/modes': {UNKNOWN} 'GpuLots'"),
    (
        rule(modes={"GpuLost": {"severity": "page"}}),
        "at '/prometheusRule/modes/GpuLost/severity': value must be one of 'critical', 'warning', 'info'",
    ),
    (rule(modes={"GpuLost": {"hold": "soon"}}), "at '/prometheusRule/modes/GpuLost/hold': 'soon'"),
    ({"dashboards": {"boards": {"fleat": True}}}, f"at '/dashboards/boards': {UNKNOWN} 'fleat' not allowed"),
]


def remediation(beside: Values | None = None, **values: Any) -> Values:
    """Return values with the remediation controller."""
    return {"remediation": {"enabled": True, **values}, **(beside or {})}


USERS: Values = {"web": {"config": {"basic_auth_users": {USER: HASH}}}}
SECURE: Values = {"web": {"tlsSecret": "tls"}}
LOGIN: Values = {"user": "mia", "password_file": "/etc/gpu-exporter-secret/password"}
REMEDIATION: Sequence[tuple[Values, str]] = [
    (remediation(pools=[]), "remediation.pools is empty, so no node belongs to the controller: name a pool, such as"),
    (remediation(pools=None), "remediation.pools is empty, so no node belongs to the controller: name a pool, such as"),
    (remediation(pools=[{"name": "a"}, {"name": "a"}]), "remediation.pools: two pools have the name a: rename one"),
    (remediation(pools=[{"name": "a", "mode": "drian"}]), "at '/remediation/pools/0/mode': value must be one of 'off'"),
    (
        remediation(pools=[{"name": "a", "active_check": True}]),
        "remediation.pools: active_check of pool a needs xids.keep=node",
    ),
    (remediation({"config": {"source": "simulated"}}), "config.source: simulated shows no GPUs of the node"),
    (remediation(config={"intervall": "5s"}), f"at '/remediation/config': {UNKNOWN} 'intervall' not allowed"),
    (remediation(config={"breaker": {"node": 3}}), f"at '/remediation/config/breaker': {UNKNOWN} 'node' not allowed"),
    (remediation(config={"lease": "own"}), f"at '/remediation/config': {UNKNOWN} 'lease' not allowed"),
    (
        remediation(SECURE),
        "remediation.config.exporters.server_name is empty, but the exporters serve TLS: set it to a name",
    ),
    (
        remediation({"web": {"existingSecret": "own", "scheme": "https"}}),
        "remediation.config.exporters.server_name is empty, but the exporters serve TLS",
    ),
    (
        remediation(
            tls(client_auth_type="RequireAndVerifyClientCert", client_ca_file="ca.crt"),
            config={"exporters": {"server_name": "gpus"}},
        ),
        "web.config.tls_server_config.client_auth_type: the remediation controller has no client certificate",
    ),
    (
        remediation(USERS),
        "remediation.config.exporters: web.config.basic_auth_users demands a password, which the controller does not",
    ),
    (
        remediation(USERS, secret="keys", config={"exporters": LOGIN}),
        "remediation.config.exporters.user: mia is no user of web.config.basic_auth_users: add the user there",
    ),
    (
        remediation(USERS, config={"exporters": {**LOGIN, "user": USER}}),
        "remediation.config.exporters.password_file: /etc/gpu-exporter-secret/password does not exist without",
    ),
    (
        remediation(config={"webhook_token_file": "/etc/gpu-exporter-secret/token"}),
        "remediation.config.webhook_token_file: /etc/gpu-exporter-secret/token does not exist without",
    ),
]
INVALID = [*NAMES, *EXPORTER, *PODS, *SEMANTIC, *WEB, *MONITORING, *REMEDIATION]
