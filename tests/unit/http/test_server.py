"""What a server refuses: addresses, paths, large requests and too many connections; and that errors are one line."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from gpu_exporter.http import server as server_module
from gpu_exporter.http.handler import TEXT, GuardedHandler
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuExporterError
from tests.support.tools import LIMIT

MOST, SHARE = 8, 4  # connections in all, and of one address


class Echo(GuardedHandler):
    """Answers with the size of the request's body."""

    async def post(self) -> None:
        await self.send(f"{len(self.request.body)}\n", TEXT)


def made(address: Address, *passed: socket.socket) -> Server:
    """Return a server of one path, on an address or on sockets."""
    handlers = [("/echo", Echo, dict[str, object]())]
    hint = ": only /echo"
    return Server(
        address, handlers, program="test", option="--at", sockets=passed, max_body_bytes=1000, not_found_hint=hint
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(server_module, "most_connections", lambda: MOST)
    server = made(Address("127.0.0.1", 0))
    server.start()
    yield server
    server.stop()


def response(server: Server, request_line: str, *headers: str, body: bytes = b"") -> tuple[str, str]:
    """Return the status line and the body of the response to a request; empty if the connection is closed instead."""
    head = "\r\n".join([f"{request_line} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""])
    received = bytearray()
    with socket.create_connection(("127.0.0.1", server.port), LIMIT) as connection, suppress(ConnectionError):
        connection.sendall(head.encode() + body)
        while part := connection.recv(1 << 16):
            received += part
    head, _, text = received.decode().partition("\r\n\r\n")
    return head.partition("\r\n")[0], text


@pytest.mark.parametrize(
    ("request_line", "status", "text"),
    [
        ("GET /echo", "405 Method Not Allowed", "405 Method Not Allowed\n"),
        ("GET /other", "404 Not Found", "404 Not Found: only /echo\n"),
        ("POST /echo/", "404 Not Found", "404 Not Found: only /echo\n"),
    ],
)
def test_an_error_is_one_line(served: Server, request_line: str, status: str, text: str) -> None:
    assert response(served, request_line, "Content-Length: 0") == (f"HTTP/1.1 {status}", text)


def test_a_body_has_a_limit(served: Server) -> None:
    """A larger one is refused before it is read."""
    assert response(served, "POST /echo", "Content-Length: 1000", body=b"x" * 1000) == ("HTTP/1.1 200 OK", "1000\n")
    assert response(served, "POST /echo", "Content-Length: 1001") == ("HTTP/1.1 400 Bad Request", "")


@pytest.mark.parametrize(("size", "expected"), [(15_000, ("HTTP/1.1 200 OK", "0\n")), (17_000, ("", ""))])
def test_headers_have_a_limit(served: Server, size: int, expected: tuple[str, str]) -> None:
    """The connection of a client that sends more is closed."""
    assert response(served, "POST /echo", "Content-Length: 0", f"X: {'x' * size}") == expected


def test_a_connection_beyond_the_share_of_an_address_replaces_the_oldest(served: Server) -> None:
    with ExitStack() as stack:
        first, *_ = [
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), LIMIT)) for _ in range(SHARE + 1)
        ]
        assert first.recv(1) == b""


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            OSError(errno.EADDRINUSE, "Address already in use"),
            "is in use, perhaps by another test; choose another one with --at",
        ),
        (OSError(errno.EACCES, "Permission denied"), "needs privileges; choose a port above 1023 with --at"),
        (OSError("no address"), "cannot be used: no address; check --at"),
        (UnicodeError("label too long"), "cannot be used: label too long; check --at"),
    ],
)
def test_an_address_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, error: Exception, why: str) -> None:
    def bind(port: int, host: str | None) -> None:
        assert (port, host) == (80, None)
        raise error

    monkeypatch.setattr(server_module, "bind_sockets", bind)
    with pytest.raises(GpuExporterError, match=f"^address :80 {why}$"):
        made(Address("", 80))


def test_an_event_loop_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start fails, instead of waiting for ever for a thread that has ended."""

    def fail() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", fail)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = made(Address("", 0), listening)
        with pytest.raises(GpuExporterError, match=r"^the HTTP server cannot start: Too many open files$"):
            server.start()
