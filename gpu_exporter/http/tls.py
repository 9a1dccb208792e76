"""Make an `ssl.SSLContext` from TLS settings and the contents of their files. Pure."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# Go's names. Those without a value belong to TLS 1.3, whose suites neither Go nor Python lets users choose.
CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
}
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
# RequestClientCert accepts any certificate or none, so none is requested.
CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
SAN_KINDS = ("DNS", "email", "IP Address", "URI")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings, with the contents of the files."""

    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes = b""
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    client_sans: frozenset[str] = frozenset()
    versions: tuple[ssl.TLSVersion, ssl.TLSVersion] = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    ciphers: tuple[str, ...] = ()
    prefer_server_ciphers: bool = True
    curves: tuple[str, ...] = ()


def context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of the server. Raises ValueError."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version, made.maximum_version = tls.versions
    made.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if tls.prefer_server_ciphers:
        made.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    _certificate(made, tls)
    try:
        if tls.ciphers:
            made.set_ciphers(":".join(tls.ciphers))
    except ssl.SSLError as error:
        raise ValueError(f"cipher_suites: this OpenSSL supports none of them: {_reason(error)}") from error
    if tls.curves:
        _curves(made, tls.curves)
    if tls.client_auth != ssl.CERT_NONE:
        try:
            with _in_memory(tls.client_ca) as path:
                made.load_verify_locations(path)
        except ssl.SSLError as error:
            raise ValueError(f"client_ca: contains no usable certificate: {_reason(error)}") from error
        made.verify_mode = tls.client_auth
    return made


def _certificate(made: ssl.SSLContext, tls: Tls) -> None:
    for name, begin, value in (("cert", b"CERTIFICATE", tls.cert), ("key", b"PRIVATE KEY", tls.key)):
        if not re.search(rb"-----BEGIN [A-Z0-9 ]*" + begin, value):
            raise ValueError(f"{name}: contains no PEM block that begins with -----BEGIN {begin.decode()}-----")
    asked = []

    def password() -> str:  # without this OpenSSL would ask on the terminal
        asked.append(True)
        return ""

    try:
        with _in_memory(tls.cert) as cert, _in_memory(tls.key) as key:
            made.load_cert_chain(cert, key, password)
    except ssl.SSLError as error:
        if asked:
            raise ValueError("key: is encrypted; remove the passphrase with `openssl pkey`") from error
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(
                "cert and key do not belong together; use the key that the certificate was made with"
            ) from error
        raise ValueError(f"cert or key cannot be used: {_reason(error)}") from error


def _curves(made: ssl.SSLContext, names: tuple[str, ...]) -> None:
    try:
        if len(names) == 1:
            made.set_ecdh_curve(names[0])
        elif hasattr(made, "set_groups"):
            made.set_groups(":".join(names))
        else:
            raise ValueError("curve_preferences: this Python supports only one; list one, or none")
    except ssl.SSLError as error:
        raise ValueError(f"curve_preferences: not supported by this OpenSSL: {_reason(error)}") from error


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield a path to this content, so that OpenSSL loads the bytes that were checked, and keys stay off disk."""
    if not hasattr(os, "memfd_create"):
        raise ValueError("TLS needs Linux; use a proxy in front of the exporter, or no TLS")
    descriptor = os.memfd_create("tls")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def canonical(name: str) -> str:
    """Normalise a name in a certificate, so that equal IP addresses are equal strings."""
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name


def admits(tls: Tls, certificate: Mapping[str, Any] | None) -> bool:
    """Return whether a verified client certificate, as `ssl` describes it, has one of the allowed names."""
    names = {canonical(name) for kind, name in (certificate or {}).get("subjectAltName", ()) if kind in SAN_KINDS}
    return not tls.client_sans or not tls.client_sans.isdisjoint(names)
