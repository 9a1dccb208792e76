"""Values that cannot be true: they have no sample, add nothing to totals, are counted, and logged once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series, XidEvent
from gpu_exporter.model.metric import Kind, Labels, Metric
from gpu_exporter.pipeline.accumulator import Accumulator
from tests.support.table import table_test

GPU = Gpu(0, "GPU-0")
JOULES, CLASSIC = Series(m.ENERGY_JOULES, GPU), Series(m.ENERGY, GPU)
START = 1_000_000.0
PERIOD = 15.0
# A GPU at 700 W, read every 15 s.
STEP = 700 * PERIOD


def value(samples: Sequence[Sample], metric: Metric, labels: Labels = ()) -> float | None:
    """Return the value of a series, if it has a sample."""
    return next((v for series, v in samples if series.metric is metric and series.labels == labels), None)


def rises(raws: Sequence[float], accumulator: Accumulator | None = None) -> list[float]:
    """Return by how much the energy counter has risen since the first read, after each later one."""
    accumulator = accumulator or Accumulator(15.0)
    totals = []
    for number, raw in enumerate(raws):
        samples = accumulator.apply(Reading(number * PERIOD, {JOULES: raw, CLASSIC: raw * 1000}))
        total = value(samples, m.ENERGY_JOULES)
        assert total is not None
        totals.append(total)
    return [total - totals[0] for total in totals]


@pytest.mark.parametrize("odd", [0.0, START / 2, START + 1e6, 9e12, math.nan, -1.0])
def test_one_odd_read_of_a_counter_adds_nothing(odd: float) -> None:
    """The total stays the same for one read, and then continues."""
    accumulator = Accumulator(15.0)

    assert rises([START, START + STEP, odd, START + 3 * STEP, START + 4 * STEP], accumulator) == [
        0,
        STEP,
        STEP,
        3 * STEP,
        4 * STEP,
    ]
    assert accumulator.rejected == {str(m.ENERGY): 1, str(m.ENERGY_JOULES): 1}


@pytest.mark.parametrize("odd", [0.0, 1e6, 9e15])
def test_a_classic_counter_keeps_its_value_over_an_odd_read(odd: float) -> None:
    """Prometheus would take the fall for a reset, and then add the whole counter."""
    accumulator = Accumulator(15.0)
    shown = [
        value(accumulator.apply(Reading(number * PERIOD, {CLASSIC: raw})), m.ENERGY)
        for number, raw in enumerate((START * 1000, odd, START * 1000 + 7))
    ]

    assert shown == [START * 1000, START * 1000, START * 1000 + 7]


@pytest.mark.parametrize(
    ("restart", "counted"),
    [
        (0.0, STEP),
        (50_000.0, 50_000 + STEP),  # the counter has counted that since its restart
        (0.6 * START, STEP),  # no GPU uses 600 kJ in 15 s: only the energy since then is certain
    ],
)
def test_a_counter_that_stays_low_was_reset(restart: float, counted: float) -> None:
    """The second read confirms the reset; from then on, everything counts."""
    accumulator = Accumulator(15.0)

    assert rises([START, restart, restart + STEP, restart + 2 * STEP], accumulator) == [
        0,
        0,
        counted,
        counted + STEP,
    ]


def test_a_jump_that_stays_is_a_new_base() -> None:
    """The jump is not counted; what follows is."""
    assert rises([START, START * 1000, START * 1000 + STEP, START * 1000 + 2 * STEP]) == [0, 0, STEP, 2 * STEP]


def test_after_a_new_handle_a_restart_counts_at_once() -> None:
    """A reloaded driver starts at 0, but not at a value that no GPU reaches in that time."""
    accumulator = Accumulator(15.0)
    accumulator.apply(Reading(0.0, {JOULES: START}))
    accumulator.detach()
    assert value(accumulator.apply(Reading(60.0, {JOULES: 2000.0})), m.ENERGY_JOULES) == START + 2000
    accumulator.detach()
    accumulator.apply(Reading(120.0, {JOULES: 1e9}))
    assert value(accumulator.apply(Reading(135.0, {JOULES: 2000.0 + STEP})), m.ENERGY_JOULES) == START + 2000 + STEP


def test_counters_of_a_replay_rise_with_its_speed() -> None:
    """The limits on rates are for drivers only."""
    assert rises([0.0, 1e9, 2e9], Accumulator(15.0, check_rates=False)) == [0, 1e9, 2e9]


@given(st.lists(st.floats(0, 1e12), min_size=2, max_size=30))
def test_a_total_never_falls_or_rises_faster_than_possible(raws: list[float]) -> None:
    """Whatever the driver returns."""
    seen = rises(raws)
    steps = [after - before for before, after in pairwise(seen)]

    assert all(0 <= step <= m.ENERGY_JOULES.rate * (PERIOD * len(raws) + 5) for step in steps)


def test_memory_in_use_is_at_most_the_total() -> None:
    """For each MIG instance by itself, in any order of reads."""
    instance = (("GPU_I_ID", "1"),)
    accumulator = Accumulator(15.0)
    values = {
        Series(m.FB_USED, GPU): 100_001.0 * 2,
        Series(m.FB_FREE, GPU): 20.0,
        Series(m.FB_TOTAL, GPU): 100_000.0,
        Series(m.FB_USED, GPU, instance): 30.0,
        Series(m.FB_TOTAL, GPU, instance): 30.0,
    }
    samples = accumulator.apply(Reading(1.0, values))

    assert value(samples, m.FB_USED) is None
    assert value(samples, m.FB_USED, instance) == 30.0
    assert (value(samples, m.FB_FREE), value(samples, m.FB_TOTAL)) == (20.0, 100_000.0)
    assert accumulator.rejected == {str(m.FB_USED): 1}


def test_dropped_values_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    accumulator, temperature = Accumulator(15.0), Series(m.GPU_TEMP, GPU)
    for number in range(3):
        accumulator.apply(Reading(number, {temperature: 808.0}))

    assert caplog.messages == [
        "GPU 0: DCGM_FI_DEV_GPU_TEMP: dropped 808: outside 0 to 150. This is logged once; gpu_samples_rejected_total"
        " counts all"
    ]
    assert accumulator.rejected == {str(m.GPU_TEMP): 3}


@pytest.mark.parametrize(
    ("zeros", "kept"),
    [
        ((m.FB_TOTAL, m.FB_FREE, m.FB_USED, m.FB_RESERVED, m.FB_USED_RATIO), ()),
        ((m.FB_FREE, m.FB_USED), (m.FB_FREE, m.FB_USED)),  # nothing says that the total is unknown
        ((m.BAR1_TOTAL, m.BAR1_USED), ()),
        ((m.POWER_LIMIT, m.POWER_SET, m.POWER, m.POWER_INSTANT, m.ENERGY), ()),
        ((m.POWER, m.POWER_SET), (m.POWER,)),
        ((m.MAX_SM_CLOCK, m.MAX_MEM_CLOCK, m.SM_CLOCK, m.MEM_CLOCK), ()),
        ((m.GPU_TEMP, m.MEMORY_TEMP, m.SHUTDOWN_TEMP, m.SLOWDOWN_TEMP, m.TEMP_MARGIN), ()),
        ((m.TEMP_MARGIN,), (m.TEMP_MARGIN,)),
        ((m.PCIE_GEN, m.PCIE_MAX_WIDTH), ()),
        (
            (m.GPU_UTIL, m.ECC_DBE_VOL, m.PSTATE, m.FAN, m.NVLINK_COUNT),
            (m.GPU_UTIL, m.ECC_DBE_VOL, m.PSTATE, m.FAN, m.NVLINK_COUNT),
        ),
    ],
    ids=lambda rows: " ".join(map(str, rows)),
)
def test_a_zero_that_cannot_be_is_no_value(
    zeros: Sequence[Metric], kept: Sequence[Metric], caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that only returns such a 0 does not know the value, nor what belongs to it. It was not misread."""
    accumulator, series = Accumulator(15.0), [Series(metric, GPU) for metric in zeros]
    for number in range(2):
        samples = accumulator.apply(Reading(number, dict.fromkeys(series, 0.0)))
        assert [series.metric for series, _ in samples if not series.metric.peak_of] == [*kept]
        assert accumulator.unknown() == {metric: "no_value" for metric in zeros if metric not in kept}
    assert (dict(accumulator.rejected), caplog.messages) == ({}, [])


