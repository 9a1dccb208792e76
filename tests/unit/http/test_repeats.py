"""Requests that repeat: which are parsed once, and that each of them meets the checks and limits of all requests."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import bcrypt
import pytest
from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPHeaders

from gpu_exporter.http import server as server_module
from gpu_exporter.http.admission import Admission
from gpu_exporter.http.backlog import PlainStream
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.handler import TEXT, GuardedHandler
from gpu_exporter.http.ready import Ready
from gpu_exporter.http.repeats import MOST_BYTES, MOST_REQUESTS, Repeats
from gpu_exporter.http.server import Server
from gpu_exporter.http.turns import Turns
from tests.support.tools import LIMIT, until
from tests.unit.http.serving import running

ACCEPT = "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
PROMETHEUS = (
    "GET /metrics HTTP/1.1\nHost: [::1]:9400\nUser-Agent: Prometheus/3.5.0\n"
    f"Accept: {ACCEPT}\nAccept-Encoding: gzip\nX-Prometheus-Scrape-Timeout-Seconds: 10"
)
VMAGENT = PROMETHEUS.replace("Prometheus/3.5.0", "vm_promscrape").replace(ACCEPT, "text/plain")
LARGE = b"x" * (5 << 20)


class Handled(GuardedHandler):
    """Answers with its method and the size of the body."""

    max_body_bytes = 1000

    async def get(self) -> None:
        await self.send(f"{self.request.method} {len(self.body)}\n", TEXT)

    head = post = get


class Reading(GuardedHandler):
    """Reads a part of the body as if it were the head of a request."""

    max_body_bytes = 1000

    async def prepare(self) -> None:
        assert isinstance(self.request.connection, HTTP1Connection)
        await self.send(await self.request.connection.stream.read_until_regex(b"\r\n\r\n"), TEXT)


def ready(path: str, headers: Mapping[str, str]) -> Ready | None:
    """Return what the client accepts."""
    body = LARGE if path == "/large" else headers.get("Accept", "").encode()
    return None if path == "/handled" else Ready(body, (("Content-Type", TEXT),))


def serving(
    guard: Guard | None = None,
    admission: Admission | None = None,
    find: Callable[[str, Mapping[str, str]], Ready | None] = ready,
) -> AbstractContextManager[Server]:
    """Run a server with these responses that are ready, and handlers."""
    return running([("/reading", Reading, {}), ("/.*", Handled, {})], find, guard, admission)


class Client:
    """A connection that stays open."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), LIMIT)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, request: str, body: bytes = b"") -> None:
        """Send a request, which has a line for each header."""
        self.socket.sendall(request.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)

    def receive(self, *, has_body: bool = True) -> tuple[int, bytes]:
        """Return the status and the body of a response."""
        head = b""
        while (line := self._file.readline()) != b"\r\n":
            assert line, "the connection is closed"
            head += line
        length = int(head.lower().partition(b"content-length: ")[2].split()[0]) if has_body else 0
        return int(head.split()[1]), self._file.read(length)

    def ask(self, request: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request, and return the status and the body of the response."""
        self.send(request, body)
        return self.receive(has_body=not request.startswith("HEAD"))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The headers that Tornado parses from now on."""
    texts, parse = list[str](), HTTPHeaders.parse

    def recorded(headers: str) -> HTTPHeaders:
        texts.append(headers)
        return parse(headers)

    monkeypatch.setattr(HTTPHeaders, "parse", recorded)
    return texts


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with serving() as server:
        yield server


def test_a_scraper_is_parsed_once(parsed: list[str]) -> None:
    """On all its connections, also requests that are sent ahead, and between those of others."""
    with serving() as server, Client(server) as one, Client(server) as other:
        bodies = [client.ask(request) for request in (PROMETHEUS, VMAGENT) * 2 for client in (one, other, one)]
        assert bodies == ([(200, ACCEPT.encode())] * 3 + [(200, b"text/plain")] * 3) * 2
        ahead = (PROMETHEUS, VMAGENT, VMAGENT.replace("/metrics", "/handled"), PROMETHEUS)
        one.socket.sendall("".join(f"{each}\n\n" for each in ahead).replace("\n", "\r\n").encode())
        assert [one.receive()[1] for _ in ahead] == [ACCEPT.encode(), b"text/plain", b"GET 0\n", ACCEPT.encode()]
    assert len(parsed) == 3, "fix: this Tornado reads requests otherwise, so each is parsed: see ClientStream"


@pytest.mark.parametrize(
    ("request_text", "body", "answer"),
    [
        (f"{PROMETHEUS}\nAuthorization: Bearer x", b"", (200, ACCEPT.encode())),
        (f"{PROMETHEUS}\nCookie: x", b"", (200, ACCEPT.encode())),
        (f"{PROMETHEUS}\nX-Token: x", b"", (200, ACCEPT.encode())),
        (f"{PROMETHEUS}\nX-Forwarded-For: 10.0.0.1", b"", (200, ACCEPT.encode())),
        (f"{PROMETHEUS}\nContent-Length: 0", b"", (200, ACCEPT.encode())),
        (PROMETHEUS.replace("/metrics", "/metrics?token=x"), b"", (200, ACCEPT.encode())),
        (PROMETHEUS.replace("/3.5.0", "/" + "x" * MOST_BYTES), b"", (200, ACCEPT.encode())),
        (f"{PROMETHEUS}\nConnection: keep-alive", b"", (200, b"GET 0\n")),
        (PROMETHEUS.replace("/metrics", "/handled"), b"", (200, b"GET 0\n")),
        (PROMETHEUS.replace("GET", "HEAD"), b"", (200, b"")),
        (PROMETHEUS.replace("HTTP/1.1", "HTTP/1.0") + "\nConnection: keep-alive", b"", (200, b"GET 0\n")),
        (f"{PROMETHEUS}\nContent-Length: 3", b"abc", (200, b"GET 3\n")),
        (f"{PROMETHEUS}\nTransfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n", (200, b"GET 3\n")),
    ],
)
def test_others_are_parsed_each_time(
    shared: Server, parsed: list[str], request_text: str, body: bytes, answer: tuple[int, bytes]
) -> None:
    """Those that may contain secrets, are long, or need a handler."""
    with Client(shared) as client:
        assert [client.ask(request_text, body) for _ in range(3)] == [answer] * 3
        assert not [each.head for each in gc.get_objects() if type(each) is PlainStream and each.head]
    assert len(parsed) == 3


@pytest.mark.parametrize(
    "request_text",
    [
        f"{PROMETHEUS}\nno colon",
        f"{PROMETHEUS}\n folded",
        PROMETHEUS.replace("GET /", "GET  /"),
        PROMETHEUS.replace("HTTP/1.1", "HTTP/2.0"),
    ],
)
def test_malformed_requests_are_refused_each_time(shared: Server, request_text: str) -> None:
    for _ in range(2):
        with Client(shared) as client:
            assert client.ask(PROMETHEUS) == (200, ACCEPT.encode())
            client.send(request_text)
            assert client.socket.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
            assert client.socket.recv(1) == b""


@pytest.mark.parametrize(
    ("head", "size"), [("Content-Length: {}", "{}"), ("Transfer-Encoding: chunked", "{:x}\r\n{{}}\r\n0\r\n\r\n")]
)
def test_a_body_that_looks_like_a_request_is_none(shared: Server, head: str, size: str) -> None:
    inner = PROMETHEUS.replace("\n", "\r\n") + "\r\n\r\n"
    body = size.format(inner if size == "{}" else len(inner)).replace("{}", inner)
    with Client(shared) as client:
        assert client.ask(PROMETHEUS) == (200, ACCEPT.encode())
        request = f"POST /handled HTTP/1.1\nHost: x\n{head.format(len(inner))}"
        assert client.ask(request, body.encode()) == (200, f"POST {len(inner)}\n".encode())
        request = f"POST /reading HTTP/1.1\nHost: x\n{head.format(len(inner))}"
        assert client.ask(request, body.encode())[1].endswith(inner.encode())


def test_only_so_many_are_kept() -> None:
    """The oldest is forgotten, and what is kept cannot be changed."""
    repeats, headers = Repeats(), HTTPHeaders({"host": "x"})
    for number in range(MOST_REQUESTS + 1):
        repeats.keep(b"%d" % number, "/metrics", headers)
    kept = {number: repeats.get(b"%d" % number) for number in range(MOST_REQUESTS + 1)}
    assert [number for number, request in kept.items() if request is None] == [0]
    request = kept[1]
    assert request is not None
    assert isinstance(request.headers, MappingProxyType)
    headers["Host"] = "y"
    assert request == ("/metrics", {"Host": "x"})


def test_a_handler_answers_when_no_response_is_ready(parsed: list[str]) -> None:
    bodies = [b"one", b"two", None, b"three"]

    def find(path: str, headers: Mapping[str, str]) -> Ready | None:
        body = bodies[0] if path == "/metrics" else b""
        return None if body is None else Ready(body, ())

    with serving(find=find) as server, Client(server) as client:
        answers = []
        while bodies:
            answers.append(client.ask(PROMETHEUS)[1])
            del bodies[0]
    assert (answers, len(parsed)) == ([b"one", b"two", b"GET 0\n", b"three"], 2)


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ({"basic_auth_users": {"me": bcrypt.hashpw(b"x", bcrypt.gensalt(4)).decode()}}, 401),
        ({"rate_limit": {"interval": "1h", "burst": 1}}, 429),
        ({"http_server_config": {"headers": {"X-Frame-Options": "deny"}}}, 200),
    ],
)
def test_a_new_web_configuration_is_in_force(tmp_path: Path, config: Mapping[str, object], status: int) -> None:
    file = tmp_path / "web.yml"
    file.write_text("{}")
    guard = Guard(file)
    with serving(guard) as server, Client(server) as client:
        assert [client.ask(PROMETHEUS)[0] for _ in range(2)] == [200, 200]
        file.write_text(json.dumps(config))
        guard.reload()
        client.ask(PROMETHEUS)
        client.send(PROMETHEUS)
        head = client.socket.recv(1 << 16).decode()
        assert int(head.split()[1]) == status
        assert ("X-Frame-Options: deny" in head) == (status == 200)


