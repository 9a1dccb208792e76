"""Integrals of the samples that the driver keeps: each sample counts once, for the time since the one before."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series
from gpu_exporter.model.metric import Pace
from gpu_exporter.pipeline.accumulator import Accumulator

GPU = Gpu(0, "GPU-0")
UTIL, MEMORY = Series(m.GPU_UTIL_SECONDS, GPU), Series(m.MEM_UTIL_SECONDS, GPU)
ENGINES = [Series(row, GPU) for row in (m.ENC_UTIL_SECONDS, m.DEC_UTIL_SECONDS, m.JPG_UTIL_SECONDS, m.OFA_UTIL_SECONDS)]
# When all samples of a read count.
DELAY = Pace.BUFFERED.value
# In milliseconds, as the driver of an H100.
PERIOD = 200
Ring = list[tuple[float, float]]


def ring(first: int, last: int, value: float = 0.5) -> Ring:
    """Return samples from one time to another (milliseconds)."""
    return [(at * 1000.0, value) for at in range(first, last + 1, PERIOD)]


def total(buffers: Sequence[Ring], series: Series = UTIL) -> float:
    """Return the integral after these reads."""
    accumulator = Accumulator(15.0)
    for buffer in buffers:
        accumulator.apply(Reading(0, {}, buffered={series: buffer}))
    return dict(accumulator.apply(Reading(DELAY, {})))[series]


START = ring(10_000, 20_000)
CASES: dict[str, tuple[list[Ring], float]] = {
    "the first read only shows where to begin": ([START], 0.0),
    "5 s": ([START, ring(20_200, 25_000)], 2.5),
    "the whole buffer again, with 5 s": ([START, ring(11_000, 25_000)], 2.5),
    "twice the same buffer": ([START, START], 0.0),
    "no samples for a time, then all that the driver kept": ([START, [], [], ring(11_000, 25_000)], 2.5),
    "a stall of 20 s: the 14 s that the driver kept count": ([START, ring(26_000, 40_000)], 7.0),
    "a gap of 2 s among the samples": ([START, ring(20_200, 22_000) + ring(24_000, 25_000)], 1.5),
    "one sample that is late": ([START, [(20_400_000.0, 0.5), *ring(20_600, 21_000)]], 0.5),
    "the driver was loaded anew": ([START, ring(50_000, 51_000), ring(51_200, 52_000)], 1.0),
    "the clock was set forward by an hour": ([START, ring(20_200, 21_000) + ring(3_621_200, 3_622_000)], 0.9),
    "the clock was set back by an hour": (
        [ring(4_000_000, 4_010_000), ring(4_005_000, 4_011_000) + ring(411_200, 413_000)],
        0.5 + 0.9,
    ),
    "the clock was set back by 3 s": ([START, ring(15_000, 21_000) + ring(18_270, 22_000)], 0.5 + 1.8),
    "after that, samples of both times": (
        [START, ring(15_000, 21_000) + ring(18_270, 22_000), ring(20_000, 21_000) + ring(18_270, 24_000)],
        0.5 + 1.8 + 1.0,
    ),
    "back by an hour, and nothing that was read before": ([ring(4_000_000, 4_010_000), ring(400_000, 410_000)], 0.0),
    "after that, 5 s": ([ring(4_000_000, 4_010_000), ring(400_000, 410_000), ring(401_000, 415_000)], 2.5),
    "samples a second apart, as of old GPUs": (
        [[(at * 1e6, 0.5) for at in range(10)], [(at * 1e6, 0.5) for at in range(5, 20)]],
        5.0,
    ),
}


@pytest.mark.parametrize(("buffers", "expected"), CASES.values(), ids=CASES)
def test_what_counts(buffers: list[Ring], expected: float) -> None:
    """Time without samples does not count, and none counts twice."""
    for series in (UTIL, *ENGINES):
        assert total(buffers, series) == pytest.approx(expected, abs=1e-6)


@given(
    st.lists(st.tuples(st.sampled_from([200, 200, 200, 190, 210, 400, 3000, -900]), st.integers(0, 100)), min_size=1),
    st.data(),
)
def test_splits_of_reads_have_the_same_integral(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """The integral does not depend on how often the samples are read, nor on how many come again."""
    at, samples = 100_000, list[tuple[float, float]]()
    seen = set[int]()
    for distance, percent in steps:
        at += distance
        while at in seen:  # a driver has one sample of a time
            at += 1
        seen.add(at)
        samples.append((at * 1000.0, percent / 100))
    first: Ring = [(100_000_000.0, 0.5)]
    if 100_000 in seen:
        first = [(99_999_999.0, 0.5)]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(samples)), max_size=6)) | {len(samples)})
    again = data.draw(st.integers(1, 5))
    everything = [*first, *samples]
    reads = [everything[max(0, end + 1 - max(again, end - begin + 1)) : end + 1] for begin, end in pairs(cuts)]

    assert total([first, *reads]) == pytest.approx(total([first, everything]))


def pairs(cuts: list[int]) -> list[tuple[int, int]]:
    """Return the number of samples before and after each read. Each buffer has the last sample of the one before."""
    return list(zip([0, *cuts], cuts, strict=False))


def test_a_new_handle_continues() -> None:
    """What the driver kept while the GPU had no handle counts, and what was counted does not count again."""
    accumulator = Accumulator(15.0)
    accumulator.apply(Reading(0, {}, buffered={UTIL: START, MEMORY: ring(10_000, 20_000, 0.1)}))
    accumulator.apply(Reading(1, {}, buffered={UTIL: ring(15_000, 22_000)}))
    accumulator.detach()
    assert accumulator.apply(Reading(2, {})) == ()
    other = Series(m.GPU_UTIL_SECONDS, GPU)
    accumulator.apply(Reading(3, {}, buffered={other: ring(12_000, 26_000)}))

    assert accumulator.apply(Reading(3 + DELAY, {})) == (Sample(other, 3.0),)


def test_values_out_of_range_do_not_count() -> None:
    """They are counted as rejected, and their time is lost."""
    accumulator = Accumulator(15.0)
    accumulator.apply(Reading(0, {}, buffered={UTIL: START}))
    taken = [(20_200_000.0, 42.0), (20_400_000.0, math.nan), (20_600_000.0, 1.0)]
    accumulator.apply(Reading(1, {}, buffered={UTIL: taken}))

    assert accumulator.apply(Reading(1 + DELAY, {})) == (Sample(UTIL, 0.2),)
    assert accumulator.rejected == {m.GPU_UTIL_SECONDS.name: 2}
