"""The base of all handlers: refusals before the body is read, headers, errors in one line, and bodies that clients
share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from http.client import responses
from typing import Any

from tornado.escape import utf8
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler, stream_request_body

from gpu_exporter.http.login import Refusal

# A shorter body goes into one packet with its headers.
SHARED_BYTES = 32 * 1024
# After a refusal, so much of the body is discarded, for so long: the client would lose the response if the connection
# were closed while it is still sending.
DISCARDED_BYTES, PART_BYTES, DISCARD_SECONDS = 1 << 20, 1 << 16, 1.0
TEXT, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def least_body_bytes(headers: Mapping[str, str]) -> int:
    """Return the size of a request's body, judging by its headers: 1 if they announce one of unknown size."""
    if "Transfer-Encoding" in headers:
        return 1
    length = headers.get("Content-Length", "0")
    return int(length) if length.isascii() and length.isdecimal() and len(length) < 20 else 1


def common_headers(configured: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the headers of all responses, with those of the web configuration."""
    return ("Server", "gpu-exporter"), *configured.items()


@stream_request_body
class GuardedHandler(RequestHandler):
    """Handles a request that the guard of the application, its setting `guard`, admits. Its setting `not_found_hint`
    is what errors 404 add. A request that is refused is answered before its body is read.
    """

    # The largest body that the handler takes. Its method finds it in `body`.
    max_body_bytes = 0

    @classmethod
    def allowed_methods(cls) -> tuple[str, ...]:
        """Return the methods that the handler answers."""
        return tuple(
            method for method in METHODS if getattr(cls, method.lower()) is not getattr(RequestHandler, method.lower())
        )

    @property
    def client(self) -> str:
        """The address of the client, which a trusted proxy may have forwarded."""
        client: str = self.settings["guard"].proxies.client(
            self.request.remote_ip or "", self.request.headers.get("X-Forwarded-For", "")
        )
        return client

    def set_default_headers(self) -> None:
        for name, value in common_headers(self.settings["guard"].config.headers):
            self.set_header(name, value)

    async def prepare(self) -> None:
        """Answer the request, before its body is read and its method runs, if it is refused."""
        self.body = bytearray()
        refusal = await self.refusal()
        if refusal is not None:
            await self._refuse(refusal)

    async def login(self) -> Refusal | None:
        """Return why the client may not make this request; None if it may."""
        refusal: Refusal | None = await self.settings["guard"].refuse(
            self.request.headers.get("Authorization", ""), self.client
        )
        return refusal

    def exists(self) -> bool:
        """Return whether there is something at this path."""
        return True

    async def refusal(self) -> Refusal | None:
        """Return why the request is not answered, judging by its headers; None if it is answered."""
        refusal = await self.login()
        if refusal is not None:
            return refusal
        if not self.exists():
            return Refusal(404, self._error_line(404))
        if self.request.method not in self.allowed_methods():
            return Refusal(405, self._error_line(405), (self._allow(),))
        if least_body_bytes(self.request.headers) > self.max_body_bytes:
            return Refusal(413, self._error_line(413))
        return None

    def data_received(self, chunk: bytes) -> None:
        """Keep a part of the body."""
        self.body += chunk
        if len(self.body) > self.max_body_bytes:
            self.send_error(413)

    async def _refuse(self, refusal: Refusal) -> None:
        for header in refusal.headers:
            self.set_header(*header)
        if not least_body_bytes(self.request.headers):
            await self.send(refusal.text, TEXT, refusal.status)
            return
        self.set_status(refusal.status)
        self.set_header("Content-Type", TEXT)
        self.set_header("Content-Length", len(refusal.text.encode()))
        self.set_header("Connection", "close")
        self.write(refusal.text)
        assert isinstance(self.request.connection, HTTP1Connection)
        stream = self.request.connection.stream
        cut = asyncio.get_running_loop().call_later(DISCARD_SECONDS, stream.close)
        with suppress(StreamClosedError):
            await self.flush()
            left = DISCARDED_BYTES
            while left > 0:
                left -= len(await stream.read_bytes(PART_BYTES, partial=True))
        cut.cancel()
        self.finish()
        stream.close()

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
        self.set_header("Content-Type", TEXT)
        if status_code == 405:
            self.set_header(*self._allow())
        self.finish(self._error_line(status_code))

    def _allow(self) -> tuple[str, str]:
        return "Allow", ", ".join(self.allowed_methods())

    def _error_line(self, status: int) -> str:
        hint = ""
        if status == 404:
            hint = self.settings.get("not_found_hint", "")
        elif status == 413:
            hint = f": at most {self.max_body_bytes} bytes" if self.max_body_bytes else ": this path takes no body"
        return f"{status} {responses.get(status, 'Unknown')}{hint}\n"


class NotFound(GuardedHandler):
    """Every other path: 404 in one line."""

    def exists(self) -> bool:
        return False
