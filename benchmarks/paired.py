"""Computes a mean slowdown and its upper bound from pairs of measurements without and with a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev

CONFIDENCE = 0.95
FEWEST = 4


@dataclass(frozen=True)
class Slowdown:
    """Mean slowdown and the upper 95 % confidence bound of `pairs` pairs; 0.01 is 1 %."""

    mean: float
    upper: float
    pairs: int


def quantile(freedom: int) -> float:
    """Return the 95 % quantile of Student's t-distribution.

    Expansion around the normal distribution (Abramowitz and Stegun, 26.7.5), to 0.002 from three degrees of freedom.
    """
    z = NormalDist().inv_cdf(CONFIDENCE)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))


def slowdown(pairs: Sequence[tuple[float, float]], interval: float = 0.0) -> Slowdown:
    """Return the slowdown over pairs: the seconds that the same work took without and with a load.

    A load that comes once in `interval` seconds is spread over that time if the work is shorter.
    """
    differences = [(loaded - alone) / max(alone, interval) for alone, loaded in pairs]
    if len(differences) < FEWEST:
        raise ValueError(f"{len(differences)} pairs are too few for a bound: at least {FEWEST} are needed")
    mean, spread = fmean(differences), stdev(differences) / sqrt(len(differences))
    return Slowdown(mean, mean + quantile(len(differences) - 1) * spread, len(differences))
