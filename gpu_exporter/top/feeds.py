"""Where the scrapes of the live view come from: the GPUs of a source that is read here, or an exporter.

A feed runs on threads of its own, tracks the scrapes, and calls `changed` after each one.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import histograms, selected
from gpu_exporter.catalogue.stopped_counters import StoppedCounters
from gpu_exporter.diagnosis.gather import stamped
from gpu_exporter.diagnosis.no_values import values_of
from gpu_exporter.diagnosis.remote_scrapes import is_prometheus
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import FAMILIES, Scrapes
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.kernel_log_thread import KernelWatch
from gpu_exporter.http.client import Remote
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import HostEvidence, Source
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import Context
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.top.commands import CommandLines
from gpu_exporter.top.state import View
from gpu_exporter.top.tracker import Tracker

INTERVAL_SECONDS = 1.0
# After so many seconds without an answer, an exporter is asked less often.
SLOW_AFTER, SLOW_SECONDS = 30.0, 5.0
# What the view reads in addition to what a diagnosis does. Everything else on a page is not even parsed.
SHOWN = (
    m.PROCESS_MEMORY.name,
    m.PROCESS_SM.name,
    m.JOB_INFO.name,
    m.CONTAINER_INFO.name,
    m.HEALTH_STATE[0].name,
    m.HEALTH_REASON.name,
    m.UP.name,
    m.PROFILES.name,
    m.PROFILED_AT.name,
    m.RENDERED_AT.name,
    m.INTERVAL.name,
)
READ = frozenset((*FAMILIES, *SHOWN))


class Feed(Protocol):
    """Keeps a view up to date."""

    @property
    def view(self) -> View:
        """The latest view."""

    def start(self, changed: Callable[[], None]) -> None:
        """Start; `changed` is called after each change, on another thread. Raises GpuExporterError."""

    def stop(self) -> bool:
        """Stop. Return False if a driver call is stuck."""


class SourceFeed:
    """Reads a source once per second: GPUs of this machine, of a host engine, simulated ones, or a replay."""

    def __init__(
        self,
        source: Source,
        tracker: Tracker,
        *,
        events: EventLog | None = None,
        host: HostEvidence | None = None,
        kernel_log: KernelWatch | None = None,
        commands: CommandLines | None = None,
    ) -> None:
        self.view = View(origin=source.description)
        self._tracker, self._scrapes = tracker, Scrapes()
        self._threads = [thread for thread in (kernel_log, host, commands) if thread]
        if commands:
            tracker.command_of = commands.command
        self._changed: Callable[[], None] = lambda: None
        self._collector = Collector(
            source,
            (*selected(MetricSet.FULL, processes=source.live, host=True), *histograms(MetricSet.FULL)),
            self._take,
            CollectionSettings(INTERVAL_SECONDS, gauge_window=INTERVAL_SECONDS, high_resolution=True),
            context=Context(events, host=host),
        )

    def start(self, changed: Callable[[], None]) -> None:
        """Start to collect. Raises SourceLost if there is no GPU."""
        self._changed = changed
        for thread in self._threads:
            thread.start()
        self._collector.start()

    def stop(self) -> bool:
        """Stop the collection. Return False if a driver call is stuck."""
        for thread in self._threads:
            thread.stop()
        return self._collector.stop()

    def _take(self, snapshot: Snapshot) -> None:
        view = self._tracker.take(self._scrapes.of(snapshot))
        self.view = replace(view, origin=self.view.origin)
        self._changed()


class UrlFeed:
    """Scrapes an exporter once per second. While it does not answer, the view says so, and keeps the last values."""

    def __init__(self, remote: Remote, tracker: Tracker) -> None:
        self.view = View(origin=printable(remote.url, 200))
        self._remote = Remote(re.sub(r"/metrics/?$", "", remote.url), *remote.credentials)
        self._tracker, self._stopping = tracker, threading.Event()
        self._stopped = StoppedCounters()
        self._answered, self._profiled_at = time.monotonic(), 0.0
        self._changed: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="scrape", daemon=True)

    def start(self, changed: Callable[[], None]) -> None:
        """Scrape once, then go on in the background. Raises GpuExporterError if the first scrape fails."""
        self._changed = changed
        try:
            self._scrape()
        except GpuExporterError:
            if is_prometheus(self._remote):
                raise GpuExporterError(
                    f"{self._remote.url} is a Prometheus; give the URL of an exporter, or use `gpu-exporter diagnose"
                    f" --url {self._remote.url}`"
                ) from None
            raise
        self._thread.start()

    def stop(self) -> bool:
        """Stop. A request that is awaited is given up."""
        self._stopping.set()
        return True

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            slow = time.monotonic() - self._answered > SLOW_AFTER
            due = max(due + (SLOW_SECONDS if slow else INTERVAL_SECONDS), time.monotonic())
            if self._stopping.wait(due - time.monotonic()):
                return
            try:
                self._scrape()
            except GpuExporterError as error:
                self.view = replace(self.view, problem=printable(str(error), 300))
                self._changed()
            except Exception as error:  # noqa: BLE001 - the view says so, and the next scrape may work
                text = f"unexpected error: {type(error).__name__}: {error}; please report it"
                self.view = replace(self.view, problem=printable(text, 300))
                self._changed()

    def _scrape(self) -> None:
        parse = partial(parsed, is_read=READ.__contains__)
        try:
            scrape = stamped(values_of(self._remote.metrics(), parse, self._stopped))
        except ValueError as error:
            raise GpuExporterError(
                f"{self._remote.url}/metrics: not Prometheus text ({printable(str(error), 120)})"
            ) from error
        self._answered = time.monotonic()
        if not scrape.samples and not self.view.at:
            raise GpuExporterError(f"{self._remote.url}: exposes no metrics of GPUs; give the URL of a GPU exporter")
        if scrape.at > self.view.at:  # else it is the same collection
            self._ask_for_profiles(scrape)
            # Other exporters serve no runbooks.
            runbooks = f"{self._remote.url}/runbooks" if any(each.name == m.UP.name for each in scrape.samples) else ""
            view = self._tracker.take(scrape)
            self.view = replace(view, origin=self.view.origin, runbooks=printable(runbooks, 200))
        elif self.view.problem:
            self.view = replace(self.view, problem="")
        self._changed()

    def _ask_for_profiles(self, scrape: Scrape) -> None:
        """Ask for the profiles if there is a new one: only some users may see them."""
        newest = max((sample.value for sample in scrape.samples if sample.name == m.PROFILED_AT.name), default=0.0)
        if newest > self._profiled_at:
            # Most exporters take no profiles.
            from gpu_exporter.diagnosis.stored_profiles import exporter_profiles
            from gpu_exporter.profiling.views import lines_by_gpu

            self._profiled_at = newest
            summaries = exporter_profiles(self._remote, [scrape]).summaries
            self._tracker.code_of = lambda gpus: lines_by_gpu(summaries, gpus, time.time())
