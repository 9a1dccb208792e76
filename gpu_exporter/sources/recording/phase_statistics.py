"""The statistics of a recording's values, which the simulation reproduces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, mode, pstdev
from typing import NamedTuple

from gpu_exporter.model.gpu import Gpu
from gpu_exporter.sources.recording.format import SETTLE_SECONDS, ticks


class ValueStatistics(NamedTuple):
    """The statistics of one value in a phase; `mode` is the most frequent value."""

    mean: float
    deviation: float
    low: float
    high: float
    mode: float


def statistics(path: Path) -> tuple[Gpu, Mapping[str, Mapping[str, ValueStatistics]]]:
    """Return the first GPU of a recording, and by phase the statistics of every value after the first seconds.

    Raises GpuExporterError as `load` does.
    """
    begun: dict[int, tuple[str, float]] = {}
    by_phase: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    first: Gpu | None = None
    for t, gpu, phase, samples in ticks(path):
        first = first or gpu
        if begun.get(gpu.index, ("", 0.0))[0] != phase:
            begun[gpu.index] = phase, t
        if phase and t - begun[gpu.index][1] >= SETTLE_SECONDS:
            for name, value in samples.items():
                by_phase[phase][name].append(value)
    return first or Gpu(0), {
        phase: {name: _statistics_of(values) for name, values in columns.items()} for phase, columns in by_phase.items()
    }


def _statistics_of(values: Sequence[float]) -> ValueStatistics:
    return ValueStatistics(fmean(values), pstdev(values), min(values), max(values), mode(values))
