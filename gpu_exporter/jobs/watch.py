"""The thread that reads what training loops send, and makes samples of it."""

from __future__ import annotations

import logging
import math
import select
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.decoding import printable
from gpu_exporter.jobs.message import UnknownVersion, decode
from gpu_exporter.jobs.samples import RankSeries
from gpu_exporter.jobs.socket_file import JobSocket
from gpu_exporter.jobs.store import RankKey, RankStore, Result, Sender
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.job_message import MOST_BYTES
from gpu_exporter.model.snapshot import GpuSamples

log = logging.getLogger(__name__)

# So many messages are read at once, and then none for a moment: a flood costs no more than this.
MOST_AT_ONCE, PAUSE_SECONDS = 256, 0.1
IDLE_SECONDS = 1.0
# Faulty messages are logged no more often than this.
LOG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Places:
    """The GPUs by UUID, and the UUIDs of the GPUs on which the driver lists each PID."""

    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    by_pid: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def of(self, pid: int, declared: str) -> tuple[str, bool] | None:
        """Return the UUID of the GPU of a process, and whether the driver says so; None if it is unknown."""
        listed = self.by_pid.get(pid, frozenset())
        if declared in listed:
            return declared, True
        if len(listed) == 1:
            return min(listed), True
        return (declared, False) if declared in self.gpus else None


class JobWatch(threading.Thread):
    """Owns the socket. `samples` never blocks. The constructor raises GpuExporterError if the socket cannot be made."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="jobs", daemon=True)
        self._socket = JobSocket(path)
        self._store, self._places = RankStore(), Places()
        self._series: dict[RankKey, RankSeries] = {}
        self._counts = dict.fromkeys(Result, 0)
        self._count_series = {
            result: Series(m.JOB_MESSAGES, None, (("result", result.value),)) for result in self._counts
        }
        self._published: Sequence[Sample] = ()
        self._stopping = threading.Event()
        self._logged_at = -math.inf
        self._broken = False

    # --- the clock's thread -----------------------------------------------------------------------------------------

    def samples(self, gpus: Sequence[GpuSamples]) -> Sequence[Sample]:
        """Return the latest samples, and note which process is on which GPU. Never blocks, never raises."""
        self._places = places(gpus)
        counts = [Sample(self._count_series[result], count) for result, count in self._counts.items()]
        return [*self._published, *counts]

    def stop(self) -> None:
        """Request the end; does not wait for it."""
        self._stopping.set()
        self._socket.wake()

    # --- its own thread ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            poll = select.poll()
            poll.register(self._socket.socket, select.POLLIN)
            while not self._stopping.is_set():
                poll.poll(IDLE_SECONDS * 1000)
                try:
                    self._read()
                    self._broken = False
                except Exception:  # telemetry of jobs is optional: everything else goes on
                    if not self._broken:
                        log.exception("job socket: unexpected error, please report it")
                    self._broken = True
                self._stopping.wait(PAUSE_SECONDS)
        finally:
            self._socket.close()

    def _read(self) -> None:
        for _ in range(MOST_AT_ONCE):
            received = self._socket.receive()
            if received is None:
                break
            content, pid, uid = received
            self._counts[self.take(content, pid, uid)] += 1
        now = time.monotonic()
        self._store.forget(now)
        self._publish(now)

    def take(self, content: bytes, pid: int, uid: int) -> Result:
        """Take a datagram of a process; return what became of it."""
        if len(content) > MOST_BYTES:
            return self._fault(Result.TOO_LARGE, f"larger than {MOST_BYTES} bytes", pid, uid)
        try:
            message = decode(content)
        except UnknownVersion as error:
            return self._fault(Result.VERSION, str(error), pid, uid)
        except ValueError as error:
            return self._fault(Result.INVALID, str(error), pid, uid)
        place = self._places.of(pid, message.uuid)
        if place is None:
            return Result.UNKNOWN_GPU
        return self._store.take(message, Sender(uid, *place), time.monotonic(), time.time())

    def _fault(self, result: Result, why: str, pid: int, uid: int) -> Result:
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.warning("job socket: message of PID %d, user %d is dropped: %s", pid, uid, printable(why, 200))
        return result

    def _publish(self, now: float) -> None:
        gpus, series, parts = self._places.gpus, dict[RankKey, RankSeries](), []
        for key, state in self._store.shown(now):
            gpu = gpus.get(key.uuid)
            if gpu is None:
                continue
            of_rank = self._series.get(key)
            if of_rank is None or of_rank.gpu != gpu:
                of_rank = RankSeries(key, gpu)
            series[key] = of_rank
            parts.append(of_rank.samples(state))
        self._series, self._published = series, tuple(chain.from_iterable(parts))


def places(gpus: Sequence[GpuSamples]) -> Places:
    """Return the GPUs and their processes. A GPU that cannot be read now keeps those of its last read."""
    by_pid: dict[int, frozenset[str]] = {}
    for seen in gpus:
        for series, _ in seen.samples:
            if series.metric is m.PROCESS_MEMORY or series.metric is m.PROCESS_SM:
                pid = int(dict(series.labels)["pid"])
                by_pid[pid] = by_pid.get(pid, frozenset()) | {seen.gpu.uuid}
    return Places({seen.gpu.uuid: seen.gpu for seen in gpus if seen.gpu.uuid}, by_pid)
