"""The base of all handlers: authentication, headers, errors in one line, and bodies that clients share."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tornado.escape import utf8
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

# A shorter body goes into one packet with its headers.
SHARED_BYTES = 16 * 1024
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class GuardedHandler(RequestHandler):
    """Handles a request that the guard of the application, its setting `guard`, admits. Its setting `not_found_hint`
    is what errors 404 add.
    """

    def set_default_headers(self) -> None:
        self.set_header("Server", "gpu-exporter")
        for name, value in self.settings["guard"].config.headers.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        """Refuse the request, before its method runs, if the client may not make it."""
        authorization = self.request.headers.get("Authorization", "")
        refusal = await self.settings["guard"].refuse(authorization, self.request.remote_ip or "")
        if refusal is not None:
            self.set_header(*refusal.header)
            await self.send(refusal.text, TEXT, refusal.status)

    def compute_etag(self) -> None:
        """Set no ETag: hashing half a megabyte would cost more than the rest of the scrape."""

    async def send(self, body: bytes | str, content_type: str, status: int = 200) -> None:
        """Send a response. All clients that are being sent the same long body share these bytes."""
        self.set_status(status)
        self.set_header("Content-Type", content_type)
        content = utf8(body)
        with suppress(StreamClosedError):
            if len(content) >= SHARED_BYTES:  # Tornado would copy it, to join it to the headers
                self.set_header("Content-Length", len(content))
                self.flush()
            await self.finish(content)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        hint = self.settings.get("not_found_hint", "") if status_code == 404 else ""
        self.set_header("Content-Type", TEXT)
        self.finish(f"{status_code} {self._reason}{hint}\n")


class NotFound(GuardedHandler):
    """Every other path: 404 in one line."""

    async def prepare(self) -> None:
        await super().prepare()
        if not self._finished:
            raise HTTPError(404)
