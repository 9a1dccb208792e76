"""The response of /metrics: the same whether it is ready or a handler sends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection

import pytest

from gpu_exporter.app.endpoint import Endpoint, NodeHealth
from gpu_exporter.app.handlers import OPENMETRICS, MetricsHandler
from gpu_exporter.app.server import exporter_server
from gpu_exporter.http.handler import TEXT
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.pipeline.pages import Page, Pages
from tests.support.tools import LIMIT

# A request with this header is left to a handler.
UNUSUAL = {"Connection": "keep-alive"}


def old(node: Endpoint) -> None:
    """Let the page of a node be too old."""
    node.pages.made_at -= 60.0


def unread(node: Endpoint) -> None:
    """Let a node have no page yet."""
    node.pages.made.clear()


@pytest.fixture
def nodes() -> Sequence[Endpoint]:
    """Two nodes that have a page."""
    both = []
    for name in ("a", "b"):
        pages = Pages()
        pages.publish(Page([(b"# text\n", b"# openmetrics\n", f"{name} 1\n".encode() * 1000)]))
        both.append(Endpoint(name, NodeHealth(1.0, pages)))
    return both


@contextmanager
def serving(nodes: Sequence[Endpoint]) -> Iterator[Server]:
    server = exporter_server(Address("127.0.0.1", 0), nodes)
    server.start()
    yield server
    server.stop()


def get(server: Server, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
    """Return the status, the headers but for the date, and the body of the response."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    try:
        connection.request("GET", path, headers={"Accept-Encoding": "identity", **headers})
        response = connection.getresponse()
        return response.status, {name: text for name, text in response.getheaders() if name != "Date"}, response.read()
    finally:
        connection.close()


FORMS = [{"Accept": accept, "Accept-Encoding": coding} for accept in ("*/*", OPENMETRICS) for coding in ("", "gzip")]


@pytest.mark.parametrize(("count", "paths"), [(1, ["/metrics"]), (2, ["/nodes/a/metrics", "/nodes/b/metrics"])])
def test_a_handler_sends_the_same(
    nodes: Sequence[Endpoint], monkeypatch: pytest.MonkeyPatch, count: int, paths: Sequence[str]
) -> None:
    """In all formats, at the path of each node."""
    with serving(nodes[:count]) as server:
        by_handler = [get(server, path, {**form, **UNUSUAL}) for path in paths for form in FORMS]
        monkeypatch.delattr(MetricsHandler, "get")
        assert [get(server, path, form) for path in paths for form in FORMS] == by_handler
        assert {status for status, _, _ in by_handler} == {200}


@pytest.mark.parametrize(("spoil", "why"), [(old, b"no new metrics since "), (unread, b"no metrics yet: ")])
def test_a_handler_says_why_there_is_no_page(
    nodes: Sequence[Endpoint], spoil: Callable[[Endpoint], None], why: bytes
) -> None:
    spoil(nodes[0])
    with serving(nodes[:1]) as server:
        status, headers, body = get(server, "/metrics", {})
    assert (status, headers["Content-Type"]) == (503, TEXT)
    assert body.startswith(why)


def test_a_simulated_exporter_that_is_dead_sends_no_page(nodes: Sequence[Endpoint]) -> None:
    with serving([replace(nodes[0], dead=lambda: True)]) as server:
        assert get(server, "/metrics", {})[0] == 503
