"""What a server refuses: addresses, paths, large requests, too many connections and too many bytes that wait for
clients; and that errors are one line.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from gpu_exporter.http import server as server_module
from gpu_exporter.http.admission import Admission
from gpu_exporter.http.handler import TEXT, GuardedHandler
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuExporterError
from tests.support.tools import LIMIT

MOST, SHARE = 8, 4  # connections in all, and of one address
LARGE = b"x" * (5 << 20)


class Echo(GuardedHandler):
    """Answers with the size of the request's body."""

    async def post(self) -> None:
        await self.send(f"{len(self.request.body)}\n", TEXT)


class Shared(GuardedHandler):
    """Answers all clients with the same bytes."""

    async def get(self) -> None:
        await self.send(LARGE, TEXT)


class Copied(GuardedHandler):
    """Answers each client with a copy of these bytes."""

    async def get(self) -> None:
        await self.send(bytes(bytearray(LARGE)), TEXT)


def made(address: Address, *passed: socket.socket, admission: Admission | None = None) -> Server:
    """Return a server of a few paths, on an address or on sockets."""
    paths: dict[str, type[GuardedHandler]] = {"/echo": Echo, "/shared": Shared, "/copied": Copied}
    return Server(
        address,
        [(path, handler, {}) for path, handler in paths.items()],
        program="test",
        option="--at",
        sockets=passed,
        admission=admission,
        max_body_bytes=1000,
        not_found_hint=": only /echo",
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


@pytest.mark.parametrize(("path", "dropped"), [("/shared", 0), ("/copied", SHARE - 2)])
def test_slow_readers(monkeypatch: pytest.MonkeyPatch, path: str, dropped: int) -> None:
    """A response of which all clients get the same bytes counts once, so they all stay, and get it whole."""
    monkeypatch.setattr(server_module, "most_connections", lambda: MOST)
    admission = Admission()
    server = made(Address("127.0.0.1", 0), admission=admission)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        to = ("127.0.0.1", server.port)
        clients = [stack.enter_context(socket.create_connection(to, LIMIT)) for _ in range(SHARE - 1)]
        for client in clients:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        for client in clients:
            assert client.recv(1) == b"H"  # the response has begun
        response(server, "GET /other")  # by now, what the kernel did not take waits
        assert admission.dropped["bytes"] == dropped
        whole = 0
        for client in clients:
            with client.makefile("rb") as file:
                whole += len(file.read().partition(b"\r\n\r\n")[2]) == len(LARGE)
        assert whole == len(clients) - dropped


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
