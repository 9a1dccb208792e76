"""The accumulator makes samples of readings: windows, integrals, counters, ranges."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Metric, MetricSet
from gpu_exporter.pipeline.accumulator import Accumulator

GPU = Gpu(0, "GPU-0")


def series(metric: Metric) -> Series:
    """Return a series of the one GPU."""
    return Series(metric, GPU)


def value_of(samples: tuple[Sample, ...], metric: Metric) -> float | None:
    """Return the value of a metric, or None without a sample."""
    return next((value for one, value in samples if one.metric is metric), None)


def test_the_gauge_is_the_mean_over_the_window_and_the_integral_over_all() -> None:
    """Ten seconds at 0, ten at 1: a window of 4 s has a mean of 1, the integral is 10 s."""
    accumulator, sm = Accumulator(gauge_window=4.0), series(m.SM_ACTIVE)
    for second in range(1, 21):
        samples = accumulator.apply(Reading(second, {sm: float(second > 10)}, span=1.0))
        if second == 12:
            assert value_of(samples, m.SM_ACTIVE) == 0.5

    assert value_of(samples, m.SM_ACTIVE) == 1.0
    assert value_of(samples, m.SM_SECONDS) == 10.0


@given(st.lists(st.tuples(st.floats(0.1, 30), st.floats(0, 1)), min_size=1, max_size=50), st.floats(0.5, 20))
def test_integral_and_window_agree_with_the_sum(ticks: list[tuple[float, float]], window: float) -> None:
    """Whatever the spans, the integral is the exact sum, and the gauge is within the range of its window."""
    accumulator, sm, at = Accumulator(window), series(m.SM_ACTIVE), 0.0
    for span, value in ticks:
        at += span
        samples = accumulator.apply(Reading(at, {sm: value}, span))

    total = value_of(samples, m.SM_SECONDS)
    assert total == pytest.approx(math.fsum(span * value for span, value in ticks), abs=1e-6)
    gauge = value_of(samples, m.SM_ACTIVE)
    assert gauge is not None
    assert min(v for _, v in ticks) - 1e-6 <= gauge <= max(v for _, v in ticks) + 1e-6


def test_without_a_span_profiling_stands_still() -> None:
    """A tick that is too early for GPM changes and drops nothing."""
    accumulator, sm, power = Accumulator(15), series(m.SM_ACTIVE), series(m.POWER)
    accumulator.apply(Reading(1, {sm: 0.5, power: 100.0}, span=1.0))
    samples = accumulator.apply(Reading(1.05, {power: 200.0}))

    assert (value_of(samples, m.SM_ACTIVE), value_of(samples, m.POWER)) == (0.5, 200.0)


def test_own_counters_continue_over_a_reload() -> None:
    """The driver's energy counter restarts at 0; `gpu_*` counters do not fall, the classic one equals the driver's."""
    accumulator = Accumulator(15)
    seen = []
    for raws in ((1000.0, 1500.0), (0.0, 200.0)):
        accumulator.detach()
        joules, classic = series(m.ENERGY_JOULES), series(m.ENERGY)
        for at, raw in enumerate(raws):
            samples = accumulator.apply(Reading(at, {joules: raw, classic: raw * 1000}))
            seen.append((value_of(samples, m.ENERGY_JOULES), value_of(samples, m.ENERGY)))

    assert seen == [(1000, 1_000_000), (1500, 1_500_000), (1500, 0), (1700, 200_000)]


def test_new_handle() -> None:
    """Integrals continue; a gauge does not mix values from before and after."""
    accumulator = Accumulator(15)
    accumulator.apply(Reading(1, {series(m.SM_ACTIVE): 1.0}, span=1.0))
    accumulator.detach()
    samples = accumulator.apply(Reading(9, {series(m.SM_ACTIVE): 0.5}, span=1.0))

    assert (value_of(samples, m.SM_SECONDS), value_of(samples, m.SM_ACTIVE)) == (1.5, 0.5)


@pytest.mark.parametrize("value", [808.0, -1.0, math.nan, math.inf, 2.0**32 - 1, 9223372036854775794.0])
def test_absurd_values_have_no_sample_and_are_counted(value: float) -> None:
    """Sentinels and garbage are dropped: the previous value is not kept either."""
    accumulator, util = Accumulator(15), series(m.GPU_UTIL)
    accumulator.apply(Reading(1, {util: 50.0}))
    samples = accumulator.apply(Reading(2, {util: value}))

    assert value_of(samples, m.GPU_UTIL) is None
    assert accumulator.rejected == {"DCGM_FI_DEV_GPU_UTIL": 1}


@given(st.dictionaries(st.sampled_from(m.selected(MetricSet.FULL)), st.floats(), max_size=20), st.floats(0.1, 10))
def test_samples_are_finite_and_in_range(raw: dict[Metric, float], span: float) -> None:
    """Whatever a source reads, exposed values are in the range of their row."""
    samples = Accumulator(15).apply(Reading(1, {series(metric): value for metric, value in raw.items()}, span))

    assert [s for s in samples if not s.series.metric.low <= s.value <= s.series.metric.high] == []
    assert all(math.isfinite(s.value) for s in samples)


def test_a_failed_field_affects_only_its_gauge() -> None:
    """The gauge has no sample, a counter keeps its value, and the outcome is counted."""
    accumulator, power, energy = Accumulator(15), series(m.POWER), series(m.ENERGY_JOULES)
    accumulator.apply(Reading(1, {power: 100.0, energy: 5.0}))
    samples = accumulator.apply(Reading(2, {}, failed={power: "unknown", energy: "unknown"}))

    assert (value_of(samples, m.POWER), value_of(samples, m.ENERGY_JOULES)) == (None, 5.0)
    assert accumulator.field_failures["DCGM_FI_DEV_POWER_USAGE", "unknown"] == 1


def test_jitter_is_no_reset() -> None:
    """A counter that steps back a little is not counted twice. A reset counts once a second read confirms it."""
    accumulator, joules = Accumulator(15), series(m.ENERGY_JOULES)
    seen = [
        value_of(accumulator.apply(Reading(at, {joules: raw})), m.ENERGY_JOULES)
        for at, raw in enumerate((1000.0, 1001.0, 1000.999, 1002.0, 3.0, 4.0))
    ]

    assert seen == [1000, 1001, 1001, 1002, 1002, 1006]
