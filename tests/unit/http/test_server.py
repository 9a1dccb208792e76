"""What a server refuses: addresses, paths, large requests, too many connections and too many bytes that wait for
clients; and that errors are one line.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from unittest.mock import create_autospec

import pytest
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine

from gpu_exporter.http import server as server_module
from gpu_exporter.http.admission import Admission
from gpu_exporter.http.backlog import PlainStream
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.handler import TEXT, GuardedHandler
from gpu_exporter.http.listener import _Request
from gpu_exporter.http.proxies import TrustedProxies
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address, networks
from gpu_exporter.model.errors import GpuExporterError
from tests.support.tools import LIMIT, until

MOST, SHARE = 8, 4  # connections in all, and of one address
LARGE = b"x" * (5 << 20)
REQUEST = b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo(GuardedHandler):
    """Answers with the size of the request's body."""

    max_body_bytes = 1000

    async def post(self) -> None:
        await self.send(f"{len(self.body)}\n", TEXT)


class Plain(GuardedHandler):
    """Takes no body."""

    async def get(self) -> None:
        await self.send("ok\n", TEXT)

    put = get


class Client(GuardedHandler):
    """Answers with the address of the client, when it is released."""

    released = threading.Event()

    async def get(self) -> None:
        await asyncio.to_thread(self.released.wait, LIMIT)
        await self.send(f"{self.client}\n", TEXT)


class Shared(GuardedHandler):
    """Answers all clients with the same bytes."""

    async def get(self) -> None:
        await self.send(LARGE, TEXT)


class Copied(GuardedHandler):
    """Answers each client with a copy of these bytes."""

    async def get(self) -> None:
        await self.send(bytes(bytearray(LARGE)), TEXT)


def made(address: Address, *passed: socket.socket, proxies: str = "", admission: Admission | None = None) -> Server:
    """Return a server of some paths, on an address or on sockets."""
    handlers: dict[str, type[GuardedHandler]] = {
        "/echo": Echo,
        "/plain": Plain,
        "/client": Client,
        "/shared": Shared,
        "/copied": Copied,
    }
    hint, guard = ": only /echo", Guard(proxies=TrustedProxies(networks(proxies)))
    return Server(
        address,
        [(path, handler, {}) for path, handler in handlers.items()],
        program="test",
        option="--at",
        guard=guard,
        admission=admission,
        sockets=passed,
        not_found_hint=hint,
    )


@pytest.mark.parametrize("length", ["0", "5"])
def test_a_request_of_a_connection_that_was_closed_meanwhile_does_not_begin(length: str) -> None:
    """Its handler gets no part of it: an error would be logged."""

    async def is_open() -> bool:
        return False

    inner = create_autospec(HTTPMessageDelegate)
    begun: list[None] = []
    request = _Request(lambda: inner, lambda *_: None, lambda *_: is_open(), lambda: begun.append(None))
    line = RequestStartLine("POST", "/", "HTTP/1.1")
    asyncio.run(request.headers_received(line, HTTPHeaders({"Content-Length": length})))
    request.data_received(b"xx")
    request.finish()
    request.on_connection_close()
    assert (inner.mock_calls, begun) == ([], [])


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


def test_closed_connections_leave_no_reference_cycles(served: Server) -> None:
    """Python collects old cycles late, and with them the buffers of connections: memory would grow with each attack."""

    def streams() -> set[int]:
        return {id(each) for each in gc.get_objects() if type(each) is PlainStream}

    gc.collect()
    gc.disable()
    try:
        before = streams()
        response(served, "GET /plain")
        response(served, "GET /other")
        with socket.create_connection(("127.0.0.1", served.port), LIMIT):
            until(lambda: streams() - before, what="the silent connection")
        until(lambda: streams() <= before, what="the end of all streams")
    finally:
        gc.enable()


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


@pytest.mark.parametrize(
    ("request_line", "headers", "body", "expected"),
    [
        ("POST /echo", ("Content-Length: 1000",), b"x" * 1000, ("200 OK", "1000\n")),
        ("POST /echo", ("Transfer-Encoding: chunked",), b"3\r\nxxx\r\n0\r\n\r\n", ("200 OK", "3\n")),
        ("POST /echo", ("Content-Length: 3, 3",), b"xxx", ("200 OK", "3\n")),
        ("POST /echo", ("Content-Length: 1", "Expect: 100-continue"), b"x", ("100 (Continue)", "1\n")),
        ("POST /echo", ("Transfer-Encoding: chunked",), b"3e9\r\n" + b"x" * 1001, ("400 Bad Request", "")),
        ("POST /echo", ("Content-Length: x",), b"", ("400 Bad Request", "")),
        ("POST /echo", ("Content-Length: 1001",), b"", ("413", "at most 1000 bytes")),
        ("POST /echo", ("Content-Length: 1001", "Expect: 100-continue"), b"", ("413", "at most 1000 bytes")),
        ("POST /echo", ("Content-Length: 9" + "9" * 30,), b"", ("400 Bad Request", "")),
        ("GET /plain", ("Content-Length: 5",), b"", ("413", "this path takes no body")),
        ("PUT /plain", ("Content-Length: 5",), b"xxx", ("413", "this path takes no body")),
        ("PUT /plain", ("Transfer-Encoding: chunked",), b"", ("413", "this path takes no body")),
        ("POST /plain", ("Content-Length: 500",), b"", ("405 Method Not Allowed", "405 Method Not Allowed\n")),
        ("FOO /plain", ("Content-Length: 500",), b"", ("405 Method Not Allowed", "405 Method Not Allowed\n")),
        ("POST /other", ("Content-Length: 500",), b"", ("404 Not Found", "404 Not Found: only /echo\n")),
    ],
)
def test_a_body_that_is_not_wanted_is_not_awaited(
    served: Server, request_line: str, headers: tuple[str, ...], body: bytes, expected: tuple[str, str]
) -> None:
    """The answer comes although the rest of the body does not."""
    line, text = response(served, request_line, *headers, body=body)
    assert line.startswith(f"HTTP/1.1 {expected[0]}")
    assert expected[1] in text


