"""Intervals below a second: profiling values at each tick, other values and a page as often as they are scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Reading
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.pages import Page, Pages, Variant
from gpu_exporter.pipeline.settings import CollectionSettings
from tests.support.virtual_time import Clock, Loop, virtual
from tests.unit.pipeline.test_metrics_change import FakeDevice, FakeSource

INTERVAL = 0.05
READ = (m.SM_ACTIVE, m.GPU_TEMP)


@dataclass
class MeansDevice(FakeDevice):
    """A GPU whose profiling values can be read alone, which takes `slow` seconds."""

    reads_means = True
    counts: Counter[str] = field(default_factory=Counter)
    slow: float = 0.0

    def read(self, paces: frozenset[Pace]) -> Reading:
        self.counts["read"] += 1
        return super().read(paces)

    def read_means(self) -> Reading:
        self.counts["read_means"] += 1
        self.clock.sleep(self.slow)
        reading = super().read(frozenset())
        return Reading(reading.at, {s: v for s, v in reading.values.items() if s.metric is m.SM_ACTIVE}, reading.span)


class Source(FakeSource):
    """One GPU of this kind."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device.clock)
        self.device = device

    def attach(self, *_: object) -> FakeDevice:
        return self.device


Run = Callable[..., list[Snapshot]]


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The loop's clock."""
    made = Clock()
    with virtual(made):
        yield made


@pytest.fixture
def run(clock: Clock) -> Iterator[Run]:
    """Return the first pages that a loop on a device publishes."""
    collectors = []

    def start(device: FakeDevice, *metrics: Metric, pages: int, followed: bool = False) -> list[Snapshot]:
        seen: list[Snapshot] = []
        collector = Collector(
            Source(device), metrics, seen.append, CollectionSettings(INTERVAL), every_tick_wanted=lambda: followed
        )
        collectors.append(collector)
        loop = Loop(collector, clock)
        loop.start()
        loop.run(lambda: len(seen) >= pages)
        return seen

    yield start
    clock.pass_by(60)  # for a read in progress
    for collector in collectors:
        assert collector.stop()


def value(snapshot: Snapshot, metric: object) -> float:
    """Return the value of the only series of a metric."""
    (found,) = [sample.value for sample in snapshot.samples if sample.series.metric is metric]
    return found


def gaps(seen: Sequence[Snapshot]) -> list[float]:
    """Return the seconds between the pages, rounded to 10 µs, the precision of unix time as a float."""
    return [round(after.at - before.at, 5) for before, after in pairwise(seen)]


def test_without_frequent_scrapes_one_page_a_second(clock: Clock, run: Run) -> None:
    """Nineteen of twenty ticks read only the values of histograms and make no page; the integral is complete."""
    device = MeansDevice(READ, clock=clock)
    first, second, third = seen = run(device, *READ, m.SM_SHARES, pages=3)

    assert gaps(seen) == pytest.approx([1.0, 1.0])
    assert device.counts == {"read": 3, "read_means": 2 * 19}
    assert not any(sample.series.metric is m.SM_SECONDS for sample in first.samples)
    assert value(second, m.SM_SECONDS) == pytest.approx(0.5)
    assert value(third, m.SM_SECONDS) == pytest.approx(1.0)
    assert value(third, m.GPU_TEMP) == 0.5


def test_without_histograms_nothing_is_read_between_pages(clock: Clock, run: Run) -> None:
    """Means are exact over any time."""
    device = MeansDevice(READ, clock=clock)
    seen = run(device, *READ, pages=3)

    assert gaps(seen) == pytest.approx([1.0, 1.0])
    assert device.counts == {"read": 3}
    assert value(seen[-1], m.SM_SECONDS) == pytest.approx(0.5 * 2)


def test_with_frequent_scrapes_a_page_a_tick(clock: Clock, run: Run) -> None:
    """Each page has all values."""
    device = MeansDevice(READ, clock=clock)
    seen = run(device, *READ, m.SM_SHARES, pages=10, followed=True)

    assert gaps(seen) == pytest.approx([INTERVAL] * 9)
    assert device.counts == {"read": 10}


def test_a_device_without_separate_means_is_read_at_each_tick(clock: Clock, run: Run) -> None:
    """Its means are over one interval, however often it is scraped."""
    seen = run(FakeDevice(READ, clock=clock), *READ, pages=2)

    assert gaps(seen) == pytest.approx([1.0])
    assert value(seen[-1], m.SM_SECONDS) == pytest.approx(0.5)


def test_slow_reads_count_as_skipped_ticks(clock: Clock, run: Run) -> None:
    """Ticks without a read are counted, and so is the time that reads take."""
    seen = run(MeansDevice(READ, slow=2.5 * INTERVAL, clock=clock), *READ, m.SM_SHARES, pages=4)

    first, last = seen[1], seen[-1]
    took = last.at - first.at
    assert value(last, m.SKIPPED) - value(first, m.SKIPPED) == pytest.approx(took / INTERVAL * 2 / 3, rel=0.1)
    assert value(last, m.SPENT) - value(first, m.SPENT) == pytest.approx(took * 2.5 / 3, rel=0.1)


def test_frequent_scrapes_follow_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests within half a second, the last of which gets this page; one scrape per second is too few."""
    now = 100.0
    monkeypatch.setattr("gpu_exporter.pipeline.pages.time.monotonic", lambda: now)
    pages, variant = Pages(), Variant(openmetrics=False, gzip=False)

    def followed_after(*gaps: float) -> bool:
        nonlocal now
        pages.publish(Page([]))
        for gap in gaps:
            now += gap
            pages.get(variant)
        return pages.followed()

    assert not followed_after()
    assert not followed_after(0.1)
    assert followed_after(0.1)
    assert not followed_after(), "this page was not seen yet"
    assert not followed_after(1.0)
    assert not followed_after(1.0, 0.9)
