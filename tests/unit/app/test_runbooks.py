"""The runbooks that the exporter serves: every one is there, and every link in them leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from posixpath import normpath

import pytest

from gpu_exporter.app.endpoint import Endpoint, NodeHealth
from gpu_exporter.app.server import exporter_server
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.live_page.page import PAGE_POLICY
from gpu_exporter.pipeline.pages import Pages
from tests.support.tools import LIMIT

NAMES = [mode.page for mode in MODES]
PATHS = ["/runbooks", *(f"/runbooks/{name}" for name in NAMES)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of a node without a collection."""
    server = exporter_server(Address("127.0.0.1", 0), [Endpoint("a", NodeHealth(1.0, Pages()))])
    server.start()
    yield server
    server.stop()


def get(server: Server, path: str) -> tuple[int, str, str | None]:
    """Return status, body and policy."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", PATHS)
def test_every_link_leads_to_a_page_or_a_heading(server: Server, path: str) -> None:
    """Links are relative, so that a path prefix works; those to other pages of the docs become their path."""
    status, body, policy = get(server, path)
    assert (status, policy) == (200, PAGE_POLICY)
    for link in re.findall(r'href="([^"]*)"', body):
        file, _, place = link.partition("#")
        assert not link.startswith("/")
        target = normpath(f"{path.rpartition('/')[0]}/{file}") if file else path
        assert target in (*PATHS, "/", "/static/icon.svg", "/static/page.css"), link
        if place:
            assert f'id="{place}"' in get(server, target)[1]


def test_what_to_do_is_there(server: Server) -> None:
    body = get(server, "/runbooks/gpulost")[1]
    assert '<h2 id="what-to-do-first">What to do first</h2>' in body
    assert "<title>GpuLost · gpu-exporter</title>" in body


@pytest.mark.parametrize("path", ["/runbooks/", "/runbooks/GpuLost", "/runbooks/gpulost.md", "/runbooks/nothing"])
def test_nothing_else_is_there(server: Server, path: str) -> None:
    assert get(server, path)[0] == 404