def test_a_zero_after_another_value_was_misread() -> None:
    """And of two MIG instances, one may have a value that the other lacks."""
    accumulator, total = Accumulator(15.0), [Series(m.FB_TOTAL, GPU, (("GPU_I_ID", str(n)),)) for n in range(2)]
    accumulator.apply(Reading(0, {total[0]: 100.0, total[1]: 0.0}))
    assert (dict(accumulator.rejected), accumulator.unknown()) == ({}, {})
    assert accumulator.apply(Reading(1, dict.fromkeys(total, 0.0))) == ()
    assert accumulator.rejected == {m.FB_TOTAL.name: 1}
    assert accumulator.apply(Reading(2, dict.fromkeys(total, 50.0))) == (Sample(total[0], 50.0), Sample(total[1], 50.0))


def test_impossible_xid_codes_are_dropped() -> None:
    """The driver's event has 64 bits for the code."""
    accumulator = Accumulator(15.0)
    events = [XidEvent(1.0, "00000000:06:00.0", code) for code in (79, 2**63, 31)]

    assert [event.code for event in accumulator.plausible_xids(events)] == [79, 31]
    assert accumulator.rejected == {str(m.XID_ERRORS): 1}


def test_no_mean_without_a_positive_span() -> None:
    """A clock may make a span 0 or negative."""
    accumulator, sm = Accumulator(15.0), Series(m.SM_ACTIVE, GPU)
    accumulator.apply(Reading(1.0, {sm: 0.5}, 1.0))

    for span in (0.0, -3.0):
        assert value(accumulator.apply(Reading(2.0, {sm: 0.5}, span)), m.SM_SECONDS) == 0.5


@table_test(
    "metric", [row for row in METRICS if row.kind is Kind.COUNTER and row.nvml is not None], lambda row: row.key
)
def test_each_counter_of_the_driver_has_a_rate_limit(metric: Metric) -> None:
    """By its unit, and less than a 32-bit overflow between two reads."""
    assert metric.rate < math.inf, "fix: give its unit a rate in FASTEST of gpu_exporter/model/metric.py"
    assert metric.high < 2.0**63