@pytest.mark.parametrize(("sent", "is_open"), [("", True), ("GET", False)])
def test_a_connection_may_be_idle_between_two_requests(
    monkeypatch: pytest.MonkeyPatch, sent: str, *, is_open: bool
) -> None:
    """But the next request must arrive in time once it has begun."""
    monkeypatch.setattr(server_module, "CLIENT_SECONDS", 0.2)
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 2 * LIMIT)
    with serving() as server, Client(server) as client:
        for _ in range(2):
            assert client.ask(PROMETHEUS)[0] == 200
        client.socket.sendall(sent.encode())
        client.socket.settimeout(1.0 if is_open else LIMIT)
        with pytest.raises(TimeoutError) if is_open else nullcontext():
            assert client.socket.recv(1) == b""


@pytest.mark.parametrize("client_seconds", [500.0, 5000.0])
def test_a_connection_that_is_idle_for_too_long_is_closed(
    monkeypatch: pytest.MonkeyPatch, client_seconds: float
) -> None:
    """Counted from the last response, however long the first request may take to arrive."""
    passed = [0.0]
    monkeypatch.setattr(server_module, "CLIENT_SECONDS", client_seconds)
    monkeypatch.setattr(server_module, "IDLE_SECONDS", 1000.0)
    with serving() as server, Client(server) as client, Client(server) as other:
        assert server._loop is not None
        now = server._loop.time
        monkeypatch.setattr(server._loop, "time", lambda: now() + passed[0])

        def wait(seconds: float) -> None:
            passed[0] += seconds
            assert other.ask(PROMETHEUS)[0] == 200  # which wakes the loop

        for _ in range(3):
            assert client.ask(PROMETHEUS)[0] == 200
            wait(400)
            wait(400)
        for _ in range(3):  # the server may count from after the first wait: it sends the response before
            wait(400)
        assert client.socket.recv(1) == b""


