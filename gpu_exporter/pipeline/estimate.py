"""A counter that is read rarely, as it probably is between two reads."""

from __future__ import annotations

from gpu_exporter.model.metric import Pace

# The longest time between two values of the gauge that counts. What the gauge was in a longer gap is unknown.
LONGEST_STEP_SECONDS = 10.0
# A counter that has not been read for longer than this stands still, because the errors of the gauge add up.
LONGEST_SECONDS = 2 * Pace.SLOW.value


class Estimate:
    """A counter, which rises with a gauge of its rate from one read to the next.

    Each read corrects it. If it was too high, it stands still until the counter has caught up: it never falls.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self._total = self._risen = 0.0
        self._gauge_at = self._read_at = -float("inf")

    def rise(self, at: float, rate: float) -> None:
        """Take the mean rate of the time since the last value of the gauge; `at` are monotonic seconds."""
        seconds, self._gauge_at = at - self._gauge_at, at
        if 0 < seconds <= LONGEST_STEP_SECONDS and at - self._read_at <= LONGEST_SECONDS:
            self._risen += rate * seconds
            self.value = max(self.value, self._total + self._risen)

    def read(self, at: float, total: float) -> None:
        """Take the counter itself."""
        self._total, self._risen, self._read_at = total, 0.0, at
        self.value = max(self.value, total)

    def interrupt(self) -> None:
        """Count nothing until the next value of the gauge: the GPU was not read."""
        self._gauge_at = -float("inf")
