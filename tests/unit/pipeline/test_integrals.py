"""Integrals and histograms of replayed GPUs have the means of the recordings, phase by phase."""

from __future__ import annotations

from itertools import groupby, pairwise
from math import fsum
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.selection import everything
from gpu_exporter.model.gpu import Sample
from gpu_exporter.model.metric import Metric, MetricSet, Pace
from gpu_exporter.pipeline.accumulator import INTEGRALS, Accumulator
from gpu_exporter.pipeline.histograms import histograms_of
from gpu_exporter.sources.recording.columns import HOLE_INTERVALS
from gpu_exporter.sources.recording.format import Tick, load, ticks
from gpu_exporter.sources.recording.replay import ReplaySource
from tests.conftest import RECORDINGS

ALL = (*m.selected(MetricSet.FULL), *m.histograms(MetricSet.FULL))
OBSERVED = {row.histogram_of: row for row in ALL if row.histogram_of and row is not m.IDLE_GAPS}
# The interval of reads in seconds; no tick has this length, so that reads begin and end within ticks.
STEP = 0.73
INTERVAL = 0.1


class Played:
    """One GPU of a recording, read at chosen times."""

    def __init__(self, path: Path, gpu: int) -> None:
        self.now = 0.0
        source = ReplaySource(load(path), clock=lambda: self.now)
        self._device = source.attach(gpu, everything().read_rows)
        self._accumulator, self._made = Accumulator(15.0), histograms_of(ALL)

    def until(self, at: float) -> tuple[Sample, ...]:
        """Read up to this time; return all values at it."""
        while self.now < at - 1e-9:
            self.now = min(self.now + STEP, at)
            samples = self._accumulator.apply(self._device.read(frozenset(Pace)), self._made)
        return samples


def value(samples: tuple[Sample, ...], metric: Metric, part: str = "") -> float:
    """Return the value of one series."""
    (found,) = [number for series, number in samples if series.metric is metric and series.part == part]
    return found


def mean(recorded: list[tuple[Tick, float]], metric: Metric) -> float:
    """Return the mean of ticks, each weighted with its seconds."""
    return fsum(tick.samples[metric.key] * span for tick, span in recorded) / fsum(span for _, span in recorded)


@pytest.mark.parametrize(("name", "gpu"), [("h200_workloads", 0), ("h200_x2_ddp", 0), ("h200_x2_ddp", 1)])
def test_each_phase_has_its_recorded_mean(name: str, gpu: int) -> None:
    """Within 1 %, for the integral and the histogram of every recorded profiling value."""
    path = RECORDINGS / f"{name}.jsonl.gz"
    of_gpu = [tick for tick in ticks(path) if tick.gpu.index == gpu]
    # Pauses between phases were cut out, and are not played.
    gaps = ((tick, tick.at - before.at) for before, tick in pairwise(of_gpu))
    spoken = [(tick, gap if gap < HOLE_INTERVALS * INTERVAL else INTERVAL) for tick, gap in gaps]
    played, at, phases = Played(path, gpu), 0.0, 0
    before = played.until(1e-3)
    for phase, group in groupby(spoken, lambda each: each[0].phase):
        recorded = list(group)
        took = fsum(span for _, span in recorded)
        at += took
        after = played.until(at)
        for metric, total in INTEGRALS.items():
            if metric.key not in recorded[0][0].samples:
                continue
            truth = pytest.approx(mean(recorded, metric), rel=0.01, abs=1e-4 if metric.unit == "ratio" else 1e5)
            assert (value(after, total) - value(before, total)) / took == truth, f"{metric} in {phase}"
            if row := OBSERVED.get(metric):
                summed, count = (value(after, row, part) - value(before, row, part) for part in ("_sum", "_count"))
                assert summed / count == truth, f"{row} in {phase}"
        before, phases = after, phases + 1

    assert phases == {"h200_workloads": 10, "h200_x2_ddp": 5}[name]
