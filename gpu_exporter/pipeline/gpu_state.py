"""The state of each GPU: its samples and totals, when it was last read, and why it cannot be read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from weakref import WeakKeyDictionary

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.events.event_log import GpuEvidence
from gpu_exporter.model.gpu import Gpu, Reading, Sample
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.pci import same_device
from gpu_exporter.model.snapshot import UNREAD
from gpu_exporter.pipeline.accumulator import Accumulator
from gpu_exporter.pipeline.dcgm_counts import ClockEvents
from gpu_exporter.pipeline.settings import PAGE_SECONDS, CollectionPlan

log = logging.getLogger(__name__)

# The series of a GPU are withdrawn when it was not read for this many intervals, because Prometheus would store them as
# fresh. Not 3: when the third read in a row fails, the values are not quite three intervals old.
STALE_INTERVALS = 2.5
# How long a GPU that the driver no longer lists is shown as gone.
GONE_SECONDS = 86400.0
# The values of a GPU that are stored with an event on it, and how old they may be with short intervals.
EVIDENCE_SECONDS = 5.0
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


class GpuState:
    """One GPU, identified by its UUID. Its state is kept for GONE_SECONDS after it is gone.

    Its worker writes it, holding `lock`, because another worker may attach the GPU at another index meanwhile. The
    clock reads it, counts skipped collections, and reports a worker that is stuck.
    """

    def __init__(self, gpu: Gpu, gauge_window: float, *, live: bool = True) -> None:
        self.gpu = gpu
        self.lock = threading.Lock()
        self.accumulator = Accumulator(gauge_window, check_rates=live)
        self.samples: tuple[Sample, ...] = ()
        self.unsupported: Mapping[Metric, str] = {}
        self.claimed_at = time.monotonic()
        self.read_at: float | None = None
        self.reason = UNREAD
        self.duration = 0.0
        self.spent = 0.0
        self.failures = 0
        self.skipped = 0
        self.reports_xids = False
        self.pcie_port: float | None = None
        self.detached_since_read = False
        self._stuck = False
        self._clock_events = ClockEvents()
        self._period = 0.0

    def why(self, metric: Metric) -> str:
        """Return why there is no value of this metric."""
        if reason := self.unsupported.get(metric):
            return reason
        failures = self.accumulator.field_failures.copy()
        return next((outcome for name, outcome in failures if name == metric.name), "not_read")

    def is_fresh(self, interval: float) -> bool:
        """Return whether the samples are still valid, for a GPU that is read every `interval` seconds."""
        if self.read_at is None:
            return False
        return time.monotonic() - self.read_at <= STALE_INTERVALS * max(interval, self._period)

    def is_expired(self) -> bool:
        """Return whether the GPU was last read so long ago that it is not shown any more if it is gone."""
        return time.monotonic() - max(self.claimed_at, self.read_at or self.claimed_at) > GONE_SECONDS

    def evidence(self, interval: float = 0.0) -> GpuEvidence:
        """Return the GPU and those of its values that are stored with an event; none if they are older than a few
        seconds, or two intervals."""
        longest = max(EVIDENCE_SECONDS, 2 * interval)
        fresh = self.read_at is not None and time.monotonic() - self.read_at < longest
        unlabelled = ((series, value) for series, value in self.samples if fresh and not series.labels)
        return GpuEvidence(
            self.gpu, {str(series.metric): value for series, value in unlabelled if series.metric in EVIDENCE}
        )

    # --- reads ----------------------------------------------------------------------------------------------------

    def take(self, reading: Reading, plan: CollectionPlan, started: float, *, between_pages: bool) -> None:
        """Add the reading of a collection that began at `started`. One between two pages only adds to totals and
        histograms, because no page shows its samples."""
        self.accumulator.take(reading, plan.histograms)
        if not between_pages:
            samples = plan.sums.samples(self.accumulator.samples())
            self.samples = plan.counts.samples(self.gpu, self._clock_events, reading, samples)
            missing = {**reading.unsupported, **self.accumulator.unknown(), **plan.not_read}
            unsupported = plan.counts.unsupported(samples, plan.sums.unsupported(missing))
            # A row that stands in for another one is not missing where there is the other.
            self.unsupported = {
                row: why for row, why in unsupported.items() if row.instead_of is None or row.instead_of in unsupported
            }
            self.duration = time.monotonic() - started
        now = time.monotonic()
        # With short intervals, not every collection reads the GPU.
        self._period = PAGE_SECONDS if self.read_at is None else min(now - self.read_at, PAGE_SECONDS)
        self.read_at = now
        self.detached_since_read = False
        self._up()

    def attached(self, *, reports_xids: bool, pcie_port: float | None = None) -> None:
        """Note that the GPU has a new handle. `pcie_port` is what the port above it allows, in bytes/s."""
        self.reports_xids, self.pcie_port = reports_xids, pcie_port

    def taken_over(self, *, reports_xids: bool) -> None:
        """Note that a new handle has replaced the previous one without a gap: totals and windows continue."""
        self.reports_xids = reports_xids
        self.accumulator.renew()

    def detached(self) -> None:
        """End the series, because the GPU has no handle any more."""
        self.reports_xids = False
        self.detached_since_read = True
        self.accumulator.detach()

    # --- states: one line in the log per change -------------------------------------------------------------------

    def down(self, reason: str, message: str) -> None:
        """Note that a read failed."""
        self.failures += 1
        self._stuck = False
        if self.reason != reason:
            name = f"GPU {self.gpu.index}"
            cause = message.removeprefix(f"{name}: ").removeprefix(f"{name}, ")
            log.warning("%s (%s) is down: %s", name, self.gpu.uuid or "not identified", cause)
        self.reason = reason

    def stuck(self) -> None:
        """Note that a read does not return. The reason is still that of the last read: this one may return now."""
        if not self._stuck:
            log.warning(
                "GPU %d (%s) is stuck in a driver call; see `dmesg | grep -i nvrm`, usually only a reboot helps",
                self.gpu.index,
                self.gpu.uuid or "not identified",
            )
        self._stuck = True

    def released(self) -> None:
        """Note that the driver is released: the GPU is not up until it is read again."""
        self.reason, self._stuck = "released", False

    def _up(self) -> None:
        if self._stuck or self.reason not in ("", UNREAD, "released"):
            log.info("GPU %d (%s) is back", self.gpu.index, self.gpu.uuid)
        self.reason, self._stuck = "", False


class GpuStates:
    """The states of all GPUs, and the index of the worker that attached each of them last.

    Any thread may call any method. `live`: whether the GPUs are real ones.
    """

    def __init__(self, gauge_window: float, *, live: bool = True) -> None:
        self._gauge_window = gauge_window
        self._live = live
        self._lock = threading.Lock()
        self._states: dict[str, GpuState] = {}
        self._workers: WeakKeyDictionary[GpuState, int] = WeakKeyDictionary()

    def unidentified(self, worker: int, gpu_index: int) -> GpuState:
        """Return a state for this worker to use until the GPU of its index is identified."""
        state = self._new(Gpu(gpu_index))
        with self._lock:
            self._workers[state] = worker
        return state

    def claim(self, gpu: Gpu, worker: int) -> GpuState:
        """Return the state of this UUID (of this index, if it has none) with its present identity, for its worker.

        The GPU that this worker read before in the same slot was replaced: its state is forgotten. If another worker
        had the state, its series end.
        """
        key = _key(gpu)
        with self._lock:
            for other, replaced in list(self._states.items()):
                if other != key and self._workers.get(replaced) == worker and _same_slot(replaced.gpu, gpu):
                    log.warning("GPU %d: %s was replaced by %s", gpu.index, replaced.gpu.uuid, gpu.uuid)
                    del self._states[other]
            state = self._states.get(key) or self._new(gpu)
            with state.lock:
                state.gpu, state.claimed_at = gpu, time.monotonic()
                if self._workers.get(state, worker) != worker:
                    state.detached()
                self._workers[state] = worker  # before it is listed: every listed state has a worker
            self._states[key] = state
        return state

    def _new(self, gpu: Gpu) -> GpuState:
        return GpuState(gpu, self._gauge_window, live=self._live)

    def forget(self, state: GpuState) -> None:
        """Stop listing this GPU."""
        with self._lock:
            self._states.pop(_key(state.gpu), None)

    def worker_index(self, state: GpuState) -> int:
        """Return the index of the worker that attached this GPU last."""
        return self._workers[state]

    def identified(self) -> list[GpuState]:
        """Return the states of all GPUs that were identified and have not been replaced or expired since."""
        with self._lock:
            return list(self._states.values())

    def at_address(self, pci: str) -> GpuState | None:
        """Return the state of the GPU at a PCI address, if there is one."""
        return next((state for state in self.identified() if same_device(state.gpu.pci_bus_id, pci)), None)


def _key(gpu: Gpu) -> str:
    return gpu.uuid or f"GPU {gpu.index}"


def _same_slot(one: Gpu, other: Gpu) -> bool:
    return same_device(one.pci_bus_id, other.pci_bus_id) or not (one.pci_bus_id or other.pci_bus_id)
