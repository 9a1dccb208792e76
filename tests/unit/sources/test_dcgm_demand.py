"""How much is asked of a host engine that falls behind."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import Labels, Metric, Pace
from gpu_exporter.sources.dcgm.demand import (
    GRACE_SECONDS,
    LATE_READS,
    LONGEST_RETRY_SECONDS,
    OVERLOADED,
    RETRY_SECONDS,
    Demand,
    EngineLoad,
    SampleAge,
    is_late,
    sampling,
    sampling_of_means,
)
from gpu_exporter.sources.dcgm.plan import GpuParts, plan
from gpu_exporter.sources.dcgm.values import gpu

ALL, NO_EXTRAS, LESS_OFTEN = Demand
AFTER = GRACE_SECONDS


def reads(load: EngineLoad, *reads: tuple[float, bool]) -> EngineLoad:
    """Return the load after reads at these seconds, each late or not."""
    for now, late in reads:
        load = load.after(now, late=late)
    return load


def late(begin: float, count: int = LATE_READS) -> list[tuple[float, bool]]:
    """Return late reads, one each second."""
    return [(begin + n, True) for n in range(count)]


@pytest.mark.parametrize(
    ("load", "history", "demand"),
    [
        (EngineLoad(), late(AFTER), NO_EXTRAS),
        (EngineLoad(), late(AFTER, LATE_READS - 1), ALL),
        (EngineLoad(), [*late(AFTER, LATE_READS - 1), (AFTER + 9, False), *late(AFTER + 10, LATE_READS - 1)], ALL),
        (EngineLoad(), late(0.0), ALL),  # new watches cost more
        (EngineLoad(NO_EXTRAS), late(AFTER), LESS_OFTEN),
        (EngineLoad(LESS_OFTEN), late(AFTER), LESS_OFTEN),
        (EngineLoad(NO_EXTRAS), [(RETRY_SECONDS - 1, False)], NO_EXTRAS),
        (EngineLoad(NO_EXTRAS), [(RETRY_SECONDS, False)], ALL),
        (EngineLoad(LESS_OFTEN), [(RETRY_SECONDS, False)], NO_EXTRAS),
    ],
)
def test_demand(load: EngineLoad, history: list[tuple[float, bool]], demand: Demand) -> None:
    """Less after some late reads in a row, more after some calm time; one step at a time."""
    assert reads(load, *history).demand is demand


def test_more_is_asked_ever_later() -> None:
    """Each time that it was too much, the wait doubles, up to a limit; after a calm wait it is as short as at first."""
    load, now, waits = EngineLoad(NO_EXTRAS), 0.0, []
    for _ in range(8):
        waits.append(load.patience)
        now += load.patience
        load = reads(load, (now, False))
        assert load.demand is ALL
        now += AFTER
        load = reads(load, *late(now))
        assert load.demand is NO_EXTRAS
        now = load.since
    assert waits[:4] == [RETRY_SECONDS, 2 * RETRY_SECONDS, 4 * RETRY_SECONDS, 8 * RETRY_SECONDS]
    assert waits[-1] == LONGEST_RETRY_SECONDS
    calm = reads(load, (now + load.patience, False), (now + 2 * load.patience, False))
    assert (calm.demand, calm.patience) == (ALL, RETRY_SECONDS)


@pytest.mark.parametrize(
    ("age", "took", "late"),
    [(0.0, 0.01, False), (2.0, 0.01, False), (2.1, 0.01, True), (0.0, 0.4, False), (0.0, 0.6, True)],
)
def test_lateness(age: float, took: float, late: bool) -> None:
    """Samples older than twice their interval, or answers near the deadline."""
    assert is_late(age, took, interval=1.0, timeout=1.0) is late


@pytest.mark.parametrize(
    ("history", "age"),
    [
        ([(0, 10)], None),  # how long it has been there is not known
        ([(0, 10), (1, 11), (2, 12)], 1.0),
        ([(0, 10), (1, 10), (2, 10), (3, 10)], 3.0),
        ([(0, 10), (1, 14)], 4.0),  # it had sampled nothing for 4 s
        ([(0, 10), (1, 14), (2, 14), (3, 14)], 4.0),
        ([(0, 10), (9, 19)], None),  # the reads were that far apart
        ([(0, 10), (9, 19), (10, 20)], 1.0),
    ],
)
def test_age_of_samples(history: list[tuple[float, int]], age: float | None) -> None:
    """By how their time stamps advance; a host engine on another machine has another clock."""
    ages = SampleAge()
    found = [ages.age(now, stamp * 1_000_000, interval=1.0) for now, stamp in history]
    assert found[-1] == age


def _series(metric: Metric, labels: Labels) -> Series:
    return Series(metric, None, labels)


@pytest.mark.parametrize(
    ("demand", "asked", "fast", "slow", "mean"),
    [
        (ALL, {m.GPU_TEMP, m.ENERGY, m.SM_ACTIVE, m.VIDEO_CLOCK, m.LINK_TX}, 1.0, 7.5, 1.0),
        (NO_EXTRAS, {m.GPU_TEMP, m.ENERGY, m.SM_ACTIVE}, 1.0, 30.0, 1.0),
        (LESS_OFTEN, {m.GPU_TEMP, m.ENERGY, m.SM_ACTIVE}, 5.0, 30.0, 5.0),
    ],
)
def test_what_is_asked(demand: Demand, asked: set[Metric], fast: float, slow: float, mean: float) -> None:
    """Slow fields are given up first, and those that are not read have a reason."""
    metrics = [m.GPU_TEMP, m.ENERGY, m.SM_ACTIVE, m.VIDEO_CLOCK, m.LINK_TX]
    planned = plan(_series, gpu(0), metrics, GpuParts(links=(0,)), demand)
    assert {query.series.metric for query in (*planned.plain, *planned.profiling)} == asked
    assert planned.unsupported == dict.fromkeys({*metrics} - asked, OVERLOADED)
    seconds, means = sampling(1.0, demand), sampling_of_means(1.0, demand)
    assert (seconds[Pace.FAST], seconds[Pace.SLOW], means[Pace.FAST]) == (fast, slow, mean)
