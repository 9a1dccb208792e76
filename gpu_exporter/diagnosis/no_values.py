"""What exporters expose where they have no value is left out: DCGM's blanks, texts, and counters that have stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpu_exporter.catalogue.stopped_counters import ENGINE, FULL_UTIL, POWER, RESTLESS, StoppedCounters
from gpu_exporter.conditions.signal import PROFILING_PREFIX, STOPPED_INFO
from gpu_exporter.diagnosis.scrape import ByName, SampleColumn, ScrapedPage, ScrapedSample, samples_by_name
from gpu_exporter.sources.dcgm.values import BLANKS, DOUBLE_BLANK, INT32_BLANK, INT64_BLANK

_SERIES = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\{")


def values_of(
    page: str, parse: Callable[[str], Sequence[ScrapedSample]], stopped: StoppedCounters
) -> Sequence[ScrapedSample]:
    """Return the samples of a /metrics response that have a value. Raises ValueError."""
    try:
        samples = parse(page)
    except ValueError:
        # Such as `ERROR - FAILED TO CONVERT TO STRING` of dcgm-exporter.
        numbers = "\n".join(line for line in page.split("\n") if not _has_no_number(line))
        if len(numbers) == len(page):
            raise
        samples = parse(numbers)
    return with_values(samples, time.monotonic(), stopped)


def with_values(samples: Sequence[ScrapedSample], at: float, stopped: StoppedCounters) -> Sequence[ScrapedSample]:
    """Return the samples that have a value. Scrapes come in order of their time `at` (seconds)."""
    return without_stopped_counters(without_blanks(samples), at, stopped)


def without_stopped_counters(
    samples: Sequence[ScrapedSample], at: float, stopped: StoppedCounters
) -> Sequence[ScrapedSample]:
    """Return the samples without the profiling metrics of GPUs whose counters have stopped; these GPUs are marked."""
    by_name = samples_by_name(samples)
    utils = {
        _gpu(labels): (value / full, labels) for name, full in FULL_UTIL.items() for labels, value in _of(by_name, name)
    }
    powers = {_gpu(labels): (value, labels) for name in POWER for labels, value in _of(by_name, name)}
    # Most GPUs that work have an engine that does: of these, few counters are needed.
    works = {_gpu(labels) for name in ENGINE for labels, value in _of(by_name, name) if value}
    counters: dict[tuple[str, str], list[tuple[str, float]]] = {
        gpu: [] for gpu in utils.keys() | powers.keys() if gpu[1]
    }
    prefix = PROFILING_PREFIX if counters.keys() - works else tuple(RESTLESS)
    for name in by_name if counters else ():
        if name.startswith(prefix):
            for labels, value in _of(by_name, name):
                if _gpu(labels) in counters:
                    counters[_gpu(labels)].append((name, value))
    unknown: tuple[float | None, Mapping[str, str]] = None, {}
    found = {}
    for gpu, read in counters.items():
        util, power = utils.get(gpu, unknown), powers.get(gpu, unknown)
        if stopped.take(gpu, at, util[0], power[0], read):
            found[gpu] = util[1] or power[1]
    if not found:
        return samples
    kept = [each for each in samples if not (each.name.startswith(PROFILING_PREFIX) and _gpu(each.labels) in found)]
    return [*kept, *(ScrapedSample(STOPPED_INFO, labels, 1.0) for labels in found.values())]


def _gpu(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("cluster", ""), labels.get("UUID", "")


def _of(by_name: ByName, name: str) -> Iterable[tuple[Mapping[str, str], float]]:
    column = by_name.get(name)
    return zip(column.labels, column.values, strict=True) if column else ()


def without_blanks(samples: Sequence[ScrapedSample]) -> Sequence[ScrapedSample]:
    """Return the samples without those whose value DCGM uses for "no value"."""
    page = samples if isinstance(samples, ScrapedPage) else ScrapedPage([samples])
    blank = {
        name for name, column in page.by_name.items() if name.startswith("DCGM_") and any(map(is_blank, column.values))
    }
    if not blank:
        return samples
    return ScrapedPage([_kept(column) if name in blank else column for name, column in page.by_name.items()])


def is_blank(value: float) -> bool:
    """Whether a value of one of DCGM's metrics stands for "no value"."""
    return value >= INT32_BLANK and (
        value >= INT64_BLANK or value - DOUBLE_BLANK in range(len(BLANKS)) or value - INT32_BLANK in range(len(BLANKS))
    )


def _has_no_number(line: str) -> bool:
    """Whether a line is a series with a text or nothing behind it."""
    series, _, value = line.rpartition("}")
    if not _SERIES.match(series):
        return False
    try:
        float(value.partition("#")[0].split()[0])
    except (ValueError, IndexError):
        return True
    return False


def _kept(column: SampleColumn) -> SampleColumn:
    kept = [each for each in zip(column.labels, column.values, strict=True) if not is_blank(each[1])]
    return SampleColumn(column.name, [labels for labels, _ in kept], [value for _, value in kept])
