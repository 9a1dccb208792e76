"""The highest value of the last minute. Its window ends by time, so that every Prometheus server sees the same."""

from __future__ import annotations

from collections import deque

from gpu_exporter.catalogue.metrics import GAUGES_OF_SAMPLES, METRICS

WINDOW_SECONDS = 60.0
# The peak of a gauge, and of the samples of a gauge.
PEAKS = {gauge: row for row in METRICS for gauge in row.peak_of}
PEAKS_OF_SAMPLES = {row: PEAKS[gauge] for row, gauge in GAUGES_OF_SAMPLES.items() if gauge in PEAKS}


class Peak:
    """The values that are, or will be, the highest of the window: later ones are lower. At most one for each second."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()

    def add(self, at: float, value: float) -> None:
        """Add a value that was read at this time (monotonic seconds)."""
        values = self._values
        while values and values[-1][1] <= value:
            values.pop()
        if not values or at - values[-1][0] >= 1.0:
            values.append((at, value))

    def highest(self, now: float) -> float | None:
        """Return the highest value of the window that ends now; None if it has none."""
        values = self._values
        while values and values[0][0] <= now - WINDOW_SECONDS:
            values.popleft()
        return values[0][1] if values else None
