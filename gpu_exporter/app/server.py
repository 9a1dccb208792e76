"""The exporter's HTTP server: sends what the collection loop made, and never calls a driver."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from gpu_exporter.app.endpoint import Endpoint
from gpu_exporter.app.handlers import page
from gpu_exporter.app.lifecycle import Lifecycle
from gpu_exporter.app.routes import ROUTES, LandingPage, Needs, linked
from gpu_exporter.http.admission import Admission
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.ready import Ready
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.live_page.page import load_page


def exporter_server(
    address: Address,
    endpoints: Sequence[Endpoint],
    guard: Guard | None = None,
    lifecycle: Lifecycle | None = None,
    sockets: Sequence[socket.socket] = (),
    admission: Admission | None = None,
    grafana_url: str = "",
) -> Server:
    """Return a server of these nodes: one at the root, several below `/nodes`. `grafana_url` has the dashboards."""
    several = len(endpoints) > 1
    by_prefix = {f"/nodes/{node.node}" if several else "": node for node in endpoints}
    by_path = {f"{prefix}/metrics": node for prefix, node in by_prefix.items()}

    def ready(path: str, headers: Mapping[str, str]) -> Ready | None:
        return page(by_path[path], headers) if path in by_path else None

    examples = ", ".join(f"{prefix}/metrics" for prefix in list(by_prefix)[:2])
    return Server(
        address,
        [
            (route.pattern, route.handler, {"endpoints": by_prefix})
            for route in ROUTES
            if route.needs is not Needs.NODES or several
        ],
        program="exporter",
        option="--address",
        guard=guard,
        admission=admission,
        sockets=sockets,
        ready=ready,
        not_found_hint=f": nodes are at {examples} …; /sd lists them all" if several else "",
        lifecycle=lifecycle or Lifecycle(),
        links_of_node=linked(LandingPage.NODE),
        links_of_list=linked(LandingPage.LIST),
        live_page=load_page(grafana_url),
    )
