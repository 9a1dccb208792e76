"""Parse the web configuration file of Prometheus' exporter-toolkit. Pure, except for `read`."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_exporter.http.tls import CIPHERS, CLIENT_AUTH, CURVES, VERSIONS, Tls, canonical
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.user_text import boolean, choice, duration, nearest

# Each step doubles the time of bcrypt. 16 takes seconds, and a check cannot be interrupted.
HIGHEST_COST = 16
# Parsing takes about a second for this size.
MOST_BYTES = 128 << 10

SECURE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# The headers that the toolkit allows, with the values allowed; () means any.
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One request each `interval` seconds, and up to `burst` at once."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The content of the file, validated."""

    tls: Tls | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: SECURE_HEADERS)
    rate_limit: RateLimit | None = None


Read = Callable[[Path], bytes]


def parse(content: bytes, folder: Path, read: Read) -> WebConfig:
    """Parse the file. Raises ValueError, with the key and the fix."""
    from gpu_exporter.io.yaml_decoding import yaml_document

    if len(content) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 10} KiB; keep certificates in files of their own")
    sections = _section(yaml_document(content), SECTIONS)
    headers = {**SECURE_HEADERS, **sections.get("http_server_config", {})}
    tls = sections.get("tls_server_config")
    try:
        return WebConfig(
            _tls(tls, folder, read) if tls else None,
            sections.get("basic_auth_users", {}),
            {name: value for name, value in headers.items() if value},
            sections.get("rate_limit"),
        )
    except ValueError as error:
        raise ValueError(f"tls_server_config: {error}") from error


