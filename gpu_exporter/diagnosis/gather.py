"""Where pages for a diagnosis come from: GPUs that are watched for a while, an exporter, a Prometheus, a recording."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from prometheus_client.parser import text_string_to_metric_families

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import BY_KEY, GR_ENGINE_ACTIVE, histograms, selected
from gpu_exporter.catalogue.signal import Read
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.collection.collector import Collector
from gpu_exporter.collection.histograms import Histogram
from gpu_exporter.collection.settings import CollectionSettings
from gpu_exporter.diagnosis.remote import Remote
from gpu_exporter.diagnosis.window import Page, Row, rows
from gpu_exporter.health.events import EventLog
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Metric, MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.sources.recording.format import SETTLE_SECONDS, Tick, ticks

TICK_SECONDS = 1.0
WATCH_SECONDS = 20.0
# A Prometheus may scrape once a minute, and a rate needs two scrapes.
LAST_SECONDS = 300.0
Counted = defaultdict[int, dict[Metric, Histogram]]
# All families that a signal is made of, or that say which GPU it is and whose.
FAMILIES = tuple(
    dict.fromkeys(
        [read.series for signal in SIGNALS for read in signal.made if isinstance(read, Read)]
        + [m.INFO.name, m.POD_INFO.name, m.XID_EVENTS.name]
    )
)


def of_source(
    source: Source, seconds: float, stop: threading.Event, events: EventLog | None = None
) -> tuple[list[Page], bool]:
    """Watch a source, with the Xids of `events`; a page each second. False if a driver call is stuck.

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
        stop.wait(seconds + TICK_SECONDS)  # the first profiling values are there after the second tick
        whole = snapshots.copy()  # the one that is cut off by the stop is late
    finally:
        clean = collector.stop()
    pages = [rows(snapshot) for snapshot in whole]
    # Until GPM has two samples, nothing is known, and integrals stand still as if nothing had run.
    begun = (place for place, page in enumerate(pages) if any(row.name == GR_ENGINE_ACTIVE.name for row in page.rows))
    return pages[next(begun, 0) :], clean


def of_url(remote: Remote, seconds: float | None, stop: threading.Event) -> list[Page]:
    """Scrape an exporter for a while, or ask a Prometheus for its last `seconds`. Raises GpuExporterError."""
    if _is_prometheus(remote):
        return _of_prometheus(remote, seconds or LAST_SECONDS)
    pages = [_scraped(remote)]
    end = time.monotonic() + (seconds or WATCH_SECONDS)
    while time.monotonic() < end and not stop.wait(TICK_SECONDS):
        pages.append(_scraped(remote))
    return pages


def _is_prometheus(remote: Remote) -> bool:
    try:
        return '"success"' in remote.get("/api/v1/status/buildinfo")
    except GpuExporterError:
        return False


def _scraped(remote: Remote) -> Page:
    base = Remote(re.sub(r"/metrics/?$", "", remote.url), *remote.credentials)
    page = base.get("/metrics")
    try:
        return made(parsed(page))
    except ValueError as error:
        why = " ".join(str(error).split())[:80]
        raise GpuExporterError(
            f"{base.url}/metrics: not Prometheus text ({why}); give the URL of an exporter, or of a Prometheus"
        ) from error


def made(rows: list[Row]) -> Page:
    """The page with the time it was made, as ours tell; else it is of now. Counters grow from tick to tick, so the
    time between two scrapes would give a wrong rate."""
    told = (row.value for row in rows if row.name == m.RENDERED_AT.name)
    return Page(next(told, time.time()), rows)


def parsed(page: str) -> list[Row]:
    """The series of a page in Prometheus' text format. Raises ValueError."""
    # The parser gives every counter a name in `_total`, as OpenMetrics has it; classic ones have none.
    counters = set(re.findall(r"^# TYPE (\S+) counter$", page, re.MULTILINE))
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    plain = {f"{name}_total": name for name in counters}
    named = ((plain.get(s.name, s.name) if s.name not in counters else s.name, s) for s in samples)
    return [Row(name, s.labels, s.value) for name, s in named]


def _of_prometheus(remote: Remote, seconds: float) -> list[Page]:
    """Raw samples at the times of their scrapes: each is a page of its own target."""
    query = f'{{__name__=~"{"|".join(FAMILIES)}"}}[{max(seconds, 1.0):.0f}s]'
    text = remote.get(f"/api/v1/query?{urlencode({'query': query})}")
    try:
        answer: Mapping[str, Any] = json.loads(text)
        found = answer["data"]["result"]
    except (ValueError, KeyError, TypeError) as error:
        raise GpuExporterError(f"{remote.url}: not the answer of a Prometheus: {text[:80]!r}") from error
    by_time: dict[float, list[Row]] = defaultdict(list)
    for series in found:
        labels = dict(series["metric"])
        name = labels.pop("__name__")
        for at, value in series["values"]:
            by_time[at].append(Row(name, labels, float(value)))
    return [Page(at, by_time[at]) for at in sorted(by_time)]


def of_recording(path: Path, phase: str) -> list[Page]:
    """The ticks of a recording, or of one phase without its ramp. Raises GpuExporterError naming what there is."""
    every = list(ticks(path))
    if not every:
        raise GpuExporterError(f"recording {path}: has a header but no ticks; record again")
    phases = list(dict.fromkeys(tick.phase for tick in every if tick.phase))
    if phase and phase not in phases:
        raise GpuExporterError(f"recording {path} has no phase {phase}: {', '.join(phases) or 'it knows none'}")
    chosen = [tick for tick in every if not phase or tick.phase == phase]
    settled = [tick for tick in chosen if not phase or tick.at >= chosen[0].at + SETTLE_SECONDS]
    counted: Counted = defaultdict(dict)
    return [Page(tick.at, [*_recorded(tick), *_counted(tick, counted[tick.gpu.index])]) for tick in settled or chosen]


def _recorded(tick: Tick) -> Iterator[Row]:
    identity = _identity(tick)
    for key, value in tick.samples.items():
        metric = BY_KEY.get(key)
        yield Row(key.partition("{")[0], {**identity, **(dict(metric.labels) if metric else {})}, value)


def _identity(tick: Tick) -> Mapping[str, str]:
    return {
        "gpu": str(tick.gpu.index),
        "UUID": tick.gpu.uuid or f"GPU {tick.gpu.index}",
        "modelName": tick.gpu.model,
    }


def _counted(tick: Tick, known: dict[Metric, Histogram]) -> Iterator[Row]:
    """The histograms that are read, of what the ticks of a GPU were until now: each tick is observed once."""
    for metric, source in ((m.SM_SHARES, m.SM_ACTIVE), (m.POWER_SAMPLES, m.POWER_INSTANT)):
        value = tick.samples.get(source.key)
        if value is not None:
            histogram = known.setdefault(metric, Histogram(metric, ()))
            histogram.observe(min(value, metric.edges[-1]))
            identity = _identity(tick)
            for series, count in histogram.samples(None):
                yield Row(series.name, {**identity, **dict(series.labels)}, count)


def phases(path: Path) -> list[str]:
    """The phases that a recording knows, in order."""
    return list(dict.fromkeys(tick.phase for tick in ticks(path) if tick.phase))
