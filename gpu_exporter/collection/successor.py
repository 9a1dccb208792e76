"""A second handle of the same GPU, which replaces the current one when other metrics are to be read."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.collection.gpu_record import GpuRecord
from gpu_exporter.model.gpu import Reading
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.source import Device

# Until it takes over, each collection reads the GPU twice, but no more than this many.
MOST_REHEARSALS = 5


class Successor:
    """A handle that was attached for other metrics while the previous one is still in use.

    Means need two reads. So that no series has a gap, the successor takes over only when it has values of all metrics
    that both handles read.
    """

    def __init__(self, device: Device, metrics: Sequence[Metric]) -> None:
        self.device, self.metrics = device, metrics
        self._rehearsals = 0

    def read(self, record: GpuRecord) -> Reading | None:
        """Read, and return the reading if this handle can take over. Raises GpuLost, SourceLost."""
        reading = self.device.read(frozenset(Pace))
        self._rehearsals += 1
        answered = {(series.metric, series.labels) for series in (*reading.values, *reading.failed)}
        missing = [
            series
            for series, _ in record.samples
            if series.metric in self.metrics
            and not series.part  # a histogram continues with its totals
            and series.metric not in reading.unsupported
            and (series.metric, series.labels) not in answered
        ]
        return None if missing and self._rehearsals < MOST_REHEARSALS else reading
