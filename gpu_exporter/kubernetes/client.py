"""A read-only client of the API server, with the token of the pod's service account."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.lookup import LookupFailed, brief
from gpu_exporter.version import __version__

PATIENCE = 10.0
LARGEST_LINE = 16 << 20
LARGEST_REPLY = 256 << 20
PAGE = 500
# The characters of a bearer token in RFC 6750.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)

Object = Mapping[str, Any]


class Api:
    """Makes one request at a time, each on its own connection. Token and CA are read each time, because both rotate."""

    def __init__(self, host: str, port: int, account: Path, patience: float = PATIENCE) -> None:
        self._host, self._port, self._account, self._patience = host, port, account, patience

    def get(self, path: str, **query: str) -> Object:
        """Return one object. Raises LookupFailed."""
        with _as_lookup_failed(path), self._request(path, query, self._patience) as response:
            body = response.read(LARGEST_REPLY)
            return _object(body, path)

    def pages(self, path: str, **query: str) -> tuple[list[Object], str]:
        """Return all items of a list, and its resource version. Raises LookupFailed.

        Version 0 is answered from the server's cache; otherwise each request would read the whole list from etcd.
        """
        items: list[Object] = []
        token = ""
        while True:
            at = {"continue": token} if token else {"resourceVersion": "0"}
            page = self.get(path, limit=str(PAGE), **query, **at)
            items += _items(page)
            token = str(_metadata(page).get("continue") or "")
            if not token:
                return items, str(_metadata(page).get("resourceVersion", ""))

    def watch(self, path: str, seconds: float, **query: str) -> Iterator[Object]:
        """Yield events for about `seconds`, after an empty one once the server answers. Raises LookupFailed."""
        query |= {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(int(seconds))}
        with _as_lookup_failed(path), self._request(path, query, seconds + self._patience) as response:
            yield {}
            while line := response.readline(LARGEST_LINE):
                if line.strip():
                    yield _object(line, path)

    @contextmanager
    def _request(self, path: str, query: Mapping[str, str], patience: float) -> Iterator[HTTPResponse]:
        token, context = _credentials(self._account)
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json",
            "User-Agent": f"gpu-exporter/{__version__}",
            "Connection": "close",
        }
        with closing(HTTPSConnection(self._host, self._port, timeout=self._patience, context=context)) as connection:
            connection.request("GET", f"{path}?{urlencode(query)}" if query else path, headers=headers)
            connection.sock.settimeout(patience)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise _refused(response, path)
                yield response


def _credentials(account: Path) -> tuple[str, ssl.SSLContext]:
    """Return the token, and a TLS context with the CA. Raises LookupFailed, whose text never contains the token."""
    token, ca = account / "token", account / "ca.crt"
    reading = token
    try:
        text = token.read_text(encoding="ascii", errors="replace").strip()
        reading = ca
        context = ssl.create_default_context(cafile=str(ca))
    except FileNotFoundError as error:
        why = f"there is no {reading}: the pod needs a service account (automountServiceAccountToken)"
        raise LookupFailed("no_token", f"API server: {why}") from error
    except ssl.SSLError as error:
        raise LookupFailed(
            "tls", f"API server: {ca} has no certificate: check the CA of the service account"
        ) from error
    except OSError as error:
        why = f"{reading}: {error.strerror}: this user has to be able to read it"
        raise LookupFailed("no_token", f"API server: {why}") from error
    if not TOKEN.fullmatch(text):
        raise LookupFailed("no_token", f"API server: {token} has no token: check the service account of the pod")
    return text, context


@contextmanager
def _as_lookup_failed(path: str) -> Iterator[None]:
    """Convert the errors of a request to LookupFailed."""
    try:
        yield
    except ssl.SSLError as error:
        raise LookupFailed(
            "tls", f"API server: {error.reason or error}: check the CA of the service account"
        ) from error
    except TimeoutError as error:
        raise LookupFailed("timeout", f"API server: no answer to {path} in time") from error
    except (OSError, HTTPException, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LookupFailed("unavailable", f"API server: {brief(why)}") from error


def _refused(response: HTTPResponse, path: str) -> LookupFailed:
    reasons = {401: "unauthorized", 403: "forbidden", 404: "not_found", 410: "gone", 429: "too_many_requests"}
    cures = {
        401: "the token of the service account is not accepted",
        403: "the service account needs list and watch of it (a ClusterRole and its binding)",
        410: "too old a resource version: listed anew",
    }
    reason = reasons.get(response.status, f"http_{response.status}")
    return LookupFailed(reason, f"API server: {path}: {response.status}: {cures.get(response.status, response.reason)}")


def _object(text: bytes, path: str) -> Object:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LookupFailed("malformed", f"API server: {path}: an answer that is no JSON") from error
    if not isinstance(content, dict):
        raise LookupFailed("malformed", f"API server: {path}: an answer that is no object")
    return content


def _metadata(page: Object) -> Object:
    metadata = page.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _items(page: Object) -> list[Object]:
    items = page.get("items")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def in_cluster(account: Path, environ: Mapping[str, str] = os.environ, patience: float = PATIENCE) -> Api:
    """Return a client of the cluster that this pod runs in. Raises GpuExporterError outside a cluster."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        why = "KUBERNETES_SERVICE_HOST is not set: labels of pods and resource claims exist only inside a cluster"
        raise GpuExporterError(why)
    return Api(host, int(port), account, patience)
