"""Metrics that are sums of others, such as the NVLink traffic in both directions.

They are computed from the samples of a page, so they have the same window as their parts and cost no driver call. DCGM
has fields for some of them. Where it lacks the parts, the value that it read for the sum is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum

from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Labels, Metric, scaled


class Sums:
    """The sums among these metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._rows = tuple(row for row in metrics if row.sum_of)
        self._used = frozenset(self._rows) | {part for row in self._rows for part in row.sum_of}
        self._series: dict[tuple[Metric, Gpu | None, Labels], Series] = {}

    def samples(self, samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """Return the samples of a GPU with the sums added. A sum without all of its parts has no sample."""
        if not self._rows:
            return samples
        known: dict[Metric, dict[Labels, Sample]] = defaultdict(dict)
        for sample in samples:
            series = sample.series
            if series.metric in self._used:
                known[series.metric][series.labels] = sample
        rows = [row for row in self._rows if row not in known]
        return (*samples, *(sample for row in rows for sample in self._sums(row, known)))

    def _sums(self, row: Metric, known: Mapping[Metric, Mapping[Labels, Sample]]) -> list[Sample]:
        parts = [known.get(part, {}) for part in row.sum_of]
        return [
            Sample(
                self._of(row, sample.series.gpu, labels),
                scaled(fsum(part[labels].value for part in parts), row.scale),
            )
            for labels, sample in parts[0].items()
            if all(labels in part for part in parts)
        ]

    def _of(self, row: Metric, gpu: Gpu | None, labels: Labels) -> Series:
        """Return the same series for the same arguments each time."""
        key = (row, gpu, labels)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(*key)
        return series

    def unsupported(self, by_source: Mapping[Metric, str]) -> Mapping[Metric, str]:
        """Return why a GPU has no value of a metric. A sum that the source does not read lacks what its parts lack."""
        if not self._rows:
            return by_source
        reasons = {metric: why for metric, why in by_source.items() if not metric.sum_of}
        missing = {row: [part for part in row.sum_of if part in by_source] for row in self._rows if row in by_source}
        return {**reasons, **{row: by_source[parts[0]] for row, parts in missing.items() if parts}}
