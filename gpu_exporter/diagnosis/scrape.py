"""Scrapes: the samples of one moment, whatever they were gathered from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

from gpu_exporter.catalogue.workloads import owner

# Unix times that samples can have.
PLAUSIBLE_TIMES = (0.0, 1e11)
# A larger value is not a measurement, and sums and squares of it would overflow.
LARGEST = 1e30


class ScrapedSample(NamedTuple):
    """One sample of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


class SampleColumn:
    """The samples of one name, as the sequence of their labels and that of their values.

    Columns of the same series have the same object as `labels`, in a page and often in the next one.
    """

    __slots__ = ("labels", "name", "values")

    def __init__(self, name: str, labels: Sequence[Mapping[str, str]], values: Sequence[float]) -> None:
        self.name, self.labels, self.values = name, labels, values

    def __iter__(self) -> Iterator[ScrapedSample]:
        return map(ScrapedSample, repeat(self.name), self.labels, self.values)

    def __len__(self) -> int:
        return len(self.values)


ByName = Mapping[str, SampleColumn]


class ScrapedPage(Sequence[ScrapedSample]):
    """The samples of a page, in its order. Each part of it is a column, or samples of any names."""

    def __init__(self, parts: Sequence[SampleColumn | Sequence[ScrapedSample]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[ScrapedSample]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]

    @cached_property
    def by_name(self) -> ByName:
        """The samples by their names, in the order in which these come."""
        columns: dict[str, list[SampleColumn]] = {}
        for part in self._parts:
            for column in (part,) if isinstance(part, SampleColumn) else _columns(part):
                columns.setdefault(column.name, []).append(column)
        return {name: of_name[0] if len(of_name) == 1 else _joined(of_name) for name, of_name in columns.items()}


def samples_by_name(samples: Iterable[ScrapedSample]) -> ByName:
    """Return the samples by their names, in the order in which these come."""
    return (
        samples.by_name if isinstance(samples, ScrapedPage) else {column.name: column for column in _columns(samples)}
    )


def _columns(samples: Iterable[ScrapedSample]) -> Iterable[SampleColumn]:
    """Return the samples in a column for each name."""
    columns: dict[str, tuple[list[Mapping[str, str]], list[float]]] = defaultdict(lambda: ([], []))
    for name, labels, value in samples:
        column = columns[name]
        column[0].append(labels)
        column[1].append(value)
    return [SampleColumn(name, *column) for name, column in columns.items()]


def _joined(columns: Sequence[SampleColumn]) -> SampleColumn:
    """Return columns of the same name as one."""
    labels = [each for column in columns for each in column.labels]
    return SampleColumn(columns[0].name, labels, [each for column in columns for each in column.values])


class Scrape(NamedTuple):
    """All samples at unix time `at`."""

    at: float
    samples: Sequence[ScrapedSample]


# Namespace, pod and workload.
Claim = tuple[str, str, str]


class DeviceKey(NamedTuple):
    """A GPU, or a GPU instance of it in MIG mode."""

    cluster: str
    uuid: str
    instance: str


# Returns the device as it was scraped: names may be masked.
Measured = Callable[[DeviceKey], DeviceKey]


def as_scraped(device: DeviceKey) -> DeviceKey:
    """Return the same device: no name is masked."""
    return device


def key_of(labels: Mapping[str, str], *, per_instance: bool) -> DeviceKey:
    """Return the device of a sample, by its labels."""
    return DeviceKey(labels.get("cluster", ""), labels["UUID"], labels.get("GPU_I_ID", "") if per_instance else "")


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key by which numbers in texts sort by their value: a number is its length and its digits."""
    parts = (part.lstrip("0") if part.isdecimal() else part for part in re.findall(r"[0-9]+|[^0-9]+", text))
    return tuple((len(part), part) if part.isdecimal() or not part else (-1, part) for part in parts)


class ReadLabels:
    """Labels with a UUID, and what they say about a device; `gpu` is the whole GPU of an instance."""

    __slots__ = ("_owner", "_series", "_series_of_buckets", "device", "gpu", "labels")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        cluster, uuid, instance = labels.get("cluster", ""), labels["UUID"], labels.get("GPU_I_ID", "")
        self.device = self.gpu = DeviceKey(cluster, uuid, instance)
        if instance:
            self.gpu = DeviceKey(cluster, uuid, "")
        self._series: Hashable = None
        self._series_of_buckets: Hashable = None
        self._owner: tuple[Claim | None] | None = None

    def series(self) -> Hashable:
        """Return what identifies a series among those of its name."""
        self._series = self._series or frozenset(self.labels.items())
        return self._series

    def series_of_buckets(self) -> Hashable:
        """Return what identifies a histogram among those of its name."""
        if self._series_of_buckets is None:
            self._series_of_buckets = frozenset(item for item in self.labels.items() if item[0] != "le")
        return self._series_of_buckets

    def owner(self) -> Claim | None:
        """Return the owner that these labels name in a `DCGM_*` series."""
        if self._owner is None:
            self._owner = (owner("", self.labels),)
        return self._owner[0]


class ReadColumn:
    """What the labels of a column say, in its order; None for labels without a UUID."""

    __slots__ = ("_devices", "_gpus", "labels", "read")

    def __init__(self, labels: Sequence[Mapping[str, str]], read: Sequence[ReadLabels | None]) -> None:
        self.labels, self.read = labels, read
        self._devices: Sequence[DeviceKey | None] | None = None
        self._gpus: Sequence[DeviceKey | None] | None = None

    def of_devices(self) -> Iterator[ReadLabels]:
        """Yield what labels with a UUID say."""
        return filter(None, self.read)

    def devices(self, *, per_instance: bool) -> Sequence[DeviceKey | None]:
        """Return the devices, or the GPUs that they are part of."""
        if per_instance:
            self._devices = self._devices or [None if each is None else each.device for each in self.read]
            return self._devices
        self._gpus = self._gpus or [None if each is None else each.gpu for each in self.read]
        return self._gpus


class LabelReader:
    """Reads labels once: many samples of a scrape have the same object, and often those of the next scrape, too."""

    def __init__(self) -> None:
        # By their identity: those of this scrape, and of the one before.
        self._known: dict[int, ReadLabels] = {}
        self._before: Mapping[int, ReadLabels] = {}
        # By the identity of the labels in this scrape, and by their names in it and in the one before.
        self._columns: dict[int, ReadColumn] = {}
        self._names: dict[str, ReadColumn] = {}
        self._names_before: Mapping[str, ReadColumn] = {}

    def begin(self) -> None:
        """Begin with a scrape. Labels that neither it nor the one before it has are forgotten."""
        self._known, self._before = {}, self._known
        self._columns, self._names, self._names_before = {}, {}, self._names

    def __call__(self, labels: Mapping[str, str]) -> ReadLabels | None:
        """Return what labels say; None without a UUID."""
        read = self._known.get(id(labels))
        if read is None and labels.get("UUID"):
            read = self._before.get(id(labels))
            if read is None or read.labels is not labels:
                read = ReadLabels(labels)
            self._known[id(labels)] = read
        return read

    def column(self, column: SampleColumn) -> ReadColumn:
        """Return what the labels of a column say."""
        name, labels = column.name, column.labels
        read = self._names.get(name) or self._columns.get(id(labels)) or self._names_before.get(name)
        if read is None or (read.labels is not labels and read.labels != labels):
            known = self._known
            read = ReadColumn(labels, [known.get(id(each)) or self(each) for each in labels])
        self._names[name] = self._columns[id(labels)] = read
        return read


def node_of(labels: Mapping[str, str]) -> str:
    """Return the name of the node by the labels of a sample; empty if they have none."""
    return labels.get("Hostname") or labels.get("hostname") or labels.get("node", "")


def plausible(value: float) -> bool:
    """Whether a value can be a measurement: not NaN, not infinite, and small enough to calculate with."""
    return -LARGEST <= value <= LARGEST
