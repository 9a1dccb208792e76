"""Scrapes: the samples of one moment, whatever they were gathered from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

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


class ReadLabels:
    """Labels with a UUID, and what they say about a device; `gpu` is the whole GPU of an instance."""

    __slots__ = ("_owner", "_series", "_series_of_buckets", "device", "gpu", "labels")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self.device = key_of(labels, per_instance=True)
        self.gpu = key_of(labels, per_instance=False) if self.device.instance else self.device
        self._series: Hashable = None
        self._series_of_buckets: Hashable = None
        self._owner: tuple[Claim | None] | None = None

    def series(self) -> Hashable:
        """Return what identifies a series among those of its name."""
        if self._series is None:
            self._series = frozenset(self.labels.items())
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


class LabelReader:
    """Reads labels once: many samples of a scrape have the same object, and often those of the next scrape, too."""

    def __init__(self) -> None:
        # By their identity: those of this scrape, and of the one before.
        self.known: dict[int, ReadLabels] = {}
        self._before: Mapping[int, ReadLabels] = {}

    def begin(self) -> None:
        """Begin with a scrape. Labels that neither it nor the one before it has are forgotten."""
        self.known, self._before = {}, self.known

    def __call__(self, labels: Mapping[str, str]) -> ReadLabels | None:
        """Return what labels say; None without a UUID. A caller may look in `known` first."""
        read = self.known.get(id(labels))
        if read is None and labels.get("UUID"):
            read = self._before.get(id(labels))
            if read is None or read.labels is not labels:
                read = ReadLabels(labels)
            self.known[id(labels)] = read
        return read


def node_of(labels: Mapping[str, str]) -> str:
    """Return the name of the node by the labels of a sample; empty if they have none."""
    return labels.get("Hostname") or labels.get("hostname") or labels.get("node", "")


def plausible(value: float) -> bool:
    """Whether a value can be a measurement: not NaN, not infinite, and small enough to calculate with."""
    return -LARGEST <= value <= LARGEST
