"""Whether a value that a driver returned can be true. Its bounds are columns of the metric catalogue.

Some drivers answer with success and 0 for what they do not know: the memory of an integrated GPU, the power limit of a
virtual one. Where the catalogue says that 0 is impossible, such a value is unknown. It was misread only if the driver
has returned another value before.

A gauge outside its bounds has no sample. A counter that contradicts its last value keeps the last one, so a single
false 0 adds nothing, neither when it is read nor when the value returns. If the next read confirms the new value, the
counter was reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from gpu_exporter.catalogue.metrics import BASES, METRICS
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import Labels, Metric

# The rows that limit others, and those that are limited.
RELATED = frozenset(row for row in METRICS if row.at_most) | {row.at_most for row in METRICS if row.at_most}
# Values of the same moment are read one after the other, and may be rounded.
TOLERANCE = 1.001
# A driver updates its counters at its own rate: an increase may include counts from before the last read.
SLACK_SECONDS = 5.0
# A smaller fall (as a share) is not a reset: the driver sums up parts that it read at different times.
FALL_TOLERANCE = 0.01


@dataclass(slots=True)
class DriverCounter:
    """A counter of the driver. `last` is its value at the time `at`, `total` what it has counted over all restarts.

    `unconfirmed` is the value and the time of a read that contradicts `last`. `restarted`: the driver may have been
    loaded anew since, so that a fall needs no second read.
    """

    total: float = 0.0
    last: float | None = None
    at: float = 0.0
    unconfirmed: tuple[float, float] | None = None
    restarted: bool = False

    def take(self, value: float, at: float, rate: float) -> bool:
        """Take a value read at `at` (monotonic seconds), of a counter that rises by `rate` in a second at most.

        Return False if it contradicts the last one.
        """
        last, unconfirmed = self.last, self.unconfirmed
        if last is None:
            rise = value
        elif last * (1 - FALL_TOLERANCE) < value < last:
            self.unconfirmed = None
            return True
        elif _can_rise(value - last, at - self.at, rate):
            rise = value - last
        elif unconfirmed and _can_rise(value - unconfirmed[0], at - unconfirmed[1], rate):
            rise = self._rise_since_start(value, at, rate, value - unconfirmed[0])
        elif self.restarted and value < last:
            rise = self._rise_since_start(value, at, rate, 0.0)
        else:
            self.unconfirmed = value, at
            return False
        self.total += rise
        self.last, self.at, self.unconfirmed, self.restarted = value, at, None, False
        return True

    def _rise_since_start(self, value: float, at: float, rate: float, certain: float) -> float:
        """Return the increase of a counter after a reset: its whole value, as in Prometheus, if it can have risen that
        much since the last read; else `certain`.
        """
        fell = self.last is not None and value < self.last
        return value if fell and _can_rise(value, at - self.at, rate) else certain


def _can_rise(rise: float, seconds: float, rate: float) -> bool:
    return 0 <= rise <= rate * (seconds + SLACK_SECONDS)


class Zeros:
    """The rows of one GPU that cannot be 0: those that the driver knows, and those for which it only returned 0."""

    def __init__(self) -> None:
        self._known: set[tuple[Metric, Labels]] = set()
        self._unknown: set[tuple[Metric, Labels]] = set()

    def take(self, values: Mapping[Series, float]) -> Set[Series]:
        """Take values that were read together; return those that are 0 because the driver does not know them."""
        zeros = []
        for series, value in values.items():
            if value == 0:
                zeros.append(series)
            elif series.metric.low > 0:
                self._known.add((series.metric, series.labels))
        impossible = {(series.metric, series.labels) for series in zeros if series.metric.low > 0}
        self._unknown = (self._unknown | impossible) - self._known
        if not self._unknown:
            return frozenset()
        return {
            series
            for series in zeros
            if (series.metric, series.labels) in self._unknown
            or (BASES.get(series.metric), series.labels) in self._unknown
        }


class Ceilings:
    """The latest values of the rows that limit others, by row and labels."""

    def __init__(self) -> None:
        self._values: dict[tuple[Metric, Labels], float] = {}

    def exceeded(self, values: Mapping[Series, float]) -> Iterator[tuple[Series, float, float]]:
        """Take values of RELATED rows that were read together; yield (series, value, limit) for each
        value above its limit.
        """
        for series, value in values.items():
            if series.metric.at_most is None:
                self._values[series.metric, series.labels] = value
        for series, value in values.items():
            if series.metric.at_most is not None:
                limit = self._values.get((series.metric.at_most, series.labels))
                if limit is not None and value > limit * TOLERANCE:
                    yield series, value, limit

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()
