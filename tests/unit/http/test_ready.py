"""Which requests get a response that is ready, and that a handler, with its checks, responds to all others."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import bcrypt
import pytest
from tornado.http1connection import HTTP1Connection
from tornado.iostream import IOStream, StreamClosedError

from gpu_exporter.http import server as server_module
from gpu_exporter.http.admission import Admission
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.handler import SHARED_BYTES, TEXT, GuardedHandler
from gpu_exporter.http.ready import Ready, send
from gpu_exporter.http.server import Server
from gpu_exporter.http.turns import Turns
from tests.support.tools import LIMIT, until
from tests.unit.http.serving import running

READY, HANDLED = b"ready", b"handled"
LARGE = b"x" * (5 << 20)
BODIES = {"/": READY, "/large": LARGE, "/headers": b"x" * (SHARED_BYTES - 1), "/apart": b"x" * SHARED_BYTES}


class Handled(GuardedHandler):
    """Says that a handler responds."""

    async def get(self) -> None:
        await self.send(HANDLED, TEXT)

    head = get


@contextmanager
def serving(
    guard: Guard | None = None, admission: Admission | None = None, found: Callable[[str], object] = str
) -> Iterator[Server]:
    """Run a server with responses that are ready, and a handler of the same paths and others. It calls `found` with the
    path of each request that may get a response that is ready.
    """

    def ready(path: str, headers: Mapping[str, str]) -> Ready | None:
        found(path)
        return Ready(BODIES[path], (("Content-Type", TEXT),)) if path in BODIES else None

    with running([(path, Handled, {}) for path in (*BODIES, "/other")], ready, guard, admission) as server:
        yield server


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with serving() as server:
        yield server


def exchange(server: Server, request: str) -> bytes:
    """Return what the server sends back until it has closed the connection, or sent a body of this test."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), LIMIT) as connection:
        connection.sendall(request.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        while not received.endswith((READY, HANDLED, b"\n")) and (part := connection.recv(1 << 16)):
            received += part
            if request.startswith("HEAD") and b"\r\n\r\n" in received:
                break
    return received


@pytest.mark.parametrize(
    ("request_text", "status", "body"),
    [
        ("GET / HTTP/1.1\nHost: x", 200, READY),
        ("GET / HTTP/1.1\nHost: [::1]:9400\nContent-Length: 0", 200, READY),
        ("GET /other HTTP/1.1\nHost: x", 200, HANDLED),
        ("GET /?a=b HTTP/1.1\nHost: x", 200, HANDLED),
        ("GET / HTTP/1.0\nHost: x", 200, HANDLED),
        ("GET / HTTP/1.1\nHost: x\nConnection: close", 200, HANDLED),
        ("HEAD / HTTP/1.1\nHost: x", 200, b""),
        ("POST / HTTP/1.1\nHost: x\nContent-Length: 0", 405, b"405 Method Not Allowed\n"),
        ("GET / HTTP/1.1\nHost: x\nContent-Length: 1", 413, b"413 Request Entity Too Large: this path takes no body\n"),
    ],
)
def test_only_a_plain_request_is_answered_at_once(served: Server, request_text: str, status: int, body: bytes) -> None:
    head, _, received = exchange(served, request_text).partition(b"\r\n\r\n")
    assert (int(head.split()[1]), received) == (status, body)


@pytest.mark.parametrize("host", ["", "\nHost: x\nHost: y", "\nHost: x y"])
def test_tornado_decides_about_an_unusual_host(served: Server, host: str) -> None:
    """Newer versions refuse it."""
    response = exchange(served, f"GET / HTTP/1.1{host}")
    assert response.startswith(b"HTTP/1.1 400 ") or response.endswith(HANDLED)


def test_a_connection_stays_open(served: Server) -> None:
    """With responses of both kinds, and requests that are sent ahead."""
    with socket.create_connection(("127.0.0.1", served.port), LIMIT) as connection, connection.makefile("rb") as file:
        connection.sendall(b"".join(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in (b"/", b"/other", b"/")))
        bodies = []
        for _ in range(3):
            head = b"".join(iter(file.readline, b"\r\n"))
            bodies.append(file.read(int(head.partition(b"Content-Length: ")[2].split()[0])))
    assert bodies == [READY, HANDLED, READY]


def get(server: Server, path: str, password: str = "") -> tuple[int, bytes]:
    """Return the status and the body of the response to a request, with a password of the user `me` if there is one."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    login = base64.b64encode(f"me:{password}".encode()).decode()
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {login}"} if password else {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", BODIES)
def test_long_and_short_bodies(served: Server, path: str) -> None:
    assert get(served, path) == (200, BODIES[path])


def configured(folder: Path, config: Mapping[str, Any]) -> Guard:
    """Return the guard with this web configuration."""
    file = folder / "web.yml"
    file.write_text(json.dumps(config))
    return Guard(file)


def test_a_password_is_checked_first(tmp_path: Path) -> None:
    """A handler does that. Only a password that was verified, of a user who still exists, is answered at once."""
    users = {"me": bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()}
    guard = configured(tmp_path, {"basic_auth_users": users})
    with serving(guard) as server:
        assert [get(server, "/")[0], get(server, "/", "wrong")[0]] == [401, 401]
        assert [get(server, "/", "right"), get(server, "/", "right")] == [(200, HANDLED), (200, READY)]
        assert [get(server, "/")[0], get(server, "/", "wrong")[0]] == [401, 401]
        guard.config = configured(tmp_path, {"basic_auth_users": {"other": users["me"]}}).config
        assert get(server, "/", "right")[0] == 401


def test_requests_count_for_a_rate_limit(tmp_path: Path) -> None:
    with serving(configured(tmp_path, {"rate_limit": {"interval": "1h", "burst": 2}})) as server:
        assert [get(server, "/")[0] for _ in range(3)] == [200, 200, 429]


def test_slow_readers_share_a_long_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts once, so nobody is cut off, and a second request of a connection waits until the first response is
    read.
    """
    monkeypatch.setattr(server_module, "most_connections", lambda: 8)
    admission, found = Admission(), list[str]()
    with serving(admission=admission, found=found.append) as server, ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), LIMIT)) for _ in range(3)]
        for client in clients:
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        for client in clients:
            assert client.recv(1) == b"H"  # the response has begun
        assert get(server, "/") == (200, READY)  # by now, what the kernel did not take waits
        assert (admission.dropped["bytes"], found.count("/large")) == (0, len(clients))
        for client in clients:
            received = 1
            while received < 2 * len(LARGE):
                received += len(client.recv(1 << 20))


