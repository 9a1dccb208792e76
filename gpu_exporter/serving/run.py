"""Wires source, loop, pages and server together: for as long as a server runs, or for one look."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric as ClientMetric

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.selection import Selection
from gpu_exporter.catalogue.xids import load
from gpu_exporter.collection.collector import Collector
from gpu_exporter.collection.dcgm_counts import OF_CLOCK, OF_XIDS
from gpu_exporter.collection.settings import CollectionSettings
from gpu_exporter.config import Config
from gpu_exporter.exposition.fields_in_force import Fields
from gpu_exporter.exposition.renderer import Pages, Renderer, Style
from gpu_exporter.health.event_store import EventStore
from gpu_exporter.health.events import EventLog
from gpu_exporter.health.kernel_log_thread import KernelWatch
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Source, Staged
from gpu_exporter.model.source_kind import DCGM
from gpu_exporter.serving import heap
from gpu_exporter.serving.endpoint import Endpoint, Health, never
from gpu_exporter.serving.lifecycle import Lifecycle, Token
from gpu_exporter.serving.log_queue import LogQueue
from gpu_exporter.serving.security.guard import Web
from gpu_exporter.serving.server import Server
from gpu_exporter.serving.systemd import listening
from gpu_exporter.version import __version__

if TYPE_CHECKING:
    from gpu_exporter.attribution.attributor import Attributor

log = logging.getLogger(__name__)

# How long a server that is being started waits for its first page: longer than a tick waits for its GPUs.
FIRST_PAGE_SECONDS = 2.0
# How much later each of many nodes starts, and so ticks in all later intervals, than the one before.
START_SECONDS = 0.01
SIGNAL_SECONDS = 1.0
# Of many nodes: how often a thread that waits for Python asks for it. If hundreds do so each 5 ms, as they would, that
# takes the processor from the one that has it, and ever more come to wait.
SWITCH_SECONDS = 0.1

BANNER = """
************************************************************************
**  THESE ARE NOT YOUR GPUS: {what:<40} **
**  Every series says so: {label:<43} **
************************************************************************"""


class _Process:
    """The metrics of this process, collected once an interval for all the nodes that it serves."""

    def __init__(self, interval: float) -> None:
        self._collectors = (ProcessCollector(registry=None), PlatformCollector(registry=None))
        self._interval = interval
        self._at = -interval
        self._metrics: Sequence[ClientMetric] = ()

    def collect(self) -> Sequence[ClientMetric]:
        now = time.monotonic()
        if now - self._at > self._interval / 2:  # nodes tick at their own times within an interval
            self._at, self._metrics = now, [metric for each in self._collectors for metric in each.collect()]
        return self._metrics


class _Node:
    """One node: a source, the loop that reads it, and what is shown of it."""

    def __init__(
        self,
        name: str,
        source: Source,
        config: Config,
        process: _Process,
        selection: Selection,
        more: Callable[[], Sequence[tuple[Metric, float]]],
    ) -> None:
        self.kernel: KernelWatch | None = None
        self._name, self._style = name, style(config)
        self._renderer = self._renders(source, selection)
        self._process = process
        self.attributor = self._attributor(source, config)
        pages = Pages()
        self.collector = Collector(
            source,
            selection.asked,
            self._publish,
            CollectionSettings(
                interval=config.interval,
                gauge_window=config.gauge_window,
                expected_gpus=config.expected_gpus,
                high_resolution=config.high_resolution,
                xid_count_window=config.xid_count_window,
                clock_events_count_window=config.clock_events_count_window,
            ),
            events=self._events(source, config),
            attribution=self.attributor,
            extra_metrics=more,
            every_tick_wanted=pages.followed,
        )
        self.shown = Endpoint(
            name,
            pages,
            Health(config.interval, pages, lambda: self.collector.failure),
            self.collector.events,
            source.dead if isinstance(source, Staged) else never,
        )

    def _events(self, source: Source, config: Config) -> EventLog | None:
        """The log of events, and who fills it from the kernel's: that is of this machine, and so of live GPUs alone."""
        if not source.live and not (isinstance(source, Staged) and source.reports_xids()):
            return None
        events = EventLog(load(config.xid_overrides), lambda pci: self.collector.evidence(pci))
        if not source.live:
            return events
        path = None if config.kernel_log in ("", "none") else Path(config.kernel_log)
        store = EventStore(config.state_dir) if config.state_dir else None
        self.kernel = KernelWatch(events, path, store, procfs=config.procfs)
        return events

    def _renders(self, source: Source, selection: Selection) -> Renderer:
        return Renderer(self._name, everywhere(source), selection, self._style)

    def take(self, selection: Selection) -> None:
        """Show another selection from the next page on."""
        self._renderer = self._renders(self.collector.source, selection)
        self.collector.choose(selection.asked)

    @staticmethod
    def _attributor(source: Source, config: Config) -> Attributor | None:
        """Who knows whose the GPUs are: that is of this machine, and so of live GPUs alone."""
        asked = config.kubernetes or config.kubernetes_pods or config.kubernetes_pod_labels or config.kubernetes_dra
        if not (asked or config.hpc_job_mapping_dir or config.processes):
            return None
        if not source.live:
            if asked or config.hpc_job_mapping_dir:
                log.warning("source %s: these are not this machine's GPUs: nobody is asked who has them", source.name)
            return None
        from gpu_exporter.attribution.choice import attributor

        return attributor(config)

    def _publish(self, snapshot: Snapshot) -> None:
        self.shown.pages.publish(self._renderer.render(snapshot, self._process.collect()))
        self.shown.health.snapshot = snapshot


