"""Scrapes: the samples of one moment, whatever they were gathered from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class DeviceKey(NamedTuple):
    """A GPU, or a GPU instance of it in MIG mode."""

    cluster: str
    uuid: str
    instance: str


def key_of(labels: Mapping[str, str], *, per_instance: bool) -> DeviceKey:
    """Return the device of a sample, by its labels."""
    return DeviceKey(labels.get("cluster", ""), labels["UUID"], labels.get("GPU_I_ID", "") if per_instance else "")


def plausible(value: float) -> bool:
    """Whether a value can be a measurement: not NaN, not infinite, and small enough to calculate with."""
    return -LARGEST <= value <= LARGEST
