"""Wires source, loop, pages and server together: for as long as a server runs, or for one look."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence

from prometheus_client import PlatformCollector, ProcessCollector

from gpu_exporter.collect import Collector
from gpu_exporter.config import Config
from gpu_exporter.exposition import Pages, Renderer
from gpu_exporter.metrics import selected
from gpu_exporter.model import Labels, Metric, Snapshot, Source
from gpu_exporter.monitor import Monitor
from gpu_exporter.server import Health, Server
from gpu_exporter.version import __version__

log = logging.getLogger(__name__)

# What one look's profiling metrics are means over.
OBSERVE_INTERVAL = 0.5

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
        selected(config.metrics, processes=config.processes),
        publish,
        interval=config.interval,
        gauge_window=config.gauge_window,
        expected=config.expected_gpus,
    )
    health = Health(config.interval, lambda: collector.ticked_at)
    server = Server(config.address, pages, health)
    collector.start(stop=stop)
    server.start()
    if not source.live:
        log.warning(BANNER.format(label=f'source="{source.name}"'))
    log.info("gpu-exporter %s serves source %s on port %d", __version__, source.name, server.port)
    stop.wait()
    log.info("stopping")
    server.stop()
    return collector.stop()


def observe(source: Source, metrics: Sequence[Metric], expected: int | None = None) -> tuple[Snapshot, bool]:
    """One snapshot, and whether all threads ended. Raises SourceLost if there is no GPU."""
    monitor = Monitor(source, metrics, OBSERVE_INTERVAL, OBSERVE_INTERVAL, expected)
    monitor.start()
    clean = monitor.stop()
    return monitor.snapshot(), clean
