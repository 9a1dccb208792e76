"""The thread that reads what training loops send, and makes samples of it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.jobs.connections import Connections, SocketPeer
from gpu_exporter.jobs.message import Message, UnknownVersion, decode
from gpu_exporter.jobs.places import Places, ProcessFamily, places
from gpu_exporter.jobs.socket_file import JobSocket, SocketInUse
from gpu_exporter.jobs.store import LATE_SECONDS, Accepted, LoopState, RankKey, RankSeries, RankStore, Sender
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Sample, Series
from gpu_exporter.model.job_message import MOST_BYTES
from gpu_exporter.model.snapshot import GpuSamples

log = logging.getLogger(__name__)

# After each read of all connections, none are read for a moment: a sender gains nothing by sending more often.
PAUSE_SECONDS = 0.1
# Also how often the file of the socket is checked.
IDLE_SECONDS = 1.0
# Faulty messages are logged no more often than this.
LOG_SECONDS = 60.0
# Of what happens to ranks, so many lines are logged in that time.
MOST_LINES = 20


class JobWatch(threading.Thread):
    """Owns the socket. `samples` never blocks.

    The constructor raises GpuExporterError if the socket cannot be made, unless another process listens on it: then,
    and when the file is deleted, the socket is made as soon as that is possible. Unless the GPUs are `live`, no process
    can use them: a rank is on the GPU with its number.
    """

    def __init__(self, path: Path, procfs: Path = Path("/proc"), *, live: bool = True) -> None:
        super().__init__(name="jobs", daemon=True)
        self._path, self._family = path, ProcessFamily(HostFiles(procfs, Path("/sys")))
        self._live = live
        self._socket: JobSocket | None = None
        self._connections: Connections | None = None
        self._problem = ""
        self._store, self._places = RankStore(), Places()
        self._series: dict[RankKey, RankSeries] = {}
        self._counts = dict.fromkeys(Accepted, 0)
        self._count_series = {
            result: Series(m.JOB_MESSAGES, None, (("result", result.value),)) for result in self._counts
        }
        self._up = Series(m.JOB_SOCKET_UP)
        self._published: Sequence[Sample] = ()
        self._stopping = threading.Event()
        self._logged_at = -math.inf
        self._broken = False
        self._ended: Collection[RankKey] = frozenset()
        self._restarts: Mapping[RankKey, int] = {}
        self._counted_at, self._lines = -math.inf, 0
        try:
            self._listen()
        except SocketInUse as error:
            self._report(error)
        self._publish(time.monotonic())

    # --- the clock's thread -----------------------------------------------------------------------------------------

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series] = ()) -> Sequence[Sample]:
        """Return the latest samples, and note which process and pod is on which GPU. Never blocks, never raises."""
        self._places = places(gpus, pods)
        return [*self._published, Sample(self._up, self._socket is not None)]

    def stop(self) -> None:
        """Request the end and remove the file; does not wait for the thread, which the end of the process may cut."""
        self._stopping.set()
        if (made := self._socket) is not None:
            made.remove()
            made.wake()

    # --- its own thread ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                try:
                    self._turn()
                    self._broken = False
                except Exception:  # telemetry of jobs is optional: everything else goes on
                    if not self._broken:
                        log.exception("job socket: unexpected error, please report it")
                    self._broken = True
                # Unless it has waited already: an idle socket wakes this thread once a second.
                if (pause := begun + PAUSE_SECONDS - time.monotonic()) > 0:
                    self._stopping.wait(pause)
        finally:
            self._close()

    def _turn(self) -> None:
        """Wait for messages, read them, and publish their samples; make the socket again if its file is gone."""
        if self._socket is not None and not self._socket.is_in_place():
            self._close()
        if self._connections is None:
            self._open()
        if self._connections is None:
            self._stopping.wait(IDLE_SECONDS)
        else:
            for content, peer in self._connections.receive(IDLE_SECONDS):
                self._counts[self.take(content, peer)] += 1
            for peer in self._connections.closed:
                self._store.close(peer.attempt)
            self._connections.closed.clear()
            self._counts[Accepted.LIMIT] += self._connections.refused + self._store.shortened
            self._connections.refused = self._store.shortened = 0
        now = time.monotonic()
        self._store.forget(now)
        self._publish(now)

    def _listen(self) -> None:
        self._socket = JobSocket(self._path)
        self._connections = Connections(self._socket, lambda pid, uid: bool(self._on_gpu(pid, uid)))

    def _open(self) -> None:
        try:
            self._listen()
        except GpuExporterError as error:
            self._report(error)
            return
        log.warning("job socket: %s is in place again", self._path)
        self._problem = ""

    def _close(self) -> None:
        if self._connections is not None:
            self._connections.close()
        self._socket = self._connections = None

    def _report(self, error: GpuExporterError) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            log.error("%s; the exporter tries again", error)

    def take(self, content: bytes, peer: SocketPeer) -> Accepted:
        """Take a message; return what became of it."""
        now = time.monotonic()
        if len(content) > MOST_BYTES:
            return self._fault(Accepted.TOO_LARGE, f"larger than {MOST_BYTES} bytes", peer)
        try:
            message = decode(content)
        except UnknownVersion as error:
            return self._fault(Accepted.VERSION, str(error), peer)
        except ValueError as error:
            return self._fault(Accepted.INVALID, str(error), peer)
        if message.elapsed > now + LATE_SECONDS:
            return self._fault(Accepted.INVALID, "elapsed: longer than this machine runs", peer)
        peer.valid, peer.heard_at = True, now
        sender = self._sender(message, peer.pid, peer.uid)
        if sender is None:
            return self._fault(Accepted.UNKNOWN_GPU, "neither process, UUID nor pod belongs to one GPU", peer)
        peer.verified, peer.attempt = sender.verified, message.attempt
        return self._store.take(message, sender, now, time.time())

    def _on_gpu(self, pid: int, uid: int) -> Collection[int]:
        """Return this process, or its relatives, that the driver lists on a GPU."""
        listed = self._places.by_pid
        return [pid] if pid in listed else self._family.relatives(pid, uid, listed.keys())

    def _sender(self, message: Message, pid: int, uid: int) -> Sender | None:
        """Return the sender and its GPU; None if that is unknown."""
        known = self._places
        if (place := known.of_processes(self._on_gpu(pid, uid), message.uuid)) is not None:
            return Sender(uid, pid, place, verified=True)
        place = known.of_statement(message.uuid, message.pod_uid)
        if place is None and not self._live:
            place = known.of_rank(message.rank)
        return None if place is None else Sender(uid, pid, place, verified=False)

    def _fault(self, result: Accepted, why: str, peer: SocketPeer) -> Accepted:
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            message = "job socket: message of PID %d, user %d is dropped: %s"
            log.warning(message, peer.pid, peer.uid, printable(why, 200))
        return result

    def _publish(self, now: float) -> None:
        gpus, series, parts = self._places.gpus, dict[RankKey, RankSeries](), []
        shown, ended = dict(self._store.shown(now)), self._store.ended(now)
        for key, state in {**shown, **ended}.items():
            gpu = gpus.get(key.place.uuid)
            if gpu is None:
                continue
            of_rank = self._series.get(key)
            if of_rank is None or of_rank.gpu != gpu:
                of_rank = RankSeries(key, gpu)
            series[key] = of_rank
            over = key in ended
            parts.append((of_rank.ended(time.time() - now + state.heard_at),) if over else of_rank.samples(state))
        counts = [Sample(self._count_series[result], count) for result, count in self._counts.items()]
        self._series, self._published = series, (*chain.from_iterable(parts), *counts)
        self._log(shown, ended, now)

    def _log(self, shown: Mapping[RankKey, LoopState], ended: Mapping[RankKey, LoopState], now: float) -> None:
        """Log ranks that have ended while others train, that run again, and jobs that have ended."""
        lines = []
        for key in ended.keys() - self._ended:
            others = sum(other.job_id == key.job_id and other not in ended for other in shown)
            lines.append(f"{_named(key)} has ended or sends nothing; of its job on this node, {others} go on")
        for key, state in shown.items():
            if state.past.processes > self._restarts.get(key, state.past.processes):
                lines.append(f"{_named(key)} runs again, after {state.past.processes} restarts")
        jobs, before = ({key.job_id for key in ranks} for ranks in (shown, self._restarts))
        lines += [f"job {printable(job, 80)}: all ranks on this node have ended" for job in before - jobs]
        self._ended = frozenset(ended)
        self._restarts = {key: state.past.processes for key, state in shown.items()}
        if now - self._counted_at >= LOG_SECONDS:
            self._counted_at, self._lines = now, 0
        for line in lines[: MOST_LINES - self._lines]:
            log.warning("training loop: %s", line)
        self._lines += len(lines)


def _named(key: RankKey) -> str:
    return f"rank {key.rank} of job {printable(key.job_id, 80)}"
