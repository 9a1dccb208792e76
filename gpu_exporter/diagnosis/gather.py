"""Gathers the scrapes for a diagnosis: from the GPUs of this machine, an exporter, a Prometheus or a recording."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import BY_KEY, GR_ENGINE_ACTIVE, histograms, selected
from gpu_exporter.catalogue.signal import Read
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.collection.collector import Collector
from gpu_exporter.collection.histograms import Histogram
from gpu_exporter.collection.settings import CollectionSettings
from gpu_exporter.decoding import printable
from gpu_exporter.diagnosis import prometheus
from gpu_exporter.diagnosis.remote import Remote
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import PLAUSIBLE_TIMES, Scrape, ScrapedSample, as_scrape
from gpu_exporter.health.events import EventLog
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Metric, MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.sources.recording.format import SETTLE_SECONDS, Tick, ticks

TICK_SECONDS = 1.0
WATCH_SECONDS = 20.0
# A Prometheus may scrape only once a minute, and a rate needs two scrapes.
LAST_SECONDS = 300.0
# All families that signals are made of, or that identify a GPU and its owner.
FAMILIES = tuple(
    dict.fromkeys(
        [read.series for signal in SIGNALS for read in signal.definitions if isinstance(read, Read)]
        + [m.INFO.name, m.POD_INFO.name, m.XID_EVENTS.name, m.DOWN.name, m.EXPECTED.name]
    )
)


def of_source(
    source: Source, seconds: float, stop: threading.Event, events: EventLog | None = None
) -> tuple[list[Scrape], bool]:
    """Watch a source for `seconds`, with the XIDs of `events`; one scrape per second. False if a driver call is stuck.

    Raises SourceLost if there is no GPU.
    """
    snapshots: list[Snapshot] = []
    collector = Collector(
        source,
        (*selected(MetricSet.FULL), *histograms(MetricSet.FULL)),
        snapshots.append,
        CollectionSettings(TICK_SECONDS, gauge_window=TICK_SECONDS, high_resolution=True),
        events=events,
    )
    try:
        collector.start(stop=stop)
        stop.wait(seconds + TICK_SECONDS)  # the first profiling values come with the second tick
        complete = snapshots.copy()  # without the one that `stop` cuts off
    finally:
        clean = collector.stop()
    scrapes = [as_scrape(snapshot) for snapshot in complete]
    # Until GPM has two samples there are no profiling values, and integrals stand still as if the GPU were idle.
    with_profiling = (
        place
        for place, scrape in enumerate(scrapes)
        if any(sample.name == GR_ENGINE_ACTIVE.name for sample in scrape.samples)
    )
    return scrapes[next(with_profiling, 0) :], clean


def of_url(remote: Remote, seconds: float | None, stop: threading.Event) -> list[Scrape]:
    """Scrape an exporter for `seconds`, or query a Prometheus for its last `seconds`. Raises GpuExporterError."""
    if prometheus.is_prometheus(remote):
        return prometheus.scrapes(remote, FAMILIES, seconds or LAST_SECONDS)
    scrapes = [_scraped(remote)]
    end = time.monotonic() + (seconds or WATCH_SECONDS)
    while time.monotonic() < end and not stop.wait(TICK_SECONDS):
        scrape = _scraped(remote)
        if scrape.at > scrapes[-1].at:  # else it is the same collection, or the exporter's clock was set back
            scrapes.append(scrape)
    return scrapes


def _scraped(remote: Remote) -> Scrape:
    base = Remote(re.sub(r"/metrics/?$", "", remote.url), *remote.credentials)
    try:
        return stamped(parsed(base.metrics()))
    except ValueError as error:
        raise GpuExporterError(
            f"{base.url}/metrics: not Prometheus text ({printable(str(error), 120)}); give the URL of an exporter, or "
            "of a Prometheus"
        ) from error


def stamped(samples: list[ScrapedSample]) -> Scrape:
    """Return the samples with the time when the response was rendered, which gpu-exporter exposes; else with now.

    Counters grow from collection to collection, so the time between two scrapes would give a wrong rate.
    """
    rendered_at = (sample.value for sample in samples if sample.name == m.RENDERED_AT.name)
    at = next(rendered_at, 0.0)
    return Scrape(at if PLAUSIBLE_TIMES[0] < at < PLAUSIBLE_TIMES[1] else time.time(), samples)


def of_recording(path: Path, phase: str) -> list[Scrape]:
    """Return the ticks of a recording, or of one phase after its ramp-up. Raises GpuExporterError."""
    recorded = list(ticks(path))
    if not recorded:
        raise GpuExporterError(f"recording {path}: has a header but no ticks; record again")
    phases = list(dict.fromkeys(tick.phase for tick in recorded if tick.phase))
    if phase and phase not in phases:
        known = f"it has {printable(', '.join(phases), 1000)}" if phases else "it has none: omit --phase"
        raise GpuExporterError(f"recording {path}: no phase {phase}; {known}")
    chosen = [tick for tick in recorded if not phase or tick.phase == phase]
    settled = [tick for tick in chosen if not phase or tick.at >= chosen[0].at + SETTLE_SECONDS]
    counted: defaultdict[int, dict[Metric, Histogram]] = defaultdict(dict)
    return [Scrape(tick.at, [*_recorded(tick), *_counted(tick, counted[tick.gpu.index])]) for tick in settled or chosen]


def _recorded(tick: Tick) -> Iterator[ScrapedSample]:
    identity = _identity(tick)
    for key, value in tick.samples.items():
        metric = BY_KEY.get(key)
        yield ScrapedSample(key.partition("{")[0], {**identity, **(dict(metric.labels) if metric else {})}, value)


def _identity(tick: Tick) -> Mapping[str, str]:
    return {
        "gpu": str(tick.gpu.index),
        "UUID": tick.gpu.uuid or f"GPU {tick.gpu.index}",
        "modelName": tick.gpu.model,
    }


def _counted(tick: Tick, histograms: dict[Metric, Histogram]) -> Iterator[ScrapedSample]:
    """Yield the histograms that signals need, after adding this tick to them."""
    for metric, source in ((m.SM_SHARES, m.SM_ACTIVE), (m.POWER_SAMPLES, m.POWER_INSTANT)):
        value = tick.samples.get(source.key)
        if value is not None:
            histogram = histograms.setdefault(metric, Histogram(metric, ()))
            histogram.observe(min(value, metric.edges[-1]))
            identity = _identity(tick)
            for series, count in histogram.samples(None):
                yield ScrapedSample(series.name, {**identity, **dict(series.labels)}, count)


def phases(path: Path) -> list[str]:
    """Return the phases of a recording, in order."""
    return list(dict.fromkeys(tick.phase for tick in ticks(path) if tick.phase))
