"""Values between two scrapes are counted once, by time, and counts never fall."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.selection import everything
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Metric, MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline.accumulator import Accumulator
from gpu_exporter.pipeline.histograms import histograms_of
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer
from gpu_exporter.pipeline.settings import DEFAULT_SETTINGS, make_plan

GPU = Gpu(0, "GPU-0")
MADE = histograms_of(m.METRICS)
SM, POWER = Series(m.SM_ACTIVE, GPU), Series(m.POWER_SAMPLES, GPU)
# Those of training loops are not made here.
ROWS = [row for row in m.METRICS if row.edges and row.set is not MetricSet.JOB]


def of(samples: tuple[Sample, ...], metric: Metric, part: str) -> list[float]:
    """Return the values of a histogram's buckets, sum or count, in the order of the page."""
    return [value for series, value in samples if series.metric is metric and series.part == part]


def apply(accumulator: Accumulator, at: float, *shares: float, span: float = 1.0) -> tuple[Sample, ...]:
    """Apply ticks with these means of SM active."""
    samples: tuple[Sample, ...] = ()
    for n, share in enumerate(shares):
        samples = accumulator.apply(Reading(at + n * span, {SM: share}, span), MADE)
    return samples


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_is_well_formed(row: Metric) -> None:
    """Edges rise, are in range and are in the help text; all histograms are in the full set."""
    assert list(row.edges) == sorted(set(row.edges))
    assert row.low < row.edges[0]
    assert row.set is MetricSet.FULL
    assert (row.histogram_of is None) == (row.nvml is not None)


@given(st.lists(st.tuples(st.floats(0.1, 40), st.floats(0, 1)), min_size=1, max_size=60))
def test_a_distribution_is_weighted_by_time(ticks: list[tuple[float, float]]) -> None:
    """Each millisecond is an observation, whatever the spans, and the mean is that of the integral."""
    accumulator, at = Accumulator(15.0), 0.0
    for span, share in ticks:
        at += span
        samples = accumulator.apply(Reading(at, {SM: share}, span), MADE)

    (count,), (total,) = of(samples, m.SM_SHARES, "_count"), of(samples, m.SM_SHARES, "_sum")
    assert count == pytest.approx(at * 1000, abs=1)
    integral = math.fsum(span * share for span, share in ticks)
    assert total / 1000 == pytest.approx(integral, rel=1e-6, abs=1e-6)
    buckets = of(samples, m.SM_SHARES, "_bucket")
    assert buckets == sorted(buckets)
    assert buckets[-1] == count


def test_jitter_loses_no_observation() -> None:
    """A thousand ticks of almost a second are a thousand seconds."""
    samples = apply(Accumulator(15.0), 0, *[0.5] * 1000, span=0.9999)

    assert of(samples, m.SM_SHARES, "_count") == [999_900]
    assert of(samples, m.SM_SHARES, "_sum") == [499_950]


def test_longer_ticks_get_no_more_than_their_share() -> None:
    """Load in step with the ticks makes some of them longer: on an H200 this changed the mean by 4 %."""
    accumulator, at = Accumulator(15.0), 0.0
    for share, span in [(1.0, 0.095), (0.0, 0.105)] * 100:
        at += span
        samples = accumulator.apply(Reading(at, {SM: share}, span), MADE)

    (count,), (total,) = of(samples, m.SM_SHARES, "_count"), of(samples, m.SM_SHARES, "_sum")
    assert total / count == pytest.approx(0.475)
    assert of(samples, m.SM_SHARES, "_bucket")[0] / count == pytest.approx(0.525)


def test_a_value_on_an_edge_is_in_its_bucket() -> None:
    """`le` includes the edge."""
    buckets = of(apply(Accumulator(15.0), 0, 0.1, 0.100001, 1.0005), m.SM_SHARES, "_bucket")

    assert buckets == [0, 1000, *[2000] * 8, 3000, 3000]


def test_a_gap_is_observed_when_it_ends() -> None:
    """Three idle ticks, then work; the next gap has not ended. Sequences of tiny kernels have no gap."""
    accumulator = Accumulator(15.0)
    assert of(apply(accumulator, 0, 0.0, 0.0, 0.0), m.IDLE_GAPS, "_count") == [0]
    samples = apply(accumulator, 3, 0.4, 0.00021, 0.0)

    assert of(samples, m.IDLE_GAPS, "_count") == [1]
    assert of(samples, m.IDLE_GAPS, "_sum") == [3.0]


def test_a_loss_cuts_a_gap_off_and_keeps_the_counts() -> None:
    """What happened during the loss is unknown."""
    accumulator = Accumulator(15.0)
    before = apply(accumulator, 0, 0.9, 0.0, 0.0)
    accumulator.detach()
    assert accumulator.apply(Reading(3, {}), MADE) == ()
    after = apply(accumulator, 9, 0.9)

    assert of(after, m.IDLE_GAPS, "_count") == [0]
    assert of(before, m.SM_SHARES, "_count") == [3000]
    assert of(after, m.SM_SHARES, "_count") == [4000]


