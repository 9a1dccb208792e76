"""The connect thread: opens the library with back-off, reopens it when all GPUs are lost, and releases it on request.

It also looks for GPUs that were added, and adds a worker for each of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.pipeline.connection import DriverConnection
from gpu_exporter.pipeline.hand_over import HandOver
from gpu_exporter.pipeline.settings import DEADLINE_SECONDS
from gpu_exporter.pipeline.workers import Workers
from gpu_exporter.sources.backoff import Backoff

log = logging.getLogger(__name__)

RESCAN_SECONDS = 5.0
# How often a hand-over is retried while a driver call delays it.
HAND_OVER_RETRY_SECONDS = 0.5


class Connector(threading.Thread):
    """Keeps the library open. `most_gpus` is the highest number of GPUs that was seen or can be expected, `bus` are the
    GPUs that were on the PCI bus when the library was opened.

    `deadline` is how long to wait for reads to end before the library is reopened, in seconds.
    """

    def __init__(self, connection: DriverConnection, workers: Workers, deadline: float) -> None:
        super().__init__(name="connect", daemon=True)
        self.most_gpus = 0
        self._connection = connection
        self._workers = workers
        self._source = connection.source
        self._deadline = deadline
        self._expected: int | None = None
        self.bus: Sequence[PciGpu] = ()
        self._reload_needed: bool | None = None
        self._retry, self._restart = Backoff(), Backoff()

    @property
    def reload_needed(self) -> bool | None:
        """Whether library and kernel driver differ in version; None if that is not known."""
        mismatch = not self._connection.up and self._connection.reason == "version_mismatch"
        return mismatch or self._reload_needed

    def run(self) -> None:
        """Keep the library open, or released, until the collector stops."""
        while not self._connection.stopping.is_set():
            try:
                hand_over = self._connection.hand_over_state.current()
                wait = self._hand_over(hand_over) if hand_over else self._keep_open()
            except SourceLost as error:
                self.bus = self._source.bus()  # it answers without the source
                self._connection.failed(error)
                wait = self._retry.failed()
            except Exception:
                log.exception("source %s: unexpected error, please report it", self._source.name)
                wait = self._retry.failed()
            self._connection.sleep(wait)

    def _hand_over(self, hand_over: HandOver) -> float:
        """Close the library once no call is inside it. Return after how many seconds to check again."""
        if hand_over.done:
            return hand_over.left
        if hand_over.closed:
            hand_over.check_files(self._source)
            return min(hand_over.left, HAND_OVER_RETRY_SECONDS)
        self._connection.begin_hand_over()
        if not self._detach() or self._connection.stopping.is_set():  # `Collector.stop` closes the library itself
            return min(hand_over.left, HAND_OVER_RETRY_SECONDS)
        hand_over.close(self._source)
        self._retry.reset()
        return hand_over.left if hand_over.done else min(hand_over.left, HAND_OVER_RETRY_SECONDS)

    def _keep_open(self) -> float:
        """Open the library if it is down. Return after how many seconds to check again."""
        self._reload_needed = self._source.reload_needed()
        if not self._connection.up:
            wait = self._retry.due - time.monotonic()
            if wait > 0:
                return wait
            self._reopen()
            self._retry.failed()  # reset once the library has stayed up until the next scan
        else:
            self._retry.reset()
            self._reopen_if_needed()
        self._rescan()
        return RESCAN_SECONDS

    def _reopen_if_needed(self) -> None:
        if not self._needs_reopen():
            self._restart.reset()
        elif time.monotonic() >= self._restart.due and not self._workers.any_late():
            self._restart.failed()
            self._reopen()

    def _reopen(self) -> None:
        """Reopen the library.

        It is closed first, but only if no call is inside it. If a call is stuck there, a library that still answers
        stays as it is, and one that does not is opened a second time. So the stuck call affects no other GPU.
        """
        self._connection.paused = True
        try:
            idle = self._workers.wait_idle(self._deadline)
            if not self._connection.stopping.is_set() and (idle or not self._connection.up):
                self._open(close=idle)
        finally:
            self._connection.paused = False

    def _open(self, *, close: bool) -> None:
        if self._detach() and close and not self._connection.stopping.is_set():
            self._source.close()
        with self._connection.calling():
            self._source.open()
            count = self._source.count()
        if count == 0:
            fix = "check `lspci | grep -i nvidia` and NVIDIA_VISIBLE_DEVICES"
            raise SourceLost(f"source {self._source.name}: the driver lists no GPU", "no_gpu", fix=fix)
        self._expected, self.bus = self._look()
        self._connection.opened()

    def _detach(self) -> bool:
        """Make each worker release its handle, because a reopened library cannot use it.

        Return False if a worker is stuck: closing a library while a call is inside it can crash the process.
        """
        self._connection.invalidate()
        self._workers.wake_all()
        return self._workers.wait_idle(DEADLINE_SECONDS)

    def _rescan(self) -> None:
        """Add workers for GPUs that the library lists and that have none."""
        with self._connection.calling():
            count = self._source.count()
        self._workers.ensure_workers(count)
        self.most_gpus = max(self.most_gpus, count, self._expected or 0)

    def _needs_reopen(self) -> bool:
        """Return whether all GPUs are lost, or the PCI bus has changed: only a reopened library finds these GPUs."""
        return self._look() != (self._expected, self.bus) or self._workers.all_lost()

    def _look(self) -> tuple[int | None, Sequence[PciGpu]]:
        """Return how many GPUs should answer, and those on the PCI bus, without calling the driver."""
        bus = self._source.bus()
        return len(bus) or self._source.expected(), bus
