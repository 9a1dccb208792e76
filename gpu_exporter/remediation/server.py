"""The controller's HTTP server: its metrics, its health, and Alertmanager's webhook, which is only a hint.

An alert never decides anything: the node that it names is looked at sooner, and the decision reads the node's exporter.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.file_access import FileWorker, read
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.remediation.metrics import ControllerMetrics

MOST_BODY_BYTES = 1 << 18
MOST_TOKEN_BYTES = 1 << 12
# Nodes that wait to be looked at; more are left to the next full cycle.
MOST_HINTS = 256
# The labels of an alert that may name its node.
NODE_LABELS = ("node", "instance", "Hostname")
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Hints:
    """The nodes to look at sooner. Any thread may call any method."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self.wanted = threading.Event()

    def add(self, names: Iterable[str]) -> None:
        """Add nodes, as long as there is room."""
        with self._lock:
            for name in names:
                if len(self._names) < MOST_HINTS:
                    self._names.add(name)
            if self._names:
                self.wanted.set()

    def take(self) -> frozenset[str]:
        """Return the nodes and forget them."""
        with self._lock:
            names, self._names = frozenset(self._names), set()
            self.wanted.clear()
            return names


@dataclass(slots=True)
class _Alert:
    labels: dict[str, str] = field(default_factory=dict)
    status: str = ""


@dataclass(slots=True)
class _Notification:
    alerts: list[_Alert]


def nodes_of(body: bytes) -> frozenset[str]:
    """Return the nodes that the firing alerts of a notification name. Raises ValueError if it is malformed."""
    alerts = json_as(_Notification, body).alerts
    names = {alert.labels.get(label, "") for alert in alerts for label in NODE_LABELS if alert.status != "resolved"}
    return frozenset(re.sub(r":\d+$", "", name) for name in names) - {""}


class Webhook:
    """Alertmanager's notifications. It repeats a notification after a 5xx, and drops it after a 4xx."""

    def __init__(self, metrics: ControllerMetrics, hints: Hints, token_file: Path | None) -> None:
        self._metrics, self._hints, self._token_file = metrics, hints, token_file
        self._files = FileWorker("webhook-token")

    def answer(self, authorization: str, body: bytes) -> tuple[int, str]:
        """Return the status and the text for a notification; if it is accepted, its nodes are hints."""
        path = self._token_file
        if path is None:
            return 404, "the webhook is off: set webhook_token_file"
        try:
            token = self._files.call(lambda: read(path, MOST_TOKEN_BYTES)).strip()
        except OSError as error:
            return 503, f"the token cannot be read: {error.strerror}"
        given = authorization.removeprefix("Bearer ").encode()
        if not token or not hmac.compare_digest(given, token):
            return 401, "needs the token of webhook_token_file: Authorization: Bearer …"
        if not self._metrics.leads:
            return 503, "another controller leads"
        try:
            self._hints.add(nodes_of(body))
        except ValueError as error:
            return 400, f"not a notification of Alertmanager: {error}"
        return 202, "accepted"


class _Text(RequestHandler):
    """A path that answers with a text."""

    def set_default_headers(self) -> None:
        self.set_header("Server", "gpu-exporter")
        self.set_header("Content-Type", TEXT)

    def write_error(self, status_code: int, **_: Any) -> None:
        self.finish(f"{status_code} {self._reason}\n")


class _Metrics(_Text):
    def initialize(self, metrics: ControllerMetrics) -> None:
        self.metrics = metrics

    async def get(self) -> None:
        await self.finish(self.metrics.text())


class _Healthz(_Text):
    async def get(self) -> None:
        await self.finish("ok\n")


class _Webhook(_Text):
    def initialize(self, metrics: ControllerMetrics, webhook: Webhook) -> None:
        self.metrics, self.webhook = metrics, webhook

    async def post(self) -> None:
        authorization = self.request.headers.get("Authorization", "")
        status, text = await asyncio.to_thread(self.webhook.answer, authorization, self.request.body)
        self.metrics.webhooks.labels(str(status)).inc()
        self.set_status(status)
        await self.finish(f"{text}\n")


class ControllerServer:
    """Listens in a thread of its own."""

    def __init__(self, where: Address, metrics: ControllerMetrics, hints: Hints, token_file: Path | None) -> None:
        self._where = where
        webhook = Webhook(metrics, hints, token_file)
        self._application = Application(
            [
                ("/metrics", _Metrics, {"metrics": metrics}),
                ("/healthz", _Healthz),
                ("/webhook", _Webhook, {"metrics": metrics, "webhook": webhook}),
            ],
            log_function=lambda _: None,
        )
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self.port = 0

    def start(self) -> None:
        """Listen. Raises GpuExporterError if the address is in use."""
        threading.Thread(target=lambda: asyncio.run(self._serve()), name="http", daemon=True).start()
        self._started.wait()
        if self._failure:
            why = self._failure.strerror or self._failure
            raise GpuExporterError(f"address {self._where}: {why}", fix="set another address in the configuration")

    async def _serve(self) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        server = HTTPServer(
            self._application,
            max_body_size=MOST_BODY_BYTES,
            max_buffer_size=MOST_BODY_BYTES,
            idle_connection_timeout=60,
        )
        try:
            sockets = bind_sockets(self._where.port, self._where.host or None)
        except OSError as error:
            self._failure = error
            self._started.set()
            return
        server.add_sockets(sockets)
        self.port = sockets[0].getsockname()[1]
        self._started.set()
        await self._done.wait()
        server.stop()

    def stop(self) -> None:
        """Stop listening."""
        if self._loop and self._done:
            self._loop.call_soon_threadsafe(self._done.set)
