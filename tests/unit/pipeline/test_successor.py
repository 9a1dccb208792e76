"""A handle for other metrics takes over when it has all values that both handles read, or after some reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.pipeline.gpu_state import GpuState
from gpu_exporter.pipeline.worker import MOST_REHEARSALS, Successor
from tests.unit.pipeline.test_metrics_change import FakeDevice

GPU = Gpu(0, "GPU-0")
BOTH = (m.SM_ACTIVE, m.GPU_TEMP)


class Answers(FakeDevice):
    """A device that returns these readings one after another, and then repeats the last one."""

    def __init__(self, *readings: Reading) -> None:
        super().__init__(BOTH)
        self._readings = list(readings)

    def read(self, paces: frozenset[Pace]) -> Reading:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def reading(values: Sequence[Metric], failed: Sequence[Metric] = (), unsupported: Sequence[Metric] = ()) -> Reading:
    """Return a reading with these metrics."""
    return Reading(
        0.0,
        {Series(metric, GPU): 0.5 for metric in values},
        failed={Series(metric, GPU): "unknown" for metric in failed},
        unsupported=dict.fromkeys(unsupported, "not_supported"),
    )


SAMPLED = Series(m.GPU_UTIL_SECONDS, GPU)


def sampled(*stamps: float) -> Reading:
    """Return a reading with these samples of the driver's buffer."""
    return replace(reading(BOTH), buffered={SAMPLED: [(stamp, 0.5) for stamp in stamps]})


@pytest.mark.parametrize(
    ("readings", "shown", "reads"),
    [
        ([reading(BOTH)], BOTH, 1),
        ([reading([m.GPU_TEMP]), reading(BOTH)], BOTH, 2),  # means need two reads
        ([reading([m.GPU_TEMP])], [m.GPU_TEMP, m.POWER], 1),  # POWER is not read any more
        ([reading([m.GPU_TEMP], failed=[m.SM_ACTIVE])], BOTH, 1),
        ([reading([m.GPU_TEMP], unsupported=[m.SM_ACTIVE])], BOTH, 1),
        ([reading([m.GPU_TEMP])], BOTH, MOST_REHEARSALS),
        ([reading([m.GPU_TEMP]), sampled(2.0)], (*BOTH, m.GPU_UTIL_SECONDS), 2),
    ],
)
def test_it_takes_over_when_nothing_is_missing(
    readings: Sequence[Reading], shown: Sequence[Metric], reads: int
) -> None:
    state = GpuState(GPU, 15.0)
    state.samples = tuple(Sample(Series(metric, GPU), 1.0) for metric in shown)
    successor = Successor(Answers(*readings), (*BOTH, m.GPU_UTIL_SECONDS))
    results = [successor.read(state) for _ in range(reads)]

    assert [result is None for result in results] == [True] * (reads - 1) + [False]


def test_samples_of_the_first_reads_are_not_lost() -> None:
    """The driver returns each sample once to a handle, and the previous handle may not have read them."""
    state = GpuState(GPU, 15.0)
    state.samples = tuple(Sample(Series(metric, GPU), 1.0) for metric in BOTH)
    first = replace(sampled(1.0, 2.0), values={Series(m.GPU_TEMP, GPU): 0.5})
    successor = Successor(Answers(first, sampled(3.0)), (*BOTH, m.GPU_UTIL_SECONDS))
    assert successor.read(state) is None
    taken = successor.read(state)

    assert taken is not None
    assert [stamp for stamp, _ in taken.buffered[SAMPLED]] == [1.0, 2.0, 3.0]
