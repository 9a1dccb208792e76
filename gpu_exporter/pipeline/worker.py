"""Reads one GPU. Reattaches a lost GPU; a read that is stuck in a call affects no other GPU.

Each pace of fields has its period; slow reads of different GPUs are spread over time. When other metrics are to be
read, a second handle of the same GPU replaces the current one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpu_exporter.events.event_log import EventLog
from gpu_exporter.model.errors import GpuLost, GpuNotSampled, SourceLost
from gpu_exporter.model.gpu import Reading, Series
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.source import Device
from gpu_exporter.pipeline.connection import DriverConnection
from gpu_exporter.pipeline.gpu_state import GpuState, GpuStates
from gpu_exporter.pipeline.settings import CollectionPlan
from gpu_exporter.sources.backoff import Backoff

# Slow reads are spread evenly over this many GPUs: a node has eight. A ninth would read together with the first.
SPREAD = 8
# A read of a healthy GPU takes no longer.
HEALTHY_SECONDS = 0.25
PERIODS = tuple((pace, pace.value) for pace in Pace)
# How often in a row a pace is retried before its period is over.
MOST_RETRIES = 3


class ReadSchedule:
    """Tracks when each pace was last read, for the GPU of one index."""

    def __init__(self, index: int) -> None:
        self._phase = index % SPREAD / SPREAD
        self._read_at: dict[Pace, float] = {}
        self._due: frozenset[Pace] = frozenset()
        self._failures: Counter[Pace] = Counter()

    def reset(self) -> None:
        """Make everything due, because the GPU has a new handle."""
        self._read_at.clear()
        self._failures.clear()

    def take_due(self, now: float, interval: float) -> frozenset[Pace]:
        """Return the paces whose period is over, and start their next one. All are due at the first read.

        A read may be early by less than half an interval. The first period of a slow pace is shortened by a different
        share on each GPU, because the driver serves one call at a time, and calls that wait for it burn CPU.
        """
        slack = interval / 2
        read_at = self._read_at
        due = frozenset(pace for pace, period in PERIODS if now - read_at.get(pace, -math.inf) >= period - slack)
        for pace in due:
            read_at[pace] = now if pace in read_at else now - self._phase * pace.value
        self._due = due
        return due

    def retry_soon(self, failed: Collection[Pace], now: float) -> None:
        """After a read, make the paces that failed due within 15 s (the period of SLOW), even rare ones.

        A field that fails for good would have all fields of its pace read that often: after a few failures in a row,
        the pace keeps to its period.
        """
        due, self._due = self._due, frozenset()
        for pace in due.difference(failed):
            self._failures[pace] = 0
        for pace in failed:
            self._failures[pace] += 1
            if self._failures[pace] <= MOST_RETRIES:
                self._read_at[pace] = min(self._read_at.get(pace, now), now + Pace.SLOW.value - pace.value)


# Until it takes over, each collection reads the GPU twice, but no more than this many.
MOST_REHEARSALS = 5


class Successor:
    """A handle that was attached for other metrics while the previous one is still in use.

    Means need two reads. So that no series has a gap, the successor takes over only when it has values of all metrics
    that both handles read.
    """

    def __init__(self, device: Device, metrics: Sequence[Metric]) -> None:
        self.device, self.metrics = device, metrics
        self._rehearsals = 0
        self._buffered: dict[Series, Sequence[tuple[float, float]]] = {}

    def read(self, state: GpuState) -> Reading | None:
        """Read, and return the reading if this handle can take over. Raises GpuLost, SourceLost, GpuNotSampled."""
        reading = self.device.read(frozenset(Pace))
        self._rehearsals += 1
        # The previous handle may not have read the samples that the first of these reads returned.
        for series, taken in reading.buffered.items():
            self._buffered[series] = (*self._buffered.get(series, ()), *taken)
        reading = replace(reading, buffered=self._buffered)
        present = (*reading.values, *reading.failed, *reading.buffered)
        answered = {(series.metric, series.labels) for series in present}
        missing = [
            series
            for series, _ in state.samples
            if series.metric in self.metrics
            and not series.part  # a histogram continues with its totals
            and series.metric not in reading.unsupported
            and (series.metric, series.labels) not in answered
        ]
        return None if missing and self._rehearsals < MOST_REHEARSALS else reading


log = logging.getLogger(__name__)

BUG = "GPU %d: unexpected error, please report it"


class Worker:
    """Reads one GPU each time that it is woken, on a thread that calls `begin`, `run` and `finish`; an `instant` worker
    on the thread that wakes it. `index` is the GPU's position in the source, `gpu_index` its index in the driver.

    `plan` returns what to read now.
    """

    def __init__(
        self,
        index: int,
        gpu_index: int,
        connection: DriverConnection,
        states: GpuStates,
        plan: Callable[[], CollectionPlan],
        events: EventLog | None,
        *,
        instant: bool,
    ) -> None:
        self.index = index
        self.gpu_index = gpu_index
        self.instant = instant
        self.state = self._unidentified = states.unidentified(index, gpu_index)
        self._connection = connection
        self._states = states
        self._plan = plan
        self._events = events
        self._woken_at: float | None = None
        self._between_pages = False
        self._busy_since: float | None = None
        self._instant_tick = threading.Lock()  # the clock and the connect thread may wake it at the same time
        self._device: Device | None = None
        self._metrics: Sequence[Metric] = ()
        self._generation = -1
        self._backoff = Backoff()
        self._schedule = ReadSchedule(index)
        self._successor: Successor | None = None
        self._successor_backoff = Backoff()

    # --- other threads --------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether it was woken and has not finished."""
        return self._woken_at is not None or self._busy_since is not None

    @property
    def unidentified(self) -> bool:
        """Whether its GPU has not been identified."""
        return self.state is self._unidentified

    @property
    def late(self) -> float:
        """Seconds that the current read has taken, or waited to begin, if that is longer than the deadline; else 0."""
        since = self._woken_at if self._busy_since is None else self._busy_since
        busy = 0.0 if since is None else time.monotonic() - since
        return busy if busy > self._plan().deadline else 0.0

    @property
    def stalled(self) -> float:
        """Seconds that the current read has been stuck in the driver.

        0 if it has not begun, waits for something else, or was not over when a call about no single GPU began that has
        not returned since: then this GPU may be healthy.
        """
        device, called_at, late = self._device, self._connection.called_at, self.late
        if self._busy_since is None and self._woken_at is not None:
            return 0.0
        in_driver = not self._connection.source.through_hostengine and (device is None or device.in_driver)
        waits = called_at is not None and called_at <= time.monotonic() - late + HEALTHY_SECONDS
        return late if in_driver and not waits else 0.0

    def wake(self, *, between_pages: bool = False) -> None:
        """Have it read, or release its handle if the collector is stopping. An instant worker does so at once.

        With `between_pages`, read only what is needed between two pages.
        """
        self._between_pages = between_pages
        if not self.instant:
            self._woken_at = time.monotonic()
            return
        with self._instant_tick:
            self.begin()
            try:
                self.run()
            finally:
                self.finish()

    # --- the thread that reads ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that it reads now."""
        self._busy_since = time.monotonic()  # first, so that a woken worker never looks idle
        self._woken_at = None

    def finish(self) -> None:
        """Note that its read is over."""
        self._busy_since = None

    def run(self) -> None:
        """Read, or release the handle if the collector is stopping."""
        if self._connection.stopping.is_set():
            self._end()
        else:
            self._run_tick()

    def _run_tick(self) -> None:
        started = time.monotonic()
        try:
            self._tick()
        except Exception:  # a bug in this program must not look like a GPU that hangs
            log.exception(BUG, self.gpu_index)
            with self._logging_bugs():
                self._failed("internal_error", "unexpected error")
        self.state.spent += time.monotonic() - started

    @contextmanager
    def _logging_bugs(self) -> Iterator[None]:
        """Log an unexpected error instead of raising it, so that the rest is still done."""
        try:
            yield
        except Exception:
            log.exception(BUG, self.gpu_index)

    def _end(self) -> None:
        self._drop_successor()
        device, self._device = self._device, None
        if device:
            with self._logging_bugs():
                device.close()

    def _tick(self) -> None:
        started, plan = time.monotonic(), self._plan()
        generation = self._connection.generation
        if self._generation != generation:
            self._detach()
            self._backoff.reset()
            self._generation = generation
            if self._connection.released:
                self.state.released()
        between_pages = self._between_pages
        if self._device and not self._holds_gpu():
            self._failed("gone", f"the driver lists the GPU that was at index {self.gpu_index} at another index")
        if not self._connection.up or self._connection.paused:
            return
        if self._device is None and (between_pages or started < self._backoff.due):
            return
        try:
            reading = self._read(plan, started, between_pages=between_pages)
        except GpuNotSampled:  # its values become too old by themselves
            return
        except GpuLost as error:
            self._failed(error.reason, str(error))
        except SourceLost as error:
            self._detach()
            self._connection.lost(generation, error)
        else:
            if reading is not None and generation == self._connection.generation:
                self._take(reading, plan, started, between_pages=between_pages)

    def _take(self, reading: Reading, plan: CollectionPlan, started: float, *, between_pages: bool) -> None:
        """Add a reading, unless another worker has attached the GPU meanwhile: the next tick notices that."""
        with self.state.lock:
            if not self._holds_gpu():
                return
            self.state.take(reading, plan, started, between_pages=between_pages)
        self._backoff.reset()
        self._schedule.retry_soon({series.metric.pace for series in reading.failed}, started)

    def _read(self, plan: CollectionPlan, now: float, *, between_pages: bool) -> Reading | None:
        device = self._device or self._attach(plan)
        if between_pages:
            return self._read_between_pages(device, plan, now)
        self._log_events(device)  # first: a GPU that can't be read any more still reports why
        return self._read_successor(plan, now) or device.read(self._schedule.take_due(now, plan.interval))

    def _read_between_pages(self, device: Device, plan: CollectionPlan, now: float) -> Reading | None:
        """Read only the means that histograms are made from, if the device can do that: means of other metrics are
        exact over any time. Read other devices as for a page if intervals are short, else not at all."""
        if device.reads_means:
            return device.read_means() if plan.histograms else None
        return device.read(self._schedule.take_due(now, plan.interval)) if plan.short_intervals else None

    def _log_events(self, device: Device) -> None:
        if self._events:
            self._events.add_driver_xids(self.state.accumulator.plausible_xids(device.events()))

    # --- its device -----------------------------------------------------------------------------------------------

    def _attach(self, plan: CollectionPlan) -> Device:
        self._metrics = plan.metrics
        device = self._connection.source.attach(self.index, plan.metrics)
        self._device = device
        self.state = self._states.claim(device.gpu, self.index)
        self._schedule.reset()
        self.state.attached(reports_xids=device.xids_since is not None, pcie_port=device.pcie_port)
        if self._events and device.xids_since is not None:
            self._events.registered(device.gpu, device.xids_since)
        return device

    def _detach(self) -> None:
        self._drop_successor()
        device, self._device = self._device, None
        if device:
            with self._logging_bugs():
                self._log_events(device)  # an XID may say why the GPU died
            with self.state.lock:
                if self._holds_gpu():
                    self.state.detached()
            with self._logging_bugs():
                device.close()

    def _failed(self, reason: str, message: str) -> None:
        self._detach()
        self._backoff.failed()
        if not self._holds_gpu():
            self.state = self._unidentified
        self.state.down(reason, message)

    def _holds_gpu(self) -> bool:
        """Return whether this worker was the last to attach its GPU, which may have moved to another index."""
        return self._states.worker_index(self.state) == self.index

    # --- a change of metrics --------------------------------------------------------------------------------------

    def _read_successor(self, plan: CollectionPlan, now: float) -> Reading | None:
        """Return the reading of the device that takes over when other metrics are to be read; None until it does."""
        if self._successor and self._successor.metrics != plan.metrics:
            self._drop_successor()
        if self._metrics == plan.metrics or now < self._successor_backoff.due:
            return None
        try:
            if self._successor is None:
                device = self._connection.source.attach(self.index, plan.metrics)
                self._successor = Successor(device, plan.metrics)
            reading = self._successor.read(self.state)
        except GpuNotSampled:
            return None
        except GpuLost as error:  # if the GPU is lost, the device in use reports that, too
            log.warning("GPU %d: the changed metrics are not read yet: %s", self.gpu_index, error)
            self._drop_successor()
            self._successor_backoff.failed()
            return None
        if reading is not None:
            self._successor_backoff.reset()
            self._take_over(self._successor)
        return reading

    def _take_over(self, successor: Successor) -> None:
        previous, self._metrics = self._device, successor.metrics
        self._device, self._successor = successor.device, None
        successor.device.events()  # dropped: the previous device has received the same ones
        if previous:
            self._log_events(previous)
            previous.close()
        self.state = self._states.claim(successor.device.gpu, self.index)
        self.state.taken_over(reports_xids=successor.device.xids_since is not None)

    def _drop_successor(self) -> None:
        successor, self._successor = self._successor, None
        if successor:
            with self._logging_bugs():
                successor.device.close()
