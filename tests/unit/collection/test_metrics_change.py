"""Other metrics are asked for while the loop runs: a device takes over when it answers all that the one before did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.collection.collector import Collector
from gpu_exporter.collection.settings import CollectionSettings
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Owner, Reading, Sample, Series, XidEvent
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.snapshot import Snapshot
from tests.support.virtual_time import Clock, Loop, virtual

GPU = Gpu(0, "GPU-0")
INTERVAL = 0.02
BEFORE, AFTER = (m.SM_ACTIVE, m.GPU_TEMP), (m.SM_ACTIVE, m.GPU_TEMP, m.FP64_ACTIVE)


@dataclass
class FakeDevice:
    """A GPU half busy. Means need two reads, as GPM's do; `never` is a metric that it does not answer."""

    metrics: Sequence[Metric]
    never: frozenset[Metric] = frozenset()
    gpu: Gpu = GPU
    xids_since: float | None = None
    closed: bool = False
    clock: Clock = field(default_factory=Clock)
    _series: dict[Metric, Series] = field(default_factory=dict)
    _last: float | None = None

    def events(self) -> Sequence[XidEvent]:
        return ()

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


class FakeSource:
    """One GPU. `refuses` is how often it can't be attached from now on."""

    name, description, live = "fake", "", True

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.devices: list[FakeDevice] = []
        self.never: frozenset[Metric] = frozenset()
        self.refuses = 0

    def open(self) -> None: ...

    def close(self) -> None: ...

    def count(self) -> int:
        return 1

    def expected(self) -> int | None:
        return None

    def reload_needed(self) -> bool | None:
        return None

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        return ()

    def non_gpu_samples(self) -> Sequence[Sample]:
        return ()

    def attach(self, index: int, metrics: Sequence[Metric]) -> FakeDevice:
        if self.refuses:
            self.refuses -= 1
            raise GpuLost("GPU 0: busy", "unknown")
        self.devices.append(FakeDevice(metrics, self.never, clock=self.clock))
        return self.devices[-1]


class Run:
    """A loop on a source that asks for `BEFORE`, and the samples of each of its snapshots, from the first means on."""

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
        """Run until there are so many snapshots more."""
        count = len(self.seen) + number
        self.until(lambda: len(self.seen) >= count)

    def until(self, holds: Callable[[], object]) -> None:
        """Run until it holds."""
        self._loop.run(holds)


@pytest.fixture
def run() -> Iterator[Run]:
    """A loop in virtual time."""
    clock = Clock()
    with virtual(clock):
        running = Run(clock)
        yield running
        assert running.collector.stop()


def holds(seen: Sequence[dict[Metric, float]]) -> None:
    """What is asked for before and after was in each snapshot, and the integral grew by what the gauge says."""
    for before, after in pairwise(seen):
        assert [metric.name for metric in (m.SM_ACTIVE, m.GPU_TEMP, m.SM_SECONDS) if metric not in after] == []
        assert after[m.SM_SECONDS] - before[m.SM_SECONDS] == pytest.approx(INTERVAL / 2, abs=1e-3)
    passed = seen[-1][m.READ_AT] - seen[0][m.READ_AT]
    assert seen[-1][m.SM_SECONDS] - seen[0][m.SM_SECONDS] == pytest.approx(passed / 2, abs=1e-3)
    assert {known[m.FAILURES] for known in seen} == {0}


def test_nothing_is_missing_while_devices_change(run: Run) -> None:
    """There and back, and the device that is not used any more is given back."""
    run.collector.set_metrics(AFTER)
    run.until(lambda: m.FP64_ACTIVE in run.seen[-1])
    run.collector.set_metrics(BEFORE)
    run.until(lambda: m.FP64_ACTIVE not in run.seen[-1])

    holds(run.seen)
    assert [device.closed for device in run.source.devices] == [True, True, False]


def test_the_same_metrics_again_change_nothing(run: Run) -> None:
    """Another sequence of the same rows is no reason to attach anew."""
    run.collector.set_metrics(tuple(list(BEFORE)))
    run.ticks(6)

    assert len(run.source.devices) == 1


def test_a_metric_that_never_comes_does_not_hold_the_others_up(run: Run) -> None:
    """Of a device that lost the answer, no more is waited for than some reads."""
    run.source.never = frozenset({m.SM_ACTIVE})
    run.collector.set_metrics(AFTER)
    run.until(lambda: m.FP64_ACTIVE in run.seen[-1])

    assert m.SM_ACTIVE not in run.seen[-1]


def test_a_gpu_that_is_not_attached_anew_goes_on_as_it_was(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """And is tried again later."""
    run.source.refuses = 1
    run.collector.set_metrics(AFTER)
    run.until(lambda: m.FP64_ACTIVE in run.seen[-1])

    holds(run.seen)
    assert [record.message for record in caplog.records if "not read yet" in record.message] == [
        "GPU 0: the changed metrics are not read yet: GPU 0: busy"
    ]


@pytest.mark.parametrize("ticks", [1, 2, 3, 7])
def test_choices_that_change_quickly_leave_no_device_behind(run: Run, ticks: int) -> None:
    """Only the last one counts, whether a device has had the time to take over or not."""
    for number in range(50):
        run.collector.set_metrics(AFTER if number % 2 else BEFORE)
        if number % 3:
            run.ticks(ticks)
    run.collector.set_metrics(AFTER)
    run.until(lambda: m.FP64_ACTIVE in run.seen[-1])

    assert sum(not device.closed for device in run.source.devices) == 1
    holds(run.seen)
