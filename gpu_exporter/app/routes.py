"""The paths that the HTTP server answers, one row each. A faulty row is an error at import that names the fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from inspect import signature

from gpu_exporter.app.handler import Handler
from gpu_exporter.app.handlers import (
    DiscoveryHandler,
    EventsHandler,
    GpusHandler,
    HealthzHandler,
    MetricsHandler,
    NodeStateHandler,
    ReadyzHandler,
)
from gpu_exporter.app.lifecycle import QuitHandler, ReleaseHandler, ReloadHandler, ResumeHandler
from gpu_exporter.app.page_handlers import HistoryHandler, IncidentsHandler, PageHandler, StaticHandler, StreamHandler
from gpu_exporter.app.profile_handlers import PprofHandler, ProfilesHandler
from gpu_exporter.app.runbook_handlers import RunbookHandler
from gpu_exporter.live_page import page

# With several nodes, the paths of each node are below this prefix. Handlers receive it, or "" at the root.
NODE_PREFIX = "((?:/nodes/[^/]+)?)"
# Stands for the last part of a path that names one of many pages.
NAME, NAMES = "NAME", "[a-z0-9]+"
PATH = re.compile(r"/|(?:/[A-Za-z0-9_-]+)+|/static/[A-Za-z0-9_.-]+")


class Needs(Enum):
    """What a path needs in order to answer."""

    NOTHING = "nothing; only at the root"
    NODE = "a node: at the root where one is served, below /nodes/NAME where there are several"
    NODES = "several nodes; only at the root"
    LIFECYCLE = "--web.enable-lifecycle, and a password, client certificate or the token; only at the root"
    TOKEN = "the token of --token-file from this machine, or as LIFECYCLE; only at the root"


class LandingPage(Flag):
    """The pages for people that link to a path: that of a node, and the list of several nodes."""

    NOTHING = 0
    NODE = auto()
    LIST = auto()


@dataclass(frozen=True, slots=True)
class Route:
    """One path. `linked` are the pages that link to it."""

    path: str
    handler: type[Handler]
    needs: Needs
    description: str
    linked: LandingPage = LandingPage.NOTHING

    @property
    def pattern(self) -> str:
        """The regular expression that tornado matches a whole path with."""
        folder, name, _ = self.path.partition(NAME)
        return (NODE_PREFIX if self.needs is Needs.NODE else "") + re.escape(folder) + (NAMES if name else "")


BOTH = LandingPage.NODE | LandingPage.LIST

# fmt: off
ROUTES: Sequence[Route] = (
    Route("/metrics", MetricsHandler, Needs.NODE, "metrics for Prometheus, as text 0.0.4 or OpenMetrics", LandingPage.NODE),
    Route("/sd", DiscoveryHandler, Needs.NODES, "service discovery for Prometheus: each node as a target", LandingPage.LIST),
    Route("/healthz", HealthzHandler, Needs.NODE, "liveness: 200 while collections are on time", BOTH),
    Route("/health", HealthzHandler, Needs.NODE, "as /healthz: dcgm-exporter's path for probes"),
    Route("/readyz", ReadyzHandler, Needs.NODE, "readiness: 200 while GPUs are being read", BOTH),
    Route("/api/v1/gpus", GpusHandler, Needs.NODE, "identity, verdict and owners of each GPU, as JSON", LandingPage.NODE),
    Route("/api/v1/incidents", IncidentsHandler, Needs.NODE, "what is wrong, one entry for each cause, as JSON", LandingPage.NODE),
    Route("/api/v1/history", HistoryHandler, Needs.NODE, "the last hour of each GPU, as JSON"),
    Route("/api/v1/stream", StreamHandler, Needs.NODE, "new values of each GPU, as server-sent events"),
    Route("/api/v1/node", NodeStateHandler, Needs.NODE, "the state of the node for controllers, as JSON", LandingPage.NODE),
    Route("/api/v1/events", EventsHandler, Needs.NODE, "the last XIDs, as JSON", LandingPage.NODE),
    Route("/api/v1/profiles", ProfilesHandler, Needs.NODE, "profiles of the processes on the GPUs, as JSON; POST: take one"),
    Route("/debug/pprof/wall", PprofHandler, Needs.NODE, "profiles of the last minute, for Parca, Pyroscope and pprof"),
    Route("/", PageHandler, Needs.NODE, "the live page, or the list of nodes if there are several"),
    Route("/runbooks", RunbookHandler, Needs.NOTHING, "what to do about each alert", LandingPage.LIST),
    Route("/runbooks/NAME", RunbookHandler, Needs.NOTHING, "what to do about one alert, by its name in small letters"),
    *(Route(f"/static/{name}", StaticHandler, Needs.NOTHING, "a file of the live page") for name in page.NAMES),
    Route("/-/quit", QuitHandler, Needs.LIFECYCLE, "POST: end the process"),
    Route("/-/reload", ReloadHandler, Needs.LIFECYCLE, "POST: reload the web configuration and the file of fields"),
    Route("/-/release", ReleaseHandler, Needs.TOKEN, "POST: release the driver"),
    Route("/-/resume", ResumeHandler, Needs.TOKEN, "POST: reconnect to the driver"),
)
# fmt: on


def check(routes: Iterable[Route]) -> None:
    """Raise ValueError, with the fix, for the first faulty row."""
    paths: set[str] = set()
    for route in routes:
        problem = "two rows have this path: remove one" if route.path in paths else _problem(route)
        if problem:
            raise ValueError(f"app/routes.py: {route.path!r}: {problem}")
        paths.add(route.path)


def _problem(route: Route) -> str:
    """Return what is wrong with a row, and the fix; empty if nothing is."""
    handler, name = route.handler, route.handler.__name__
    allowed = handler.allowed_methods()
    methods = [method for method in ("get", "post") if method.upper() in allowed]
    if not route.path.startswith("/"):
        return f"a path begins with a slash: write '/{route.path}'"
    if route.path.startswith("/nodes/"):
        return "/nodes/NAME is the prefix of a node: leave it out, and write Needs.NODE"
    if not PATH.fullmatch(route.path):
        return "a path is exact, not a pattern: use letters, digits, '-', '_' and single slashes, with none at the end"
    if not methods:
        return f"{name} answers no method: define get or post in it"
    if "get" in methods and "HEAD" not in allowed:
        return f"{name} answers GET but not HEAD: write `head = get` in it"
    arguments = ["self", "prefix"] if route.needs is Needs.NODE else ["self"]
    for method in methods:
        definition = f"async def {method}({', '.join(arguments)})"
        if list(signature(getattr(handler, method)).parameters) != arguments:
            return f"{name}.{method} needs other arguments with {route.needs}: write `{definition}`"
    if route.linked and "get" not in methods:
        return f"{name} answers no GET, so a link to it fails: write LandingPage.NOTHING"
    if LandingPage.NODE in route.linked and route.needs is not Needs.NODE:
        return "the page of a node links to paths below that node, and this is only at the root: write LandingPage.LIST"
    return "" if route.description else "no description: say in a few words what it answers"


def linked(page: LandingPage) -> Mapping[str, str]:
    """Return the paths that a page for people links to, with their descriptions."""
    return {route.path: route.description for route in ROUTES if page in route.linked}


check(ROUTES)
