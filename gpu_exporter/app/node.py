"""One node: a source, the loop that reads it, its pages and its health."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric as ClientMetric

from gpu_exporter.active_checks.history import ActiveCheckWatch
from gpu_exporter.app.endpoint import Endpoint, NodeHealth, ProfileAccess, no_check
from gpu_exporter.catalogue.selection import Selection
from gpu_exporter.catalogue.xids import load
from gpu_exporter.config import Config, package_settings
from gpu_exporter.events.event_log import EventLog, GpuEvidence
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.events.kernel_log_reader import boot_id
from gpu_exporter.events.kernel_log_thread import KernelWatch
from gpu_exporter.health.links import LinkHistory
from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.threads import JoinedEvidence
from gpu_exporter.io.file_access import WaitingWriters
from gpu_exporter.model.errors import GpuExporterError, WrongUsage
from gpu_exporter.model.metric import Metric, MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import HostEvidence, Source, Telemetry
from gpu_exporter.owners.settings import OwnerSettings
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import Context
from gpu_exporter.pipeline.pages import Pages
from gpu_exporter.pipeline.renderer import Renderer, Style, source_labels
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.reports.masking import Names
from gpu_exporter.sources.choice import is_local, is_remote

if TYPE_CHECKING:
    from gpu_exporter.live_page.thread import LiveNode
    from gpu_exporter.owners.attributor import Attributor
    from gpu_exporter.profiling.watch import ProfileWatch

log = logging.getLogger(__name__)

# How long a start waits for the driver's library: one that fails ends the start, one that hangs must not delay scrapes.
LIBRARY_SECONDS = 1.0


# How old the metrics of this process may be: collecting them takes as long as rendering the values of four GPUs.
PROCESS_SECONDS = 4.5


class ProcessMetrics:
    """The metrics of this process, collected every few seconds and exposed for each of its nodes."""

    def __init__(self, interval: float) -> None:
        self._collectors = (ProcessCollector(registry=None), PlatformCollector(registry=None))
        self._interval = interval
        self._collected_at = -float("inf")
        self._metrics: Sequence[ClientMetric] = ()

    def collect(self) -> Sequence[ClientMetric]:
        """Return the metrics. Collect them again if they are older than PROCESS_SECONDS, and than half an interval."""
        now = time.monotonic()
        # The nodes collect at different times within an interval.
        if now - self._collected_at > max(PROCESS_SECONDS, self._interval / 2):
            metrics = [metric for collector in self._collectors for metric in collector.collect()]
            self._collected_at, self._metrics = now, metrics
        return self._metrics


class Node:
    """One node: a source, the loop that reads it, the kernel log and the owners if configured, and its endpoint."""

    def __init__(
        self,
        name: str,
        source: Source,
        config: Config,
        process: ProcessMetrics,
        selection: Selection,
        extra_metrics: Callable[[], Sequence[tuple[Metric, float]]],
        *,
        alone: bool = True,
    ) -> None:
        self._name, self._style, self._process = name, package_settings(config, Style), process
        self._renderer = self._renderer_of(source, selection)
        self._attributor, self._host = _attributor(source, config), _host(source, config)
        events = _events(source, config, lambda pci: self._collector.evidence(pci))
        waiting = WaitingWriters()
        self._kernel_log = _kernel_log(events, source, config, waiting) if events and source.live else None
        health = NodeHealth(config.interval, Pages(), lambda: self._collector.failure)
        self.live = live = _live(name, source, config, health, events, waiting, always=alone)
        profiles = _profiles(source, config, live, alone=alone)
        jobs, checks = _jobs(source, config, alone=alone), _active_checks(source, config)
        self._telemetry = tuple(filter(None, (jobs, profiles, checks)))
        source.read_rarely(selection.hidden_rows)
        self._collector = Collector(
            source,
            selection.read_rows,
            self._publish,
            package_settings(config, CollectionSettings),
            context=Context(events, self._attributor, self._host, self._telemetry, _links(source, config)),
            extra_metrics=extra_metrics,
            every_tick_wanted=health.pages.followed,
        )
        self.endpoint = Endpoint(
            name,
            health,
            self._collector.events,
            source.dead,
            live,
            boot_id=boot_id(config.procfs) if is_local(config, source) else "",
            profiles=_access(profiles) if profiles else None,
            last_check=checks.last if checks else no_check,
            trusted_users=frozenset(config.profile_users),
            names=Names(mask=config.mask_names),
        )

    @property
    def collector(self) -> Collector:
        """The loop that reads the source."""
        return self._collector

    @property
    def source(self) -> Source:
        """The source that the loop reads."""
        return self._collector.source

    def start(self, stop: threading.Event) -> None:
        """Start to follow the kernel log, to look up owners and to collect, until `stop` is set."""
        if self._kernel_log:
            self._kernel_log.start()
        if self._attributor:
            self._attributor.start()
        if self._host:
            self._host.start()
        for telemetry in self._telemetry:
            telemetry.start()
        self._collector.start(LIBRARY_SECONDS, stop)

    def begin_to_stop(self) -> None:
        """Stop everything except the collection loop; ask that to end, which `stop` waits for."""
        self._collector.stopping.set()
        if self._kernel_log:
            self._kernel_log.stop()
        if self._attributor:
            self._attributor.stop()
        if self._host:
            self._host.stop()
        for telemetry in self._telemetry:
            telemetry.stop()
        if self.live:
            self.live.monitor.kept.close()

    def stop(self) -> bool:
        """Stop the collection loop. Return False if a driver call is stuck."""
        return self._collector.stop()

    def show(self, selection: Selection) -> None:
        """Expose another selection of metrics from the next page on."""
        self._renderer = self._renderer_of(self.source, selection)
        self.source.read_rarely(selection.hidden_rows)
        self._collector.set_metrics(selection.read_rows)

    def _renderer_of(self, source: Source, selection: Selection) -> Renderer:
        return Renderer(self._name, source_labels(source), selection, self._style)

    def _publish(self, snapshot: Snapshot) -> None:
        self.endpoint.pages.publish(self._renderer.render(snapshot, self._process.collect()))
        self.endpoint.since.take(snapshot)
        self.endpoint.health.snapshot = snapshot


def _live(
    name: str,
    source: Source,
    config: Config,
    health: NodeHealth,
    events: EventLog | None,
    waiting: WaitingWriters,
    *,
    always: bool,
) -> LiveNode | None:
    """Return what the live page knows of a node; None if the page is off, so that its modules are not loaded."""
    if config.job_reports and not config.state_dir:
        raise WrongUsage("--job-reports: reports are made of what --state-dir keeps", fix="give --state-dir")
    if config.job_reports and not config.live_page:
        raise GpuExporterError("--job-reports: reports are made of what the live page finds", fix="omit --no-live-page")
    if not config.live_page:
        return None
    from gpu_exporter.diagnosis.ended_jobs import JobReports
    from gpu_exporter.diagnosis.kept_history import KeptHistory
    from gpu_exporter.live_page.monitor import LiveMonitor
    from gpu_exporter.live_page.thread import LiveNode
    from gpu_exporter.reports.masking import Names

    names = Names(mask=config.mask_names)
    reports = JobReports(config.job_reports, name, names) if config.job_reports else None
    kept = KeptHistory(config.state_dir if is_local(config, source) else None, reports, waiting=waiting)
    monitor = LiveMonitor(name, config.interval, events, kept, mask_names=config.mask_names)
    return LiveNode(monitor, lambda: health.snapshot, health.liveness_problem, always=always)


def _events(source: Source, config: Config, find_gpu: Callable[[str], GpuEvidence | None]) -> EventLog | None:
    """Return the event log; None if the source never reports XIDs."""
    return EventLog(load(config.xid_overrides), find_gpu) if source.reports_xids() else None


def _links(source: Source, config: Config) -> LinkHistory:
    """Return what keeps what the links of the GPUs reached; over a restart, if there is a directory for it."""
    return LinkHistory(config.state_dir if is_local(config, source) else None)


def _kernel_log(events: EventLog, source: Source, config: Config, waiting: WaitingWriters) -> KernelWatch:
    """Return the thread that saves the events, and adds the XIDs of the kernel log if it is about these GPUs."""
    path = config.kernel_log if is_local(config, source) else None
    store = EventStore(config.state_dir, waiting) if config.state_dir else None
    return KernelWatch(events, path, store, procfs=config.procfs)


def _attributor(source: Source, config: Config) -> Attributor | None:
    """Return what looks up the owners of GPUs; None if that is not configured or the GPUs are not this machine's."""
    wanted = package_settings(config, OwnerSettings)
    if not (wanted.asks_others or wanted.processes):
        return None
    if not source.live:
        if wanted.asks_others:
            log.warning("source %s: attribution is off, because these are not this machine's GPUs", source.name)
        return None
    from gpu_exporter.owners.choice import attributor

    return attributor(wanted)


