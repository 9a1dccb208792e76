"""The workers of one source: wakes them, waits for them, and knows which of them are stuck."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from gpu_exporter.events.event_log import EventLog
from gpu_exporter.model.snapshot import UNREAD
from gpu_exporter.pipeline.connection import DriverConnection
from gpu_exporter.pipeline.gpu_state import GpuState, GpuStates
from gpu_exporter.pipeline.settings import CollectionPlan
from gpu_exporter.pipeline.worker import Worker

log = logging.getLogger(__name__)

LOST = ("lost", "reset_required", "gone")
# Longer than a healthy read of all that changes fast.
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
        self._finished = threading.Condition()
        self._refused = False

    # --- the connect thread ---------------------------------------------------------------------------------------

    def ensure_workers(self, count: int) -> None:
        """Start workers until there is one for each of `count` GPUs; the GPUs of any further workers are gone.

        If the system refuses a thread, GPUs that have one are still read, and the next call tries again.
        """
        self._count = count
        source = self._connection.source
        for index in range(len(self._workers), count):
            instant, gpu_index = source.instant(index), source.gpu_index(index)
            worker = Worker(
                index,
                gpu_index,
                self._connection,
                self._states,
                self._plan,
                self._events,
                instant=instant,
                finished=self.notify,
            )
            try:
                if not instant:
                    worker.start()
            except RuntimeError as error:
                if not self._refused:
                    log.error(
                        "GPU %d is not read: %s; raise the limit on processes (ulimit -u, pids.max) or on memory",
                        gpu_index,
                        error,
                    )
                self._refused = True
                return
            self._workers.append(worker)
            if self._connection.stopping.is_set():  # the collector may have woken all workers before, to end them
                worker.wake()
        self._refused = False

    def wake_all(self) -> None:
        """Wake every worker, even if it is busy."""
        for worker in self._workers:
            worker.wake()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no worker is in a driver call. Return False if that takes longer than `timeout` seconds, or if the
        collector stops before."""
        with self._finished:
            self._finished.wait_for(
                lambda: self._connection.stopping.is_set() or not any(worker.busy for worker in self._workers), timeout
            )
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

        Threads that read at the same time spend CPU waiting for each other, in the driver and for the GIL. The next
        one is woken after BRIEF, even if a read takes longer.
        """
        end = time.monotonic() + timeout
        for worker in workers:
            worker.wake(between_pages=between_pages)
            self._wait([worker], min(BRIEF, end - time.monotonic()))
        self._wait(workers, end - time.monotonic())

    def _wait(self, workers: Sequence[Worker], timeout: float) -> None:
        """Wait until these have finished their reads."""
        with self._finished:
            self._finished.wait_for(lambda: not any(worker.busy for worker in workers), timeout)

    def skip(self, ticks: int) -> None:
        """Count collections that the clock missed."""
        for worker in self._workers:
            worker.state.skipped += ticks

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
        """Return the threads that were started."""
        return [worker for worker in self._workers if worker.ident is not None]
