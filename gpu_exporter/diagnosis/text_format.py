"""The Prometheus text format -> samples. Content that would cost too much to parse is rejected."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu_exporter.diagnosis.scrape import ScrapedSample
from gpu_exporter.io.decoding import printable

MOST_LINES = 500_000
LONGEST_LINE = 1 << 16
# Names of pods have at most 253 characters, all other labels that are read here fewer.
LONGEST_LABEL = 256


def parsed(text: str) -> list[ScrapedSample]:
    """Parse a /metrics response in the text format. Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families  # not before it is needed

    _check(text)
    # The parser appends `_total` to the name of every counter, as in OpenMetrics; classic counters lack it.
    counters = set(re.findall(r"^# TYPE (\S+) counter$", text, re.MULTILINE))
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # the parser trusts what it reads
        raise ValueError(str(error) or "a line cannot be parsed") from error
    plain = {f"{name}_total": name for name in counters}
    named = ((plain.get(s.name, s.name) if s.name not in counters else s.name, s) for s in samples)
    return [ScrapedSample(name, readable(s.labels), s.value) for name, s in named]


def readable(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return labels whose values can be printed anywhere, and are so short that patterns match them in bounded time."""
    if all(len(value) <= LONGEST_LABEL and value.isprintable() for value in labels.values()):
        return labels
    return {name: printable(value[:LONGEST_LABEL], LONGEST_LABEL) for name, value in labels.items()}


def _check(text: str) -> None:
    if text.count("\n") > MOST_LINES:
        raise ValueError(f"more than {MOST_LINES} lines")
    if max(map(len, text.split("\n"))) > LONGEST_LINE:
        raise ValueError(f"a line of more than {LONGEST_LINE} characters")
