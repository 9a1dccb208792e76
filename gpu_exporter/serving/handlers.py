"""The handlers of GET requests: metrics, GPUs, events, health checks, the landing page and service discovery."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from functools import partial

from tornado.web import HTTPError

from gpu_exporter.exposition.pages import Variant
from gpu_exporter.health import judge
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.serving import api
from gpu_exporter.serving.endpoint import NO_METRICS_YET, Health
from gpu_exporter.serving.handler import TEXT, Handler
from gpu_exporter.serving.negotiation import accepts_gzip, accepts_openmetrics
from gpu_exporter.version import __version__

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json"


class Metrics(Handler):
    """The response that Prometheus scrapes."""

    async def get(self, prefix: str) -> None:
        endpoint = self.endpoint(prefix)
        if endpoint.dead():
            raise HTTPError(503)
        problem = endpoint.health.liveness_problem()
        if problem:
            await self.send(f"{problem}\n", TEXT, 503)
            return
        pages = endpoint.pages
        openmetrics = accepts_openmetrics(self.request.headers.get("Accept", ""))
        gzip = accepts_gzip(self.request.headers.get("Accept-Encoding", ""))
        if gzip:
            self.set_header("Content-Encoding", "gzip")
        self.set_header("Vary", "Accept, Accept-Encoding")
        await self.send(pages.get(Variant(openmetrics, gzip)), OPENMETRICS if openmetrics else TEXT)

    head = get


class Gpus(Handler):
    """Identity, verdict and owners of each GPU."""

    async def get(self, prefix: str) -> None:
        endpoint = self.endpoint(prefix)
        snapshot, problem = endpoint.health.snapshot, endpoint.health.liveness_problem()
        if snapshot is None or problem:
            await self.send(f"{problem or NO_METRICS_YET}\n", TEXT, 503)
            return
        if endpoint.live:
            endpoint.live.asked()
            compose = partial(api.shown, partial(endpoint.live.monitor.answer, snapshot))
        else:
            compose = partial(api.gpus, snapshot)
        answer = endpoint.gpus.get(snapshot, compose)
        if answer.problem:
            await self.send(f"{answer.problem}\n", TEXT, 503)
        else:
            await self.send(answer.body, JSON)

    head = get


class Events(Handler):
    """The last XIDs, newest first."""

    async def get(self, prefix: str) -> None:
        endpoint = self.endpoint(prefix)
        log = endpoint.events
        answer = endpoint.recent.get(None, lambda: api.events(log.recent() if log else ()))
        await self.send(answer.body, JSON)

    head = get


class _Probe(Handler):
    """A health check of one node or, at the root, of all nodes: 200, or 503 with the first problem."""

    async def get(self, prefix: str) -> None:
        endpoints = [self.endpoint(prefix)] if prefix else self.endpoints.values()
        problem = next(filter(None, (self.problem(endpoint.health) for endpoint in endpoints)), "")
        await self.send(f"{problem or 'ok'}\n", TEXT, 503 if problem else 200)

    head = get

    def problem(self, health: Health) -> str:
        raise NotImplementedError


class Healthz(_Probe):
    """Whether the collection loop makes new pages."""

    def problem(self, health: Health) -> str:
        return health.liveness_problem()


class Readyz(_Probe):
    """Whether GPUs are being read."""

    def problem(self, health: Health) -> str:
        return health.readiness_problem()


class Landing(Handler):
    """A page for people: links and GPUs of a node; at the root of several nodes, the list of nodes."""

    async def get(self, prefix: str) -> None:
        if not prefix and "" not in self.endpoints:
            await self._list()
            return
        health = self.endpoint(prefix).health
        snapshot, problem = health.snapshot, health.liveness_problem()
        rows = "".join(_rows(snapshot)) if snapshot else ""
        links = _links(self.settings["links_of_node"])
        warning = f"<p><strong>{html.escape(problem)}</strong>" if problem else ""
        await self.send(LANDING.format(__version__, _banner(snapshot) + warning, links, rows), HTML)

    async def _list(self) -> None:
        items = "".join(f"<li><a href={prefix[1:]}/>{node.node}</a>" for prefix, node in self.endpoints.items())
        first = next(iter(self.endpoints.values()))
        links = _links(self.settings["links_of_list"])
        await self.send(NODES.format(__version__, _banner(first.health.snapshot), links, items), HTML)

    head = get


class Discovery(Handler):
    """HTTP service discovery for Prometheus: each node is a target, named after the node."""

    async def get(self) -> None:
        targets = [
            {
                "targets": [self.request.host],
                "labels": {
                    "__scheme__": self.request.protocol,
                    "__metrics_path__": f"{prefix}/metrics",
                    "instance": endpoint.node,
                },
            }
            for prefix, endpoint in self.endpoints.items()
        ]
        await self.send(json.dumps(targets), JSON)

    head = get


class NotFound(Handler):
    """Every other path: 404 in one line."""

    async def prepare(self) -> None:
        await super().prepare()
        if not self._finished:
            raise HTTPError(404)


LANDING = """<!doctype html><html lang=en><meta charset=utf-8><title>gpu-exporter</title>
<h1>gpu-exporter {}</h1>{}
<p>{}
<table><tr><th>GPU<th>model<th>UUID<th>health{}</table>
"""
NODES = """<!doctype html><html lang=en><meta charset=utf-8><title>gpu-exporter</title>
<h1>gpu-exporter {}</h1>{}
<p>{}
<ul>{}</ul>
"""


def _links(paths: Mapping[str, str]) -> str:
    return " · ".join(
        f'<a href={path[1:]} title="{html.escape(description)}">{path}</a>' for path, description in paths.items()
    )


def _rows(snapshot: Snapshot) -> Iterator[str]:
    """Yield a row for each GPU with its verdict, and one for those that are missing."""
    for status, verdict in zip(snapshot.gpus, snapshot.verdicts, strict=True):
        problems = [problem.words for problem in verdict.problems]
        down = [f"down ({status.reason})"] if not status.up else []
        state = ": ".join(filter(None, (verdict.health.value, "; ".join([*down, *problems]))))
        cells = (str(status.gpu.index), status.gpu.model, status.gpu.uuid, state)
        yield f"<tr>{''.join(f'<td>{html.escape(cell)}' for cell in cells)}"
    if number := judge.missing(snapshot):
        yield f"<tr><td><td><td><td>missing: {number} of the expected GPUs"


def _banner(snapshot: Snapshot | None) -> str:
    if snapshot is None or snapshot.live:
        return ""
    return f"<p><strong>These are not your GPUs: source {snapshot.source}, {snapshot.description}.</strong>"
