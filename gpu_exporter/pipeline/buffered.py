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
    """The integral of samples over time. Each counts for the time since the one before, however reads are split.

    Each sample counts `delay` seconds after it was taken. If that is the time between two reads, the integral always
    ends equally long ago, so its rate is right over any time; otherwise, it would rise once for each read.
    """

    def __init__(self, delay: float) -> None:
        self._delay, self._total = delay, 0.0
        # When a sample counts, in monotonic seconds, and its part of the integral.
        self._waiting: deque[tuple[float, float]] = deque()
        self._new = NewSamples()
        self._distances: deque[float] = deque(maxlen=DISTANCES)

    def total(self, at: float) -> float:
        """Return the integral as of this time."""
        while self._waiting and self._waiting[0][0] <= at:
            self._total += self._waiting.popleft()[1]
        return self._total

    def take(self, samples: Stamped, highest: float, at: float) -> int:
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
                age = (samples[-1][0] - stamp) / MICROSECONDS  # anything, if the clock was set
                self._waiting.append((at + self._delay - min(max(age, 0.0), self._delay), value * seconds))
        return rejected

    def _is_period(self, seconds: float) -> bool:
        """Return whether this distance to the previous sample is no gap, and no clock that was set."""
        if seconds <= 0:
            return False
        self._distances.append(seconds)
        period = min(sorted(self._distances)[len(self._distances) // 2], LONGEST_PERIOD_SECONDS)
        return seconds <= GAP_PERIODS * period