def _tell_unread(source: Source, selection: Selection) -> None:
    """Say which fields of the file no source but DCGM has."""
    unread = [row.name for row in selection.more if row.nvml is None and row not in OF_CLOCK | OF_XIDS]
    if unread and source.name != DCGM.name:
        log.warning("source %s can't read %s; --source dcgm does", source.name, ", ".join(unread))


def style(config: Config) -> Style:
    """What is written otherwise than by default."""
    return Style(not config.no_hostname, config.replace_blanks_in_model_name, config.devices.kind)


def everywhere(source: Source) -> Labels:
    """The labels of every series of a source: what does not show GPUs of this machine says so."""
    return () if source.live else (("source", source.name),)


def run(config: Config, sources: Mapping[str, Source], fields: Fields, stop: threading.Event, lines: LogQueue) -> bool:
    """Serve nodes by name until `stop`: one at the root, several below `/nodes`.

    False if a driver call is stuck. Raises GpuExporterError if it can't start.
    """
    if len(sources) > 1:
        sys.setswitchinterval(SWITCH_SECONDS)
    else:  # the thousands of threads of a fleet would have too much to keep for one arena
        heap.share()
    process = _Process(config.interval)

    def own() -> Sequence[tuple[Metric, float]]:
        return (*fields.told(), (m.LOG_DROPPED, lines.dropped))

    nodes = [_Node(name, source, config, process, fields.selection, own) for name, source in sources.items()]
    tell = partial(_tell_unread, nodes[0].collector.source)
    tell(fields.selection)
    fields.takers = [*(node.take for node in nodes), tell]
    threading.Thread(target=fields.run, args=(stop,), name="fields", daemon=True).start()
    token = Token(config.token_file) if config.token_file else None
    collectors = [node.collector for node in nodes]
    lifecycle = Lifecycle(config.web_enable_lifecycle, stop.set, token, collectors, fields.reload)
    web, sockets = Web(config.web_config_file), listening() if config.web_systemd_socket else ()
    threading.Thread(target=web.run, args=(stop,), name="web-config", daemon=True).start()
    server = Server(config.address, [node.shown for node in nodes], web, lifecycle, sockets)
    with token or nullcontext():  # the port is ours now, so no other exporter uses the file
        return _serve(nodes, server, config, stop)


def _serve(nodes: Sequence[_Node], server: Server, config: Config, stop: threading.Event) -> bool:
    for node in nodes:
        if node.kernel:
            node.kernel.start()
        if node.attributor:
            node.attributor.start()
        node.collector.start(stop=stop)
        if len(nodes) > 1:  # not all of them tick at once
            stop.wait(min(config.interval / len(nodes), START_SECONDS))
    for node in nodes:  # who asks meanwhile waits for an answer: an empty page would look like GPUs without metrics
        node.shown.pages.made.wait(FIRST_PAGE_SECONDS)
    server.start()
    source = nodes[0].collector.source
    if not source.live:
        log.warning(BANNER.format(what=source.description, label=f'source="{source.name}"'))
    what = f"source {source.name}" + (f", {len(nodes)} nodes" if len(nodes) > 1 else "")
    log.info("gpu-exporter %s serves %s on port %d", __version__, what, server.port)
    # What has been made by now lives as long as the process. Looking through it for garbage again and again would hold
    # up scrapes: of 800 GPUs, for 0.15 s every other second.
    if not stop.wait(3 * config.interval):
        gc.collect()
        gc.freeze()
        heap.trim()
    # Woken now and then: a signal that another thread is given, as after SIGCONT, wakes nobody who waits for ever.
    while not stop.wait(SIGNAL_SECONDS):
        pass
    log.info("stopping")
    server.stop()
    for node in nodes:
        node.collector.stopping.set()
        if node.kernel:
            node.kernel.stop()
        if node.attributor:
            node.attributor.stop()
    return all(node.collector.stop() for node in nodes)
