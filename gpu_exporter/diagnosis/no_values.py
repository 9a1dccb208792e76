"""What exporters expose where they have no value: DCGM's blanks, and texts instead of numbers. Both are left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpu_exporter.diagnosis.scrape import SampleColumn, ScrapedPage, ScrapedSample
from gpu_exporter.sources.dcgm.values import BLANKS, DOUBLE_BLANK, INT32_BLANK, INT64_BLANK

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
    return without_blanks(samples)


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
