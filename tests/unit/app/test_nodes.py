"""Which paths a server of several nodes answers."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from gpu_exporter.app import server as server_module
from gpu_exporter.app.endpoint import Endpoint, NodeHealth
from gpu_exporter.app.handler import Handler
from gpu_exporter.app.routes import ROUTES, Needs, Route, check
from gpu_exporter.app.server import exporter_server
from gpu_exporter.http.handler import TEXT
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.pipeline.pages import Pages
from tests.support.tools import LIMIT


class OfNode(Handler):
    """A handler that ignores the prefix of the node."""

    async def get(self, prefix: str) -> None:
        await self.send("node\n", TEXT)

    head = get


class Always(Handler):
    """A handler that needs no node."""

    async def get(self) -> None:
        await self.send("always\n", TEXT)

    head = get


ADDED = (Route("/of-node", OfNode, Needs.NODE, "a test"), Route("/always", Always, Needs.NOTHING, "a test"))


def endpoint(name: str) -> Endpoint:
    """A node without pages."""
    pages = Pages()
    return Endpoint(name, NodeHealth(1.0, pages))


@pytest.fixture(params=[["a"], ["a", "b"]], ids=["one node", "two nodes"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with routes to these handlers."""
    check([*ROUTES, *ADDED])
    monkeypatch.setattr(server_module, "ROUTES", [*ROUTES, *ADDED])
    server = exporter_server(Address("127.0.0.1", 0), [endpoint(name) for name in request.param])
    server.start()
    yield server
    server.stop()


def status(server: Server, path: str) -> int:
    """The status of the answer to GET."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_an_unknown_node_is_not_found(served: Server, request: pytest.FixtureRequest) -> None:
    """On every path of a node, before the handler runs."""
    several = "two nodes" in request.node.name
    paths = [route.path for route in (*ROUTES, *ADDED) if route.needs is Needs.NODE]

    assert {path: status(served, f"/nodes/c{path}") for path in paths} == dict.fromkeys(paths, 404)
    assert status(served, "/nodes/b/of-node") == (200 if several else 404)


def test_handlers_without_a_node_are_only_at_the_root(served: Server) -> None:
    assert (status(served, "/always"), status(served, "/nodes/a/always")) == (200, 404)
