"""What an exporter or a Prometheus answered at one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ScrapedSample(NamedTuple):
    """One sample of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


class Scrape(NamedTuple):
    """All samples at unix time `at`."""

    at: float
    samples: Sequence[ScrapedSample]
