"""Threads that read something of the machine every few seconds, and keep it as rows; several of them act as one."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import GpuSamples, Row
from gpu_exporter.model.source import HostEvidence

log = logging.getLogger(__name__)

# Rows that are older than this many periods are withdrawn.
STALE_PERIODS = 2.5


class RowThread(threading.Thread):
    """Calls `read` every `period` seconds. `rows` never blocks. `what` names in the log what is read."""

    def __init__(self, name: str, what: str, period: float) -> None:
        super().__init__(name=name, daemon=True)
        self._what, self._period = what, period
        self._gpus: Sequence[Gpu] = ()
        self._rows: Sequence[Row] = ()
        self._read_at = -math.inf
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._broken = False

    # --- the clock's thread -----------------------------------------------------------------------------------------

    def rows(self, gpus: Sequence[GpuSamples]) -> Sequence[Row]:
        """Return the rows of the last read, and note the GPUs for the next one. Never blocks, never raises."""
        first = not self._gpus
        self._gpus = tuple(seen.gpu for seen in gpus)
        if first and self._gpus:
            self._wake.set()
        fresh = time.monotonic() - self._read_at <= STALE_PERIODS * self._period
        return self._rows if fresh else ()

    def stop(self) -> None:
        """Request the end; does not wait for it."""
        self._stopping.set()
        self._wake.set()

    # --- its own thread ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                self.poll(begun)
                self._broken = False
            except Exception:  # these rows are optional: everything else goes on
                if not self._broken:
                    log.exception("%s: unexpected error, please report it", self._what)
                self._broken = True
            self._wait(begun)

    def _wait(self, begun: float) -> None:
        """Wait until the next read is due, after one that has begun at this time (monotonic seconds)."""
        self._wake.wait(self._period)
        self._wake.clear()

    def poll(self, now: float) -> None:
        """Read what is due at this time (monotonic seconds), and keep the rows."""
        self._rows, self._read_at = self.read(now), time.monotonic()

    def read(self, now: float) -> Sequence[Row]:
        """Return the rows at this time (monotonic seconds)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class JoinedEvidence:
    """The rows of several observers. Implements `HostEvidence`."""

    parts: Sequence[HostEvidence]

    def start(self) -> None:
        """Start all of them."""
        for part in self.parts:
            part.start()

    def rows(self, gpus: Sequence[GpuSamples]) -> Sequence[Row]:
        """Return the latest rows of all. Never blocks, never raises."""
        return [row for part in self.parts for row in part.rows(gpus)]

    def stop(self) -> None:
        """Request the end of all; does not wait for it."""
        for part in self.parts:
            part.stop()