def leaves(client: socket.socket) -> None:
    """Close the connection with a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    client.close()


@pytest.mark.parametrize("leave", [leaves, socket.socket.close])
def test_a_client_that_leaves_in_the_middle(
    served: Server, leave: Callable[[socket.socket], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection is forgotten, and nothing is logged."""
    client = socket.create_connection(("127.0.0.1", served.port), LIMIT)
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.recv(1) == b"H"
    leave(client)
    until(lambda: not served._admission._clients, what="the end of the connection")
    assert not caplog.records


def test_a_client_that_left_before() -> None:
    """Nothing can be written any more, and the request is over."""
    connection = create_autospec(HTTP1Connection)
    connection.stream = create_autospec(IOStream)
    connection.stream.write.side_effect = StreamClosedError
    send(connection, Ready(READY, ()), {})
    connection.finish.assert_called_once_with()


@pytest.mark.parametrize("is_flood", [False, True])
def test_only_in_a_flood_it_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch, is_flood: bool) -> None:
    waited, wait = [], Turns.wait

    async def recorded(self: Turns, client: str, has_left: Callable[[], bool]) -> None:
        waited.append(client)
        await wait(self, client, has_left)

    monkeypatch.setattr(Turns, "wait", recorded)
    if is_flood:
        monkeypatch.setattr(Turns, "may_begin", lambda self: False)
    with serving() as server:
        assert get(server, "/") == (200, READY)
    assert len(waited) == is_flood
