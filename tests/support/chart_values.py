"""Values that the chart has to reject, with a part of the error, and valid edge cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.chart import HASH, USER, Values

CERTIFICATE = {"cert_file": "/tls.crt", "key_file": "/tls.key"}


def tls(**keys: Any) -> Values:
    """Return values with a certificate, and these keys of TLS."""
    return {"web": {"config": {"tls_server_config": keys}, "tlsSecret": "tls"}}


def override(**columns: Any) -> Values:
    """Return values that change an XID."""
    return {"xids": {"overrides": {"63": columns}}}


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
    ({"imagePullSecrets": ["registry"]}, "at '/imagePullSecrets/0': got string, want object"),
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
    ({"attribution": {"enabled": False, "podLabels": ["app"]}}, "attribution.podLabels needs attribution.enabled"),
    ({"attribution": {"podLabels": ["a{1,2}"]}}, f"at '/attribution/podLabels/0': 'a{{1,2}}' {PATTERN}"),
    ({"attribution": {"podLabels": ["app", "a("]}}, 'attribution.podLabels: "a(" is not a regular expression'),
    ({"attribution": {"podLabels": ["*"]}}, 'attribution.podLabels: "*" is not a regular expression'),
    ({"attribution": {"podLabels": ["[z-a]"]}}, 'attribution.podLabels: "[z-a]" is not a regular expression'),
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
    ({"podSecurityContext": {"runAsUser": 65534}}, "podSecurityContext: attribution.enabled needs uid 0"),
    ({"securityContext": {"runAsNonRoot": True}}, "securityContext: attribution.enabled needs uid 0"),
    ({"securityContext": {"capabilities": ["ALL"]}}, "at '/securityContext/capabilities': got array, want object"),
    (
        {"attribution": {"enabled": False}, "xids": {"keep": "node"}, "securityContext": {"runAsUser": 7}},
        "securityContext: xids.keep needs uid 0",
    ),
    ({"extraEnv": [{"name": "A", "vaule": "b"}]}, f"at '/extraEnv/0': {UNKNOWN} 'vaule' not allowed"),
    ({"extraEnv": [{"name": "A", "value": 1}]}, "at '/extraEnv/0/value': got number, want string"),
    ({"extraVolumeMounts": [{"name": "a"}]}, "at '/extraVolumeMounts/0': missing property 'mountPath'"),
    ({"extraContainers": [{"name": "a"}]}, "at '/extraContainers/0': missing property 'image'"),
    ({"extraManifests": [{"kind": "Secret"}]}, "at '/extraManifests/0': missing property 'apiVersion'"),
    ({"networkPolicy": {"from": [{"podSelecter": {}}]}}, f"at '/networkPolicy/from/0': {UNKNOWN} 'podSelecter'"),
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
    (endpoint(interval="0s"), f"at '/serviceMonitor/interval': '0s' {PATTERN} '[1-9]'"),
    (endpoint(interval="15"), f"at '/serviceMonitor/interval': '15' {PATTERN}"),
    (endpoint(interval="5s1m"), f"at '/serviceMonitor/interval': '5s1m' {PATTERN}"),
    (endpoint(scrapeTimeout="0ms"), f"at '/serviceMonitor/scrapeTimeout': '0ms' {PATTERN} '[1-9]'"),
    (
        endpoint(interval="5s"),
        "serviceMonitor.scrapeTimeout: 10s is longer than serviceMonitor.interval 5s, which Prometheus refuses: use at",
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
INVALID = [*NAMES, *EXPORTER, *PODS, *WEB, *MONITORING]

VALID: Mapping[str, Values] = {
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
    "look-around": {"attribution": {"podLabels": ["(?!pod-).*", "a(?<=b)", "(?P<x>a)", "app[.]kubernetes[.]io/.+"]}},
    "resource names": {"attribution": {"resourceNames": ["example.com/MIG-1g.10gb", "a.b.c/d"]}},
    "codes of XIDs": {
        "xids": {"overrides": {"1": {"action": "none"}, "65535": {"drain": False, "date": "2025-10-29"}}}
    },
    "CPU as a number": {"resources": {"requests": {"cpu": 0.1, "memory": 134217728}, "limits": {"cpu": 1}}},
    "CPU as text": {"resources": {"requests": {"cpu": ".5", "memory": "134217728"}, "limits": {"memory": "0.5Gi"}}},
    "decimal units": {"resources": {"limits": {"memory": "256M", "ephemeral-storage": "1G"}}},
    "no resources": {"resources": {}},
    "resources removed": {"resources": None},
    "tolerations": {
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "dedicated", "value": "gpu"},
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -1},
        ]
    },
    "update strategy": {"updateStrategy": {"type": "OnDelete"}},
    "all at once": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}},
    "probe from the start": {"livenessProbe": {"initialDelaySeconds": 0}},
    "environment": {"extraEnv": [{"name": "A.b-c", "value": ""}, {"name": "B", "valueFrom": {"fieldRef": {}}}]},
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
}
