"""Energy and utilisation between two reads: rates over a scrape interval are right, and counters never fall."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Reading, Series
from gpu_exporter.model.metric import Pace
from gpu_exporter.pipeline.accumulator import Accumulator

GPU = Gpu(0, "GPU-0")
ENERGY, CLASSIC, POWER = Series(m.ENERGY_JOULES, GPU), Series(m.ENERGY, GPU), Series(m.POWER, GPU)
IDLE, BUSY = 120.0, 700.0
# What the counter shows when the exporter starts.
BEFORE = 5e6
Energy = Callable[[float], float]
SLOW = int(Pace.SLOW.value)


def bursts(busy: float, idle: float) -> Energy:
    """Return the energy since the start of a load that alternates."""

    def used(at: float) -> float:
        periods, place = divmod(at, busy + idle)
        return IDLE * at + (BUSY - IDLE) * (periods * busy + min(place, busy))

    return used


def change(at: float, before: float, after: float) -> Energy:
    """Return the energy of a load that changes once."""
    return lambda now: before * min(now, at) + after * max(now - at, 0.0)


def shown(used: Energy, seconds: int, *, first: int = 0, mean: float = 1.0, step: float = 1.0) -> Iterator[float]:
    """Yield what is shown at each second. Energy is read every 15 s, from the second `first`; power is a mean, as the
    driver of an Ampere or newer has it, of so many seconds."""
    accumulator = Accumulator(15.0)
    for tick in range(round(seconds / step)):
        at = 10.0 + tick * step
        values = {POWER: (used(at) - used(at - mean)) / mean}
        if tick == 0 or (at - 10.0 - first) % SLOW < step / 2:
            values |= {ENERGY: BEFORE + used(at), CLASSIC: 1e3 * (BEFORE + used(at))}
        found = dict(accumulator.apply(Reading(at, values)))
        if (at - 10.0) % 1 < step / 2:
            yield found[ENERGY] - BEFORE


@pytest.mark.parametrize("scrape", [15, 20, 30, 60])
@pytest.mark.parametrize("load", [(0.7, 2.3), (2.3, 0.7), (5.0, 8.0), (0.31, 0.9), (20.0, 20.0)], ids=str)
def test_the_rate_over_each_scrape_interval_is_right(load: tuple[float, float], scrape: int) -> None:
    """Within 2 %, whenever the counter is read and whenever the page is scraped."""
    used = bursts(*load)
    for first in range(0, SLOW, 2):
        values = list(shown(used, 200, first=first))
        for start in range(15, 200 - scrape, 7):
            truth = used(10 + start + scrape) - used(10 + start)
            assert values[start + scrape] - values[start] == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("after", [IDLE, BUSY])
@pytest.mark.parametrize("at", [40.5, 45.0, 50.9])
def test_a_load_that_begins_or_ends(at: float, after: float) -> None:
    """The next second shows it."""
    used = change(at, IDLE + BUSY - after, after)
    for second, value in enumerate(shown(used, 90)):
        assert value == pytest.approx(used(10.0 + second), abs=1.0)


@pytest.mark.parametrize("error", [0.8, 1.25])
def test_each_read_corrects_a_gauge_that_is_wrong(error: float) -> None:
    """It never falls, its error does not grow, and the classic counter is what the driver says."""
    accumulator, last, total = Accumulator(15.0), 0.0, 0.0
    for second in range(301):
        total = 300.0 * second
        values = {POWER: 300.0 * error}
        if second % SLOW == 0:
            values |= {ENERGY: BEFORE + total, CLASSIC: 1e3 * (BEFORE + total)}
        found = dict(accumulator.apply(Reading(float(second), values)))
        assert found[ENERGY] >= last
        assert found[CLASSIC] == 1e3 * (BEFORE + total - 300.0 * (second % SLOW))
        assert found[ENERGY] - BEFORE == pytest.approx(total, abs=abs(error - 1) * 300.0 * SLOW + 1e-3)
        last = found[ENERGY]


def readings(
    gaps: Sequence[tuple[float, float]], *, power: float = 300.0, read_at: Sequence[int] = (0,)
) -> list[float]:
    """Return what is shown at each reading: after a gap of so many seconds, with this energy, if it is read."""
    accumulator, at, values = Accumulator(15.0), 0.0, []
    for number, (gap, joules) in enumerate(gaps):
        at += gap
        read = {ENERGY: joules} if number in read_at else {}
        values.append(dict(accumulator.apply(Reading(at, {POWER: 300.0, **read})))[ENERGY])
    return values


def test_nothing_is_invented_in_a_gap() -> None:
    """After a stall of 20 s it is not known what the power was meanwhile: the next read of the counter says so."""
    assert readings([(0, 1000), (1, 0), (20, 0), (1, 0)]) == [1000, 1300, 1300, 1600]
    assert readings([(0, 1000), (1, 0), (20, 7000)], read_at=(0, 2)) == [1000, 1300, 7000]


def test_it_stands_still_once_the_counter_is_not_read_any_more() -> None:
    """The errors of power add up."""
    values = readings([(0, 1000), *((1, 0) for _ in range(60))])

    assert values[2 * SLOW] == values[-1] == 1000 + 300 * 2 * SLOW


def test_a_new_handle_and_a_driver_that_was_loaded_anew() -> None:
    """The counter continues, and what the driver has counted since counts once."""
    accumulator = Accumulator(15.0)
    accumulator.apply(Reading(0.0, {POWER: 300.0, ENERGY: 1000.0}))
    before = dict(accumulator.apply(Reading(1.0, {POWER: 300.0})))[ENERGY]
    accumulator.detach()
    power, energy = Series(m.POWER, GPU), Series(m.ENERGY_JOULES, GPU)
    assert energy not in dict(accumulator.apply(Reading(3.0, {power: 300.0})))
    after = dict(accumulator.apply(Reading(4.0, {power: 300.0, energy: 500.0})))[energy]

    assert (before, after) == (1300.0, 1500.0)
    assert dict(accumulator.apply(Reading(5.0, {power: 300.0})))[energy] == 1800.0


def test_a_replay_shows_what_it_recorded() -> None:
    """Its time may run at another speed."""
    accumulator = Accumulator(15.0, check_rates=False)
    accumulator.apply(Reading(0.0, {POWER: 300.0, ENERGY: 1000.0}))

    assert dict(accumulator.apply(Reading(1.0, {POWER: 300.0})))[ENERGY] == 1000.0


# --- utilisation: samples of 200 ms, read every 10 s -----------------------------------------------------------------

UTIL = Series(m.GPU_UTIL_SECONDS, GPU)
PERIOD, BUFFERED = 0.2, int(Pace.BUFFERED.value)


def share(busy: float, idle: float) -> Energy:
    """Return the busy seconds since the start of a load that alternates."""

    def used(at: float) -> float:
        periods, place = divmod(at, busy + idle)
        return periods * busy + min(place, busy)

    return used


def counted(used: Energy, seconds: int, *, first: int = 0, last: int = 10**6) -> list[float]:
    """Return the counter at each second after the first read, while the driver has samples."""
    accumulator, values, before = Accumulator(15.0), [], 100.0
    for second in range(seconds):
        at, buffered = 100.0 + second, {}
        if second == 0 or ((second - first) % BUFFERED == 0 and second <= last):
            stamps = [before + PERIOD * number for number in range(1, round((at - before) / PERIOD) + 1)] or [at]
            buffered = {UTIL: [(1e6 * stamp, (used(stamp) - used(stamp - PERIOD)) / PERIOD) for stamp in stamps]}
            before = at
        values.append(dict(accumulator.apply(Reading(at, {}, buffered=buffered)))[UTIL])
    return values


@pytest.mark.parametrize("scrape", [15, 20, 30])
@pytest.mark.parametrize("load", [(0.7, 2.3), (1.5, 11.5), (1000.0, 0.0), (0.4, 1.1), (5.0, 5.0)], ids=str)
def test_the_rate_of_utilisation_is_right(load: tuple[float, float], scrape: int) -> None:
    """From each scrape to the next one, whatever the phase: what is counted ends 10 s ago."""
    used = share(*load)
    for first in range(BUFFERED):
        values = counted(used, 120, first=first)
        for start in range(25, 120 - scrape, 7):
            end = 100 + start + scrape - BUFFERED
            truth = used(end) - used(end - scrape)
            assert values[start + scrape] - values[start] == pytest.approx(truth, abs=0.02 * scrape)
            if load == (1000.0, 0.0):
                assert values[start + scrape] - values[start] == pytest.approx(scrape, rel=1e-3)


@pytest.mark.parametrize("ends", [129.0, 135.0, 140.0])
def test_nothing_is_invented_where_a_load_ends(ends: float) -> None:
    """The counter never falls, and is never higher than the time that the GPU was busy."""
    used = change(ends, 1.0, 0.0)
    values = counted(used, 100)

    assert values == sorted(values)
    assert all(value <= used(100.0 + second) - used(100.0) + 1e-6 for second, value in enumerate(values))
    assert values[-1] == pytest.approx(ends - 100)


def test_without_samples_the_last_ones_still_count() -> None:
    values = counted(share(1000.0, 0.0), 100, last=40)

    assert values[50:] == [pytest.approx(40.0)] * 50
