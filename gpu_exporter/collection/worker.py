"""One GPU, one thread (none if its reads never wait): reads at each tick, loses and finds its GPU, gets stuck alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_exporter.collection.composer import GpuRecord
from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.gpu import Gpu, Reading
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.source import Device, Glancing
from gpu_exporter.sources.backoff import Backoff

if TYPE_CHECKING:
    from gpu_exporter.collection.collector import Collector

log = logging.getLogger(__name__)

# Slow reads of a node's GPUs are spread over their period; a node has eight, and of more some share a turn.
TURNS = 8


# A GPU that is asked for other metrics is read twice over until the new answers cover the old, but no longer than this.
MOST_REHEARSALS = 5


class _Successor:
    """The same GPU, attached anew for other metrics. It takes over when it answers all that is still asked for: means
    need two reads, and until then the device before it goes on, so that no series has a gap."""

    def __init__(self, device: Device, asked: Sequence[Metric]) -> None:
        self.device, self.asked = device, asked
        self._rehearsals = 0

    def read(self, record: GpuRecord) -> Reading | None:
        """Its reading, if it is ready. Raises GpuLost, SourceLost."""
        reading = self.device.read(frozenset(Pace))
        self._rehearsals += 1
        told = {(series.metric, series.labels) for series in (*reading.values, *reading.failed)}
        missing = [
            series
            for series, _ in record.samples
            if series.metric in self.asked
            and not series.part  # a histogram goes on with its totals
            and series.metric not in reading.unsupported
            and (series.metric, series.labels) not in told
        ]
        return None if missing and self._rehearsals < MOST_REHEARSALS else reading


class Worker(threading.Thread):
    """Reads the GPU of one index at each tick. Only this thread touches its device, so a wedged call costs it alone.

    An `instant` one is never started: who rouses it reads.
    """

    def __init__(self, collector: Collector, index: int, *, instant: bool = False) -> None:
        super().__init__(name=f"gpu-{index}", daemon=True)
        self.index = index
        self.instant = instant
        self._here = threading.Lock()
        self.record = self._nobody = GpuRecord(Gpu(index), collector.gauge_window)
        self.busy_since: float | None = None
        self.wake = threading.Event()
        self.brief = False
        self._collector = collector
        self._device: Device | None = None
        self._glancing: Glancing | None = None
        self._asked: Sequence[Metric] = ()
        self._successor: _Successor | None = None
        self._succession = Backoff()
        self._generation = -1
        self._backoff = Backoff()
        self._read_at: dict[Pace, float] = {}

    @property
    def busy(self) -> bool:
        """Woken and not yet done."""
        return self.wake.is_set() or self.busy_since is not None

    @property
    def nameless(self) -> bool:
        """It was never told which GPU this is."""
        return self.record is self._nobody

    @property
    def stalled(self) -> float:
        """Seconds inside the current read beyond which it counts as stuck; 0 if it is not stuck."""
        since = self.busy_since
        busy = 0.0 if since is None else time.monotonic() - since
        return busy if busy > self._collector.deadline else 0.0

    def rouse(self, *, brief: bool = False) -> None:
        """Begin a tick, with `brief` only what is read between two, or the end when the collector is stopping; of a GPU
        whose reads never wait, here and now."""
        self.brief = brief
        if not self.instant:
            self.wake.set()
            return
        with self._here:
            self.busy_since = time.monotonic()
            if self._collector.stopping.is_set():
                self._end()
            else:
                self._work()
            self.busy_since = None

    def run(self) -> None:
        while True:
            self.wake.wait()
            self.busy_since = time.monotonic()  # before `clear`: at no instant does a woken worker look idle
            self.wake.clear()
            if self._collector.stopping.is_set():
                break
            self._work()
            self.busy_since = None
            self._collector.worker_done()
        self._end()

    def _work(self) -> None:
        started = time.monotonic()
        try:
            self._tick()
        except Exception:  # a bug of ours must not look like a wedged GPU
            log.exception("GPU %d: unexpected error, please report it", self.index)
            self._failed("internal_error", "unexpected error")
        self.record.spent += time.monotonic() - started

    def _end(self) -> None:
        self._drop_successor()
        if self._device:
            self._device.close()
            self._device = None

    def _tick(self) -> None:
        collector, started = self._collector, time.monotonic()
        generation = collector.generation
        if self._generation != generation:
            self._detach()
            self._backoff.reset()
            self._generation = generation
            if collector.handover.release:  # until it was read again
                self.record.reason = "released"
        brief = self.brief
        if not collector.up or collector.paused or (self._device is None and (brief or started < self._backoff.due)):
            return
        try:
            device = self._device or self._attach()
            if collector.events and not brief:  # first: a GPU that can't be read any more still tells why
                collector.events.add_driver_xids(device.events())
            reading = self._glance(device, started) if brief else self._read(device, started)
            if reading is None:
                return
        except GpuLost as error:
            self._failed(error.reason, str(error))
        except SourceLost as error:
            self._detach()
            collector.source_lost(generation, error)
        else:
            if generation == collector.generation:
                self._backoff.reset()
                own, record = collector.own, self.record
                record.accumulator.take(reading, own.histograms)
                if not brief:  # nobody sees them before
                    samples = record.accumulator.samples()
                    record.samples = own.samples(record.gpu, record.clock_events, reading, samples)
                    record.unsupported = own.unsupported(samples, reading.unsupported)
                    record.duration = time.monotonic() - started
                self._ask_again({series.metric.pace for series in reading.failed}, started)
                record.read(time.monotonic())

    def _read(self, device: Device, now: float) -> Reading:
        return self._succeeded(now) or device.read(self._due(now))

    def _glance(self, device: Device, now: float) -> Reading | None:
        """What there is to read between two pages: where that can be had alone, what histograms are made of. The other
        means are exact over any time."""
        if self._glancing:
            return self._glancing.glance() if self._collector.own.histograms else None
        return device.read(self._due(now)) if self._collector.swift else None

    def _failed(self, reason: str, message: str) -> None:
        self._detach()
        self._backoff.failed()
        if self._collector.owner_of(self.record) is not self:  # another index has it since a restart
            self.record = self._nobody
        self.record.down(reason, message)

    def _succeeded(self, now: float) -> Reading | None:
        """When other metrics are asked for: the reading of the device that took over, once there is one."""
        asked = self._collector.metrics
        if self._successor and self._successor.asked != asked:
            self._drop_successor()
        if self._asked == asked or now < self._succession.due:
            return None
        try:
            if self._successor is None:
                self._successor = _Successor(self._collector.source.attach(self.index, asked), asked)
            reading = self._successor.read(self.record)
        except GpuLost as error:  # if the GPU is lost, the device in use says so, too
            log.warning("GPU %d: not asked for other metrics yet: %s", self.index, error)
            self._drop_successor()
            self._succession.failed()
            return None
        if reading is not None:
            self._succession.reset()
            self._take_over(self._successor)
        return reading

    def _take_over(self, successor: _Successor) -> None:
        before, self._asked = self._device, successor.asked
        self._use(successor.device)
        self._successor = None
        successor.device.events()  # were told to the device before, too
        if before:
            if self._collector.events:
                self._collector.events.add_driver_xids(before.events())
            before.close()
        self.record = self._collector.record_of(successor.device.gpu, self)
        self.record.told = successor.device.xids_since is not None
        self.record.accumulator.renew()

    def _use(self, device: Device) -> None:
        self._device = device
        self._glancing = device if isinstance(device, Glancing) else None  # found out once: it takes long

    def _drop_successor(self) -> None:
        if self._successor:
            self._successor.device.close()
            self._successor = None

    def _attach(self) -> Device:
        self._asked = self._collector.metrics
        device = self._collector.source.attach(self.index, self._asked)
        self._use(device)
        self.record = self._collector.record_of(device.gpu, self)
        self._read_at.clear()
        self.record.told = device.xids_since is not None
        if self._collector.events and device.xids_since is not None:
            self._collector.events.registered(device.gpu, device.xids_since)
        return device

    def _detach(self) -> None:
        self._drop_successor()
        if self._device:
            if self._collector.events:  # what killed a GPU may have come in the read that found it dead
                self._collector.events.add_driver_xids(self._device.events())
            self.record.told = False
            self._device.close()
            self._device = None
            if self._collector.owner_of(self.record) is self:
                self.record.accumulator.detach()

    def _due(self, now: float) -> frozenset[Pace]:
        """The paces whose period is over; all of them at the first read. Half an interval early is on time.

        GPUs take turns with what is slow: the driver serves one at a time, and those who wait burn CPU.
        """
        slack = self._collector.interval / 2
        turn = self.index % TURNS / TURNS
        due = frozenset(pace for pace in Pace if now - self._read_at.get(pace, -float("inf")) >= pace.value - slack)
        for pace in due:
            self._read_at[pace] = now if pace in self._read_at else now - turn * pace.value
        return due

    def _ask_again(self, paces: set[Pace], now: float) -> None:
        """What failed is asked again soon, not only after its period."""
        for pace in paces:
            self._read_at[pace] = min(self._read_at.get(pace, now), now + Pace.SLOW.value - pace.value)
