"""Schemas of what the chart passes on to the exporter: settings, web configuration, and changes to the XIDs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from content.chart.schemas import (
    BOOL,
    DURATION,
    PORT,
    POSITIVE,
    SHARE,
    TEXT,
    TEXTS,
    Schema,
    closed,
    keyed,
    listed,
    one_of,
    text,
)
from gpu_exporter.catalogue import xids
from gpu_exporter.config import Config
from gpu_exporter.http.tls import CIPHERS, CLIENT_AUTH, CURVES, VERSIONS
from gpu_exporter.http.web_config import HEADERS, HTTP_KEYS, RATE_KEYS, SECTIONS, TLS_KEYS
from gpu_exporter.io import user_text
from gpu_exporter.model.metric import Schema as NameSchema
from gpu_exporter.model.source_kind import SOURCE_KINDS
from gpu_exporter.model.verdict import Action
from gpu_exporter.remediation.settings import Settings

HOST_ENGINE = text("|(unix://)?/.+|([^][:/ ]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]+)?")

# Numbers may be written with or without quotes.
_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_BOOLEAN: Schema = {"enum": [True, False, "true", "yes", "on", "1", "false", "no", "off", "0"]}
_COUNT: Schema = {"type": ["integer", "string"], "pattern": "^[0-9]{1,4}$", "minimum": 0, "maximum": 9999}
_POSITIVE: Schema = {**_COUNT, "pattern": "^0*[1-9][0-9]{0,3}$", "minimum": 1}
# Helm parses numbers as floats, which are exact so far.
_WHOLE: Schema = {
    "type": ["integer", "string"],
    "pattern": "^-?[0-9]{1,18}$",
    "minimum": -(2**53),
    "maximum": 2**53,
}
_FACTOR: Schema = {
    "type": ["number", "string"],
    "pattern": "^[0-9]*[.]?[0-9]+$",
    "allOf": [{"pattern": "[1-9]"}],
    "exclusiveMinimum": 0,
}
_DEVICE = "([0-9]{1,6}( *- *[0-9]{1,6})?|(GPU|MIG)-[0-9A-Za-z-]+)"
_DEVICES = text(f"f|[gi]( *: *{_DEVICE}( *, *{_DEVICE})*)?")
# By the parser of a setting. Settings with another parser are any text.
_PARSED: Mapping[Callable[[str], Any], Schema] = {
    user_text.boolean: _BOOLEAN,
    user_text.count: _COUNT,
    user_text.positive: _POSITIVE,
    user_text.whole: _WHOLE,
    user_text.speed: _FACTOR,
    user_text.duration: DURATION,
    user_text.device_list: _DEVICES,
    user_text.schema: one_of(*(each.value for each in NameSchema)),
}
_NAMED: Mapping[str, Schema] = {"source": one_of(*SOURCE_KINDS), "log_format": one_of("text", "json")}


def settings(managed: Mapping[str, str]) -> Schema:
    """Return the schema of all settings but those for which the chart has a value of its own."""
    return closed(
        {
            setting.name: {
                **_NAMED.get(setting.name, _PARSED.get(setting.metadata["parse"], _SCALAR)),
                "description": setting.metadata["help"],
            }
            for setting in fields(Config)
            if setting.name not in managed
        }
    )


_TLS: Mapping[str, Schema] = {
    **dict.fromkeys(TLS_KEYS, TEXT),
    "client_auth_type": one_of("", *CLIENT_AUTH),
    "client_allowed_sans": listed(TEXT),
    "min_version": one_of(*VERSIONS),
    "max_version": one_of(*VERSIONS),
    "cipher_suites": listed(one_of(*CIPHERS)),
    "curve_preferences": listed(one_of(*CURVES)),
    "prefer_server_cipher_suites": BOOL,
}
_RATE: Mapping[str, Schema] = {
    **dict.fromkeys(RATE_KEYS, POSITIVE),
    "interval": {
        "type": ["string", "integer"],
        "pattern": "^(0|[0-9]+([.][0-9]+)?(ms|s|m|h|))$",
        "minimum": 0,
        "maximum": 0,
    },
}
_HEADERS: Mapping[str, Schema] = {
    name: one_of(*values) if values else {"type": ["string", "null"], "pattern": "^[ -~]*$"}
    for name, values in HEADERS.items()
}
_HTTP: Mapping[str, Schema] = {**dict.fromkeys(HTTP_KEYS, BOOL), "headers": closed(_HEADERS)}
_TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
# The hashes are checked by the templates, whose message does not repeat them.
_SECTIONS: Mapping[str, Schema] = {
    **dict.fromkeys(SECTIONS, _TEXTS),
    "tls_server_config": closed(_TLS),
    "http_server_config": closed(_HTTP),
    "rate_limit": closed(_RATE),
}
WEB_CONFIG = closed(_SECTIONS)

# From 1 to xids.HIGHEST.
_CODE = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_COLUMNS: Mapping[str, Schema] = {
    **dict.fromkeys(xids.COLUMNS, text(".*\\S.*")),
    "kind": one_of(*xids.KINDS),
    "action": one_of(*(action.value for action in Action)),
    "drain": BOOL,
    "date": text("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
}
XID_OVERRIDES = keyed(_CODE, closed(_COLUMNS))

# The controller's settings without those that the chart sets: its rights, its Service and the pools depend on them.
_BY_TYPE: Mapping[Any, Schema] = {
    str: TEXT,
    bool: BOOL,
    int: POSITIVE,
    float: SHARE,
    tuple[str, ...]: TEXTS,
}

_BY_NAME: Mapping[str, Schema] = {"port": PORT}


def _of_class(owner: type, *managed: str) -> Schema:
    """Return the schema of an object that is decoded as a dataclass."""
    types = get_type_hints(owner)
    assert is_dataclass(owner)
    return closed(
        {
            each.name: _of_class(types[each.name])
            if is_dataclass(types[each.name])
            else _BY_NAME.get(each.name, _BY_TYPE[types[each.name]])
            for each in fields(owner)
            if each.name not in managed
        }
    )


CONTROLLER = _of_class(Settings, "namespace", "lease", "address", "pools", "events")
