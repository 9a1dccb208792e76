"""The controller's HTTP server: its metrics, its health, and Alertmanager's webhook, which is only a hint.

An alert never decides anything: the node that it names is looked at sooner, and the decision reads the node's exporter.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Generic, TypeVar

from gpu_exporter.http.guard import Guard
from gpu_exporter.http.handler import TEXT, GuardedHandler
from gpu_exporter.http.login import Refusal
from gpu_exporter.http.proxies import TrustedProxies
from gpu_exporter.http.server import Server
from gpu_exporter.http.token_file import has_token
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.file_access import FileWorker, read
from gpu_exporter.io.user_text import Address
from gpu_exporter.remediation.metrics import ControllerMetrics
from gpu_exporter.remediation.settings import MOST_TOKEN_BYTES

T = TypeVar("T")

MOST_BODY_BYTES = 1 << 18
# How long what was read from the file of the token counts, so that a flood of requests does not wait for a disk.
TOKEN_SECONDS = 1.0
# How long a composed page of metrics is sent.
PAGE_SECONDS = 1.0
# Nodes that wait to be looked at; more are left to the next full cycle.
MOST_HINTS = 256
# The labels of an alert that may name its node.
NODE_LABELS = ("node", "instance", "Hostname")


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


class Recent(Generic[T]):
    """What `make` last returned, or the OSError that it raised, for so many seconds. Any thread may call `get`."""

    def __init__(self, make: Callable[[], T], seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._seconds, self._clock = make, seconds, clock
        self._lock = threading.Lock()
        self._last: T | OSError | None = None
        self._at = -inf

    def get(self) -> T:
        """Return or raise what is recent."""
        with self._lock:
            if self._clock() - self._at >= self._seconds:
                try:
                    self._last = self._make()
                except OSError as error:
                    self._last = error
                self._at = self._clock()
            last = self._last
        if isinstance(last, OSError):
            raise last.with_traceback(None)
        assert last is not None
        return last


class Webhook:
    """Alertmanager's notifications. It repeats a notification after a 5xx, and drops it after a 4xx."""

    def __init__(
        self,
        metrics: ControllerMetrics,
        hints: Hints,
        token_file: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics, self._hints, self._token_file = metrics, hints, token_file
        self._files = FileWorker("webhook-token")
        self._token = Recent(self._read_token, TOKEN_SECONDS, clock)

    def refuse(self, authorization: str) -> tuple[int, str] | None:
        """Return the status and the text for a client that may not send notifications; None if it may."""
        if self._token_file is None:
            return 404, "the webhook is off: set webhook_token_file"
        try:
            token = self._token.get()
        except OSError as error:
            return 503, f"the token cannot be read: {error.strerror}"
        if not has_token(authorization, token):
            return 401, "needs the token of webhook_token_file: Authorization: Bearer …"
        return None if self._metrics.leads else (503, "another controller leads")

    def _read_token(self) -> bytes:
        path = self._token_file
        assert path is not None
        return self._files.call(lambda: read(path, MOST_TOKEN_BYTES)).strip()

    def take(self, body: bytes) -> tuple[int, str]:
        """Return the status and the text for a notification; if it is accepted, its nodes are hints."""
        try:
            self._hints.add(nodes_of(body))
        except ValueError as error:
            return 400, f"not a notification of Alertmanager: {error}"
        return 202, "accepted"


class _Metrics(GuardedHandler):
    def initialize(self, page: Recent[bytes]) -> None:
        self.page = page

    async def get(self) -> None:
        await self.send(self.page.get(), TEXT)


class _Healthz(GuardedHandler):
    async def get(self) -> None:
        await self.send("ok\n", TEXT)


class _Webhook(GuardedHandler):
    max_body_bytes = MOST_BODY_BYTES

    def initialize(self, metrics: ControllerMetrics, webhook: Webhook) -> None:
        self.metrics, self.webhook = metrics, webhook

    async def refusal(self) -> Refusal | None:
        """Refuse a notification without the token before its body is read."""
        refusal = await super().refusal()
        if refusal is not None:
            return refusal
        authorization = self.request.headers.get("Authorization", "")
        refused = await asyncio.to_thread(self.webhook.refuse, authorization)
        return Refusal(self._counted(refused[0]), f"{refused[1]}\n") if refused else None

    async def post(self) -> None:
        status, text = await asyncio.to_thread(self.webhook.take, bytes(self.body))
        await self.send(f"{text}\n", TEXT, self._counted(status))

    def _counted(self, status: int) -> int:
        self.metrics.webhooks.labels(str(status)).inc()
        return status


def controller_server(
    where: Address,
    metrics: ControllerMetrics,
    hints: Hints,
    token_file: Path | None,
    proxies: TrustedProxies | None = None,
) -> Server:
    """Return a server that turns notifications into hints. Raises GpuExporterError if the address cannot be used."""
    return Server(
        where,
        [
            ("/metrics", _Metrics, {"page": Recent(metrics.text, PAGE_SECONDS)}),
            ("/healthz", _Healthz, {}),
            ("/webhook", _Webhook, {"metrics": metrics, "webhook": Webhook(metrics, hints, token_file)}),
        ],
        program="controller",
        option="`address` in --config",
        guard=Guard(proxies=proxies),
    )
