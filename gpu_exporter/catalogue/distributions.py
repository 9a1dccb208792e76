"""What a histogram says of the time behind it: as PromQL, and in Python of what its buckets grew by. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

# Long enough to hold a slow swing several times, and the window of the classes.
WINDOW_SECONDS = 300.0
WINDOW = f"{WINDOW_SECONDS / 60:.0f}m"
# Observations that are not above an edge, by edge in rising order; the last is infinite.
Below = Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Within:
    """The share of observations that are not above `edge`, which is one of the histogram's."""

    edge: float

    def promql(self, buckets: str) -> str:
        """The expression on these bucket series."""
        part, whole = (f'rate({buckets}{{le="{edge}"}}[{WINDOW}])' for edge in (self.edge, "+Inf"))
        return _of_now(f"{part} / ignoring (le) {whole}", buckets)

    def value(self, below: Below) -> float | None:
        """The same of what was observed; None without an observation."""
        return below[self.edge] / below[inf] if below.get(inf) and self.edge in below else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Half of what lies between two quantiles: of a square wave, how far it swings up and down, its deviation too."""

    low: float = 0.1
    high: float = 0.9

    def promql(self, buckets: str) -> str:
        """The expression on these bucket series."""
        high, low = (f"histogram_quantile({q:g}, rate({buckets}[{WINDOW}]))" for q in (self.high, self.low))
        return _of_now(f"({high} - {low}) / 2", buckets)

    def value(self, below: Below) -> float | None:
        """The same of what was observed; None without an observation."""
        if len(below) < 2 or not below.get(inf):
            return None
        return (_quantile(self.high, below) - _quantile(self.low, below)) / 2


def _of_now(expression: str, buckets: str) -> str:
    """Of what was observed (else it is NaN), and of devices that are there: one that is gone has no past."""
    return f'{expression} >= 0 and ignoring (le) {buckets}{{le="+Inf"}}'


def _quantile(q: float, below: Below) -> float:
    """As Prometheus has it: on a straight line within a bucket; the highest edge where the last one has it."""
    rank, (*edges, _) = q * below[inf], below
    start, count = 0.0, 0.0
    for edge in edges:
        if below[edge] >= rank:
            return start + (edge - start) * (rank - count) / (below[edge] - count)
        start, count = edge, below[edge]
    return start
