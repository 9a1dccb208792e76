"""One GPU, one thread: reads at each tick, loses and finds its GPU, and gets stuck alone."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from gpu_exporter.backoff import Backoff
from gpu_exporter.model import Device, Gpu, GpuLost, Pace, SourceLost
from gpu_exporter.snapshot import GpuRecord

if TYPE_CHECKING:
    from gpu_exporter.collect import Collector

log = logging.getLogger(__name__)

# Slow reads of a node's GPUs are spread over their period; a node has eight, and of more some share a turn.
TURNS = 8


class Worker(threading.Thread):
    """Reads the GPU of one index at each tick. Only this thread touches its device, so a wedged call costs it alone."""

    def __init__(self, collector: Collector, index: int) -> None:
        super().__init__(name=f"gpu-{index}", daemon=True)
        self.index = index
        self.record = self._nobody = GpuRecord(Gpu(index), collector.gauge_window)
        self.busy_since: float | None = None
        self.wake = threading.Event()
        self._collector = collector
        self._device: Device | None = None
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

    def run(self) -> None:
        while True:
            self.wake.wait()
            self.busy_since = time.monotonic()  # before `clear`: at no instant does a woken worker look idle
            self.wake.clear()
            if self._collector.stopping.is_set():
                break
            try:
                self._tick()
            except Exception:  # a bug of ours must not look like a wedged GPU
                log.exception("GPU %d: unexpected error, please report it", self.index)
                self._failed("internal_error", "unexpected error")
            self.busy_since = None
            self._collector.worker_done()
        if self._device:
            self._device.close()

    def _tick(self) -> None:
        collector, started = self._collector, time.monotonic()
        generation = collector.generation
        if self._generation != generation:
            self._detach()
            self._backoff.reset()
            self._generation = generation
            if collector.handover.release:  # until it was read again
                self.record.reason = "released"
        if not collector.up or collector.paused or (self._device is None and started < self._backoff.due):
            return
        try:
            device = self._device or self._attach()
            if collector.events:  # first: a GPU that can't be read any more still tells why
                collector.events.told(device.events())
            reading = device.read(self._due(started))
        except GpuLost as error:
            self._failed(error.reason, str(error))
        except SourceLost as error:
            self._detach()
            collector.source_lost(generation, error)
        else:
            if generation == collector.generation:
                self._backoff.reset()
                own, record = collector.own, self.record
                samples = record.accumulator.apply(reading)
                record.samples = own.samples(record.gpu, record.clock_events, reading, samples)
                record.unsupported = own.unsupported(samples, reading.unsupported)
                self.record.duration = time.monotonic() - started
                self.record.read_at = time.monotonic()
                self._ask_again({series.metric.pace for series in reading.failed}, started)
                self.record.up()

    def _failed(self, reason: str, message: str) -> None:
        self._detach()
        self._backoff.failed()
        if self._collector.owner_of(self.record) is not self:  # another index has it since a restart
            self.record = self._nobody
        self.record.down(reason, message)

    def _attach(self) -> Device:
        self._device = device = self._collector.source.attach(self.index, self._collector.metrics)
        self.record = self._collector.record_of(device.gpu, self)
        self._read_at.clear()
        self.record.told = device.told_since is not None
        if self._collector.events and device.told_since is not None:
            self._collector.events.registered(device.gpu, device.told_since)
        return device

    def _detach(self) -> None:
        if self._device:
            if self._collector.events:  # what killed a GPU may have come in the read that found it dead
                self._collector.events.told(self._device.events())
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
