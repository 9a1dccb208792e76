"""Run `serve`: connect sources, collection loops and the HTTP server, and stop them in order."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from gpu_exporter.app import heap
from gpu_exporter.app.greeting import base_url, greeting
from gpu_exporter.app.lifecycle import Lifecycle
from gpu_exporter.app.log_queue import LogQueue
from gpu_exporter.app.node import Node, ProcessMetrics
from gpu_exporter.app.server import exporter_server
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS
from gpu_exporter.catalogue.selection import Selection
from gpu_exporter.config import Config
from gpu_exporter.http.admission import Admission
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.proxies import TrustedProxies
from gpu_exporter.http.server import Server
from gpu_exporter.http.systemd import listening
from gpu_exporter.http.token_file import Token
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.source import Source
from gpu_exporter.model.source_kind import DCGM
from gpu_exporter.pipeline.dcgm_counts import OF_CLOCK, OF_XIDS
from gpu_exporter.pipeline.fields_in_force import Fields
from gpu_exporter.sources.choice import is_local
from gpu_exporter.version import __version__

if TYPE_CHECKING:
    from gpu_exporter.live_page.thread import LiveNode

log = logging.getLogger(__name__)

# How long the server waits for the first page of each node: longer than a collection waits for its GPUs.
FIRST_PAGE_SECONDS = 2.0
# With several nodes, the delay between the starts of two nodes, and so between their collections in each interval.
START_SECONDS = 0.01
# How many more objects than at the last garbage collection start the next one. Each collection of samples replaces
# thousands of objects without making garbage. With Python's default of 700, to traverse those of 400 simulated nodes
# took 40 % of the CPU time.
GARBAGE_OBJECTS = 20_000
# How often a thread that waits for the GIL requests it. Python's default is 5 ms: so long would a scrape wait while the
# live page is computed. With several nodes, the requests of hundreds of threads would slow down the one that holds it.
SWITCH_SECONDS, SWITCH_SECONDS_OF_SEVERAL = 0.001, 0.1

BANNER = """
************************************************************************
**  THESE ARE NOT YOUR GPUS: {what:<40} **
**  Every series says so: {label:<43} **
************************************************************************"""


def run(
    config: Config, sources: Mapping[str, Source], fields: Fields, stop: threading.Event, log_queue: LogQueue
) -> bool:
    """Serve the nodes until `stop`: one at the root, several below `/nodes`. The keys of `sources` are their names.

    Return False if a driver call is stuck. Raises GpuExporterError if it cannot start.
    """
    if len(sources) > 1:
        sys.setswitchinterval(SWITCH_SECONDS_OF_SEVERAL)
    else:
        sys.setswitchinterval(SWITCH_SECONDS)
    process, admission = ProcessMetrics(config.interval), Admission()

    def extra_metrics() -> Sequence[tuple[Metric, float]]:
        connections = ((row, admission.dropped[dict(row.labels)["limit"]]) for row in m.CONNECTIONS)
        return (*fields.reload_state(), (m.LOG_DROPPED, log_queue.dropped), *connections)

    alone = len(sources) == 1
    nodes = [
        Node(name, source, config, process, fields.selection, extra_metrics, alone=alone)
        for name, source in sources.items()
    ]
    warn = partial(_warn_of_unreadable, nodes[0].source)
    warn(fields.selection)
    fields.subscribers = [*(node.show for node in nodes), warn]
    threading.Thread(target=fields.run, args=(stop,), name="fields", daemon=True).start()
    token = Token(config.token_file) if config.token_file else None
    collectors = [node.collector for node in nodes]
    lifecycle = Lifecycle(config.web_enable_lifecycle, stop.set, token, collectors, fields.reload)
    guard = Guard(config.web_config_file, TrustedProxies(config.web_trusted_proxies))
    sockets = listening() if config.web_systemd_socket else ()
    lifecycle.check(guard)
    if strangers := [user for user in config.profile_users if user not in guard.config.users]:
        raise GpuExporterError(f"--profile-users: {strangers[0]} is no user of --web.config.file", fix="add it there")
    threading.Thread(target=guard.run, args=(stop,), name="web-config", daemon=True).start()
    endpoints = [node.endpoint for node in nodes]
    server = exporter_server(config.address, endpoints, guard, lifecycle, sockets, admission, config.grafana_url)
    with token or nullcontext():  # after binding the port, so a second exporter does not replace the token
        _serve(nodes, server, config, stop, tls=guard.context is not None)
    # Without the token's file: a driver call that hangs here ends with the process.
    return all(node.stop() for node in nodes)


def _warn_of_unreadable(source: Source, selection: Selection) -> None:
    """Log which fields of the fields file only DCGM can read, if the source is another one.

    Fields of NVIDIA's default list are left out: they are in nearly every file, whatever the GPUs.
    """
    only_dcgm = (row for row in selection.file_only_rows if row.nvml is None and not row.sum_of)
    unreadable = [row.name for row in only_dcgm if row not in OF_CLOCK | OF_XIDS and row.name not in DEFAULT_FIELDS]
    if unreadable and source.name != DCGM.name:
        log.warning("source %s cannot read %s; use --source dcgm", source.name, ", ".join(unreadable))


def _follow(nodes: Sequence[LiveNode], stop: threading.Event) -> None:
    """Start to follow the nodes for the live page."""
    if nodes:
        from gpu_exporter.live_page.thread import LiveThread

        LiveThread(nodes).start(stop)


def _serve(nodes: Sequence[Node], server: Server, config: Config, stop: threading.Event, *, tls: bool) -> None:
    for node in nodes:
        node.start(stop)
        if len(nodes) > 1:  # so that the nodes do not all collect at once
            stop.wait(min(config.interval / len(nodes), START_SECONDS))
    for node in nodes:  # scrapes wait: an empty response would look like GPUs without metrics
        node.endpoint.pages.made.wait(FIRST_PAGE_SECONDS)
    server.start()
    _follow([node.live for node in nodes if node.live], stop)
    source = nodes[0].source
    if not source.live:
        log.warning(BANNER.format(what=source.description, label=f'source="{source.name}"'))
    if config.state_dir and not is_local(config, source):
        log.warning("--state-dir is ignored: nothing is kept of GPUs that are not this machine's")
    if (config.profile_lines or config.profile_socket) and not config.profile:
        log.warning("--profile-lines and --profile-socket are ignored: --profile says when to take a profile")
    what = f"source {source.name}" + (f", {len(nodes)} nodes" if len(nodes) > 1 else "")
    log.info("gpu-exporter %s serves %s on port %d", __version__, what, server.port)
    names = [node.endpoint.node for node in nodes] if len(nodes) > 1 else []
    for line in greeting(base_url(config.address, server.port, tls=tls), names):
        log.info(line)
    # The objects made by now live as long as the process. If the garbage collector kept traversing them, it would delay
    # scrapes: with 800 GPUs by 0.15 s every other second.
    if not stop.wait(3 * config.interval):
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_OBJECTS)
        heap.trim()
    stop.wait()  # a thread of its own takes the signals
    log.info("stopping")
    server.stop()
    for node in nodes:
        node.begin_to_stop()