@given(st.lists(st.integers(1, 150), min_size=1, max_size=40), st.integers(0, 200))
def test_every_buffered_sample_counts_once(steps: list[int], deep: int) -> None:
    """With overlapping reads and changing handles, each sample that was ever read from a buffer counts once."""
    accumulator, now, seen = Accumulator(15.0), 1000, set[int]()
    for n, step in enumerate(steps):
        now += step
        stamps = range(now - deep, now + 1)
        seen.update(stamps)
        if n % 7 == 3:
            accumulator.detach()
        buffered = {POWER: [(float(stamp), 100.0 + stamp % 700) for stamp in stamps]}
        samples = accumulator.apply(Reading(n, {}, buffered=buffered))

    assert of(samples, m.POWER_SAMPLES, "_count") == [len(seen)]
    assert of(samples, m.POWER_SAMPLES, "_sum") == [sum(100.0 + stamp % 700 for stamp in seen)]


def test_a_clock_that_is_set_back_loses_one_buffer() -> None:
    """The driver's time stamps are those of the machine's clock."""
    accumulator = Accumulator(15.0)
    counts = []
    for newest in (5000, 1000, 1050):
        buffered = {POWER: [(float(stamp), 100.0) for stamp in range(newest - 99, newest + 1)]}
        counts += of(accumulator.apply(Reading(0, {}, buffered=buffered)), m.POWER_SAMPLES, "_count")

    assert counts == [100, 100, 150]


def test_values_out_of_range_are_rejected() -> None:
    """It is counted as rejected, once."""
    accumulator = Accumulator(15.0)
    taken = [(1.0, 100.0), (2.0, 1e9), (3.0, math.nan)]
    for _ in range(2):
        samples = accumulator.apply(Reading(0, {}, buffered={POWER: taken}))

    assert of(samples, m.POWER_SAMPLES, "_count") == [1]
    assert accumulator.rejected == {m.POWER_SAMPLES.name: 2}


def test_histograms_of_a_removed_instance() -> None:
    """Each MIG instance has its own histograms, which end with it."""
    accumulator = Accumulator(15.0)
    parts = [Series(m.SM_ACTIVE, GPU, (("GPU_I_ID", n),)) for n in "12"]
    samples = accumulator.apply(Reading(1, dict.fromkeys(parts, 0.5), 1.0), MADE)
    assert of(samples, m.SM_SHARES, "_count") == [1000, 1000]
    samples = accumulator.apply(Reading(2, {parts[1]: 0.5}, 1.0, ended={parts[0]}), MADE)

    assert of(samples, m.SM_SHARES, "_count") == [2000]
    assert {dict(series.labels)["GPU_I_ID"] for series, _ in samples} == {"2"}


@pytest.mark.parametrize("choice", MetricSet)
def test_only_the_full_set_has_them(choice: MetricSet) -> None:
    """They would exceed the default set's budget. Sources are not asked for what the loop computes."""
    asked = everything(choice).read_rows
    plan = make_plan(asked, DEFAULT_SETTINGS, xids_reported=True)

    assert {row for row in asked if row.edges} == (set(ROWS) if choice is MetricSet.FULL else set())
    assert {row for rows in plan.histograms.values() for row in rows} | {row for row in plan.metrics if row.edges} == {
        row for row in asked if row.edges
    }
    assert [row for row in plan.metrics if row.nvml is None and row.histogram_of] == []


@pytest.mark.parametrize("openmetrics", [False, True])
def test_both_parsers_read_them(openmetrics: bool) -> None:
    """Two GPUs: families are histograms with sorted buckets, and `le` has the same form in both formats."""
    samples: tuple[Sample, ...] = ()
    for n in range(2):
        gpu = Gpu(n, f"GPU-{n}")
        reading = Reading(1, {Series(m.SM_ACTIVE, gpu): 0.5}, 1.0, buffered={Series(m.POWER_SAMPLES, gpu): [(1, 99.5)]})
        samples += Accumulator(15.0).apply(reading, MADE)
    text = Renderer("n").render(Snapshot(0, "nvml", samples)).body(Variant(openmetrics, False)).decode()
    families = {each.name: each for each in (parse_openmetrics if openmetrics else parse_text)(text)}

    for row in (m.SM_SHARES, m.IDLE_GAPS, m.POWER_SAMPLES):
        assert families[row.name].type == "histogram"
        for gpu_label in "01":
            found = [s for s in families[row.name].samples if s.labels["gpu"] == gpu_label]
            assert [s.labels["le"] for s in found if s.name.endswith("_bucket")] == [*map(str, row.edges), "+Inf"]
            assert [s.name.removeprefix(row.name) for s in found][-2:] == ["_sum", "_count"]
