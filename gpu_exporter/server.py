"""The HTTP side: sends the bytes that the loop made. One thread, no driver call, nothing that a client can hold up."""

from __future__ import annotations

import asyncio
import errno
import html
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from prometheus_client.exposition import choose_encoder
from tornado.ioloop import PeriodicCallback
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler

from gpu_exporter import api
from gpu_exporter.config import Address
from gpu_exporter.connections import BoundedServer
from gpu_exporter.exposition import Pages, Variant
from gpu_exporter.model import NOT_YOURS, GpuExporterError, Snapshot
from gpu_exporter.version import __version__
from gpu_exporter.web import Web

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024
# A connection that has sent no whole request, or read no whole answer, for this long is closed.
CLIENT_SECONDS = 10.0
# How often the files of the web configuration are looked at.
FOLLOW_SECONDS = 1.0
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json"


class Health:
    """What the health endpoints answer: from the latest snapshot and the clock's last tick."""

    def __init__(self, interval: float, ticked_at: Callable[[], float]) -> None:
        self.snapshot: Snapshot | None = None
        self._interval = interval
        self._ticked_at = ticked_at

    def alive(self) -> str:
        """Empty if the process works. The clock calls no driver, so if it stands still that is our bug."""
        silent = time.monotonic() - self._ticked_at()
        return f"the collection loop has not ticked for {silent:.0f} s" if silent > max(60, 10 * self._interval) else ""

    def ready(self) -> str:
        """Empty if the last good read of any GPU is younger than three intervals."""
        if self.snapshot is None:
            return "no snapshot yet"
        if self.snapshot.read_at is None:
            return "no GPU was read yet"
        age = time.monotonic() - self.snapshot.read_at
        return f"the last good read is {age:.1f} s old" if age >= 3 * self._interval else ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is shown of one node."""

    node: str
    pages: Pages
    health: Health


class _Handler(RequestHandler):
    endpoints: Mapping[str, Endpoint]

    def initialize(self, endpoints: Mapping[str, Endpoint]) -> None:
        self.endpoints = endpoints

    def endpoint(self, prefix: str) -> Endpoint:
        """What is shown below this path. Raises HTTPError."""
        found = self.endpoints.get(prefix)
        if found is None:
            raise HTTPError(404)
        return found

    def set_default_headers(self) -> None:
        self.set_header("Server", "gpu-exporter")
        for name, value in self.settings["web"].config.headers.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        """Answer instead of the method if the client may not ask."""
        authorization = self.request.headers.get("Authorization", "")
        refusal = await self.settings["web"].refuse(authorization, self.request.remote_ip or "")
        if refusal is not None:
            self.set_header(*refusal.header)
            await self.send(refusal.text, TEXT, refusal.status)

    def compute_etag(self) -> None:
        """None: hashing half a megabyte a scrape would cost more than the scrape."""

    async def send(self, body: bytes | str, content_type: str, status: int = 200) -> None:
        """Send a whole answer; a client that does not read it in time is cut off."""
        self.set_status(status)
        self.set_header("Content-Type", content_type)
        try:
            await asyncio.wait_for(self.finish(body), CLIENT_SECONDS)
        except asyncio.TimeoutError:
            stream = getattr(self.request.connection, "stream", None)
            if stream is not None:
                stream.close()
        except StreamClosedError:
            pass

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        self.set_header("Content-Type", TEXT)
        where = ", ".join(f"{prefix}/metrics" for prefix in list(self.endpoints)[:2])
        hint = (
            f": nodes are at {where} …; /sd lists them all" if status_code == 404 and "" not in self.endpoints else ""
        )
        self.finish(f"{status_code} {self._reason}{hint}\n")


class _Metrics(_Handler):
    async def get(self, prefix: str) -> None:
        pages = self.endpoint(prefix).pages
        openmetrics = _accepts_openmetrics(self.request.headers.get("Accept", ""))
        gzip = _accepts_gzip(self.request.headers.get("Accept-Encoding", ""))
        if gzip:
            self.set_header("Content-Encoding", "gzip")
        self.set_header("Vary", "Accept, Accept-Encoding")
        await self.send(pages.get(Variant(openmetrics, gzip)), OPENMETRICS if openmetrics else TEXT)

    head = get


class _Gpus(_Handler):
    async def get(self, prefix: str) -> None:
        snapshot = self.endpoint(prefix).health.snapshot
        if snapshot is None:
            await self.send("no snapshot yet\n", TEXT, 503)
        else:
            await self.send(api.gpus(snapshot), JSON)

    head = get


class _Probe(_Handler):
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


class _NotFound(_Handler):
    async def prepare(self) -> None:
        await super().prepare()
        if not self._finished:
            raise HTTPError(404)


class _Lifecycle(_Handler):
    async def post(self) -> None:
        quit = self.settings["quit"]
        if quit is None:
            await self.send("Lifecycle API is not enabled.\n", TEXT, 403)
        elif self.request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            await self.send("Another site's page may not do this.\n", TEXT, 403)
        else:
            await self.act(quit)

    put = post

    async def act(self, quit: Callable[[], None]) -> None:
        raise NotImplementedError


class _Quit(_Lifecycle):
    async def act(self, quit: Callable[[], None]) -> None:
        await self.send("Goodbye!\n", TEXT)
        quit()


class _Reload(_Lifecycle):
    async def act(self, quit: Callable[[], None]) -> None:
        try:
            self.settings["web"].reload()
        except GpuExporterError as error:
            await self.send(f"{error}\n", TEXT, 500)
        else:
            await self.send("ok\n", TEXT)


class _Landing(_Handler):
    async def get(self, prefix: str) -> None:
        if not prefix and "" not in self.endpoints:
            await self._list()
            return
        snapshot = self.endpoint(prefix).health.snapshot
        rows = "".join(
            f"<tr><td>{status.gpu.index}<td>{html.escape(status.gpu.model)}<td>{html.escape(status.gpu.uuid)}"
            f"<td>{'up' if status.up else 'down: ' + html.escape(status.reason)}"
            for status in (snapshot.gpus if snapshot else ())
        )
        await self.send(LANDING.format(__version__, _banner(snapshot), rows), HTML)

    async def _list(self) -> None:
        items = "".join(f"<li><a href={prefix[1:]}/>{each.node}</a>" for prefix, each in self.endpoints.items())
        first = next(iter(self.endpoints.values()))
        await self.send(NODES.format(__version__, _banner(first.health.snapshot), items), HTML)

    head = get


class _Discovery(_Handler):
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
    return f"<p><strong>These are not your GPUs: source {snapshot.source}, {NOT_YOURS[snapshot.source]}.</strong>"


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
    """Serves on its own thread until `stop`. Binding happens in the constructor, which raises GpuExporterError."""

    def __init__(
        self,
        address: Address,
        endpoints: Sequence[Endpoint],
        web: Web | None = None,
        quit: Callable[[], None] | None = None,
    ) -> None:
        self._web = web or Web()
        alone = len(endpoints) == 1
        shared = {"endpoints": {"" if alone else f"/nodes/{each.node}": each for each in endpoints}}
        routes = [("(.*)/metrics", _Metrics), ("(.*)/healthz", _Healthz), ("(.*)/readyz", _Readyz), ("(.*)/", _Landing)]
        routes.append(("(.*)/api/v1/gpus", _Gpus))
        routes += [("/-/quit", _Quit), ("/-/reload", _Reload)]
        if not alone:
            routes.append(("/sd", _Discovery))
        self._application = Application(
            [(path, handler, shared) for path, handler in routes],
            default_handler_class=_NotFound,
            default_handler_args=shared,
            log_function=lambda handler: None,
            web=self._web,
            quit=quit,
        )
        self._sockets = _bind(address)
        self.port: int = self._sockets[0].getsockname()[1]
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
        if self._web.path:
            PeriodicCallback(self._web.follow, FOLLOW_SECONDS * 1000).start()
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
