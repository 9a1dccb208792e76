"""The table of routes: which paths match, and how faulty rows are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tornado.web import RequestHandler

from gpu_exporter.app.handler import Handler
from gpu_exporter.app.handlers import DiscoveryHandler, GpusHandler, MetricsHandler
from gpu_exporter.app.lifecycle import QuitHandler
from gpu_exporter.app.routes import ROUTES, LandingPage, Needs, Route, check, linked

ROOT = Path(__file__).parents[3]


class Answer(Handler):
    """GET and HEAD of a node."""

    async def get(self, prefix: str) -> None:
        raise NotImplementedError

    head = get


class NoHead(Handler):
    """GET alone."""

    async def get(self, prefix: str) -> None:
        raise NotImplementedError


class NoMethod(Handler):
    """Nothing."""


def matches(path: str) -> list[tuple[str, str]]:
    """The routes that a path matches, with the prefix, as tornado matches them."""
    tries = ((route, re.match(f"{route.pattern}$", path)) for route in ROUTES)
    return [(route.path, "".join(match.groups())) for route, match in tries if match]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/metrics", ("/metrics", "")),
        ("/", ("/", "")),
        ("/health", ("/health", "")),
        ("/healthz", ("/healthz", "")),
        ("/api/v1/gpus", ("/api/v1/gpus", "")),
        ("/nodes/node-001/metrics", ("/metrics", "/nodes/node-001")),
        ("/nodes/a.b_c%20d/api/v1/events", ("/api/v1/events", "/nodes/a.b_c%20d")),
        ("/nodes/node-001/", ("/", "/nodes/node-001")),
        ("/sd", ("/sd", "")),
        ("/-/quit", ("/-/quit", "")),
    ],
)
def test_matches(path: str, expected: tuple[str, str]) -> None:
    """A path matches one row, with at most the prefix of a node."""
    assert matches(path) == [expected]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/metrics/",
        "//metrics",
        "/foo/metrics",
        "/nodes//metrics",
        "/nodes/a/b/metrics",
        "/nodes/a/nodes/b/metrics",
        "/nodes",
        "/nodes/a",
        "/nodes/a/sd",
        "/nodes/a/-/quit",
        "/api/v1/health",
        "/healthzz",
        "/metricsz",
        "/foo/",
        "http://host/metrics",
    ],
)
def test_matches_nothing(path: str) -> None:
    """Paths match as a whole, not by their end."""
    assert matches(path) == []


GOOD = Route("/good", Answer, Needs.NODE, "something good")


@pytest.mark.parametrize(
    ("row", "fix"),
    [
        (GOOD, "two rows have this path: remove one"),
        (Route("more", Answer, Needs.NODE, "more"), "write '/more'"),
        (Route("/more/", Answer, Needs.NODE, "more"), "a path is exact"),
        (Route("//more", Answer, Needs.NODE, "more"), "a path is exact"),
        (Route("/(.*)", Answer, Needs.NODE, "more"), "a path is exact"),
        (Route("/more.json", Answer, Needs.NODE, "more"), "a path is exact"),
        (Route("/mor?e", Answer, Needs.NODE, "more"), "a path is exact"),
        (Route("/nodes/more", Answer, Needs.NODE, "more"), "leave it out, and write Needs.NODE"),
        (Route("/more", NoMethod, Needs.NODE, "more"), "define get or post"),
        (Route("/more", NoHead, Needs.NODE, "more"), "write `head = get`"),
        (Route("/more", Answer, Needs.NODES, "more"), "write `async def get(self)`"),
        (Route("/more", DiscoveryHandler, Needs.NODE, "more"), "write `async def get(self, prefix)`"),
        (Route("/more", Answer, Needs.NOTHING, "more"), "with Needs.NOTHING: write `async def get(self)`"),
        (Route("/more", QuitHandler, Needs.LIFECYCLE, "more", LandingPage.LIST), "write LandingPage.NOTHING"),
        (
            Route("/more", DiscoveryHandler, Needs.NODES, "more", LandingPage.NODE | LandingPage.LIST),
            "write LandingPage.LIST",
        ),
        (Route("/more", Answer, Needs.NODE, ""), "say in a few words"),
    ],
)
def test_refuses_a_faulty_row(row: Route, fix: str) -> None:
    """The error names the file, the path and the fix."""
    with pytest.raises(ValueError, match=r"^app/routes\.py: ") as caught:
        check([GOOD, row])
    assert repr(row.path) in str(caught.value)
    assert fix in str(caught.value)


def test_accepts_a_good_row() -> None:
    """A row with a path, a handler and a description is all that a new route takes."""
    check([*ROUTES, GOOD])


def test_links_of_landing_pages() -> None:
    """The page of a node links to its paths, the list of nodes to those of all nodes."""
    assert {"/metrics", "/api/v1/gpus"} <= linked(LandingPage.NODE).keys() - linked(LandingPage.LIST).keys()
    assert "/sd" in linked(LandingPage.LIST).keys() - linked(LandingPage.NODE).keys()
    for page in (LandingPage.NODE, LandingPage.LIST):
        assert linked(page) == {route.path: route.description for route in ROUTES if page in route.linked}


def test_every_path_is_documented() -> None:
    """The README or a page of docs/ names each path."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    paths = ["/static/" if route.path.startswith("/static/") else route.path for route in ROUTES]
    missing = [path for path in paths if not re.search(re.escape(path) + r"(?![\w/-])", text)]
    assert missing == [], f"no page of docs/ names {missing}: describe these paths where their purpose is described"


def test_methods_of_paths() -> None:
    """Every path has either GET and HEAD, or POST; only profiles are both listed and taken."""
    for route in ROUTES:
        gets = route.handler.get is not RequestHandler.get
        assert gets is (route.handler.head is not RequestHandler.head)
        posts = route.handler.post is not RequestHandler.post
        assert gets is not posts or route.path == "/api/v1/profiles"
        assert gets is not route.path.startswith("/-/")
    assert {MetricsHandler, GpusHandler, QuitHandler} <= {route.handler for route in ROUTES}
