"""Statistics of a histogram over a window: as PromQL, and in Python from the growth of its buckets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

# Long enough for several periods of a slow swing; also the window of the bottleneck classes.
WINDOW_SECONDS = 300.0
WINDOW = f"{WINDOW_SECONDS / 60:.0f}m"
# Observations at or below each edge, in rising order; the last edge is infinite.
Below = Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Within:
    """The share of observations at or below `edge`, which is an edge of the histogram."""

    edge: float

    def promql(self, buckets: str) -> str:
        """Return the expression on these bucket series."""
        part, whole = (f'rate({buckets}{{le="{edge}"}}[{WINDOW}])' for edge in (self.edge, "+Inf"))
        return _of_now(f"{part} / ignoring (le) {whole}", buckets)

    def value(self, below: Below) -> float | None:
        """Return the same number from observed counts; None without an observation."""
        return below[self.edge] / below[inf] if below.get(inf) and self.edge in below else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Half the distance between two quantiles: for a square wave, its amplitude and its standard deviation."""

    low: float = 0.1
    high: float = 0.9

    def promql(self, buckets: str) -> str:
        """Return the expression on these bucket series."""
        high, low = (f"histogram_quantile({q:g}, rate({buckets}[{WINDOW}]))" for q in (self.high, self.low))
        return _of_now(f"({high} - {low}) / 2", buckets)

    def value(self, below: Below) -> float | None:
        """Return the same number from observed counts; None without an observation."""
        if len(below) < 2 or not below.get(inf):
            return None
        return (_quantile(self.high, below) - _quantile(self.low, below)) / 2


def _of_now(expression: str, buckets: str) -> str:
    """Drop NaN, which means no observation, and devices that no longer exist."""
    return f'{expression} >= 0 and ignoring (le) {buckets}{{le="+Inf"}}'


def _quantile(q: float, below: Below) -> float:
    """Interpolate linearly within a bucket, as Prometheus does; in the last bucket, return the highest finite edge."""
    rank, (*edges, _) = q * below[inf], below
    start, count = 0.0, 0.0
    for edge in edges:
        if below[edge] >= rank:
            return start + (edge - start) * (rank - count) / (below[edge] - count)
        start, count = edge, below[edge]
    return start
