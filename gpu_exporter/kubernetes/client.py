"""The API server as a pod sees it: read-only requests with the token of its service account."""

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
# What RFC 6750 lets a bearer token have.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)

Object = Mapping[str, Any]


class Api:
    """One request at a time, each on a connection of its own. Token and CA are read again each time: both change."""

    def __init__(self, host: str, port: int, account: Path, patience: float = PATIENCE) -> None:
        self._host, self._port, self._account, self._patience = host, port, account, patience

    def get(self, path: str, **query: str) -> Object:
        """One object. Raises LookupFailed."""
        with _told(path), self._request(path, query, self._patience) as response:
            body = response.read(LARGEST_REPLY)
            return _object(body, path)

    def pages(self, path: str, **query: str) -> tuple[list[Object], str]:
        """All items of a list, and the resource version that they are of. Raises LookupFailed.

        Version 0 is whatever the server has at hand: else each node's question would have etcd read all of the cluster.
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
        """Events as they come, for about so long; an empty one says that the server has begun. Raises LookupFailed."""
        query |= {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(int(seconds))}
        with _told(path), self._request(path, query, seconds + self._patience) as response:
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
    """Raises LookupFailed, without a word of what is in the token."""
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
def _told(path: str) -> Iterator[None]:
    """Turns what may go wrong in a request into LookupFailed."""
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
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LookupFailed("malformed", f"API server: {path}: an answer that is no JSON") from error
    if not isinstance(found, dict):
        raise LookupFailed("malformed", f"API server: {path}: an answer that is no object")
    return found


def _metadata(found: Object) -> Object:
    metadata = found.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _items(page: Object) -> list[Object]:
    items = page.get("items")
    return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def in_cluster(account: Path, environ: Mapping[str, str] = os.environ, patience: float = PATIENCE) -> Api:
    """The API server of the cluster that this pod runs in. Raises GpuExporterError outside of one."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        why = "KUBERNETES_SERVICE_HOST is not set: labels of pods and resource claims exist only inside a cluster"
        raise GpuExporterError(why)
    return Api(host, int(port), account, patience)
