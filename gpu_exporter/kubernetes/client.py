"""A client of the API server that reads, with the token of the pod's service account. `writer.py` adds writes.

Each answer is decoded, or becomes the failure that it means.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlencode

from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.io.file_access import FileWorker, read
from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.objects import (
    EventHead,
    FailureEvent,
    ListHead,
    Object,
    ObjectList,
    WatchEvent,
    WatchFailure,
)
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.version import __version__

T = TypeVar("T")

MOST_FAILURE_BYTES = 1 << 16


def refused(response: HTTPResponse, path: str, method: str = "GET") -> LookupFailed:
    """Return the failure that an answer other than 200 and 201 means."""
    reasons = {
        401: "unauthorized",
        403: "forbidden",
        404: "not_found",
        409: "conflict",
        410: "gone",
        422: "conflict",  # the `test` of a JSON patch failed
        429: "too_many_requests",
    }
    verbs = {"GET": "verbs list and watch", "POST": "verb create", "PUT": "verb update", "PATCH": "verb patch"}[method]
    causes = {
        401: ("the API server rejects the token", "check that the service account still exists"),
        403: ("forbidden", f"the service account needs the {verbs} (a ClusterRole and its binding)"),
        409: ("the object has changed since it was read", ""),
        422: ("the object has changed since it was read, or it is invalid", ""),
        410: ("the resource version is too old; gpu-exporter lists again", ""),
    }
    reason = reasons.get(response.status, f"http_{response.status}")
    cause, fix = causes.get(response.status) or (_why(response, method), "")
    after = response.headers.get("Retry-After", "")
    retry_after = float(after) if after.isdecimal() and len(after) < 6 else 0.0
    return LookupFailed(reason, f"API server: {path}: {response.status}: {cause}", fix=fix, retry_after=retry_after)


def _why(response: HTTPResponse, method: str) -> str:
    """Return why the server refuses a request; for a write, such as an eviction, in its own words."""
    try:
        message = json_as(WatchFailure, response.read(MOST_FAILURE_BYTES)).get("message") if method != "GET" else ""
    except ValueError:
        message = ""
    return printable(message or response.reason, 200)


def too_large(path: str, why: str) -> LookupFailed:
    """Return the failure of an answer that exceeds a limit."""
    return LookupFailed("too_large", f"API server: {path}: {why}", fix="check KUBERNETES_SERVICE_HOST")


def decoded(body: bytes, kind: type[T], path: str) -> T:
    """Return an answer of the server as `kind`. Raises LookupFailed if it is malformed."""
    try:
        return json_as(kind, body)
    except ValueError as error:
        raise LookupFailed("malformed", f"API server: {path}: unexpected answer: {error}") from error


def event(line: bytes, path: str) -> WatchEvent:
    """Return an event. Raises LookupFailed if it is an ERROR event, or malformed."""
    if decoded(line, EventHead, path)["type"] != "ERROR":
        return decoded(line, WatchEvent, path)
    failure = decoded(line, FailureEvent, path)["object"]
    reason = "gone" if failure.get("code") == 410 else "refused"
    raise LookupFailed(reason, f"API server: watch ended: {printable(failure.get('message', ''), 200)}")


if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


# How long the server may be silent (seconds). A whole answer or list, however many pages it has, may take
# TOTAL_TIMEOUT_FACTOR times as long.
PATIENCE = 10.0
TOTAL_TIMEOUT_FACTOR = 3
CHECK_CA = "check the CA of the service account"
PAGE = 500
# If the server vanishes without closing the connection, a watch ends after half a minute.
KEEPALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 15,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
}
# The characters of a bearer token in RFC 6750.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)


class _TimedSocket(ssl.SSLSocket):
    """A socket with a deadline for all reads together: a timeout alone starts anew at each byte."""

    patience, deadline = PATIENCE, float("inf")

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self.settimeout(min(self.patience, remaining))
        return super().recv_into(buffer, nbytes, flags)


class ListContent(NamedTuple):
    """What a request sends: its method, and its body with the content type."""

    method: str = "GET"
    body: bytes | None = None
    kind: str = ""


GET = ListContent()


class Api:
    """Makes one request at a time, on a connection that is kept. Token and CA are read each time, as both rotate."""

    def __init__(self, host: str, port: int, account: Path, patience: float = PATIENCE) -> None:
        self._host, self._port, self._account, self._patience = host, port, account, patience
        self._files = FileWorker("service-account")
        self._connection: HTTPSConnection | None = None
        self._ca = ""

    def get(self, path: str, kind: type[T], **query: str) -> T:
        """Return one object. Raises LookupFailed."""
        deadline = time.monotonic() + TOTAL_TIMEOUT_FACTOR * self._patience
        return decoded(self._body(path, query, limits.MOST_LIST_BYTES, deadline), kind, path)

    def list_objects(self, path: str, **query: str) -> tuple[list[Object], str]:
        """Return all items of a list, and its resource version. Raises LookupFailed.

        Version 0 is answered from the server's cache; otherwise each request would read the whole list from etcd.
        """
        items: list[Object] = []
        version = ""
        for page in self.pages(path, ObjectList, fresh=False, **query):
            items += page["items"] or ()
            version = page["metadata"].get("resourceVersion", "")
            if len(items) > limits.MOST_OBJECTS:
                raise too_large(path, f"more than {limits.MOST_OBJECTS} objects")
        return items, version

    def pages(self, path: str, kind: type[T], *, fresh: bool = False, **query: str) -> Iterator[T]:
        """Yield the pages of a list; unless `fresh`, from the server's cache, which may be old. Raises LookupFailed."""
        start, left = {} if fresh else {"resourceVersion": "0"}, limits.MOST_LIST_BYTES
        deadline = time.monotonic() + TOTAL_TIMEOUT_FACTOR * self._patience
        for _ in range(limits.MOST_PAGES):
            body = self._body(path, {"limit": str(PAGE), **query, **start}, left, deadline)
            left -= len(body)
            yield decoded(body, kind, path)
            token = decoded(body, ListHead, path)["metadata"].get("continue", "")
            if not token:
                return
            start = {"continue": token}
        raise too_large(path, f"more than {limits.MOST_PAGES} pages")

    def watch(self, path: str, seconds: float, **query: str) -> Generator[WatchEvent | None, None, None]:
        """Yield None once the server answers, then events for about `seconds`. Raises LookupFailed.

        It does not reconnect: after a restore of etcd, a new connection may reach a server with lower versions than
        the list that the watch continues, which would send no events.
        """
        query |= {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(int(seconds))}
        patience = seconds + self._patience
        with (
            self._as_lookup_failed(path),
            self._request(path, query, patience, time.monotonic() + patience, reconnect=False) as response,
        ):
            yield None
            while line := response.readline(limits.MOST_EVENT_BYTES):
                if len(line) == limits.MOST_EVENT_BYTES:
                    raise too_large(path, f"an event larger than {limits.MOST_EVENT_BYTES >> 20} MiB")
                if line.strip():
                    yield event(line, path)

    def _body(
        self, path: str, query: Mapping[str, str], most: int, deadline: float, content: ListContent = GET
    ) -> bytes:
        reads = content.method == "GET"  # a write may have been carried out although its answer was lost
        with (
            self._as_lookup_failed(path),
            self._request(path, query, self._patience, deadline, reconnect=reads, content=content) as response,
        ):
            body = response.read(most + 1)
        if len(body) > most:
            raise too_large(path, f"more than {limits.MOST_LIST_BYTES >> 20} MiB")
        return body

    @contextmanager
    def _request(
        self,
        path: str,
        query: Mapping[str, str],
        patience: float,
        deadline: float,
        *,
        reconnect: bool = True,
        content: ListContent = GET,
    ) -> Iterator[HTTPResponse]:
        headers = {"Accept": "application/json", "User-Agent": f"gpu-exporter/{__version__}"}
        if content.kind:
            headers["Content-Type"] = content.kind
        url = f"{path}?{urlencode(query)}" if query else path
        complete = False
        try:
            with self._respond(url, headers, patience, deadline, reconnect=reconnect, content=content) as response:
                if response.status not in (200, 201):
                    raise refused(response, path, content.method)
                yield response
                complete = response.isclosed()  # the whole body was read
        finally:
            if not complete:
                self.close()

    def _respond(
        self,
        url: str,
        headers: Mapping[str, str],
        patience: float,
        deadline: float,
        *,
        reconnect: bool,
        content: ListContent,
    ) -> HTTPResponse:
        """Send a request on the kept connection; if the server has closed that, `reconnect` tries a new one."""
        kept = self._connection is not None
        try:
            return self._send(url, headers, patience, deadline, content)
        except (ConnectionError, ssl.SSLEOFError):
            if not (kept and reconnect):
                raise
        self.close()
        return self._send(url, headers, patience, deadline, content)

    def _send(
        self, url: str, headers: Mapping[str, str], patience: float, deadline: float, content: ListContent
    ) -> HTTPResponse:
        connection, token = self._connected()
        authorized = {**headers, "Authorization": f"Bearer {token}"}
        connection.request(content.method, url, body=content.body, headers=authorized)
        connected = connection.sock
        assert isinstance(connected, _TimedSocket)
        for option, value in KEEPALIVE.items():
            connected.setsockopt(*option, value)
        connected.patience, connected.deadline = patience, deadline
        return connection.getresponse()

    def close(self) -> None:
        """Close the kept connection."""
        if self._connection:
            self._connection.close()
        self._connection = None

    def _connected(self) -> tuple[HTTPSConnection, str]:
        """Return the kept connection, or a new one if the CA has changed, and the token. Raises LookupFailed."""
        token, ca, context = self._credentials()
        if self._connection is None or ca != self._ca:
            self.close()
            self._ca = ca
            self._connection = HTTPSConnection(self._host, self._port, timeout=self._patience, context=context)
        return self._connection, token

    def _credentials(self) -> tuple[str, str, ssl.SSLContext]:
        """Return the token, the CA, and a TLS context with it. Raises LookupFailed, without the token in its text."""
        path, ca = self._account / "token", self._account / "ca.crt"
        token = self._file(path).decode("ascii", "replace").strip()
        certificates = self._file(ca).decode("ascii", "ignore")
        try:
            # An empty text would mean the system's CAs.
            context = ssl.create_default_context(cadata=certificates.strip() or "empty")
            # Set by default since Python 3.13; the CAs of many clusters lack the key identifiers that it demands.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        except (ssl.SSLError, ValueError) as error:
            raise LookupFailed("tls", f"API server: {ca} has no certificate", fix=CHECK_CA) from error
        if not TOKEN.fullmatch(token):
            fix = "check the service account of the pod"
            raise LookupFailed("no_token", f"API server: {path} has no token", fix=fix)
        context.sslsocket_class = _TimedSocket
        return token, certificates, context

    def _file(self, path: Path) -> bytes:
        try:
            return self._files.call(lambda: read(path, limits.MOST_CREDENTIAL_BYTES))
        except TimeoutError as error:
            message = f"API server: {path}: {error.strerror}"
            raise LookupFailed("timeout", message, fix="is its volume reachable?") from error
        except FileNotFoundError as error:
            fix = "the pod needs a service account (automountServiceAccountToken)"
            raise LookupFailed("no_token", f"API server: {path} does not exist", fix=fix) from error
        except OSError as error:
            message = f"API server: {path}: {error.strerror}"
            raise LookupFailed("no_token", message, fix="it must be a file that this user can read") from error

    @contextmanager
    def _as_lookup_failed(self, path: str) -> Iterator[None]:
        """Convert the errors of a request to LookupFailed."""
        server, started = f"{self._host}:{self._port}", time.monotonic()
        try:
            yield
        except ssl.SSLEOFError as error:  # by a load balancer without a server, for example
            message = f"API server {server}: it closed the connection"
            raise LookupFailed("unavailable", message, fix="is it running?") from error
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or error
            raise LookupFailed("tls", f"API server {server}: {why}", fix=CHECK_CA) from error
        except TimeoutError as error:
            message = f"API server: no complete answer to {path} within {time.monotonic() - started:.2g} s"
            raise LookupFailed("timeout", message, fix=f"check the network to {server}") from error
        except (OSError, HTTPException, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            fix = "is it reachable from this node (NetworkPolicy, firewall)?"
            raise LookupFailed("unavailable", f"API server {server}: {printable(why, 200)}", fix=fix) from error


def in_cluster(account: Path, environ: Mapping[str, str] = os.environ, patience: float = PATIENCE) -> Api:
    """Return a client of the cluster that this pod runs in. Raises GpuExporterError outside a cluster."""
    return Api(*server_address(environ, "pod labels and resource claims can only be read"), account, patience)


def server_address(environ: Mapping[str, str], what: str) -> tuple[str, int]:
    """Return host and port of the API server of this pod's cluster. `what` can only be done inside a cluster.

    Raises GpuExporterError.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        message = "KUBERNETES_SERVICE_HOST is not set, or KUBERNETES_SERVICE_PORT is not a number"
        raise GpuExporterError(message, fix=f"{what} inside a cluster")
    return host, int(port)
