"""The HTTP side: sends the bytes that the loop made. One thread, no driver call, nothing that a client can hold up."""

from __future__ import annotations

import asyncio
import errno
import html
import json
import logging
import socket
import threading
from collections.abc import Sequence
from typing import ClassVar

from prometheus_client.exposition import choose_encoder
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError

from gpu_exporter.exposition.renderer import Variant
from gpu_exporter.inputs import Address
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.serving import api
from gpu_exporter.serving.connections import BoundedServer
from gpu_exporter.serving.endpoint import Endpoint
from gpu_exporter.serving.handler import CLIENT_SECONDS, TEXT, Handler
from gpu_exporter.serving.lifecycle import ROUTES, Lifecycle
from gpu_exporter.serving.security.guard import Web
from gpu_exporter.version import __version__

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json"


class _Metrics(Handler):
    async def get(self, prefix: str) -> None:
        endpoint = self.endpoint(prefix)
        if endpoint.dead():
            raise HTTPError(503)
        problem = endpoint.health.alive()
        if problem:
            await self.send(f"{problem}\n", TEXT, 503)
            return
        pages = endpoint.pages
        openmetrics = _accepts_openmetrics(self.request.headers.get("Accept", ""))
        gzip = _accepts_gzip(self.request.headers.get("Accept-Encoding", ""))
        if gzip:
            self.set_header("Content-Encoding", "gzip")
        self.set_header("Vary", "Accept, Accept-Encoding")
        await self.send(pages.get(Variant(openmetrics, gzip)), OPENMETRICS if openmetrics else TEXT)

    head = get


class _Gpus(Handler):
    async def get(self, prefix: str) -> None:
        health = self.endpoint(prefix).health
        snapshot, problem = health.snapshot, health.alive()
        if snapshot is None or problem:
            await self.send(f"{problem or 'no snapshot yet'}\n", TEXT, 503)
        else:
            await self.send(api.gpus(snapshot), JSON)

    head = get


class _Probe(Handler):
    check: ClassVar[str]

    async def get(self, prefix: str) -> None:
        asked = self.endpoints.values() if not prefix else [self.endpoint(prefix)]
        problem = next(filter(None, (getattr(each.health, self.check)() for each in asked)), "")
        await self.send(f"{problem or 'ok'}\n", TEXT, 503 if problem else 200)

    head = get


class _Healthz(_Probe):
    check = "alive"


class _Readyz(_Probe):
    check = "ready"


class _NotFound(Handler):
    async def prepare(self) -> None:
        await super().prepare()
        if not self._finished:
            raise HTTPError(404)


class _Events(Handler):
    async def get(self, prefix: str) -> None:
        events = self.endpoint(prefix).events
        await self.send(json.dumps({"events": events.recent() if events else []}), JSON)

    head = get


class _Landing(Handler):
    async def get(self, prefix: str) -> None:
        if not prefix and "" not in self.endpoints:
            await self._list()
            return
        health = self.endpoint(prefix).health
        snapshot, problem = health.snapshot, health.alive()
        rows = "".join(
            f"<tr><td>{status.gpu.index}<td>{html.escape(status.gpu.model)}<td>{html.escape(status.gpu.uuid)}"
            f"<td>{'up' if status.up else 'down: ' + html.escape(status.reason)}"
            for status in (snapshot.gpus if snapshot else ())
        )
        warning = f"<p><strong>{html.escape(problem)}</strong>" if problem else ""
        await self.send(LANDING.format(__version__, _banner(snapshot) + warning, rows), HTML)

    async def _list(self) -> None:
        items = "".join(f"<li><a href={prefix[1:]}/>{each.node}</a>" for prefix, each in self.endpoints.items())
        first = next(iter(self.endpoints.values()))
        await self.send(NODES.format(__version__, _banner(first.health.snapshot), items), HTML)

    head = get


class _Discovery(Handler):
    """Prometheus' HTTP service discovery: each node is a target of its own, under its own name."""

    async def get(self) -> None:
        targets = [
            {
                "targets": [self.request.host],
                "labels": {
                    "__scheme__": self.request.protocol,
                    "__metrics_path__": f"{prefix}/metrics",
                    "instance": each.node,
                },
            }
            for prefix, each in self.endpoints.items()
        ]
        await self.send(json.dumps(targets), JSON)

    head = get


