"""The loop: one thread a GPU reads, a clock thread that never calls a driver publishes snapshots of what there is.

Three blast radii: a field that fails costs that field (`accumulate`), a lost or wedged GPU costs that GPU (`worker`),
a dead library costs the source, which `_connect` opens again with back-off. Nothing costs the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.collection.composer import PAGE_SECONDS, Composer, GpuRecord
from gpu_exporter.collection.dcgm_counts import Own
from gpu_exporter.collection.hand_over import HandOver, Release
from gpu_exporter.collection.worker import Worker
from gpu_exporter.health.events import EventLog, GpuState
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.pci import same_device
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.source import Attribution, Instant, Sampled, Source
from gpu_exporter.sources.backoff import Backoff

log = logging.getLogger(__name__)

RESCAN_SECONDS = 5.0
# What is kept of a GPU with an event of it.
EVIDENCE = frozenset(
    {
        m.SM_CLOCK,
        m.GPU_TEMP,
        m.MEMORY_TEMP,
        m.POWER,
        m.POWER_INSTANT,
        m.FB_USED,
        m.ECC_SBE_VOL,
        m.ECC_DBE_VOL,
        m.RECOVERY,
    }
)
# A GPU whose read takes longer than this, or an interval if that is longer, is stuck in its driver.
DEADLINE_SECONDS = 1.0
# How often a release that a driver call holds up is tried again.
RELEASE_RETRY_SECONDS = 0.5
# How long the parts of an interval are with high resolution: the shortest window that GPM answers rightly.
PART_SECONDS = 0.1
# What dcgm-exporter counts over, by default.
COUNT_WINDOW_SECONDS = 300.0


class Collector:
    """Runs the loop until `stop`. `publish` gets a snapshot at each tick, from the clock thread.

    `more` tells what else a snapshot says of this exporter. With intervals below a second there is a snapshot each
    second, and at the ticks between if `followed` says that somebody looks that often; else only profiling values are
    read there, which are all that a later page shows of that time.
    """

    def __init__(
        self,
        source: Source,
        metrics: Sequence[Metric],
        publish: Callable[[Snapshot], None],
        *,
        interval: float = 1.0,
        gauge_window: float = 15.0,
        expected: int | None = None,
        events: EventLog | None = None,
        more: Callable[[], Iterable[tuple[Metric, float]]] = tuple,
        xid_count_window: float = COUNT_WINDOW_SECONDS,
        clock_events_count_window: float = COUNT_WINDOW_SECONDS,
        attribution: Attribution | None = None,
        high_resolution: bool = False,
        followed: Callable[[], bool] = lambda: True,
    ) -> None:
        self.source = source
        self.events = events
        self._xid_window, self._clock_window = xid_count_window, clock_events_count_window
        self.choose(metrics)
        self.interval = interval
        self.swift = interval < PAGE_SECONDS
        self._part = interval / max(1, int(interval / PART_SECONDS + 1e-6)) if high_resolution else interval
        self._page_every = max(1, round(max(interval, PAGE_SECONDS) / self._part))
        self._followed = followed
        self.gauge_window = gauge_window
        self.deadline = max(interval, DEADLINE_SECONDS)
        self.generation = 0
        self.stopping = threading.Event()
        self.ticked_at = time.monotonic()
        self._publish = publish
        self._more = more
        self._configured = expected
        self._seen = 0
        self._bound: int | None = None
        self.up = False
        self.paused = False
        self._count = 0
        self._error = ""
        self._reason = "no_answer"
        self._reload: bool | None = None
        self._published_in = 0.0
        self._first_contact = threading.Event()
        self._poke = threading.Event()
        self.handover = HandOver(self._poke.set)
        if isinstance(source, Sampled):
            source.sample_every(interval)
        self._turn: AbstractContextManager[object] = source.gil_lock if isinstance(source, Instant) else nullcontext()
        self._done = threading.Condition()
        self._workers: list[Worker] = []
        self._records: dict[str, GpuRecord] = {}
        self._owners: dict[GpuRecord, Worker] = {}
        self._composer = Composer(source, attribution)
        self._threads = [
            threading.Thread(target=self._connect, name="connect", daemon=True),
            threading.Thread(target=self._clock, name="clock", daemon=True),
        ]

    def choose(self, metrics: Sequence[Metric]) -> None:
        """What to expose, also later: GPUs are attached anew without a gap in what is asked for before and after."""
        self.own = Own(metrics, self._clock_window, told=self.events is not None)
        self.metrics = self.own.asked

    def start(self, timeout: float = 10.0, stop: threading.Event | None = None) -> None:
        """Start, and wait for the first answer of the library. Raises SourceLost if it is an error or has no GPU.

        A library that does not answer in time, or until `stop`, is not waited for: the loop goes on trying.
        """
        end = time.monotonic() + timeout
        self._threads[0].start()
        while not self._first_contact.wait(0.1) and time.monotonic() < end and not (stop and stop.is_set()):
            pass
        if self._first_contact.is_set() and not self.up:
            raise SourceLost(self._error)
        self._threads[1].start()

    def stop(self, timeout: float = 1.0) -> bool:
        """Stop within about `timeout` seconds. False if a thread is stuck in a driver: then end with `os._exit`."""
        self.stopping.set()
        self._poke.set()
        self.worker_done()
        for worker in self._workers:
            worker.rouse()
        end = time.monotonic() + timeout
        threads = [thread for thread in (*self._threads, *self._workers) if thread.ident is not None]
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            return False
        closing = threading.Thread(target=self.source.close, name="close", daemon=True)
        closing.start()
        closing.join(max(0.1, end - time.monotonic()))
        return not closing.is_alive()

    # --- the hand-over --------------------------------------------------------------------------------------------

    def held(self) -> str:
        """What of the driver is still held although it was released, and why, in one line; else nothing."""
        release = self.handover.release
        stuck = [worker.index for worker in self._workers if worker.stalled]
        return release.held(stuck or [worker.index for worker in self._workers if worker.busy]) if release else ""

    def problem(self) -> str:
        """Why the library can't be used, in one line; else nothing."""
        return "" if self.up else self._error or "the library has not answered yet"

    def _let_go(self, release: Release) -> float:
        """Close the library, once no call is inside. Returns when to look again, in seconds."""
        if release.closed:
            return release.left
        if self.up:
            self._error = "the library has not answered yet"
        if not self._detached() or self.stopping.is_set():  # who stops closes the library itself
            return min(release.left, RELEASE_RETRY_SECONDS)
        release.close(self.source)
        return release.left

    # --- the library --------------------------------------------------------------------------------------------

    def source_lost(self, generation: int, error: SourceLost) -> None:
        """A worker found that the library is gone; the first one of a generation is heard."""
        with self._done:
            if not self.up or generation != self.generation:
                return
            self._lost(error)
        self._poke.set()

    def _lost(self, error: SourceLost) -> None:
        message = str(error)
        with self._done:  # a worker and the thread that connects may find it at once: that is one state change
            if message != self._error and self._first_contact.is_set():
                log.warning("source %s is down: %s", self.source.name, message)
            self.up, self._error, self._reason = False, message, error.reason

    def _connect(self) -> None:
        retry, restart = Backoff(), Backoff()
        while not self.stopping.is_set():
            wait = RESCAN_SECONDS
            try:
                release = self.handover.present()
                if release:
                    wait = self._let_go(release)
                else:
                    self._keep_open(retry, restart)
            except SourceLost as error:
                self._lost(error)
                wait = retry.failed()
            except Exception:
                log.exception("source %s: unexpected error, please report it", self.source.name)
                wait = retry.failed()
            self._first_contact.set()
            self._poke.wait(wait)
            self._poke.clear()

    def _keep_open(self, retry: Backoff, restart: Backoff) -> None:
        self._reload = self.source.reload_needed()
        if not self.up:
            self._reopen()
            retry.reset()
        elif not self._wants_restart():
            restart.reset()
        elif time.monotonic() >= restart.due:
            restart.failed()
            self._reopen()
        self._rescan()

    def _idle(self, patience: float) -> bool:
        """Wait until no worker is in a driver call; False if that takes too long."""
        with self._done:
            self._done.wait_for(
                lambda: self.stopping.is_set() or not any(worker.busy for worker in self._workers), patience
            )
            return not any(worker.busy for worker in self._workers)  # the end of all waits is no proof of it

    def _detached(self) -> bool:
        """Have each worker give its GPU back, on its own thread: a handle is of no use to the library that is loaded
        next. False if one is stuck: a library must not be closed while a call is inside it, for that can crash."""
        self.generation += 1
        self.up = False
        for worker in self._workers:
            worker.rouse()
        return self._idle(DEADLINE_SECONDS)

    def _reopen(self) -> None:
        """Open the library anew. It is closed before only if no call is inside it. A call that is stuck there keeps
        nobody else: a library that answers goes on as before, another is opened once more."""
        self.paused = True
        try:
            idle = self._idle(self.deadline)
            if not self.stopping.is_set() and (idle or not self.up):
                self._open(close=idle)
        finally:
            self.paused = False

    def _open(self, *, close: bool) -> None:
        if self._detached() and close and not self.stopping.is_set():
            self.source.close()
        self.source.open()
        if self.source.count() == 0:
            raise SourceLost(f"source {self.source.name}: the library answers but shows no GPU", "no_gpu")
        if self._error:
            log.info("source %s is back", self.source.name)
        self._bound = self.source.expected()
        self.up, self._error = True, ""

    def _rescan(self) -> None:
        """Give every GPU that the library counts a worker."""
        self._count = self.source.count()
        for index in range(len(self._workers), self._count):
            instant = isinstance(self.source, Instant) and self.source.instant(index)
            worker = Worker(self, index, instant=instant)
            self._workers.append(worker)
            if not instant:
                worker.start()
        self._seen = max(self._seen, self._count, self._bound or 0)

    def _wants_restart(self) -> bool:
        """When all GPUs are lost, or the bus changed, only a new start of the library finds them."""
        lost = [worker for worker in self._workers if worker.record.reason in ("lost", "reset_required", "gone")]
        return self.source.expected() != self._bound or len(lost) == len(self._workers)

    # --- GPUs -----------------------------------------------------------------------------------------------------

    def record_of(self, gpu: Gpu, owner: Worker) -> GpuRecord:
        """The record of this UUID (or index, where there is none), under its present identity and worker."""
        record = self._records.setdefault(gpu.uuid or f"GPU {gpu.index}", GpuRecord(gpu, self.gauge_window))
        record.gpu = gpu
        self._owners[record] = owner
        return record

    def owner_of(self, record: GpuRecord) -> Worker | None:
        """The worker that attached this GPU last."""
        return self._owners.get(record)

    def worker_done(self) -> None:
        """A worker finished its tick."""
        with self._done:
            self._done.notify_all()

    # --- the clock ------------------------------------------------------------------------------------------------

    def _clock(self) -> None:
        tick, part, parts, done = time.monotonic(), self._part, 0, -1
        while not self.stopping.is_set():
            try:
                if parts // self._page_every > done or (self.swift and self._followed()):
                    done = parts // self._page_every
                    self._tick()
                else:
                    self._wake(brief=True)
                self.ticked_at = time.monotonic()
            except Exception:  # /healthz tells when this lasts
                log.exception("no page was made: unexpected error, please report it")
            missed = max(0, int((time.monotonic() - tick) // part))  # skip what was missed, keep the phase
            for worker in self._workers:
                worker.record.skipped += missed
            tick += (missed + 1) * part
            parts += missed + 1
            self.stopping.wait(tick - time.monotonic())

    def _wake(self, *, brief: bool = False) -> list[Worker]:
        """Have all workers read that are not busy; with `brief` only what is read between two ticks."""
        awaited = []
        with self._turn:
            for worker in self._workers if self.up and not self.paused else ():
                if worker.busy and not worker.instant:
                    worker.record.skipped += 1
                    if worker.stalled:
                        worker.record.stuck()
                    continue
                worker.rouse(brief=brief)
                if not worker.instant:
                    awaited.append(worker)
        return awaited

    def _tick(self) -> None:
        awaited = self._wake()
        with self._done:
            self._done.wait_for(
                lambda: not any(worker.busy for worker in awaited), min(self.interval * 0.8, DEADLINE_SECONDS)
            )
        with self._turn:
            started = time.monotonic()
            self._publish(self.snapshot())
            self._published_in = time.monotonic() - started

    def snapshot(self) -> Snapshot:
        """What there is now. Calls no driver."""
        known = self._records.copy()  # first: a GPU that is named meanwhile must not be listed twice
        nameless = [worker.record for worker in self._workers[: self._count] if worker.nameless]
        records = sorted((*known.values(), *nameless), key=lambda record: record.gpu.index)
        release, mismatch = self.handover.release, not self.up and self._reason == "version_mismatch"
        own: list[tuple[Metric, float]] = [
            (m.EXPECTED, self._seen if self._configured is None else self._configured),
            (m.INTERVAL, self.interval),
            (m.RENDER_TIME, round(self._published_in, 6)),
            (m.RELEASED, bool(release and release.done)),
            *self._more(),
        ]
        if release:
            own.append((m.RELEASED_UNTIL, round(release.until, 3)))
        if mismatch or self._reload is not None:
            own.append((m.RELOAD_NEEDED, mismatch or bool(self._reload)))
        gpus = [(record, self._status(record)) for record in records]
        down = "" if self.up else "released" if release else self._reason
        return self._composer.compose(gpus, down, own, self.interval, self.events, (self.own.xids, self._xid_window))

    def look(self, pci: str) -> GpuState | None:
        """The GPU at a PCI address and what is known of it now, for who asks why."""
        for record in self._records.copy().values():
            if same_device(record.gpu.pci_bus_id, pci):
                own = ((series, value) for series, value in record.samples if not series.labels)
                values = {str(series.metric): value for series, value in own if series.metric in EVIDENCE}
                return GpuState(record.gpu, values)
        return None

    def _status(self, record: GpuRecord) -> GpuStatus:
        worker = self._owners.get(record) or self._workers[record.gpu.index]
        present = worker.record is record
        stalled = worker.stalled if present else 0.0
        if not present:
            reason = "gone"
        elif self.handover.release:
            reason = "stalled" if stalled else "released"
        else:
            reason = record.reason if self.up else "source_lost"
        return GpuStatus(record.gpu, not reason, reason, record.read_at, stalled)
