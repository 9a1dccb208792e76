"""Peaks: the highest value of the last minute, by time and for each part of a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Reading, Series
from gpu_exporter.model.metric import Metric
from gpu_exporter.pipeline.accumulator import Accumulator
from gpu_exporter.pipeline.peaks import WINDOW_SECONDS, Peak

GPU = Gpu(0, "GPU-0")
TEMP, USED, TOTAL = Series(m.GPU_TEMP, GPU), Series(m.FB_USED, GPU), Series(m.FB_TOTAL, GPU)
SAMPLES, INSTANT, POWER = Series(m.POWER_SAMPLES, GPU), Series(m.POWER_INSTANT, GPU), Series(m.POWER, GPU)


def shown(accumulator: Accumulator) -> dict[Metric, float]:
    """Return the peaks."""
    return {series.metric: value for series, value in accumulator.samples() if series.metric.peak_of}


@given(st.lists(st.tuples(st.floats(0.05, 30), st.integers(0, 9)), min_size=1, max_size=60))
def test_the_highest_of_the_last_minute(reads: list[tuple[float, int]]) -> None:
    """To within a second at the end of the window, however often it is asked for."""
    peak, often, at, past = Peak(), Peak(), 0.0, list[tuple[float, int]]()
    for step, value in reads:
        at += step
        past.append((at, value))
        peak.add(at, value)
        often.add(at, value)
        highest = often.highest(at)
        assert highest is not None
        assert highest <= max(each for then, each in past if then > at - WINDOW_SECONDS)
        assert highest >= max(each for then, each in past if then > at - WINDOW_SECONDS + 1)

    assert peak.highest(at) == often.highest(at)
    assert peak.highest(at + WINDOW_SECONDS + 1) is None


def test_peaks_of_a_gpu() -> None:
    """They end by time, also while other values are read; memory is in bytes."""
    accumulator = Accumulator(15.0)
    accumulator.apply(Reading(0.0, {TEMP: 80.0, USED: 900.0, TOTAL: 1000.0}))
    accumulator.apply(Reading(3.0, {TEMP: 50.0, USED: 100.0}))
    assert shown(accumulator) == {m.TEMP_PEAK: 80.0, m.FB_USED_PEAK: 900 * m.MIB}
    accumulator.apply(Reading(60.0, {TEMP: 40.0}))
    assert shown(accumulator) == {m.TEMP_PEAK: 50.0, m.FB_USED_PEAK: 100 * m.MIB}
    accumulator.apply(Reading(64.0, {TEMP: 40.0}))
    assert shown(accumulator) == {m.TEMP_PEAK: 40.0}


@pytest.mark.parametrize("misread", [{TEMP: 0.0}, {TEMP: 1000.0}, {USED: 2000.0}])
def test_misread_values_are_no_peaks(misread: dict[Series, float]) -> None:
    """A value that is dropped does not show for another minute."""
    accumulator = Accumulator(15.0)
    accumulator.apply(Reading(0.0, {TEMP: 50.0, USED: 100.0, TOTAL: 1000.0}))
    before = shown(accumulator)
    accumulator.apply(Reading(1.0, misread))

    assert shown(accumulator) == before


def test_power_is_the_highest_that_any_row_has() -> None:
    """Samples of the driver's buffer, the latest one, and the mean of a second, where a GPU has nothing else."""
    accumulator = Accumulator(15.0)
    for at, reading, peak in (
        (0.0, {POWER: 300.0}, 300.0),
        (1.0, {POWER: 310.0, INSTANT: 400.0}, 400.0),
        (2.0, {POWER: 320.0, INSTANT: 100.0}, 400.0),
    ):
        accumulator.apply(Reading(at, reading))
        assert shown(accumulator) == {m.POWER_PEAK: peak}
    accumulator.apply(Reading(3.0, {POWER: 300.0}, buffered={SAMPLES: [(1.0, 100.0), (2.0, 923.0), (3.0, 1e9)]}))
    assert shown(accumulator) == {m.POWER_PEAK: 923.0}


def test_they_survive_a_new_handle_and_end_with_an_instance() -> None:
    """A GPU that is lost for some seconds still shows what came before; an instance that is gone shows nothing."""
    accumulator = Accumulator(15.0)
    part = Series(m.FB_USED, GPU, (("GPU_I_ID", "1"),))
    accumulator.apply(Reading(0.0, {TEMP: 80.0, part: 10.0}))
    assert m.FB_USED_PEAK in shown(accumulator)
    accumulator.apply(Reading(1.0, {TEMP: 50.0}, ended={part}))
    assert shown(accumulator) == {m.TEMP_PEAK: 80.0}
    accumulator.detach()
    assert accumulator.samples() == ()
    accumulator.apply(Reading(9.0, {Series(m.GPU_TEMP, GPU): 50.0}))
    assert shown(accumulator) == {m.TEMP_PEAK: 80.0}
