"""Schemas of the chart's values: text, numbers, durations, and objects of Kubernetes and Prometheus Operator.

Helm evaluates patterns and the format `regex` with Go's regular expressions. What a schema cannot express, or can only
refuse without a reason, is in the chart's templates/_check.tpl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def one_of(*names: str) -> Schema:
    """Return the schema of a choice."""
    return {"type": "string", "enum": list(names)}


def text(pattern: str) -> Schema:
    """Return the schema of text that a pattern matches as a whole."""
    return {"type": "string", "pattern": f"^({pattern})$"}


def listed(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def closed(properties: Mapping[str, Schema], *required: str) -> Schema:
    """Return the schema of an object with these keys and no others."""
    needs = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, "properties": dict(properties), **needs}


def keyed(keys: str, values: Schema) -> Schema:
    """Return the schema of an object with any keys that a pattern matches."""
    return {"type": "object", "additionalProperties": False, "patternProperties": {f"^({keys})$": values}}


TEXT: Schema = {"type": "string"}
BOOL: Schema = {"type": "boolean"}
MAYBE: Schema = {"type": ["boolean", "null"]}
# Most numbers of Kubernetes have 32 bits, and the ids of users and groups are not larger either.
LARGEST = 2**31 - 1
WHOLE: Schema = {"type": "integer", "minimum": -LARGEST, "maximum": LARGEST}
COUNT: Schema = {**WHOLE, "minimum": 0}
POSITIVE: Schema = {**WHOLE, "minimum": 1}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
PORTS = listed(PORT)
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
TEXTS = listed(TEXT)
# Objects of Kubernetes with so many keys that Kubernetes itself has to check them.
OBJECT: Schema = {"type": "object"}
OBJECTS = listed(OBJECT)
FOLDER = text("/.+")
NO_FOLDER = text("(/.+)?")
URL = text("(https?://[^ ]+)?")
# They become one setting, separated by commas.
LISTED = listed(text("[^,]+"))

# Names, labels and annotations of Kubernetes.
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = f"{_LABEL}([.]{_LABEL})*"
_WORD = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
QUALIFIED = f"({_DOMAIN}/)?{_WORD}"
NAME = text(f"({_LABEL})?")
DOMAIN = text(f"({_DOMAIN})?")
LABELS = keyed(QUALIFIED, text(f"({_WORD})?"))
ANNOTATIONS = keyed(QUALIFIED, TEXT)
RESOURCE_NAMES = listed(text(f"{_DOMAIN}/{_WORD}"))
NETWORKS = listed(text("[0-9a-fA-F.:]+(/[0-9]{1,3})?"))
TAINTS = listed(text(QUALIFIED))
LABEL_KEY = text(f"({QUALIFIED})?")
LABEL_KEYS = listed(text(QUALIFIED))

# Names of images, as container runtimes parse them.
_PART = "[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*"
_HOST = "([A-Za-z0-9.-]+|\\[[0-9a-fA-F:]+\\])(:[0-9]+)?"
REGISTRY = text(f"({_HOST}(/{_PART})*)?")
REPOSITORY = text(f"(({_HOST}/)?{_PART}(/{_PART})*)?")
TAG = text("([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")
DIGEST = text("(sha256:[0-9a-f]{64})?")

# Of the NVIDIA container runtime, and of CDI.
VISIBLE_DEVICES = text("[^ ]+")
_CAPABILITY = "(compute|compat32|graphics|utility|video|display|ngx)"
CAPABILITIES = text(f"all|{_CAPABILITY}(,{_CAPABILITY})*")
CDI_DEVICE = text(f"{_DOMAIN}/{_WORD}=[A-Za-z0-9][-A-Za-z0-9_.:]*")

# Durations. Prometheus' have their units in descending order; the exporter's have one unit.
_NOT_ZERO = {"allOf": [{"pattern": "[1-9]"}]}
_SPAN = "([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?"
SPAN: Schema = {**text(_SPAN), "minLength": 1}
POSITIVE_SPAN: Schema = {**text(_SPAN), **_NOT_ZERO}
NO_SPAN: Schema = {**text(_SPAN), "allOf": [{"pattern": "^$|[1-9]"}]}
SECONDS: Schema = {**text("[0-9]+([.][0-9]+)?(ms|s|m|h)"), **_NOT_ZERO}
DURATION: Schema = {
    "type": ["string", "number"],
    "pattern": "^[0-9]+([.][0-9]+)?(ms|s|m|h|)$",
    "exclusiveMinimum": 0,
    **_NOT_ZERO,
}

# Amounts of resources. A suffix m would make thousandths of a byte.
_AMOUNT = "([0-9]+([.][0-9]*)?|[.][0-9]+)"
_CPU: Schema = {"type": ["string", "number"], "pattern": f"^{_AMOUNT}m?$", "minimum": 0}
_BYTES: Schema = {
    "type": ["string", "integer"],
    "pattern": f"^({_AMOUNT}([KMGTPE]i|[kMGTPE]|[eE][+]?[0-9]+)|[0-9]{{7,}})$",
    "minimum": 1 << 20,
}
_AMOUNTS: Schema = {
    **closed({"cpu": _CPU, "memory": _BYTES, "ephemeral-storage": _BYTES}),
    # The templates refuse these, with the reason.
    "patternProperties": {"^nvidia[.]com/": {}, "^hugepages-": _BYTES},
}
RESOURCES = closed({"requests": _AMOUNTS, "limits": _AMOUNTS})

_EFFECTS = one_of("", "NoSchedule", "PreferNoSchedule", "NoExecute")
TOLERATIONS = listed(
    closed(
        {
            "key": text(f"({QUALIFIED})?"),
            "operator": one_of("Exists", "Equal", "Lt", "Gt", ""),
            "value": text(f"({_WORD})?"),
            "effect": _EFFECTS,
            "tolerationSeconds": WHOLE,
        }
    )
)
_SCHEDULING = "DuringSchedulingIgnoredDuringExecution"
_PODS = closed({f"required{_SCHEDULING}": OBJECTS, f"preferred{_SCHEDULING}": OBJECTS})
AFFINITY = closed(
    {
        "nodeAffinity": closed(
            {
                f"required{_SCHEDULING}": closed({"nodeSelectorTerms": OBJECTS}, "nodeSelectorTerms"),
                f"preferred{_SCHEDULING}": OBJECTS,
            }
        ),
        "podAffinity": _PODS,
        "podAntiAffinity": _PODS,
    }
)
_SHARE: Schema = {**COUNT, "type": ["integer", "string"], "pattern": "^(100|[0-9]{1,2})%$"}
UPDATE_STRATEGY = closed(
    {
        "type": one_of("RollingUpdate", "OnDelete"),
        "rollingUpdate": closed({"maxUnavailable": _SHARE, "maxSurge": _SHARE}),
    }
)
_PROFILE = closed({"type": one_of("RuntimeDefault", "Unconfined", "Localhost"), "localhostProfile": TEXT}, "type")
_OF_BOTH = {
    **dict.fromkeys(("runAsUser", "runAsGroup"), COUNT),
    "runAsNonRoot": BOOL,
    **dict.fromkeys(("seccompProfile", "appArmorProfile"), _PROFILE),
    "seLinuxOptions": closed(dict.fromkeys(("user", "role", "type", "level"), TEXT)),
}
POD_SECURITY = closed(
    {
        **_OF_BOTH,
        "fsGroup": COUNT,
        "fsGroupChangePolicy": one_of("Always", "OnRootMismatch"),
        "supplementalGroups": listed(COUNT),
        "supplementalGroupsPolicy": one_of("Merge", "Strict"),
        "seLinuxChangePolicy": one_of("MountOption", "Recursive"),
        "sysctls": listed(closed({"name": TEXT, "value": TEXT}, "name", "value")),
    }
)
SECURITY = closed(
    {
        **_OF_BOTH,
        **dict.fromkeys(("privileged", "allowPrivilegeEscalation", "readOnlyRootFilesystem"), BOOL),
        "capabilities": closed({"add": TEXTS, "drop": TEXTS}),
        "procMount": one_of("Default", "Unmasked"),
    }
)
PROBE = closed(
    {
        "initialDelaySeconds": COUNT,
        **dict.fromkeys(("periodSeconds", "timeoutSeconds", "failureThreshold"), POSITIVE),
    }
)
_ADDRESS = text("[0-9]{1,3}([.][0-9]{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:.]*")
DNS_CONFIG = closed(
    {
        "nameservers": {**listed(_ADDRESS), "maxItems": 3},
        "searches": TEXTS,
        "options": listed(closed({"name": TEXT, "value": TEXT}, "name")),
    }
)
HOST_ALIASES = listed(closed({"ip": _ADDRESS, "hostnames": listed(text(_DOMAIN))}, "ip", "hostnames"))
_ITEM = closed({"name": text(_DOMAIN), "key": TEXT, "optional": BOOL}, "name", "key")
_SOURCE: Schema = {
    **closed(
        {
            "fieldRef": closed({"apiVersion": TEXT, "fieldPath": TEXT}, "fieldPath"),
            "resourceFieldRef": closed({"containerName": TEXT, "resource": TEXT, "divisor": {}}, "resource"),
            "configMapKeyRef": _ITEM,
            "secretKeyRef": _ITEM,
        }
    ),
    "minProperties": 1,
    "maxProperties": 1,
}
VARIABLES = listed(closed({"name": text("[^=]+"), "value": TEXT, "valueFrom": _SOURCE}, "name"))
_REFERENCE = closed({"name": text(_DOMAIN), "optional": BOOL}, "name")
VARIABLE_SOURCES = listed(closed({"prefix": text("[^=]*"), "configMapRef": _REFERENCE, "secretRef": _REFERENCE}))
PULL_SECRETS = listed(
    {**closed({"name": text(_DOMAIN)}, "name"), "type": ["object", "string"], "pattern": f"^{_DOMAIN}$"}
)
CONTAINERS = listed({"type": "object", "required": ["name", "image"]})
VOLUMES = listed({"type": "object", "required": ["name"]})
MOUNTS = listed(
    closed(
        {
            "name": text(_LABEL),
            "mountPath": TEXT,
            **dict.fromkeys(("subPath", "subPathExpr", "mountPropagation", "recursiveReadOnly"), TEXT),
            "readOnly": BOOL,
        },
        "name",
        "mountPath",
    )
)
MANIFESTS = listed(
    {
        "type": ["object", "string"],
        "if": {"type": "object"},
        "then": {"required": ["apiVersion", "kind"]},
    }
)
_EXPRESSIONS = listed(
    closed(
        {"key": text(QUALIFIED), "operator": one_of("In", "NotIn", "Exists", "DoesNotExist"), "values": TEXTS}, "key"
    )
)
_SELECTOR = closed({"matchLabels": LABELS, "matchExpressions": _EXPRESSIONS})
_NETWORK = text("[0-9a-fA-F.:]+/[0-9]{1,3}")
_BLOCK = closed({"cidr": _NETWORK, "except": listed(_NETWORK)}, "cidr")
PEERS = listed(closed({"podSelector": _SELECTOR, "namespaceSelector": _SELECTOR, "ipBlock": _BLOCK}))
_PORT: Schema = {
    "type": ["integer", "string"],
    "minimum": 1,
    "maximum": 65535,
    "pattern": "^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$",
}
_PORTS = listed(closed({"port": _PORT, "endPort": PORT, "protocol": one_of("TCP", "UDP", "SCTP")}))
EGRESS = listed(closed({"to": PEERS, "ports": _PORTS}))

# Of Prometheus and its operator.
# Jobs that the rules recognise as GPU exporters.
JOB = text("gpu|.*(gpu.?exporter|dcgm).*")
_METRIC_LABEL = "[a-zA-Z]\\w*|_([a-zA-Z0-9]\\w*)?"
ALERT_LABELS = keyed(_METRIC_LABEL, TEXT)
_KEY = closed({"name": TEXT, "key": TEXT, "optional": BOOL}, "name", "key")
_EITHER: Schema = {**closed({"secret": _KEY, "configMap": _KEY}), "maxProperties": 1}
_VERSION = one_of("TLS10", "TLS11", "TLS12", "TLS13")
_TLS = {
    "ca": _EITHER,
    "cert": _EITHER,
    "keySecret": _KEY,
    "serverName": TEXT,
    "insecureSkipVerify": BOOL,
    "minVersion": _VERSION,
    "maxVersion": _VERSION,
}
TLS_CONFIG = closed({**_TLS, **dict.fromkeys(("caFile", "certFile", "keyFile"), TEXT)})
# A PodMonitor cannot name files of Prometheus.
POD_TLS_CONFIG = closed(_TLS)
ATTACH_METADATA = closed({"node": BOOL})
RULE_GROUPS = listed({"type": "object", "required": ["name", "rules"], "properties": {"name": TEXT, "rules": OBJECTS}})
BASIC_AUTH = closed({"username": _KEY, "password": _KEY})
AUTHORIZATION = closed({"type": TEXT, "credentials": _KEY})
_ACTIONS = (
    *("replace", "keep", "drop", "hashmod", "labelmap", "labeldrop", "labelkeep", "lowercase", "uppercase"),
    *("keepequal", "dropequal", "Replace", "Keep", "Drop", "HashMod", "LabelMap", "LabelDrop", "LabelKeep"),
    *("Lowercase", "Uppercase", "KeepEqual", "DropEqual"),
)
RELABELINGS = listed(
    closed(
        {
            "sourceLabels": listed(text("[a-zA-Z_]\\w*")),
            "separator": TEXT,
            "targetLabel": TEXT,
            "regex": {"type": "string", "format": "regex"},
            "modulus": COUNT,
            "replacement": TEXT,
            "action": one_of(*_ACTIONS),
        }
    )
)

# Pools of the remediation controller, which checks the selectors, windows and durations itself.
POOLS = listed(
    closed(
        {
            "name": DOMAIN,
            "selector": TEXT,
            "mode": one_of("off", "observe", "cordon", "drain"),
            "budget": closed(
                {
                    "nodes": COUNT,
                    "share": SHARE,
                    "topology_key": LABEL_KEY,
                    "per_topology": COUNT,
                }
            ),
            "confirm": SECONDS,
            "clean": SECONDS,
            "new_boot": BOOL,
            "active_check": BOOL,
            "degraded": BOOL,
            "windows": TEXTS,
            "drain": closed(
                {
                    "pods": one_of("gpu", "all"),
                    "timeout": SECONDS,
                    "longest_checkpoint": SECONDS,
                    "protected_namespaces": TEXTS,
                    "protected_priority": WHOLE,
                    "unmanaged": BOOL,
                    "gang_labels": LABEL_KEYS,
                }
            ),
        },
        "name",
    )
)
