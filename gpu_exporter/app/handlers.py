"""The handlers of GET requests: metrics, GPUs, events, health checks and service discovery."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

from tornado.web import HTTPError

from gpu_exporter.app import api
from gpu_exporter.app.endpoint import Endpoint, NodeHealth
from gpu_exporter.app.handler import Handler
from gpu_exporter.http.handler import JSON, TEXT
from gpu_exporter.http.negotiation import accepts_gzip, accepts_openmetrics
from gpu_exporter.http.ready import Ready
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline.pages import NO_METRICS_YET, Variant

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def page(endpoint: Endpoint, headers: Mapping[str, str]) -> Ready | None:
    """Return the response that Prometheus scrapes, in the form that the client accepts; None if the page is too old."""
    if endpoint.dead() or endpoint.health.liveness_problem():
        return None
    openmetrics = accepts_openmetrics(headers.get("Accept", ""))
    gzip = accepts_gzip(headers.get("Accept-Encoding", ""))
    described = (("Content-Type", OPENMETRICS if openmetrics else TEXT), ("Vary", "Accept, Accept-Encoding"))
    encoding = (("Content-Encoding", "gzip"),) if gzip else ()
    return Ready(endpoint.pages.get(Variant(openmetrics, gzip)), (*described, *encoding))


class MetricsHandler(Handler):
    """The response that Prometheus scrapes, or why there is none; most requests need no handler."""

    async def get(self, prefix: str) -> None:
        endpoint = self.endpoint(prefix)
        if endpoint.dead():
            raise HTTPError(503)
        response = page(endpoint, self.request.headers)
        if response is None:
            await self.send(f"{endpoint.health.liveness_problem()}\n", TEXT, 503)
            return
        for name, value in response.headers:
            self.set_header(name, value)
        await self.send(response.body, dict(response.headers)["Content-Type"])

    head = get


class _OfSnapshot(Handler):
    """An answer that is composed from the latest snapshot."""

    async def latest(self, endpoint: Endpoint) -> Snapshot | None:
        """Return the latest snapshot; if there is none, or it is too old, send why and return None."""
        problem = endpoint.health.liveness_problem()
        if endpoint.health.snapshot is None or problem:
            await self.send(f"{problem or NO_METRICS_YET}\n", TEXT, 503)
            return None
        return endpoint.health.snapshot

    async def send_answer(self, answer: api.ApiAnswer) -> None:
        """Send JSON, or why there is none."""
        if answer.problem:
            await self.send(f"{answer.problem}\n", TEXT, 503)
        else:
            await self.send(answer.body, JSON)


class GpusHandler(_OfSnapshot):
    """Identity, verdict and owners of each GPU."""

    async def get(self, prefix: str) -> None:
        endpoint = self.endpoint(prefix)
        snapshot = await self.latest(endpoint)
        if snapshot is None:
            return
        trusted = self.is_trusted(endpoint)
        if endpoint.live:
            endpoint.live.asked()
            compose = partial(api.shown, partial(endpoint.live.monitor.answer, snapshot, trusted=trusted))
        else:
            compose = partial(api.gpus, snapshot, endpoint.names_for(trusted=trusted))
        answer = endpoint.gpus[trusted].get(snapshot, compose)
        await self.send_answer(answer)

    head = get


class NodeStateHandler(_OfSnapshot):
    """What a controller needs in order to decide about the node."""

    async def get(self, prefix: str) -> None:
        endpoint = self.endpoint(prefix)
        snapshot = await self.latest(endpoint)
        if snapshot is None:
            return
        events, ready = endpoint.events, endpoint.health.readiness_problem()
        answer = endpoint.state.get(
            snapshot,
            lambda: api.node(
                endpoint.node,
                endpoint.boot_id,
                snapshot,
                endpoint.since,
                events.recent() if events else (),
                ready,
                endpoint.last_check,
            ),
        )
        await self.send_answer(answer)

    head = get


class EventsHandler(Handler):
    """The last XIDs, newest first."""

    async def get(self, prefix: str) -> None:
        endpoint = self.endpoint(prefix)
        log, trusted = endpoint.events, self.is_trusted(endpoint)
        names = endpoint.names_for(trusted=trusted)
        answer = endpoint.recent[trusted].get(None, lambda: api.events(log.recent() if log else (), names))
        await self.send(answer.body, JSON)

    head = get


class _Probe(Handler):
    """A health check of one node or, at the root, of all nodes: 200, or 503 with the first problem."""

    async def get(self, prefix: str) -> None:
        endpoints = [self.endpoint(prefix)] if prefix else self.endpoints.values()
        problem = next(filter(None, (self.problem(endpoint.health) for endpoint in endpoints)), "")
        await self.send(f"{problem or 'ok'}\n", TEXT, 503 if problem else 200)

    head = get

    def problem(self, health: NodeHealth) -> str:
        raise NotImplementedError


class HealthzHandler(_Probe):
    """Whether the collection loop makes new pages."""

    def problem(self, health: NodeHealth) -> str:
        return health.liveness_problem()


class ReadyzHandler(_Probe):
    """Whether GPUs are being read."""

    def problem(self, health: NodeHealth) -> str:
        return health.readiness_problem()


class DiscoveryHandler(Handler):
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
