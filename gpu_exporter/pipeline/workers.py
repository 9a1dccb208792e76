"""The workers of one source: wakes them, waits for them, and knows which of them are stuck.

They share the threads that read: one, and another one for each read that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from gpu_exporter.events.event_log import EventLog
from gpu_exporter.model.snapshot import UNREAD
from gpu_exporter.pipeline.connection import DriverConnection
from gpu_exporter.pipeline.gpu_state import GpuState, GpuStates
from gpu_exporter.pipeline.settings import CollectionPlan
from gpu_exporter.pipeline.worker import Worker

log = logging.getLogger(__name__)

LOST = ("lost", "reset_required", "gone")
# Longer than a healthy read of all that changes fast. If a read takes longer, another thread does the next ones.
BRIEF = 0.05


class Workers:
    """One worker for each index at which the library ever had a GPU. The connect thread adds workers."""

    def __init__(
        self,
        connection: DriverConnection,
        states: GpuStates,
        plan: Callable[[], CollectionPlan],
        events: EventLog | None,
    ) -> None:
        self._connection = connection
        self._states = states
        self._plan = plan
        self._events = events
        self._workers: list[Worker] = []
        self._count = 0
        self._lock = threading.Lock()
        self._finished = threading.Condition(self._lock)
        self._queued = threading.Condition(self._lock)
        self._queue: deque[Worker] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._begun_at = -float("inf")
        self._refused = False

    # --- the connect thread ---------------------------------------------------------------------------------------

    def ensure_workers(self, count: int) -> None:
        """Add workers until there is one for each of `count` GPUs; the GPUs of any further workers are gone."""
        self._count = count
        source = self._connection.source
        for index in range(len(self._workers), count):
            self._workers.append(
                Worker(
                    index,
                    source.gpu_index(index),
                    self._connection,
                    self._states,
                    self._plan,
                    self._events,
                    instant=source.instant(index),
                )
            )

    def wake_all(self) -> None:
        """Wake every worker, even if it is busy."""
        self._wake(self._workers)

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no worker is in a driver call. Return False if that takes longer than `timeout` seconds, or if the
        collector stops before."""
        self._wait(self._workers, timeout)
        return not any(worker.busy for worker in self._workers)  # the wait also ends when the collector stops

    def any_late(self) -> bool:
        """Return whether a read takes longer than the deadline."""
        return any(worker.late for worker in self._workers)

    def any_unread(self) -> bool:
        """Return whether a GPU has not been read yet, and nothing says why."""
        return any(worker.state.reason == UNREAD for worker in self._workers[: self._count])

    def all_lost(self) -> bool:
        """Return whether all GPUs are lost."""
        return all(worker.state.reason in LOST for worker in self._workers)

    # --- the clock ------------------------------------------------------------------------------------------------

    def read_instant(self, *, between_pages: bool = False) -> list[Worker]:
        """Have the instant workers read, and return the others that are not busy.

        With `between_pages` they read only what is needed between two pages.
        """
        idle = []
        for worker in self._workers if self._connection.up and not self._connection.paused else ():
            if worker.busy and not worker.instant:
                worker.state.skipped += 1
                if worker.stalled:
                    worker.state.stuck()
                continue
            if worker.instant:
                worker.wake(between_pages=between_pages)
            else:
                idle.append(worker)
        return idle

    def read_in_turn(self, workers: Sequence[Worker], timeout: float, *, between_pages: bool = False) -> None:
        """Have these read one after another, and wait until all have finished, for `timeout` seconds at most.

        Threads that read at the same time spend CPU waiting for each other, in the driver and for the GIL. One thread
        for each GPU is also slow if they take turns: each runs on another core, whose caches have none of the data.
        """
        self._wake(workers, between_pages=between_pages)
        self._wait(workers, timeout)

    def _wake(self, workers: Sequence[Worker], *, between_pages: bool = False) -> None:
        """Have these read as soon as a thread is free; the instant ones at once."""
        for worker in workers:
            if worker.instant:
                worker.wake(between_pages=between_pages)
        with self._lock:
            for worker in workers:
                if not worker.instant:
                    queued = worker.busy  # a read that is over begins again if its worker was woken meanwhile
                    worker.wake(between_pages=between_pages)
                    self._queue.extend(() if queued else (worker,))
            self._use_thread()

    def _wait(self, workers: Sequence[Worker], timeout: float) -> None:
        """Wait until these have finished their reads, or the collector stops."""

        def is_over() -> bool:
            return self._connection.stopping.is_set() or not any(worker.busy for worker in workers)

        end = time.monotonic() + timeout
        with self._lock:
            while not is_over() and (now := time.monotonic()) < end:
                self._use_thread()
                until = min(end, self._begun_at + BRIEF) if self._queue else end
                self._finished.wait_for(is_over, until - now)

    def skip(self, ticks: int) -> None:
        """Count collections that the clock missed."""
        for worker in self._workers:
            worker.state.skipped += ticks

    # --- the threads that read ------------------------------------------------------------------------------------

    def _use_thread(self) -> None:
        """Have a thread do the reads that wait: the idle one, or a new one if the last read began BRIEF ago."""
        now = time.monotonic()
        if self._queue and self._idle:
            self._begun_at = now
            self._queued.notify()
        elif self._queue and now >= self._begun_at + BRIEF:
            self._begun_at = now
            thread = threading.Thread(target=self._read, name="reader", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._refused:
                    log.error(
                        "GPUs are not read: %s; raise the limit on processes (ulimit -u, pids.max) or on memory", error
                    )
                self._refused = True
            else:
                self._threads.add(thread)
                self._refused = False

    def _read(self) -> None:
        """Do the reads that wait, until the collector stops or another thread is idle."""
        while worker := self._next():
            try:
                worker.run()
            finally:
                with self._lock:
                    worker.finish()
                    self._queue.extend((worker,) if worker.busy else ())  # woken meanwhile

    def _next(self) -> Worker | None:
        """Return the worker whose read is next; None if this thread is no longer needed."""
        with self._lock:
            if not self._queue:
                self._finished.notify_all()
            while not self._queue:
                if self._idle or self._connection.stopping.is_set():
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                self._queued.wait()
                self._idle -= 1
            worker = self._queue.popleft()
            self._begun_at = time.monotonic()
            worker.begin()
            return worker

    # --- any thread -----------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Wake the threads that wait for workers, because one has finished its read or the collector stops."""
        with self._finished:
            self._finished.notify_all()

    def worker_of(self, state: GpuState) -> Worker:
        """Return the worker that last attached this GPU."""
        return self._workers[self._states.worker_index(state)]

    def unidentified(self) -> list[GpuState]:
        """Return the states of GPUs that the library lists, but that have not been identified yet."""
        return [worker.state for worker in self._workers[: self._count] if worker.unidentified]

    def stuck(self) -> list[int]:
        """Return the indices of GPUs that are stuck in a driver call; if none is, those of GPUs in a call."""
        stalled = [worker.gpu_index for worker in self._workers if worker.stalled]
        return stalled or [worker.gpu_index for worker in self._workers if worker.busy]

    def threads(self) -> list[threading.Thread]:
        """Return the threads that read."""
        with self._lock:
            return [*self._threads]
