"""The handlers of the live page: the page, its files, the last hour, and the stream of new values."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError

from gpu_exporter.app.api import ApiAnswer
from gpu_exporter.app.endpoint import Endpoint
from gpu_exporter.app.handler import Handler, TokenOrPassword
from gpu_exporter.http.handler import JSON, TEXT
from gpu_exporter.http.login import client_of
from gpu_exporter.http.negotiation import accepts_gzip
from gpu_exporter.http.web_config import SECURE_HEADERS
from gpu_exporter.io.file_access import cause
from gpu_exporter.io.state_version import NewerStateError
from gpu_exporter.io.user_text import past
from gpu_exporter.live_page.node_list import ListedNode
from gpu_exporter.live_page.page import HTML, PAGE_POLICY, LivePage
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.verdict import Health

if TYPE_CHECKING:
    from gpu_exporter.live_page.stream import StreamListener
    from gpu_exporter.live_page.thread import LiveNode

CSP = "Content-Security-Policy"
# A browser keeps the file, and asks each time whether it has changed.
REVALIDATE = "no-cache"
EVENTS = "text/event-stream; charset=utf-8"
PING_SECONDS = 15.0
# After how long a page reconnects.
RETRY = b"retry: 2000\n\n"
# The list of nodes has all of them followed, if there are no more.
MOST_FOLLOWED = 16
OFF = "the live page is off: start the exporter with --live-page true\n"


def set_page_policy(handler: Handler) -> None:
    """Allow a page to load the files of this server. A header that the user has set in the web configuration stays."""
    if handler._headers.get(CSP) == SECURE_HEADERS[CSP]:
        handler.set_header(CSP, PAGE_POLICY)


class PageHandler(Handler):
    """The live page of a node; at the root of several nodes, their list."""

    async def get(self, prefix: str) -> None:
        set_page_policy(self)
        self.set_header("Cache-Control", "no-store")
        if not prefix and "" not in self.endpoints:
            page: LivePage = self.settings["live_page"]
            listed = [self._listed(at, each) for at, each in self.endpoints.items()]
            await self.send(page.of_nodes(listed, self.settings["links_of_list"]), HTML)
            return
        endpoint = self.endpoint(prefix)
        trusted = self.is_trusted(endpoint)
        snapshot = None if endpoint.health.liveness_problem() else endpoint.health.snapshot
        compose = partial(self._compose, endpoint, snapshot, prefix, trusted=trusted)
        await self.send(endpoint.page[trusted].get(snapshot, compose).body, HTML)

    def _compose(self, endpoint: Endpoint, snapshot: Snapshot | None, prefix: str, *, trusted: bool) -> ApiAnswer:
        """Return the page of a node, with its values if there are some."""
        page: LivePage = self.settings["live_page"]
        answer = None
        if endpoint.live and snapshot:
            endpoint.live.asked()
            answer = endpoint.live.monitor.answer(snapshot, trusted=trusted)
        root = "../../" if prefix else ""
        return ApiAnswer(page.of_node(endpoint.node, self.settings["links_of_node"], answer, root=root).encode())

    def _listed(self, prefix: str, endpoint: Endpoint) -> ListedNode:
        """Return a node for the list. It is followed from now on, so that the list has its incidents: of many nodes,
        only one with a sick GPU."""
        snapshot, problem, live = endpoint.health.snapshot, endpoint.health.liveness_problem(), endpoint.live
        listed = ListedNode(prefix, endpoint.node, snapshot, problem)
        if live is None or snapshot is None or problem:
            return listed
        if len(self.endpoints) <= MOST_FOLLOWED or any(each.health is not Health.HEALTHY for each in snapshot.verdicts):
            live.asked()
        trusted = self.is_trusted(endpoint)
        incidents, waits = live.monitor.incidents(trusted=trusted), live.monitor.waits(trusted=trusted)
        return listed._replace(incidents=incidents, waits=waits)

    head = get


class StaticHandler(Handler):
    """A file of the page."""

    async def get(self) -> None:
        live: LivePage = self.settings["live_page"]
        asset = live.assets.get(self.request.path.rpartition("/")[2])
        if asset is None:
            raise HTTPError(404)
        self.set_header("ETag", asset.etag)
        self.set_header("Cache-Control", REVALIDATE)
        self.set_header("Vary", "Accept-Encoding")
        if self.check_etag_header():
            self.set_status(304)
            await self.finish()
        elif accepts_gzip(self.request.headers.get("Accept-Encoding", "")):
            self.set_header("Content-Encoding", "gzip")
            await self.send(asset.zipped, asset.content_type)
        else:
            await self.send(asset.plain, asset.content_type)

    head = get


class _Live(Handler):
    async def live(self, prefix: str) -> LiveNode | None:
        """Return the live view of a node; after an answer, None if there is none."""
        node = self.endpoint(prefix).live
        if node is None:
            await self.send(OFF, TEXT, 503)
        else:
            node.asked()
        return node


class HistoryHandler(_Live):
    """The last hour of each GPU: one point per ten seconds."""

    async def get(self, prefix: str) -> None:
        node = await self.live(prefix)
        if node is not None:
            loop = asyncio.get_running_loop()
            # Not on this thread: scrapes would wait for it.
            self.set_header("Cache-Control", "no-store")
            await self.send(await loop.run_in_executor(None, node.monitor.history_json), JSON)

    head = get


class IncidentsHandler(TokenOrPassword, _Live):
    """The incidents of the node: what broke, who is hit, what it costs, and what to do first."""

    async def get(self, prefix: str) -> None:
        node = await self.live(prefix)
        if node is not None:
            self.set_header("Cache-Control", "no-store")
            trusted = self.is_trusted(self.endpoint(prefix))
            if "since" in self.request.query_arguments:
                await self._send_past(node, trusted=trusted)
            else:
                await self.send(node.monitor.incidents_json(trusted=trusted), JSON)

    async def _send_past(self, node: LiveNode, *, trusted: bool) -> None:
        """Send the incidents of a time, or why there are none. It reads files, so another thread does it."""
        try:
            since, until = past(self.get_query_argument("since"), self.get_query_argument("until", ""), time.time())
        except ValueError as error:
            await self.send(f"{error}\n", TEXT, 400)
            return
        compose = partial(node.monitor.past_json, since, until, trusted=trusted)
        try:
            body = await asyncio.get_running_loop().run_in_executor(None, compose)
        except (OSError, NewerStateError) as error:
            await self.send(f"--state-dir: {cause(error)}\n", TEXT, 503)
        else:
            await self.send(body, JSON)

    head = get


class StreamHandler(_Live):
    """Server-sent events: `gpus` as /api/v1/gpus, `point` with new points of the history."""

    _closed = False
    _listener: StreamListener | None = None

    async def get(self, prefix: str) -> None:
        node = await self.live(prefix)
        if node is None:
            return
        if self.request.method == "HEAD":
            await self.send(b"", EVENTS)
            return
        listener = node.stream.add(client_of(self.client), trusted=self.is_trusted(self.endpoint(prefix)))
        if isinstance(listener, str):
            await self.send(f"{listener}\n", TEXT, 503)
            return
        self._listener = listener
        self.set_header("Content-Type", EVENTS)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")
        try:
            self.write(RETRY)
            while not self._closed and not listener.replaced:
                await self.flush()  # the server closes the connection of a browser that stops reading
                self.write(await listener.next(PING_SECONDS) or b": ping\n\n")
        except StreamClosedError:
            pass
        finally:
            node.stream.remove(listener)

    head = get

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._closed = True
        if self._listener:
            self._listener.wake()
