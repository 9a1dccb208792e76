"""What every answer has in common: who may ask, headers, and an end of patience with clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from gpu_exporter.serving.endpoint import Endpoint

# A connection that has sent no whole request, or read no whole answer, for this long is closed.
CLIENT_SECONDS = 10.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Handler(RequestHandler):
    """A request that someone made who may."""

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
        with suppress(StreamClosedError):
            await self.finish(body)

    def finish(self, chunk: Any = None) -> asyncio.Future[None]:
        """Every answer, errors too, has a time in which it must be taken: else a client could hold a connection."""
        written = super().finish(chunk)
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            cut = asyncio.get_running_loop().call_later(CLIENT_SECONDS, stream.close)

            def taken(done: asyncio.Future[None]) -> None:
                cut.cancel()
                if not done.cancelled():
                    done.exception()  # the client is gone: nobody needs to hear of it

            written.add_done_callback(taken)
        return written

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        self.set_header("Content-Type", TEXT)
        where = ", ".join(f"{prefix}/metrics" for prefix in list(self.endpoints)[:2])
        hint = (
            f": nodes are at {where} …; /sd lists them all" if status_code == 404 and "" not in self.endpoints else ""
        )
        self.finish(f"{status_code} {self._reason}{hint}\n")