def test_a_refused_client_may_go_on_sending(served: Server) -> None:
    """It gets the whole response, instead of a reset of the connection."""
    with socket.create_connection(("127.0.0.1", served.port), LIMIT) as connection:
        connection.sendall(b"POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n")
        for _ in range(10):
            connection.sendall(b"x" * 30_000)
        assert connection.makefile("rb").readline() == b"HTTP/1.1 404 Not Found\r\n"


def test_a_refused_connection_stays_open_if_there_is_no_body(served: Server) -> None:
    with socket.create_connection(("127.0.0.1", served.port), LIMIT) as connection:
        for _ in range(2):
            connection.sendall(b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n")
            head, _, body = connection.recv(1 << 16).decode().partition("\r\n\r\n")
            assert "Connection: close" not in head
            assert body == "404 Not Found: only /echo\n"


@pytest.mark.parametrize(("sent", "is_open"), [(b"", False), (REQUEST, True), (REQUEST + REQUEST[:5], False)])
def test_only_between_two_requests_a_connection_may_be_idle_for_long(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, *, is_open: bool
) -> None:
    """A client that sends nothing, or the rest of a request too slowly, is disconnected as before."""
    monkeypatch.setattr(server_module, "CLIENT_SECONDS", 0.2)
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 2 * LIMIT)
    server = made(Address("127.0.0.1", 0))
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), LIMIT) as connection:
            for part in (sent[: len(REQUEST)], sent[len(REQUEST) :]):
                connection.sendall(part)
                if part == REQUEST:
                    assert connection.recv(1 << 16).endswith(b"ok\n")
            connection.settimeout(1.0 if is_open else LIMIT)
            with pytest.raises(TimeoutError) if is_open else nullcontext():
                assert connection.recv(1) == b""
    finally:
        server.stop()


def test_a_connection_that_is_idle_for_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request on it that takes longer is answered first."""
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(Client, "released", threading.Event())
    server = made(Address("127.0.0.1", 0))
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), LIMIT) as connection:
            connection.sendall(REQUEST)
            assert connection.recv(1 << 16).endswith(b"ok\n")
            connection.sendall(REQUEST.replace(b"/plain", b"/client"))
            time.sleep(0.5)
            Client.released.set()
            assert connection.recv(1 << 16).endswith(b"127.0.0.1\n")
            assert connection.recv(1) == b""
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("request_line", "allow"), [("GET /echo", "POST"), ("POST /plain", "GET, PUT"), ("FOO /plain", "GET, PUT")]
)
def test_the_allowed_methods_are_named(served: Server, request_line: str, allow: str) -> None:
    with socket.create_connection(("127.0.0.1", served.port), LIMIT) as connection:
        connection.sendall(f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert f"\r\nAllow: {allow}\r\n" in connection.recv(1 << 16).decode()


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
    ("proxies", "client"), [("", "127.0.0.1"), ("127.0.0.1", "203.0.113.5"), ("10.0.0.0/8", "127.0.0.1")]
)
def test_a_trusted_proxy_forwards_the_address_of_its_client(proxies: str, client: str) -> None:
    """The connection counts for the client only during the request."""
    admission, line = Admission(), b"GET /client HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 127.0.0.1, 203.0.113.5\r\n\r\n"
    server = made(Address("127.0.0.1", 0), proxies=proxies, admission=admission)
    Client.released.clear()
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), LIMIT) as connection:
        for _ in range(2):
            until(lambda: set(admission._clients) == {"127.0.0.1"}, what="the connection of the proxy")
            Client.released.clear()
            connection.sendall(line)
            until(lambda: set(admission._clients) == {client}, what="the request of the client")
            Client.released.set()
            assert connection.recv(1 << 16).endswith(f"\r\n\r\n{client}\n".encode())
    server.stop()


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
    def bind(port: int, host: str | None, backlog: int) -> None:
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
