"""The Prometheus text format -> samples. Content that would cost too much to parse is rejected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpu_exporter.diagnosis.scrape import SampleColumn, ScrapedPage, ScrapedSample
from gpu_exporter.io.decoding import printable

MOST_LINES = 500_000
LONGEST_LINE = 1 << 16
# Names of pods have at most 253 characters, all other labels that are read here fewer.
LONGEST_LABEL = 256
# What is between the braces of nearly every line, without the values: labels without spaces around them.
_LABEL = r'((?!__)[a-zA-Z_][a-zA-Z0-9_]*)=""'
_LABELS = re.compile(rf"(?:{_LABEL}(?:,{_LABEL})*,?)?")
_NAMES = re.compile(_LABEL)

Labels = Mapping[str, str]
# The labels of a column with the texts that they were read from.
_Known = tuple[Sequence[str], Sequence[Labels]]


def parsed(text: str, is_read: Callable[[str], bool] = lambda name: True) -> list[ScrapedSample]:
    """Parse a /metrics response in the text format. Raises ValueError.

    Without `is_read` of its name, a sample is left out, and only the first line with this name is checked: an error in
    what nobody reads is no reason to refuse the rest.
    """
    return list(TextParser(is_read)(text))


class TextParser:
    """Parses the responses of an exporter, as `parsed`. Labels that a response repeats are the same object in it and in
    the next one, and so are the labels of whole columns."""

    def __init__(self, is_read: Callable[[str], bool] = lambda name: True) -> None:
        self._is_read = is_read
        # Of a response: which names are read, the names of labels by the text between the braces without its values,
        # and by texts the labels of lines and of columns.
        self._names: dict[str, bool] = {}
        self._label_names: dict[str, Sequence[str] | None] = {}
        self._labels: dict[str, Labels] = {}
        self._columns: dict[tuple[str, str, int], _Known] = {}
        # Of the response before.
        self._last_labels: Mapping[str, Labels] = {}
        self._last_columns: Mapping[tuple[str, str, int], _Known] = {}

    def __call__(self, text: str) -> ScrapedPage:
        """Return the samples of a response. Raises ValueError."""
        _check_size(text)
        self._names, self._label_names = {}, {}
        self._last_labels, self._labels = self._labels, {}
        self._last_columns, self._columns = self._columns, {}
        # Between two comments there are usually the samples of one name.
        return ScrapedPage([part for begin, end in _blocks(text) for part in self._samples(text, begin, end)])

    def _samples(self, text: str, begin: int, end: int) -> Iterator[SampleColumn | Sequence[ScrapedSample]]:
        """Yield the samples of the lines from `begin` to `end`, in a column if they all have the same name."""
        feed = text.find("\n", begin, end)
        line = text[begin : end if feed < 0 else feed]
        name, brace, _ = line.partition("{")
        start, wanted = f"\n{name}{{", self._wanted(name, line) if brace and line[0] != "#" else None
        if wanted:
            column = self._column(name, text[begin + len(start) - 1 : end].split(start))
            yield column or self._any_lines(text[begin:end])
        elif wanted is None or text.count(start, begin, end) < text.count("\n", begin, end):
            yield self._any_lines(text[begin:end])

    def _wanted(self, name: str, line: str) -> bool | None:
        """Return whether the samples of this name are read, by a line of it; None if the line has another name."""
        if name not in self._names:
            for sample in _any_line(line):
                self._names.setdefault(sample.name, self._is_read(sample.name))
        return self._names.get(name)

    def _column(self, name: str, lines: Sequence[str]) -> SampleColumn | None:
        """Return the samples of lines, here without their name and brace; None if a line is not a usual one."""
        inners, ends, texts = zip(*[line.rpartition("} ") for line in lines], strict=True)
        if ends.count("} ") < len(ends):
            return None
        labels, values = self._labels_of(inners), _numbers(texts)
        return SampleColumn(name, labels, values) if labels and values else None

    def _labels_of(self, inners: Sequence[str]) -> Sequence[Labels] | None:
        """Return the labels of a column by what is between the braces; None if a line is not a usual one."""
        key = inners[0], inners[-1], len(inners)
        for columns in (self._columns, self._last_columns):
            known = columns.get(key)
            if known and known[0] == inners:
                self._columns[key] = known
                return known[1]
        labels = [self._labels.get(inner) or self._read_labels(inner) for inner in inners]
        usual = [each for each in labels if each is not None]
        if len(usual) < len(labels):
            return None
        self._columns[key] = inners, usual
        return usual

    def _read_labels(self, inner: str) -> Labels | None:
        """Return the labels between the braces of a usual line; None for any other."""
        labels = self._last_labels.get(inner)
        if labels is None and "\\" not in inner and "\n" not in inner:
            parts = inner.split('"')
            values, shape = parts[1::2], '"'.join(parts[::2])
            if shape not in self._label_names:
                self._label_names[shape] = _label_names(shape.replace('"', '""'))
            names = self._label_names[shape]
            if names is not None and len(names) == len(values):
                labels = dict(zip(names, values, strict=True))
                is_short = len(inner) <= LONGEST_LABEL or max(map(len, values)) <= LONGEST_LABEL
                is_readable = is_short and inner.isprintable()
                labels = labels if is_readable else readable(labels)
        if labels is not None:
            self._labels[inner] = labels
        return labels

    def _any_lines(self, lines: str) -> Sequence[ScrapedSample]:
        """Return the samples of lines."""
        samples: list[ScrapedSample] = []
        for line in lines.split("\n"):
            series, _, value = line.rpartition("} ")
            name, _, inner = series.partition("{")
            wanted = self._names.get(name)
            if wanted is False:
                continue
            labels = (self._labels.get(inner) or self._read_labels(inner)) if wanted else None
            number = _number(value) if labels is not None else None
            if labels is not None and number is not None:
                samples.append(ScrapedSample(name, labels, number))
                continue
            for sample in _any_line(line):
                if self._names.setdefault(sample.name, self._is_read(sample.name)):
                    samples.append(sample)
        return samples


def _label_names(inner: str) -> Sequence[str] | None:
    """Return the names of the labels between the braces of a usual line with empty values; None for any other."""
    names = _NAMES.findall(inner)
    return names if _LABELS.fullmatch(inner) and len(set(names)) == len(names) else None


def _numbers(texts: Sequence[str]) -> Sequence[float] | None:
    """Return the values that end usual lines; None if a line is not a usual one."""
    joined = "".join(texts)
    try:
        if joined.isdecimal():
            return list(map(int, texts))
        if joined.replace(".", "").isdecimal():
            return [int(text) if text.isdecimal() else float(text) for text in texts]
    except ValueError:
        return None
    numbers = [number for number in map(_number, texts) if number is not None]
    return numbers if len(numbers) == len(texts) else None


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


def readable(labels: Labels) -> Labels:
    """Return labels whose values can be printed anywhere, and are so short that patterns match them in bounded time."""
    if all(len(value) <= LONGEST_LABEL and value.isprintable() for value in labels.values()):
        return labels
    return {name: printable(value[:LONGEST_LABEL], LONGEST_LABEL) for name, value in labels.items()}


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each comment is, and where the lines between two comments are, without the last line feed."""
    begin = place = 0
    while (place := text.find("#", place)) >= 0:
        if place > begin and text[place - 1] != "\n":
            place += 1
            continue
        if place > begin:
            yield begin, place - 1
        end = text.find("\n", place)
        yield place, len(text) if end < 0 else end
        place = begin = len(text) if end < 0 else end + 1
    if begin < len(text):
        yield begin, len(text) - text.endswith("\n")


def _check_size(text: str) -> None:
    """Raise ValueError for a response that would cost too much to parse."""
    if text.count("\n") > MOST_LINES:
        raise ValueError(f"more than {MOST_LINES} lines")
    begin = 0
    while len(text) - begin > LONGEST_LINE:
        begin = text.rfind("\n", begin, begin + LONGEST_LINE + 1) + 1
        if not begin:
            raise ValueError(f"a line of more than {LONGEST_LINE} characters")
