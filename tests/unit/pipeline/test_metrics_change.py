"""The selected metrics change while the loop runs: a new handle takes over when it has all that the old one had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Reading, Series
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Device, Source
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.settings import CollectionSettings
from tests.support.virtual_time import Clock, Loop, virtual

GPU = Gpu(0, "GPU-0")
INTERVAL = 0.02
BEFORE, AFTER = (m.SM_ACTIVE, m.GPU_TEMP), (m.SM_ACTIVE, m.GPU_TEMP, m.FP64_ACTIVE)


@dataclass
class FakeDevice(Device):
    """A GPU that is half busy. Means need two reads, as GPM's do; `never` is a metric without values."""

    metrics: Sequence[Metric]
    never: frozenset[Metric] = frozenset()
    gpu: Gpu = GPU
    closed: bool = False
    clock: Clock = field(default_factory=Clock)
    _series: dict[Metric, Series] = field(default_factory=dict)
    _last: float | None = None

    def read(self, paces: frozenset[Pace]) -> Reading:
        assert not self.closed
        now, last = self.clock.monotonic(), self._last
        self._last = now
        values = {
            self._series.setdefault(metric, Series(metric, GPU)): 0.5
            for metric in self.metrics
            if metric not in self.never and (metric is m.GPU_TEMP or last is not None)
        }
        return Reading(now, values, None if last is None else now - last)

    def close(self) -> None:
        self.closed = True


class FakeSource(Source):
    """One GPU. `refuses` is how many of the next attempts to attach fail."""

    name, description, live = "fake", "", True

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.devices: list[FakeDevice] = []
        self.never: frozenset[Metric] = frozenset()
        self.refuses = 0

    def count(self) -> int:
        return 1

    def attach(self, index: int, metrics: Sequence[Metric]) -> FakeDevice:
        if self.refuses:
            self.refuses -= 1
            raise GpuLost("GPU 0: busy", "unknown")
        self.devices.append(FakeDevice(metrics, self.never, clock=self.clock))
        return self.devices[-1]


class Run:
    """A loop on a source with the metrics `BEFORE`; it keeps the samples of each snapshot from the first means on."""

    def __init__(self, clock: Clock) -> None:
        self.source = FakeSource(clock)
        self.seen: list[dict[Metric, float]] = []
        self.collector = Collector(self.source, BEFORE, self._publish, CollectionSettings(INTERVAL))
        self._loop = Loop(self.collector, clock)
        self._loop.start()
        self.ticks(5)

    def _publish(self, snapshot: Snapshot) -> None:
        known = {series.metric: value for series, value in snapshot.samples}
        if self.seen or m.SM_SECONDS in known:
            self.seen.append(known)

    def ticks(self, number: int) -> None:
        """Run until there are this many further snapshots."""
        count = len(self.seen) + number
        self.until(lambda: len(self.seen) >= count)

    def until(self, holds: Callable[[], object]) -> None:
        """Run until a condition is true."""
        self._loop.run(holds)


@pytest.fixture
def run() -> Iterator[Run]:
    """A loop in virtual time."""
    clock = Clock()
    with virtual(clock):
        running = Run(clock)
        yield running
        assert running.collector.stop()


def check_no_gap(seen: Sequence[dict[Metric, float]]) -> None:
    """Check that each snapshot has the common metrics, and that the integral grew by the gauge."""
    for before, after in pairwise(seen):
        assert [metric.name for metric in (m.SM_ACTIVE, m.GPU_TEMP, m.SM_SECONDS) if metric not in after] == []
        assert after[m.SM_SECONDS] - before[m.SM_SECONDS] == pytest.approx(INTERVAL / 2, abs=1e-3)
    passed = seen[-1][m.READ_AT] - seen[0][m.READ_AT]
    assert seen[-1][m.SM_SECONDS] - seen[0][m.SM_SECONDS] == pytest.approx(passed / 2, abs=1e-3)
    assert {known[m.FAILURES] for known in seen} == {0}


def test_nothing_is_missing_while_devices_change(run: Run) -> None:
    """After a change and back, the unused handles are closed."""
    run.collector.set_metrics(AFTER)
    run.until(lambda: m.FP64_ACTIVE in run.seen[-1])
    run.collector.set_metrics(BEFORE)
    run.until(lambda: m.FP64_ACTIVE not in run.seen[-1])

    check_no_gap(run.seen)
    assert [device.closed for device in run.source.devices] == [True, True, False]


def test_the_same_metrics_again_change_nothing(run: Run) -> None:
    """Another sequence of the same rows does not attach the GPU again."""
    run.collector.set_metrics(tuple(list(BEFORE)))
    run.ticks(6)

    assert len(run.source.devices) == 1


def test_a_metric_without_values_delays_only_briefly(run: Run) -> None:
    """The new handle takes over after some reads, even if it lacks a metric."""
    run.source.never = frozenset({m.SM_ACTIVE})
    run.collector.set_metrics(AFTER)
    run.until(lambda: m.FP64_ACTIVE in run.seen[-1])

    assert m.SM_ACTIVE not in run.seen[-1]


def test_a_failed_change_keeps_the_old_metrics(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """It is retried later."""
    run.source.refuses = 1
    run.collector.set_metrics(AFTER)
    run.until(lambda: m.FP64_ACTIVE in run.seen[-1])

    check_no_gap(run.seen)
    assert [record.message for record in caplog.records if "not read yet" in record.message] == [
        "GPU 0: the changed metrics are not read yet: GPU 0: busy"
    ]


@pytest.mark.parametrize("ticks", [1, 2, 3, 7])
def test_quick_changes_leak_no_handle(run: Run, ticks: int) -> None:
    """Only the last selection counts, whether or not earlier handles had time to take over."""
    for number in range(50):
        run.collector.set_metrics(AFTER if number % 2 else BEFORE)
        if number % 3:
            run.ticks(ticks)
    run.collector.set_metrics(AFTER)
    run.until(lambda: m.FP64_ACTIVE in run.seen[-1])

    assert sum(not device.closed for device in run.source.devices) == 1
    check_no_gap(run.seen)
