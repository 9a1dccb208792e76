"""Samples that the driver keeps in a buffer -> each of them once, and their integral over time.

The driver stamps them by the system clock, which may be set; a buffer may be read late, or be lost with the driver.
Nothing then counts twice, and time without samples does not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

# In microseconds: the samples of a buffer, oldest first.
Stamped = Sequence[tuple[float, float]]
MICROSECONDS = 1e6
# NVML documents utilisation samples up to a second apart; an H100 has one every 200 ms.
LONGEST_PERIOD_SECONDS = 1.0
# After more than so many periods without a sample, the time since the previous one is a gap.
GAP_PERIODS = 3
# The period is the median of so many distances: the clock that is set, or a gap, does not change it.
DISTANCES = 9


class NewSamples:
    """Tells the samples that were not in earlier buffers; `stamp` is that of the last one."""

    def __init__(self) -> None:
        self.stamp = float("-inf")

    def take(self, samples: Stamped) -> Stamped:
        """Return the samples that are new.

        Those behind the last one are, also if the clock was set back meanwhile. A buffer without the last one has only
        newer samples, unless it ends at an earlier time: then it cannot be known which are new. That buffer is dropped,
        and later ones are compared with the new time.
        """
        if not samples:
            return ()
        last, stamps = self.stamp, [stamp for stamp, _ in samples]
        self.stamp = stamps[-1]
        if last in stamps:
            return samples[len(stamps) - stamps[::-1].index(last) :]
        return [sample for sample in samples if sample[0] > last] if stamps[-1] > last else ()


class SampledIntegral:
    """The integral of samples over time. Each counts for the time since the one before, however reads are split."""

    def __init__(self) -> None:
        self.total = 0.0
        self._new = NewSamples()
        self._distances: deque[float] = deque(maxlen=DISTANCES)

    def take(self, samples: Stamped, highest: float) -> int:
        """Add the new samples of a buffer; return how many were not from 0 to `highest`, and are left out.

        The first buffer only shows where to begin: an exporter that ran before this one has counted its samples.
        """
        before = self._new.stamp
        if before == float("-inf"):
            self._new.take(samples)
            return 0
        rejected = 0
        for stamp, value in self._new.take(samples):
            seconds, before = (stamp - before) / MICROSECONDS, stamp
            if not 0 <= value <= highest:
                rejected += 1
            elif self._is_period(seconds):
                self.total += value * seconds
        return rejected

    def _is_period(self, seconds: float) -> bool:
        """Return whether this distance to the previous sample is no gap, and no clock that was set."""
        if seconds <= 0:
            return False
        self._distances.append(seconds)
        period = min(sorted(self._distances)[len(self._distances) // 2], LONGEST_PERIOD_SECONDS)
        return seconds <= GAP_PERIODS * period