def _host(source: Source, config: Config) -> HostEvidence | None:
    """Return what observes the processes on the GPUs, the network cards and NCCL, as far as the settings ask for it;
    None if the GPUs are not this machine's. Raises GpuExporterError."""
    if not is_local(config, source):
        if config.nccl_inspector_dir:
            raise GpuExporterError(
                f"--nccl-inspector-dir: source {source.name} has no GPUs of this machine, whose jobs write these files",
                fix="remove it",
            )
        return None
    parts: list[HostEvidence] = []
    if config.host_evidence:
        from gpu_exporter.owners.host_owner import host_watch

        parts.append(host_watch(config.procfs, config.sysfs, names=config.processes))
    if config.nics:
        from gpu_exporter.host.fabric.watch import FabricWatch

        parts.append(FabricWatch(HostFiles(config.procfs, config.sysfs), details=config.metrics is MetricSet.FULL))
    if config.nccl_inspector_dir:
        from gpu_exporter.host.fabric.inspector import InspectorWatch

        parts.append(InspectorWatch(config.nccl_inspector_dir))
    return JoinedEvidence(parts) if parts else None


def _profiles(source: Source, config: Config, live: LiveNode | None, *, alone: bool) -> ProfileWatch | None:
    """Return what profiles the processes on the GPUs; None if that is off. Raises GpuExporterError."""
    if not config.profile:
        return None
    from gpu_exporter.app.profiles import profile_watch

    return profile_watch(source, config, live.monitor if live else None, alone=alone)


def _access(profiles: ProfileWatch) -> ProfileAccess:
    from gpu_exporter.app.profiles import ask

    return ProfileAccess(profiles.views, partial(ask, profiles))


def _active_checks(source: Source, config: Config) -> ActiveCheckWatch | None:
    """Return what follows the results of `check --active`; None without a directory, or for GPUs of another machine."""
    if config.state_dir is None or not is_local(config, source):
        return None
    return ActiveCheckWatch(config.state_dir)


def _jobs(source: Source, config: Config, *, alone: bool) -> Telemetry | None:
    """Return what receives the messages of training loops; None if that is off. Raises GpuExporterError."""
    if config.job_socket is None:
        return None
    if not alone:
        raise GpuExporterError("--job-socket: jobs belong to one node", fix="remove it, or use --nodes 1")
    if is_remote(config, source.name):
        raise GpuExporterError(
            "--job-socket: the GPUs are those of another machine", fix="run an exporter on the machine of the jobs"
        )
    from gpu_exporter.jobs.watch import JobWatch

    return JobWatch(config.job_socket, config.procfs, live=source.live)
