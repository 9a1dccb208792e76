"""The loop: a thread reads the GPUs, and a clock thread that never calls a driver publishes snapshots.

There are three blast radii. A field that fails affects only that field (`accumulator`). A lost or wedged GPU affects
only that GPU (`worker`). A dead library affects only its source, which the connect thread reopens with back-off
(`connector`). No failure ends the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.events.event_log import GpuEvidence
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.pci import PciGpu, pci_bus_id
from gpu_exporter.model.snapshot import SOURCE_LOST, UNREAD, GpuStatus, Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.pipeline.composer import NO_CONTEXT, Composer, Context
from gpu_exporter.pipeline.connection import DriverConnection
from gpu_exporter.pipeline.connector import Connector
from gpu_exporter.pipeline.gpu_state import GpuState, GpuStates
from gpu_exporter.pipeline.settings import DEADLINE_SECONDS, DEFAULT_SETTINGS, CollectionSettings, make_plan
from gpu_exporter.pipeline.worker import Worker
from gpu_exporter.pipeline.workers import Workers

log = logging.getLogger(__name__)

# How long `await_attached` waits.
ATTACH_SECONDS = 60.0
# The clock waits for its workers no longer than this share of an interval.
WAIT_SHARE = 0.8


class Collector:
    """Runs the loop until `stop`. Calls `publish` with each snapshot, on the clock thread.

    `extra_metrics` returns further metrics of the exporter itself. With intervals below a second there is a page each
    second, and one at each collection while `every_tick_wanted` returns True, because a client scrapes that often.
    A collection without a page adds only to totals and histograms, so a device with `reads_means` reads only the means
    for these.

    `failure` is the reason why the clock thread makes no page, or empty. `stopping` is set by `stop`; to stop several
    collectors at the same time, set it on all of them first.
    """

    def __init__(
        self,
        source: Source,
        metrics: Sequence[Metric],
        publish: Callable[[Snapshot], None],
        settings: CollectionSettings = DEFAULT_SETTINGS,
        *,
        context: Context = NO_CONTEXT,
        extra_metrics: Callable[[], Iterable[tuple[Metric, float]]] = tuple,
        every_tick_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        source.sample_every(settings.interval)
        self.source = source
        self.settings = settings
        self.events = context.events
        self.stopping = threading.Event()
        self.failure = ""
        self.set_metrics(metrics)
        self.connection = DriverConnection(source, self.stopping)
        self.hand_over_state = self.connection.hand_over_state
        self._states = GpuStates(settings.gauge_window, live=source.live)
        self._workers = Workers(self.connection, self._states, lambda: self._plan, context.events)
        self._connector = Connector(self.connection, self._workers, settings.deadline)
        self._clock = threading.Thread(target=self._run_clock, name="clock", daemon=True)
        self._composer = Composer(source, settings, context)
        self._publish = publish
        self._extra_metrics = extra_metrics
        self._every_tick_wanted = every_tick_wanted
        self._publish_seconds = 0.0
        self._silent = False
        self._gil_lock = source.gil_lock

    def set_metrics(self, metrics: Sequence[Metric]) -> None:
        """Expose these metrics from now on. While the loop runs, GPUs are attached again, without a gap in metrics that
        are exposed both before and after."""
        self._plan = make_plan(metrics, self.settings, xids_reported=self.events is not None)

    # --- start and stop -------------------------------------------------------------------------------------------

    def start(self, timeout: float = 10.0, stop: threading.Event | None = None) -> None:
        """Start, and wait for the first answer of the library. Raises SourceLost if it is an error or lists no GPU.

        After `timeout` seconds, or at `stop`, the wait ends, and the loop keeps trying in the background.
        """
        if self.connect(timeout, stop):
            if not self.connection.up:
                raise self.connection.error()
        elif not (stop and stop.is_set()):
            self.connection.log_late(timeout)
        self._clock.start()

    def connect(self, timeout: float = 10.0, stop: threading.Event | None = None) -> bool:
        """Start everything but the clock thread; the caller may call `tick` instead. Return False if the library does
        not answer within `timeout` seconds, or until `stop`."""
        end = time.monotonic() + timeout
        self._connector.start()
        while not self.connection.await_attempt(0.1) and time.monotonic() < end and not (stop and stop.is_set()):
            pass
        return self.connection.await_attempt(0)

    def await_attached(self, stop: threading.Event | None = None) -> None:
        """Wait while a host engine, which may be slow, makes progress with attaching the GPUs, but not for ever."""
        end = time.monotonic() + ATTACH_SECONDS if self.source.through_hostengine else 0.0
        while self._workers.any_unread() and self.connection.up and time.monotonic() < end:
            if (stop or self.stopping).wait(0.05):
                return

    def stop(self, timeout: float = 1.0) -> bool:
        """Stop within about `timeout` seconds. Return False if a thread is stuck in a driver: then use `os._exit`."""
        self.stopping.set()
        self.connection.wake()
        self._workers.notify()
        self._workers.wake_all()
        end = time.monotonic() + timeout
        started = [thread for thread in (self._connector, self._clock) if thread.ident is not None]
        threads = [*started, *self._workers.threads()]
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            return False
        closing = threading.Thread(target=self.source.close, name="close", daemon=True)
        try:
            closing.start()
        except RuntimeError:  # no more threads: as if it were stuck
            return False
        closing.join(max(0.1, end - time.monotonic()))
        return not closing.is_alive()

    # --- the clock ------------------------------------------------------------------------------------------------

    def _run_clock(self) -> None:
        settings, pages = self.settings, -1
        tick, step, steps = time.monotonic(), settings.step, 0
        while not self.stopping.is_set():
            try:
                page = steps // settings.steps_per_page
                if page > pages or (settings.short_intervals and self._every_tick_wanted()):
                    pages = page
                    self.tick()
                    self.failure = ""
                else:
                    self._read(between_pages=True)
            except Exception as error:  # /healthz reports it if this lasts
                self.failure = f"the collection loop fails with {type(error).__name__}; the log has the traceback"
                log.exception("the collection loop failed, and retries: unexpected error, please report it")
            missed = max(0, int((time.monotonic() - tick) // step))  # skip what was missed, keep the phase
            self._workers.skip(missed)
            tick += (missed + 1) * step
            steps += missed + 1
            self.stopping.wait(tick - time.monotonic())

    def tick(self) -> None:
        """Read all GPUs, and publish a snapshot."""
        self._read(between_pages=False)
        with self._gil_lock:
            started = time.monotonic()
            self._publish(self.snapshot())
            self._publish_seconds = time.monotonic() - started

    def _read(self, *, between_pages: bool) -> None:
        settings = self.settings
        with self._gil_lock:
            others = self._workers.read_instant(between_pages=between_pages)
        longest = min((settings.step if between_pages else settings.interval) * WAIT_SHARE, DEADLINE_SECONDS)
        self._workers.read_in_turn(others, longest, between_pages=between_pages)

    # --- any thread -----------------------------------------------------------------------------------------------

    def problem(self) -> str:
        """Return why the library can't be used, in one line; empty if it can."""
        return self.connection.problem()

    def hand_over_problem(self) -> str:
        """Return what of a driver is not released yet, and why, in one line; empty if everything is released."""
        hand_over = self.hand_over_state.hand_over
        return hand_over.problem(self._workers.stuck()) if hand_over else ""

    def evidence(self, pci: str) -> GpuEvidence | None:
        """Return the GPU at a PCI address with its current values, for an event on it; None if there is no such GPU."""
        state = self._states.at_address(pci)
        return state.evidence(self.settings.interval) if state else None

    def snapshot(self) -> Snapshot:
        """Return a snapshot of now. Calls no driver."""
        identified = self._states.identified()  # first, so that a GPU that is identified meanwhile is not listed twice
        states = sorted((*identified, *self._workers.unidentified()), key=lambda state: state.gpu.index)
        gpus = [(state, self._status(state)) for state in states]
        for state, status in gpus:
            if status.reason == "gone" and state.is_expired():
                self._states.forget(state)
        connection = self.connection
        self._log_silence(connection.up and any(status.reason == SOURCE_LOST for _, status in gpus))
        down = "" if connection.up else "released" if connection.released else connection.reason
        missing = self._missing([state.gpu for state in states]) if down in ("", "no_gpu") else ()
        return self._composer.compose(gpus, down, self._exporter_metrics(), self._plan.counts.xids, missing)

    def _log_silence(self, silent: bool) -> None:
        """Log once that a host engine that answers has no values of GPUs, and once that it has them again."""
        if silent and not self._silent:
            log.warning("source %s: no new values of some GPUs: it hangs or is overloaded", self.source.name)
        elif self._silent and not silent and self.connection.up:
            log.info("source %s has values of all GPUs again", self.source.name)
        self._silent = silent

    def _exporter_metrics(self) -> Iterable[tuple[Metric, float]]:
        """Yield the metrics of the exporter itself."""
        hand_over, reload_needed = self.hand_over_state.hand_over, self._connector.reload_needed
        yield m.EXPECTED, self._expected()
        yield m.INTERVAL, self.settings.interval
        yield m.RENDER_TIME, round(self._publish_seconds, 6)
        yield m.RELEASED, bool(hand_over and hand_over.done)
        yield from self._extra_metrics()
        if hand_over:
            yield m.RELEASED_UNTIL, round(hand_over.until, 3)
        if reload_needed is not None:
            yield m.RELOAD_NEEDED, reload_needed

    def _expected(self) -> int:
        expected = self.settings.expected_gpus
        return self._connector.most_gpus if expected is None else expected

    def _missing(self, listed: Sequence[Gpu]) -> Sequence[PciGpu]:
        """Return the GPUs on the PCI bus that the driver does not list; none while a listed one, which may be
        any of them, is not identified."""
        addresses = {pci_bus_id(gpu.pci_bus_id) for gpu in listed}
        missing = [gpu for gpu in self._connector.bus if gpu.address not in addresses]
        return missing if len(missing) <= faults.missing(self._expected(), len(listed)) else ()

    def _status(self, state: GpuState) -> GpuStatus:
        worker = self._workers.worker_of(state)
        stalled = worker.stalled if worker.state is state else 0.0
        reason = self._down_reason(state, worker, stalled)
        return GpuStatus(state.gpu, not reason, reason, state.read_at, stalled)

    def _down_reason(self, state: GpuState, worker: Worker, stalled: float) -> str:
        """Return why a GPU does not answer; empty if it does.

        Only the driver, or a list of GPUs that still answers, says that a GPU is down; that outlasts the source. A
        source that does not answer, or a read that is not over yet, says nothing about the GPU.
        """
        connection = self.connection
        if worker.state is not state:
            return "gone"
        if stalled and (connection.released or connection.up):
            return "stalled"
        if connection.released:
            return "released"
        if state.reason in faults.DOWN:
            return state.reason
        if not connection.up:
            return "gone" if self._left_the_list(state.gpu) else SOURCE_LOST
        if state.reason or state.is_fresh(self.settings.interval):
            return state.reason
        if self.source.through_hostengine:
            return UNREAD if state.detached_since_read else SOURCE_LOST
        return SOURCE_LOST if worker.late else ""

    def _left_the_list(self, gpu: Gpu) -> bool:
        """Return whether a list that still answers lacks the GPU, while the source is down: that of the driver, which
        is empty, or of the PCI bus, which needs no source."""
        if self.connection.reason == "no_gpu" and not self.source.through_hostengine:
            return True
        addresses = {other.address for other in self._connector.bus}
        return bool(addresses and gpu.pci_bus_id) and pci_bus_id(gpu.pci_bus_id) not in addresses
