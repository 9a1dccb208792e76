"""The Prometheus text format -> samples. Content that would cost too much to parse is rejected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from gpu_exporter.diagnosis.scrape import ScrapedSample
from gpu_exporter.io.decoding import printable

MOST_LINES = 500_000
LONGEST_LINE = 1 << 16
# Names of pods have at most 253 characters, all other labels that are read here fewer.
LONGEST_LABEL = 256
# What is between the braces of nearly every line: labels without spaces around them and without a backslash.
_LABEL = r'((?!__)[a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)"'
_LABELS = re.compile(rf"(?:{_LABEL}(?:,{_LABEL})*,?)?")
_PAIRS = re.compile(_LABEL)


def parsed(text: str, is_read: Callable[[str], bool] = lambda name: True) -> list[ScrapedSample]:
    """Parse a /metrics response in the text format. Raises ValueError.

    Without `is_read` of its name, a sample is left out, and only the first line with this name is checked.
    """
    return TextParser(is_read)(text)


class TextParser:
    """Parses the responses of an exporter, as `parsed`. Labels that a response repeats are the same object in it, and
    in the next one."""

    def __init__(self, is_read: Callable[[str], bool] = lambda name: True) -> None:
        self._is_read = is_read
        self._labels: Mapping[str, Mapping[str, str]] = {}

    def __call__(self, text: str) -> list[ScrapedSample]:
        """Return the samples of a response. Raises ValueError."""
        lines = _lines(text)
        samples: list[ScrapedSample] = []
        # A page has few names, and many series of a GPU have the same labels.
        names: dict[str, bool] = {}
        labels_of: dict[str, Mapping[str, str]] = {}
        before, self._labels = self._labels, labels_of
        for line in lines:
            series, _, value = line.rpartition("} ")
            name, _, inner = series.partition("{")
            wanted = names.get(name)
            if wanted is False:
                continue
            labels = labels_of.get(inner)
            if wanted and labels is None and (labels := before.get(inner) or _labels(inner)) is not None:
                labels_of[inner] = labels
            if wanted and labels is not None:
                number = int(value) if value.isdecimal() and len(value) < 20 else _number(value)
                if number is not None:
                    # As the constructor, which takes twice as long.
                    samples.append(tuple.__new__(ScrapedSample, (name, labels, number)))
                    continue
            for sample in _any_line(line):
                if names.setdefault(sample.name, self._is_read(sample.name)):
                    samples.append(sample)
        return samples


def _labels(inner: str) -> Mapping[str, str] | None:
    """Return the labels between the braces of a usual line; None for any other."""
    pairs = _pairs(inner)
    is_readable = pairs is None or (len(inner) <= LONGEST_LABEL and inner.isprintable())
    return pairs if pairs is None or is_readable else readable(pairs)


def _pairs(inner: str) -> Mapping[str, str] | None:
    """Return the labels between the braces of a usual line; None for any other."""
    if not _LABELS.fullmatch(inner):
        return None
    pairs = _PAIRS.findall(inner)
    labels = dict(pairs)
    return labels if len(labels) == len(pairs) else None


def _number(text: str) -> float | None:
    """Return the value that ends a usual line, with or without a timestamp; None for any other."""
    try:
        if text.isdecimal():
            return int(text)
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        number, _, timestamp = text.partition(" ")
        if "_" in number or number != number.strip() or (timestamp and not timestamp.isdecimal()):
            return None
        return int(number) if number.lstrip("+-").isdecimal() else float(number)
    except ValueError:
        return None


def _any_line(line: str) -> Iterator[ScrapedSample]:
    """Yield the sample of a line, or nothing for a comment. Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families  # not before it is needed

    try:
        for family in text_string_to_metric_families(line):
            yield from (ScrapedSample(sample.name, readable(sample.labels), sample.value) for sample in family.samples)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # the parser trusts what it reads
        raise ValueError(str(error) or "a line cannot be parsed") from error


def readable(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return labels whose values can be printed anywhere, and are so short that patterns match them in bounded time."""
    if all(len(value) <= LONGEST_LABEL and value.isprintable() for value in labels.values()):
        return labels
    return {name: printable(value[:LONGEST_LABEL], LONGEST_LABEL) for name, value in labels.items()}


def _lines(text: str) -> list[str]:
    if text.count("\n") > MOST_LINES:
        raise ValueError(f"more than {MOST_LINES} lines")
    lines = text.split("\n")
    if max(map(len, lines)) > LONGEST_LINE:
        raise ValueError(f"a line of more than {LONGEST_LINE} characters")
    return lines
