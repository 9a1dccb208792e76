"""Responses that need no handler: what nearly all clients request is at hand, and sent in one piece.

Tornado's application and handler take as long as all the rest of a response. Whatever is unusual goes to them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPConnection, HTTPHeaders, RequestStartLine, format_timestamp
from tornado.iostream import BaseIOStream, StreamClosedError

from gpu_exporter.http.handler import SHARED_BYTES, common_headers, least_body_bytes

# Tornado decides about others.
HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")


class Ready(NamedTuple):
    """A response with status 200: its body, and the headers that describe it."""

    body: bytes
    headers: tuple[tuple[str, str], ...]


# Returns the response to a GET request of a path with these headers, whose names are written like Accept-Encoding; None
# if a handler has to respond.
FindReady = Callable[[str, Mapping[str, str]], Ready | None]


def none_ready(path: str, headers: Mapping[str, str]) -> None:
    """Return None: handlers respond to all requests."""


def is_plain(start_line: RequestStartLine, headers: HTTPHeaders) -> bool:
    """Return whether this is a valid GET request without a body on a connection that stays open."""
    return (
        start_line.method == "GET"
        and start_line.version == "HTTP/1.1"
        and HOST.fullmatch(headers.get("Host", "")) is not None
        and "Connection" not in headers
        and not least_body_bytes(headers)
    )


def send(connection: HTTPConnection, response: Ready, of_all: Mapping[str, str]) -> None:
    """Send a response, with the headers of all responses, and finish the request."""
    assert isinstance(connection, HTTP1Connection)
    with suppress(StreamClosedError):
        written = write(connection.stream, response, of_all)
        if not written.done():
            written.add_done_callback(lambda _: connection.finish())
            return
    connection.finish()


def write(stream: BaseIOStream, response: Ready, of_all: Mapping[str, str]) -> asyncio.Future[None]:
    """Write a response, with the headers of all responses. Clients that are being sent the same long body share it.

    Raises StreamClosedError.
    """
    headers = (*common_headers(of_all), *response.headers)
    head = _head(headers, len(response.body), int(time.time()))
    if len(response.body) < SHARED_BYTES:
        return stream.write(head + response.body)
    stream.write(head)
    return stream.write(response.body)


@lru_cache(8)
def _head(headers: tuple[tuple[str, str], ...], length: int, second: int) -> bytes:
    """Return the status line and the headers of a response in this second."""
    described = (*headers, ("Date", format_timestamp(second)), ("Content-Length", str(length)))
    lines = ("HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in described), "", "")
    return "\r\n".join(lines).encode("latin-1")
