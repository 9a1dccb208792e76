"""What exporters expose where they have no value is left out: DCGM's blanks, texts, and counters that have stopped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import modern
from gpu_exporter.diagnosis.scrape import ByName, SampleColumn, ScrapedPage, ScrapedSample, samples_by_name
from gpu_exporter.model.metric import Metric
from gpu_exporter.sources.dcgm.values import BLANKS, DOUBLE_BLANK, INT32_BLANK, INT64_BLANK

_PROFILING = "DCGM_FI_PROF_"


def _names(metric: Metric) -> tuple[str, ...]:
    renamed = modern(metric)
    return (metric.name, renamed[0]) if renamed else (metric.name,)


# An engine that works on data uses both.
_COUNTERS = (_names(m.GR_ENGINE_ACTIVE), _names(m.DRAM_ACTIVE))
# Utilisation, with the value from which a GPU is certainly busy.
_BUSY = tuple(zip(_names(m.GPU_UTIL), (50.0, 0.5), strict=True))
_SERIES = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\{")


def values_of(page: str, parse: Callable[[str], Sequence[ScrapedSample]]) -> Sequence[ScrapedSample]:
    """Return the samples of a /metrics response that have a value. Raises ValueError."""
    try:
        samples = parse(page)
    except ValueError:
        # Such as `ERROR - FAILED TO CONVERT TO STRING` of dcgm-exporter.
        numbers = "\n".join(line for line in page.split("\n") if not _has_no_number(line))
        if len(numbers) == len(page):
            raise
        samples = parse(numbers)
    return with_values(samples)


def with_values(samples: Sequence[ScrapedSample]) -> Sequence[ScrapedSample]:
    """Return the samples that have a value."""
    return without_stopped_counters(without_blanks(samples))


def without_stopped_counters(samples: Sequence[ScrapedSample]) -> Sequence[ScrapedSample]:
    """Return the samples without the profiling metrics of GPUs whose counters have stopped.

    DCGM then reports 0 for all of them while the GPU is busy, for example after an XID, until it is restarted.
    """
    by_name = samples_by_name(samples)
    used = (each for name, least in _BUSY for each in _of(by_name, name) if least <= each[1] <= 2 * least)
    stopped = {labels["UUID"] for labels, _ in used if labels.get("UUID")}
    for names in _COUNTERS if stopped else ():
        stopped &= {labels.get("UUID") for name in names for labels, _ in _of(by_name, name)}
    for name in by_name if stopped else ():
        if name.startswith(_PROFILING):
            stopped -= {labels.get("UUID") for labels, value in _of(by_name, name) if value}
    if not stopped:
        return samples
    return [each for each in samples if not (each.name.startswith(_PROFILING) and each.labels.get("UUID") in stopped)]


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
