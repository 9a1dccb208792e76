"""How much slower something is, from runs in turns with and without: the mean, and its upper bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev

CONFIDENCE = 0.95
FEWEST = 4


@dataclass(frozen=True)
class Slowdown:
    """Of so many pairs: the mean, and what it is below with a confidence of 95 %; 0.01 is one per cent."""

    mean: float
    upper: float
    pairs: int


def quantile(freedom: int) -> float:
    """Student's t at 95 %, by its expansion around the normal (Abramowitz and Stegun, 26.7.5): to 0.002 from 3 on."""
    z = NormalDist().inv_cdf(CONFIDENCE)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))


def slowdown(pairs: Sequence[tuple[float, float]], interval: float = 0.0) -> Slowdown:
    """Of the seconds that the same work took, without and with; what made the difference comes once an interval."""
    differences = [(late - sooner) / max(sooner, interval) for sooner, late in pairs]
    if len(differences) < FEWEST:
        raise ValueError(f"{len(differences)} pairs are too few for a bound: {FEWEST} at least")
    mean, spread = fmean(differences), stdev(differences) / sqrt(len(differences))
    return Slowdown(mean, mean + quantile(len(differences) - 1) * spread, len(differences))
