"""Scrapes of a source that is watched for a while, and of a recording."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import BY_KEY, GR_ENGINE_ACTIVE, histograms, selected
from gpu_exporter.diagnosis.scrape import PLAUSIBLE_TIMES, Scrape, ScrapedSample, samples_by_name
from gpu_exporter.diagnosis.signal_reader import KEPT_SECONDS
from gpu_exporter.diagnosis.window import Scrapes
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Labels, Metric, MetricSet
from gpu_exporter.model.source import HostEvidence, Source
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import Context
from gpu_exporter.pipeline.histograms import Histogram
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.sources.recording.format import SETTLE_SECONDS, RecordingReader, Tick

TICK_SECONDS = 1.0
WATCH_SECONDS = 20.0
# Scrapes are kept in memory until the diagnosis.
LONGEST_SECONDS = 3600.0


class WatchedScrapes(NamedTuple):
    """Scrapes in order of time, the kind or the URL of their source, and for how many seconds they were watched.

    `clean` is False if a driver call is stuck.
    """

    scrapes: Sequence[Scrape]
    source: str
    seconds: float
    clean: bool = True


def watch_source(
    source: Source,
    seconds: float,
    stop: threading.Event,
    events: EventLog | None = None,
    host: HostEvidence | None = None,
) -> WatchedScrapes:
    """Watch a source for `seconds` or until `stop`, with the XIDs of `events`; one scrape per second.

    Raises SourceLost if there is no GPU, GpuExporterError if that is too long.
    """
    watchable(seconds)
    begin, watched = time.monotonic(), Scrapes()
    collector = Collector(
        source,
        (*selected(MetricSet.FULL, processes=host is not None, host=True), *histograms(MetricSet.FULL)),
        watched.take,
        CollectionSettings(TICK_SECONDS, gauge_window=TICK_SECONDS, high_resolution=True),
        context=Context(events, host=host),
    )
    if host:
        host.start()
    try:
        collector.start(stop=stop)
        collector.await_attached(stop)
        begin = time.monotonic()
        # While other GPUs are attached, a host engine answers late: gaps look as if the first GPUs were idle.
        late = len(watched.taken) if source.through_hostengine else 0
        stop.wait(seconds + TICK_SECONDS)  # the first profiling values come with the second tick
        complete = watched.taken[late:]  # without the one that `stop` cuts off
    finally:
        clean = collector.stop()
        if host:
            host.stop()
    scrapes = in_order(complete)
    # Until GPM has two samples there are no profiling values, and integrals stand still as if the GPU were idle.
    with_profiling = (
        place
        for place, scrape in enumerate(scrapes)
        if any(sample.name == GR_ENGINE_ACTIVE.name for sample in scrape.samples)
    )
    passed = min(seconds, time.monotonic() - begin)
    return WatchedScrapes(scrapes[next(with_profiling, 0) :], source.name, passed, clean)


def watchable(seconds: float) -> None:
    """Raise GpuExporterError if this is too long to watch GPUs or an exporter; a Prometheus looks back further."""
    if seconds > LONGEST_SECONDS:
        raise GpuExporterError(
            "--for is too long; use at most 1h, or --url of a Prometheus, which can look back further"
        )


def in_order(scrapes: Sequence[Scrape]) -> list[Scrape]:
    """Return the scrapes without those of times that were watched before, after the clock was set back."""
    latest = accumulate((scrape.at for scrape in scrapes), max, initial=-math.inf)
    return [scrape for scrape, before in zip(scrapes, latest, strict=False) if scrape.at > before]


def stamped(samples: Sequence[ScrapedSample]) -> Scrape:
    """Return the samples with the time when the response was rendered, which gpu-exporter exposes; else with now.

    Counters grow from collection to collection, so the time between two scrapes would give a wrong rate.
    """
    rendered_at = samples_by_name(samples).get(m.RENDERED_AT.name)
    at = rendered_at.values[0] if rendered_at else 0.0
    return Scrape(at if PLAUSIBLE_TIMES[0] < at < PLAUSIBLE_TIMES[1] else time.time(), samples)


class RecordedScrapes:
    """The ticks of a recording, or of one phase after its ramp-up, as scrapes.

    The file is read and checked as a whole, but only the last ticks of each GPU become scrapes: a diagnosis looks back
    no further. The attributes are those of what has been read: `simulated` if it is of simulated GPUs, the version of
    the driver, the phases of the recording, and the seconds from the first to the last tick. Iterating raises
    GpuExporterError, also if there is no tick.
    """

    def __init__(self, path: Path, phase: str = "") -> None:
        self._path, self.phase = path, phase
        self.simulated = False
        self.driver = ""
        self.phases: dict[str, None] = {}
        self.seconds = 0.0
        self._empty = True

    def __iter__(self) -> Iterator[Scrape]:
        reader = RecordingReader(self._path)
        self.simulated = reader.simulated
        recorded: defaultdict[int, _RecordedGpu] = defaultdict(_RecordedGpu)
        first, last = math.inf, -math.inf
        # With their numbers, because the ticks of several GPUs become scrapes in the order of the file.
        latest: defaultdict[int, deque[tuple[int, Tick]]] = defaultdict(deque)
        for number, tick in enumerate(self._settled(reader.ticks())):
            first, last = min(first, tick.at), max(last, tick.at)
            self.seconds, self.driver = last - first, tick.gpu.driver
            of_gpu = latest[tick.gpu.index]
            of_gpu.append((number, tick))
            while of_gpu[0][1].at < tick.at - KEPT_SECONDS:
                of_gpu.popleft()
        self._check()
        for _, tick in merge(*map(_drained, latest.values())):
            yield Scrape(tick.at, recorded[tick.gpu.index].samples(tick))

    def _settled(self, ticks: Iterable[Tick]) -> Iterator[Tick]:
        """Yield the ticks of the phase after its ramp-up; all of them if the phase is shorter."""
        ramp: list[Tick] = []
        begin: float | None = None
        settled = False
        for tick in ticks:
            self._empty = False
            if tick.phase:
                self.phases[tick.phase] = None
            if tick.phase != self.phase and self.phase:
                continue
            begin = tick.at if begin is None else begin
            if not self.phase or tick.at >= begin + SETTLE_SECONDS:
                settled = True
                yield tick
            elif not settled:
                ramp.append(tick)
        yield from () if settled else ramp

    def _check(self) -> None:
        if self._empty:
            raise GpuExporterError(f"recording {self._path}: has a header but no ticks; record again")
        if self.phase and self.phase not in self.phases:
            known = f"it has {printable(', '.join(self.phases), 1000)}" if self.phases else "it has none: omit --phase"
            raise GpuExporterError(f"recording {self._path}: no phase {self.phase}; {known}")


class _RecordedGpu:
    """Makes the samples of one GPU. Their labels are the same objects at each tick."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[str, Mapping[str, str]]] = {}
        self._labels: dict[Labels, Mapping[str, str]] = {}
        self._histograms: dict[Metric, Histogram] = {}

    def samples(self, tick: Tick) -> list[ScrapedSample]:
        """Return the samples of a tick, with the histograms that signals need after adding this tick to them."""
        samples = [ScrapedSample(*self._name(tick, key), value) for key, value in tick.samples.items()]
        return [*samples, *self._counted(tick)]

    def _name(self, tick: Tick, key: str) -> tuple[str, Mapping[str, str]]:
        if key not in self._named:
            metric = BY_KEY.get(key)
            self._named[key] = key.partition("{")[0], self._with_identity(tick, metric.labels if metric else ())
        return self._named[key]

    def _with_identity(self, tick: Tick, labels: Labels) -> Mapping[str, str]:
        if labels not in self._labels:
            self._labels[labels] = {**_identity(tick), **dict(labels)}
        return self._labels[labels]

    def _counted(self, tick: Tick) -> Iterator[ScrapedSample]:
        for metric, source in ((m.SM_SHARES, m.SM_ACTIVE), (m.POWER_SAMPLES, m.POWER_INSTANT)):
            value = tick.samples.get(source.key)
            if value is not None:
                histogram = self._histograms.setdefault(metric, Histogram(metric, ()))
                histogram.observe(min(value, metric.edges[-1]))
                for series, count in histogram.samples(None):
                    yield ScrapedSample(series.name, self._with_identity(tick, series.labels), count)


def _drained(queue: deque[tuple[int, Tick]]) -> Iterator[tuple[int, Tick]]:
    while queue:
        yield queue.popleft()


def _identity(tick: Tick) -> Mapping[str, str]:
    return {
        "gpu": str(tick.gpu.index),
        "UUID": tick.gpu.uuid or f"GPU {tick.gpu.index}",
        "modelName": tick.gpu.model,
    }
