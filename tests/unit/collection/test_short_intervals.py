"""Intervals below a second: profiling values at each tick, all else and a page as often as they are seen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.collection.collector import Collector
from gpu_exporter.exposition.pages import Page, Pages, Variant
from gpu_exporter.model.gpu import Reading
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.snapshot import Snapshot
from tests.support.tools import until
from tests.unit.collection.test_metrics_change import FakeDevice, FakeSource

INTERVAL = 0.05
READ = (m.SM_ACTIVE, m.GPU_TEMP)


@dataclass
class Glancing(FakeDevice):
    """A GPU whose profiling values can be read alone; `slow` is how long that takes, in seconds."""

    counts: Counter[str] = field(default_factory=Counter)
    slow: float = 0.0

    def read(self, paces: frozenset[Pace]) -> Reading:
        self.counts["read"] += 1
        return super().read(paces)

    def glance(self) -> Reading:
        self.counts["glance"] += 1
        time.sleep(self.slow)
        reading = super().read(frozenset())
        return Reading(reading.at, {s: v for s, v in reading.values.items() if s.metric is m.SM_ACTIVE}, reading.span)


class Source(FakeSource):
    """One GPU of this kind."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.device = device

    def attach(self, *_: object) -> FakeDevice:
        return self.device


Run = Callable[..., list[Snapshot]]


@pytest.fixture
def run() -> Iterator[Run]:
    """What a loop on a device publishes."""
    collectors = []

    def start(
        device: FakeDevice, *metrics: Metric, followed: bool = False, interval: float = INTERVAL
    ) -> list[Snapshot]:
        seen: list[Snapshot] = []
        collector = Collector(Source(device), metrics, seen.append, interval=interval, followed=lambda: followed)
        collectors.append(collector)
        collector.start()
        return seen

    yield start
    for collector in collectors:
        assert collector.stop()


def value(snapshot: Snapshot, metric: object) -> float:
    """The value of the one series of a metric."""
    (found,) = [sample.value for sample in snapshot.samples if sample.series.metric is metric]
    return found


def test_nobody_looks_so_often(run: Run) -> None:
    """Most ticks read alone what histograms are made of, and make no page; the integral has all of the time."""
    device = Glancing(READ)
    seen = run(device, *READ, m.SM_SHARES)
    until(lambda: len(seen) > 2, 10, "the third page")

    assert device.counts["glance"] > 5 * device.counts["read"]
    assert device.counts["read"] <= len(seen) + 1
    pages = [snapshot for snapshot in seen if any(s.series.metric is m.SM_SECONDS for s in snapshot.samples)]
    first, last = pages[0], pages[-1]
    assert value(last, m.SM_SECONDS) - value(first, m.SM_SECONDS) == pytest.approx(0.5 * (last.at - first.at), abs=0.1)
    assert value(last, m.GPU_TEMP) == 0.5


def test_without_histograms_nothing_is_read_between_pages(run: Run) -> None:
    """Means are exact over any time."""
    device = Glancing(READ)
    seen = run(device, *READ)
    until(lambda: len(seen) > 2, 10, "the third page")

    assert device.counts["glance"] == 0
    assert value(seen[-1], m.SM_SECONDS) == pytest.approx(0.5 * (len(seen) - 1), abs=0.3)


def test_who_follows_sees_each_tick(run: Run) -> None:
    """A page a tick, with everything."""
    device = Glancing(READ)
    begin = time.monotonic()
    seen = run(device, *READ, m.SM_SHARES, followed=True)
    until(lambda: len(seen) > 9, 10, "the tenth page")

    assert time.monotonic() - begin < 5
    assert device.counts["glance"] == 0


def test_a_device_that_answers_all_or_nothing_is_read_at_each_tick(run: Run) -> None:
    """Its means are of an interval, whoever looks."""
    device = FakeDevice(READ)
    seen = run(device, *READ)
    until(lambda: len(seen) > 1, 10, "the second page")

    assert value(seen[-1], m.SM_SECONDS) == pytest.approx(0.5 * 1.0, abs=0.15)


def test_reads_that_take_longer_than_an_interval_are_told(run: Run) -> None:
    """Each tick without a read of its own is counted, and how much of the time the reads take."""
    seen = run(Glancing(READ, slow=2.5 * INTERVAL), *READ, m.SM_SHARES)
    until(lambda: len(seen) > 3, 10, "the fourth page")

    first, last = seen[1], seen[-1]
    took = last.at - first.at
    assert value(last, m.SKIPPED) - value(first, m.SKIPPED) == pytest.approx(took / INTERVAL * 2 / 3, rel=0.35)
    assert value(last, m.SPENT) - value(first, m.SPENT) == pytest.approx(took * 2.5 / 3, rel=0.35)


def test_pages_are_followed_by_who_asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests within half a second of which the last has this page; a scrape a second follows nothing."""
    now = 100.0
    monkeypatch.setattr("gpu_exporter.exposition.pages.time.monotonic", lambda: now)
    pages, variant = Pages(), Variant(openmetrics=False, gzip=False)

    def asked(*gaps: float) -> bool:
        nonlocal now
        pages.publish(Page([]))
        for gap in gaps:
            now += gap
            pages.get(variant)
        return pages.followed()

    assert not asked()
    assert not asked(0.1)
    assert asked(0.1)
    assert not asked(), "this page was not seen yet"
    assert not asked(1.0)
    assert not asked(1.0, 0.9)