LANDING = """<!doctype html><html lang=en><meta charset=utf-8><title>gpu-exporter</title>
<h1>gpu-exporter {}</h1>{}
<p><a href=metrics>/metrics</a> · <a href=healthz>/healthz</a> · <a href=readyz>/readyz</a>
· <a href=api/v1/gpus>/api/v1/gpus</a>
<table><tr><th>GPU<th>model<th>UUID<th>state{}</table>
"""
NODES = """<!doctype html><html lang=en><meta charset=utf-8><title>gpu-exporter</title>
<h1>gpu-exporter {}</h1>{}
<p><a href=sd>/sd</a> · <a href=healthz>/healthz</a> · <a href=readyz>/readyz</a>
<ul>{}</ul>
"""


def _banner(snapshot: Snapshot | None) -> str:
    if snapshot is None or snapshot.live:
        return ""
    return f"<p><strong>These are not your GPUs: source {snapshot.source}, {snapshot.description}.</strong>"


def _accepts_openmetrics(header: str) -> bool:
    try:
        return choose_encoder(header)[1].startswith("application/openmetrics-text")
    except (TypeError, ValueError):  # a version that is no number
        return False


def _accepts_gzip(header: str) -> bool:
    for item in header.lower().split(","):
        coding, _, parameter = item.partition(";")
        if coding.strip() in ("gzip", "*"):
            return parameter.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class Server:
    """Serves on its own thread until `stop`. Binding happens in the constructor, which raises GpuExporterError.

    With `sockets` that listen already, it serves on these.
    """

    def __init__(
        self,
        address: Address,
        endpoints: Sequence[Endpoint],
        web: Web | None = None,
        lifecycle: Lifecycle | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        self._web = web or Web()
        alone = len(endpoints) == 1
        shared = {"endpoints": {"" if alone else f"/nodes/{each.node}": each for each in endpoints}}
        routes: list[tuple[str, type[Handler]]] = [
            ("(.*)/metrics", _Metrics),
            ("(.*)/healthz?", _Healthz),  # dcgm-exporter's probes ask for /health
            ("(.*)/readyz", _Readyz),
            ("(.*)/api/v1/events", _Events),
            ("(.*)/api/v1/gpus", _Gpus),
            ("(.*)/", _Landing),
        ]
        routes += ROUTES
        if not alone:
            routes.append(("/sd", _Discovery))
        self._application = Application(
            [(path, handler, shared) for path, handler in routes],
            default_handler_class=_NotFound,
            default_handler_args=shared,
            log_function=lambda handler: None,
            web=self._web,
            lifecycle=lifecycle or Lifecycle(),
        )
        self._sockets = list(sockets) or _bind(address)
        name = self._sockets[0].getsockname()
        self.port: int = name[1] if isinstance(name, tuple) else 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Start to serve; returns when requests are answered."""
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Stop at once; open connections are cut."""
        if self._loop:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1.0)

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        server = BoundedServer(
            self._application,
            idle_connection_timeout=CLIENT_SECONDS,
            body_timeout=CLIENT_SECONDS,
            max_header_size=MAX_HEADER_BYTES,
            max_body_size=MAX_BODY_BYTES,
        )
        server.serve(self._sockets, self._web, MAX_CONNECTIONS, CLIENT_SECONDS)
        self._loop.call_soon(self._started.set)
        self._loop.run_forever()
        server.stop()


def _bind(address: Address) -> list[socket.socket]:
    try:
        return bind_sockets(address.port, address.host or None)
    except (OSError, UnicodeError) as error:
        code = getattr(error, "errno", None)
        if code == errno.EADDRINUSE:
            why = "is in use: another exporter? choose another with --address"
        elif code == errno.EACCES:
            why = "needs privileges: choose a port above 1023 with --address"
        else:
            why = f"can't be listened on ({getattr(error, 'strerror', None) or error}): check --address"
        raise GpuExporterError(f"address {address} {why}") from error
