"""The pages for people and their files: what is sent, how it is cached, and what a browser may run."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from gpu_exporter.app.endpoint import Endpoint, NodeHealth
from gpu_exporter.app.page_handlers import CSP
from gpu_exporter.app.server import exporter_server
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.live_page import page
from gpu_exporter.live_page.node_list import ListedNode
from gpu_exporter.live_page.page import PAGE_POLICY
from gpu_exporter.pipeline.pages import Pages
from tests.support.tools import LIMIT

OWN = [name for name in page.NAMES if not name.startswith("uPlot")]
SCRIPTS = [name for name in OWN if name.endswith(".js")]
HOSTILE = "<script>"


def endpoint(name: str) -> Endpoint:
    """A node without a collection."""
    pages = Pages()
    return Endpoint(name, NodeHealth(1.0, pages))


@pytest.fixture(params=[["a"], ["a", HOSTILE]], ids=["one node", "two nodes"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of nodes."""
    server = exporter_server(Address("127.0.0.1", 0), [endpoint(name) for name in request.param])
    server.start()
    yield server
    server.stop()


def get(server: Server, path: str, headers: Mapping[str, str] | None = None) -> tuple[HTTPResponse, bytes]:
    """Send a GET request; return response and body."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_all_files_are_served() -> None:
    assert sorted(page.NAMES) == sorted(path.name for path in page.FOLDER.iterdir())
    assert list(page.NAMES) == sorted(page.NAMES)


@pytest.mark.parametrize("name", ["page.js", "page.css", "icon.svg", "uPlot.iife.min.js", "uPlot.LICENSE.txt"])
def test_a_file_is_cached_by_its_content(server: Server, name: str) -> None:
    """The browser asks whether it has changed; the answer is 304 while it has not. gzip has the same content."""
    content = (page.FOLDER / name).read_bytes()
    answer, body = get(server, f"/static/{name}")
    assert (answer.status, body) == (200, content)
    assert answer.headers["Cache-Control"] == "no-cache"
    zipped, body = get(server, f"/static/{name}", {"Accept-Encoding": "gzip"})
    assert (zipped.headers["Content-Encoding"], gzip.decompress(body)) == ("gzip", content)
    assert zipped.headers["ETag"] == answer.headers["ETag"]
    same, body = get(server, f"/static/{name}", {"If-None-Match": answer.headers["ETag"]})
    assert (same.status, body) == (304, b"")
    assert get(server, f"/static/{name}", {"If-None-Match": '"other"'})[0].status == 200


@pytest.mark.parametrize("path", ["/static/", "/static/nothing.js", "/static/../page.html", "/static/page.html"])
def test_nothing_else_is_served(server: Server, path: str) -> None:
    assert get(server, path)[0].status == 404


def test_only_own_scripts_may_run(server: Server) -> None:
    answer, body = get(server, "/")
    assert answer.headers[CSP] == PAGE_POLICY
    assert b"<script>" not in body
    assert not re.search(rb"\s(on\w+|style)=", body)


def test_a_policy_of_the_user_stays(tmp_path: Path) -> None:
    config = tmp_path / "web.yml"
    config.write_text("http_server_config: {headers: {Content-Security-Policy: default-src 'self'}}")
    server = exporter_server(Address("127.0.0.1", 0), [endpoint("a")], Guard(config))
    server.start()
    try:
        assert get(server, "/")[0].headers[CSP] == "default-src 'self'"
    finally:
        server.stop()


@pytest.mark.parametrize("name", [*OWN, "../page.html", "../nodes.html", "../runbook.html"])
def test_no_file_names_another_host(name: str) -> None:
    """The only absolute URL is the XML namespace of SVG. All others are relative, so that a path prefix works."""
    text = (page.FOLDER / name).read_text("utf-8")
    assert set(re.findall(r"https?://[\w.-]+[\w/.]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"""(?:href|src)="/|(?:ask|fetch|EventSource|URL)\(["'`]/""", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_from_text(name: str) -> None:
    text = (page.FOLDER / name).read_text("utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
    assert len(text.splitlines()) <= 350


def test_imports_have_no_cycle() -> None:
    """Imports go one way. Only page.js and nodes.js, which the HTML loads, are imported by no other script."""
    imports = {
        name: re.findall(r"""["']\./([\w.]+\.js)["']""", (page.FOLDER / name).read_text("utf-8")) for name in SCRIPTS
    }
    assert set(SCRIPTS).difference(*imports.values()) == {"nodes.js", "page.js"}
    TopologicalSorter(imports).prepare()


def test_the_strip_knows_all_classes_of_useful_work() -> None:
    """Classes that drawing.js does not name are drawn as losses."""
    heights = re.search(r"const HEIGHTS = \{(.*?)\}", (page.FOLDER / "drawing.js").read_text("utf-8"))
    assert heights
    named = set(re.findall(r"[a-z-]{3,}", heights[1]))
    assert named <= {bottleneck.name for bottleneck in BOTTLENECKS}


LISTED = ListedNode("/nodes/a", "a", None, "no metrics yet")


def test_links_to_the_dashboards() -> None:
    """Of the node in the page, of GPUs and jobs for the scripts. Without the address of Grafana, there are none."""
    body = page.load_page("https://grafana.example/g").of_node("node <1>", {})
    assert '<a href="https://grafana.example/g/d/gpu-node?var-node=node%20%3C1%3E">' in body
    assert 'data-gpu-board="https://grafana.example/g/d/gpu-gpu?var-node=node%20%3C1%3E&amp;var-gpu={gpu}"' in body
    assert "/d/gpu-job?var-namespace={namespace}&amp;var-workload={workload}" in body
    nodes = page.load_page("https://grafana.example/g").of_nodes([LISTED], {})
    assert '<a href="https://grafana.example/g/d/gpu-fleet">Dashboard of all nodes</a>' in nodes
    runbook = page.load_page("https://grafana.example").of_runbook("GpuLost", "", "/d/gpu-gpu", is_index=False)
    assert '<a href="https://grafana.example/d/gpu-gpu">Dashboard</a>' in runbook
    without = page.load_page()
    for body in (
        without.of_node("node", {}),
        without.of_nodes([LISTED], {}),
        without.of_runbook("", "", "/d/gpu-gpu", is_index=True),
    ):
        assert "board" not in body
