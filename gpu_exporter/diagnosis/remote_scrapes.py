"""Scrapes from a URL: those of an exporter while it is watched, or the last ones that a Prometheus has.

Answers are checked before anything uses them.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from gpu_exporter.catalogue.stopped_counters import StoppedCounters
from gpu_exporter.diagnosis import gather
from gpu_exporter.diagnosis.no_values import values_of, with_values
from gpu_exporter.diagnosis.scrape import PLAUSIBLE_TIMES, Scrape, ScrapedSample
from gpu_exporter.diagnosis.text_format import TextParser, readable
from gpu_exporter.diagnosis.window import FAMILIES, UNREAD
from gpu_exporter.http.client import Remote, Unreachable, exporter_url
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.model.errors import GpuExporterError

# A Prometheus may take longer than an exporter: it reads its disk.
QUERY_SECONDS = 60.0
MOST_SERIES = 500_000
# A Prometheus may scrape only once a minute, and a rate needs two scrapes.
LAST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _BuildInfo:
    """The part of /api/v1/status/buildinfo that is needed."""

    status: str


@dataclass(frozen=True, slots=True)
class _Series:
    """One series of a matrix. A native histogram has no `values`."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The result of a query for a range of samples."""

    resultType: str  # the name in the API
    result: list[_Series]


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The answer to a query. Prometheus, Thanos and Mimir warn of samples that are missing."""

    status: str
    data: _Matrix | None = None
    error: str = ""
    warnings: list[str] = field(default_factory=list)


def remote_scrapes(remote: Remote, seconds: float | None, stop: threading.Event) -> list[Scrape]:
    """Scrape an exporter for `seconds`, or query a Prometheus for its last `seconds`. Raises GpuExporterError."""
    if is_prometheus(remote):
        return queried(remote, FAMILIES, seconds or LAST_SECONDS)
    gather.watchable(seconds or gather.WATCH_SECONDS)
    parse, stopped = TextParser(is_read), StoppedCounters()
    scrapes = [scraped(remote, parse, stopped)]
    end = time.monotonic() + (seconds or gather.WATCH_SECONDS)
    while time.monotonic() < end and not stop.wait(gather.TICK_SECONDS):
        scrape = scraped(remote, parse, stopped)
        if scrape.at > scrapes[-1].at:  # else it is the same collection, or the exporter's clock was set back
            scrapes.append(scrape)
    return scrapes


def scraped(remote: Remote, parse: TextParser, stopped: StoppedCounters) -> Scrape:
    """Scrape an exporter once. Raises GpuExporterError."""
    base = Remote(exporter_url(remote.url), *remote.credentials)
    try:
        return gather.stamped(values_of(base.metrics(), parse, stopped))
    except ValueError as error:
        raise GpuExporterError(
            f"{base.url}/metrics: not Prometheus text ({printable(str(error), 120)}); give the URL of an exporter, or "
            "of a Prometheus"
        ) from error


def is_read(name: str) -> bool:
    """Return whether a diagnosis reads the samples of this name."""
    return name not in UNREAD


def is_prometheus(remote: Remote) -> bool:
    """Whether a Prometheus answers there. Raises GpuExporterError if nothing does."""
    try:
        return json_as(_BuildInfo, remote.get("/api/v1/status/buildinfo")).status == "success"
    except Unreachable:
        raise
    except (GpuExporterError, ValueError):  # an exporter does not have this path
        return False


def queried(
    remote: Remote, families: Sequence[str], seconds: float, *, at: float | None = None, only: str = ""
) -> list[Scrape]:
    """Query raw samples at the times of their scrapes; each time is the scrape of one target.

    They are of the time before `at` (now by default), and of series that match `only`. Raises GpuExporterError, also
    if the answer is incomplete.
    """
    matchers = ", ".join(filter(None, (f'__name__=~"{"|".join(families)}"', only)))
    parameters = {"query": f"{{{matchers}}}[{max(seconds, 1.0):.0f}s]"} | ({} if at is None else {"time": f"{at:.3f}"})
    text = remote.get(f"/api/v1/query?{urlencode(parameters)}", QUERY_SECONDS)
    try:
        return scrapes_of(json_as(QueryAnswer, text))
    except ValueError as error:
        raise unusable(remote, error) from error


def unusable(remote: Remote, error: ValueError) -> GpuExporterError:
    """Return the error of an answer that cannot be used."""
    why = printable(str(error), 200)
    return GpuExporterError(f"{remote.url}: not a usable answer of a Prometheus: {why}; give another --url")


def scrapes_of(answer: QueryAnswer) -> list[Scrape]:
    """Return the samples by time. Raises ValueError."""
    if answer.status != "success" or answer.data is None:
        raise ValueError(answer.error or "no data")
    if answer.data.resultType != "matrix":
        raise ValueError(f"a {answer.data.resultType} and not a matrix")
    if answer.warnings:
        raise ValueError(f"samples are missing: {answer.warnings[0]}")
    if len(answer.data.result) > MOST_SERIES:
        raise ValueError(f"it has more than {MOST_SERIES} series")
    by_time: dict[float, list[ScrapedSample]] = defaultdict(list)
    for series in answer.data.result:
        labels = dict(readable(series.metric))
        name = labels.pop("__name__", "")
        for at, value in series.values:
            if not PLAUSIBLE_TIMES[0] < at < PLAUSIBLE_TIMES[1]:
                raise ValueError(f"{at:g} is not the time of a sample")
            by_time[at].append(ScrapedSample(name, labels, _number(value)))
    stopped = StoppedCounters()
    scrapes = [Scrape(at, with_values(by_time[at], at, stopped)) for at in sorted(by_time)]
    if not stopped.stuck:
        return scrapes
    # What the last scrapes prove is so of those before.
    stopped = StoppedCounters(stopped.stuck)
    return [Scrape(at, with_values(by_time[at], at, stopped)) for at in sorted(by_time)]


def _number(text: str) -> float:
    """Return the value of a sample, which may be NaN or infinite. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{printable(text, 40)!r} is not a number") from None
