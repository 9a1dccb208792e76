"""Wires source, loop, pages and server together: for as long as a server runs, or for one look."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Sequence

from prometheus_client import PlatformCollector, ProcessCollector

from gpu_exporter import __version__
from gpu_exporter.collect import Collector
from gpu_exporter.config import Config
from gpu_exporter.exposition import Pages, Renderer
from gpu_exporter.metrics import selected
from gpu_exporter.model import Labels, Metric, Snapshot, Source
from gpu_exporter.server import Health, Server
from gpu_exporter.web import Web

log = logging.getLogger(__name__)

# One look needs two GPM samples; a GPU that has not answered after OBSERVE_SECONDS is reported as it is.
OBSERVE_INTERVAL = 0.5
OBSERVE_SECONDS = 5.0

BANNER = """
************************************************************************
**  THESE ARE NOT YOUR GPUS: a recording of real GPUs is played over. **
**  Every series says so: {label:<43} **
************************************************************************"""


def run(config: Config, source: Source, everywhere: Labels, stop: threading.Event) -> bool:
    """Serve until `stop`. False if a driver call is stuck. Raises GpuExporterError if it can't start."""
    pages, renderer = Pages(), Renderer(config.node_name or socket.gethostname(), everywhere)
    process = (ProcessCollector(registry=None), PlatformCollector(registry=None))

    def publish(snapshot: Snapshot) -> None:
        client_metrics = [metric for collector in process for metric in collector.collect()]
        pages.publish(renderer.render(snapshot, client_metrics))
        health.snapshot = snapshot

    collector = Collector(
        source,
        selected(config.metrics),
        publish,
        interval=config.interval,
        gauge_window=config.gauge_window,
        expected=config.expected_gpus,
    )
    health = Health(config.interval, lambda: collector.ticked_at)
    quit = stop.set if config.web_enable_lifecycle else None
    server = Server(config.address, pages, health, Web(config.web_config_file), quit)
    collector.start(stop=stop)
    server.start()
    if not source.live:
        log.warning(BANNER.format(label=f'source="{source.name}"'))
    log.info("gpu-exporter %s serves source %s on port %d", __version__, source.name, server.port)
    stop.wait()
    log.info("stopping")
    server.stop()
    return collector.stop()


def observe(source: Source, metrics: Sequence[Metric]) -> tuple[Snapshot, bool]:
    """One snapshot with profiling metrics, and whether all threads ended. Raises SourceLost if there is no GPU."""
    latest: list[Snapshot] = []
    reads: dict[int, set[float | None]] = defaultdict(set)
    enough = threading.Event()
    end = time.monotonic() + OBSERVE_SECONDS

    def publish(snapshot: Snapshot) -> None:
        latest[:] = [snapshot]
        for status in snapshot.gpus:
            reads[status.gpu.index].add(status.read_at)
        if all(
            len(reads[status.gpu.index] - {None}) >= 2 if status.up else status.reason not in ("unread", "stalled")
            for status in snapshot.gpus
        ):
            enough.set()

    collector = Collector(source, metrics, publish, interval=OBSERVE_INTERVAL, gauge_window=OBSERVE_INTERVAL)
    collector.start(OBSERVE_SECONDS)
    enough.wait(max(0.0, end - time.monotonic()))
    clean = collector.stop()
    return latest[0] if latest else collector.snapshot(), clean