def test_requests_share_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of their connection, until it is closed."""
    timers, call_at = list[asyncio.TimerHandle](), asyncio.BaseEventLoop.call_at

    def recorded(self: asyncio.BaseEventLoop, when: float, *called: Any, **context: Any) -> asyncio.TimerHandle:
        timers.append(call_at(self, when, *called, **context))
        return timers[-1]

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_at", recorded)
    with serving() as server:
        with Client(server) as client:
            for _ in range(10):
                assert client.ask(PROMETHEUS)[0] == 200
        (timer,) = timers
        until(timer.cancelled, what="the end of the timer")


def test_headers_have_a_limit(shared: Server) -> None:
    with Client(shared) as client:
        assert client.ask(PROMETHEUS)[0] == 200
        client.send(f"{PROMETHEUS}\nX: {'x' * 17_000}")
        assert client.socket.recv(1) == b""


def test_a_connection_is_busy_while_it_is_answered() -> None:
    """And idle, with nothing that arrived, when it is."""
    admission = Admission()
    request = PROMETHEUS.replace("/metrics", "/large")
    with serving(admission=admission) as server, Client(server) as client:
        assert client.ask(request)[0] == 200
        until(lambda: admission._clients["127.0.0.1"].idle, what="the end of the response")
        (connection,) = admission._clients["127.0.0.1"].idle
        client.send(request)
        assert client.socket.recv(1, socket.MSG_PEEK) == b"H"
        assert (connection.busy, connection.has_arrived) == (True, True)
        assert client.receive() == (200, LARGE)
        until(lambda: not connection.busy, what="the end of the response")
        assert not connection.has_arrived


@pytest.mark.parametrize("is_flood", [False, True])
def test_only_in_a_flood_it_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch, is_flood: bool) -> None:
    waited, wait = [], Turns.wait

    async def recorded(self: Turns, client: str, has_left: Callable[[], bool]) -> None:
        waited.append(client)
        await wait(self, client, has_left)

    with serving() as server, Client(server) as client:
        client.ask(PROMETHEUS)
        monkeypatch.setattr(Turns, "wait", recorded)
        if is_flood:
            monkeypatch.setattr(Turns, "may_begin", lambda self: False)
        assert client.ask(PROMETHEUS)[0] == 200
    assert len(waited) == is_flood


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_in_the_middle(caplog: pytest.LogCaptureFixture, reset: bool) -> None:
    """Its connection is freed at once, with its buffers, and nothing is logged."""

    def streams() -> set[int]:
        return {id(each) for each in gc.get_objects() if type(each) is PlainStream}

    request = PROMETHEUS.replace("/metrics", "/large")
    with serving() as server:
        gc.collect()
        gc.disable()
        try:
            before = streams()
            with Client(server) as client:
                assert client.ask(request)[0] == 200
                client.send(request)
                assert client.socket.recv(1) == b"H"
                with Client(server) as other:
                    other.ask(PROMETHEUS)  # by now, what the kernel did not take waits
                assert streams() - before
                if reset:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            until(lambda: not server._admission._clients, what="the end of the connection")
            until(lambda: streams() <= before, what="the end of its stream")
        finally:
            gc.enable()
    assert not caplog.records