def _section(content: Any, keys: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the values of a mapping, each parsed by its key's parser."""
    values = {}
    for key, value in _mapping(content).items():
        if key not in keys:
            raise ValueError(f"unknown key {printable(key, 60)}{nearest(key, keys)}")
        try:
            values[key] = keys[key](value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    return values


def _mapping(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict | None):
        raise ValueError("must be a mapping of keys to values")
    mapping = {}
    for key, value in (content or {}).items():
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ValueError(f"key {printable(str(key), 40)}: must be text; put it in quotes")
        mapping[str(key)] = value
    return mapping


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {type(value).__name__}; put it in quotes")
    return value


def _truth(value: Any) -> bool:
    return boolean(str(value))


def _name(values: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a parser that replaces one of these names with its value."""
    pick = choice(*values)
    return lambda value: values[pick(str(value))]


def _list(parse: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def parsed(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError("must be a list of at least one value")
        return tuple(parse(item) for item in value)

    return parsed


def _version(value: Any) -> ssl.TLSVersion:
    if value in ("TLS10", "TLS11"):
        raise ValueError(f"{printable(str(value), 60)} is insecure and not supported; use TLS12 or TLS13")
    return ssl.TLSVersion(_name(VERSIONS)(value))


def _auth_type(value: Any) -> ssl.VerifyMode:
    if value in ("RequireAnyClientCert", "RequireClientCert"):
        raise ValueError(f"{value} would accept forged certificates; use RequireAndVerifyClientCert")
    return ssl.VerifyMode(_name({"": ssl.CERT_NONE, **CLIENT_AUTH} if value == "" else CLIENT_AUTH)(value))


def _san(value: Any) -> str:
    return canonical(_text(value))


TLS_KEYS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file"), _text),
    "client_auth_type": _auth_type,
    "client_allowed_sans": _list(_san),
    "min_version": _version,
    "max_version": _version,
    "cipher_suites": _list(_name(CIPHERS)),
    "curve_preferences": _list(_name(CURVES)),
    "prefer_server_cipher_suites": _truth,
}


def _tls(content: Mapping[str, Any], folder: Path, read: Read) -> Tls:
    given = _section(content, TLS_KEYS)

    def either(key: str) -> bytes:
        inline, name = given.get(key, ""), given.get(f"{key}_file", "")
        if inline and name:
            raise ValueError(f"{key} and {key}_file are both set; keep one")
        if not name:
            return str(inline).encode()
        path = folder / name
        try:
            return read(path)
        except OSError as error:
            raise ValueError(f"{key}_file {path}: {error.strerror}") from error

    cert, key, client_ca = either("cert"), either("key"), either("client_ca")
    for name, value in (("cert", cert), ("key", key)):
        if not value:
            raise ValueError(f"{name}_file is missing or empty; TLS needs a certificate and its key")
    versions = (given.get("min_version", ssl.TLSVersion.TLSv1_2), given.get("max_version", ssl.TLSVersion.TLSv1_3))
    ciphers = tuple(filter(None, given.get("cipher_suites", ())))
    if "cipher_suites" in given and not ciphers:  # all of them belong to TLS 1.3
        versions = (ssl.TLSVersion.TLSv1_3, versions[1])
    if versions[0] > versions[1]:
        raise ValueError("min_version, max_version and cipher_suites allow no TLS version; remove one of them")
    auth = given.get("client_auth_type", ssl.CERT_NONE)
    if client_ca and content.get("client_auth_type", "") in ("", "NoClientCert"):
        raise ValueError("client_ca needs client_auth_type: RequireAndVerifyClientCert")
    if auth != ssl.CERT_NONE and not client_ca:
        raise ValueError("client_auth_type needs client_ca_file, to verify certificates with")
    if "client_allowed_sans" in given and auth != ssl.CERT_REQUIRED:
        raise ValueError("client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert")
    sans = frozenset(given.get("client_allowed_sans", ()))
    prefer = given.get("prefer_server_cipher_suites", True)
    return Tls(cert, key, client_ca, auth, sans, versions, ciphers, prefer, given.get("curve_preferences", ()))


def _http(content: Any) -> dict[str, str]:
    # `http2` is accepted and ignored: the server never offers HTTP/2.
    headers: dict[str, str] = _section(content, HTTP_KEYS).get("headers", {})
    return headers


def _headers(content: Any) -> dict[str, str]:
    return _section(content, {name: _header(values) for name, values in HEADERS.items()})


def _header(values: tuple[str, ...]) -> Callable[[Any], str]:
    def parsed(value: Any) -> str:
        text = choice(*values)(str(value)) if values else "" if value is None else _text(value)
        if not re.fullmatch(r"[\x20-\x7e]*", text):
            raise ValueError("must be one line of printable ASCII")
        return text

    return parsed


def _users(content: Any) -> dict[str, str]:
    users = _mapping(content)
    for user, hashed in users.items():
        shown = printable(user, 60)
        match = re.fullmatch(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}", hashed if isinstance(hashed, str) else "")
        if not match:
            raise ValueError(f"{shown}: not a bcrypt hash; make one with `htpasswd -nBC 10 {shown}`")
        if not 4 <= int(match[1]) <= HIGHEST_COST:
            raise ValueError(f"{shown}: a bcrypt cost of {match[1]} is out of range; use 10")
        if ":" in user:
            raise ValueError(f"{shown}: a user name must not contain a colon; choose another one")
    return users


def _rate(content: Any) -> RateLimit | None:
    given = _section(content, RATE_KEYS)
    if not given.get("interval"):
        return None
    if "burst" not in given:
        raise ValueError("burst is missing; set the number of requests that may come at once")
    return RateLimit(given["interval"], given["burst"])


def _interval(value: Any) -> float:
    if value in (0, "0"):
        return 0.0
    return duration(_text(value))


def _burst(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("must be a number of requests, at least 1")
    return value


HTTP_KEYS: Mapping[str, Callable[[Any], Any]] = {"http2": _truth, "headers": _headers}
RATE_KEYS: Mapping[str, Callable[[Any], Any]] = {"interval": _interval, "burst": _burst}
SECTIONS: Mapping[str, Callable[[Any], Any]] = {
    "tls_server_config": _mapping,
    "http_server_config": _http,
    "basic_auth_users": _users,
    "rate_limit": _rate,
}
