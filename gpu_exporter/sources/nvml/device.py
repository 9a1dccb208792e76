"""One GPU through NVML -> readings of the GPU, its MIG instances and its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from gpu_exporter.catalogue.dcgm_exporter.names import LINK_STATUS
from gpu_exporter.catalogue.metrics import MIG_DEVICE, NON_GPU_ENTITIES, OF_HOSTS
from gpu_exporter.catalogue.profiling_support import WITH_MODULE, why_never_profiled
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent
from gpu_exporter.model.metric import Buffered, EntityKind, Gpm, Labels, Metric, Pace, PerPeer, PerProcess
from gpu_exporter.model.source import Device
from gpu_exporter.sources.nvml.buffers import Buffers
from gpu_exporter.sources.nvml.errors import LIBRARY_LOST, UNSUPPORTED, outcome, raise_if_lost, source_lost
from gpu_exporter.sources.nvml.handle import Handle
from gpu_exporter.sources.nvml.mig import Instance, instances, mig_mode
from gpu_exporter.sources.nvml.placement import Placement
from gpu_exporter.sources.nvml.processes import Processes


class Peers:
    """The peers of one GPU. The labels of a series contain the state, so a new state is a new series."""

    def __init__(self, handle: Any, gpu: Gpu, metrics: Iterable[Metric]) -> None:
        self.unsupported: dict[Metric, str] = {}
        self._handle, self._gpu = handle, gpu
        self._rows = [row for row in metrics if isinstance(row.nvml, PerPeer)]
        self._current: dict[tuple[Metric, int], Series] = {}
        self._peers: dict[int, Any] = {}

    def read(self, paces: frozenset[Pace], values: dict[Series, float], failed: dict[Series, str]) -> set[Series]:
        """Fill in what is due; return the series of states that have ended. Raises SourceLost."""
        ended: set[Series] = set()
        for row in self._rows if Pace.RARE in paces else ():
            assert isinstance(row.nvml, PerPeer)
            for other in self._others():
                if row in self.unsupported:
                    break
                series = self._current.get((row, other))
                try:
                    status = int(self._status(row.nvml, other))
                except pynvml.NVMLError as error:
                    self._missing(row, error.value, series, failed)
                    continue
                word = LINK_STATUS[status] if status < len(LINK_STATUS) else LINK_STATUS[-1]
                labels: Labels = (("link_status", word), ("peer_gpu", str(other)))
                if series is None or series.labels != labels:
                    ended |= {series} if series else set()
                    series = self._current[row, other] = Series(row, self._gpu, labels)
                values[series] = status
        return ended

    def _others(self) -> Sequence[int]:
        try:
            return [index for index in range(pynvml.nvmlDeviceGetCount()) if index != self._gpu.index]
        except pynvml.NVMLError as error:
            if error.value in LIBRARY_LOST:
                raise source_lost(error.value) from error
            return ()

    def _status(self, call: PerPeer, other: int) -> int:
        peer = self._peers.get(other)
        if peer is None:
            peer = self._peers[other] = pynvml.nvmlDeviceGetHandleByIndex(other)
        return int(getattr(pynvml, f"nvmlDeviceGet{call.name}")(self._handle, peer, *call.args))

    def _missing(self, row: Metric, code: int, series: Series | None, failed: dict[Series, str]) -> None:
        """Record that there is no status. A lost GPU may be the peer, and its own read reports that."""
        if code in LIBRARY_LOST:
            raise source_lost(code)
        if series is not None:
            failed[series] = outcome(code)
        elif code in UNSUPPORTED:
            self.unsupported[row] = outcome(code)


# The most XIDs of one read; if there are more, the next read has them.
MOST = 1000
NO_INSTANCE = 0xFFFFFFFF


class XidWatch:
    """An event set of one GPU, polled at each read, so that no thread has to wait in the driver."""

    def __init__(self, handle: Any, pci: str, lock: AbstractContextManager[None]) -> None:
        self.since: float | None = None
        self._pci, self._lock = pci, lock
        self._set: Any = None
        now = time.time()  # before the registration: an XID in between must not also count from the kernel log
        with suppress(pynvml.NVMLError), lock:
            self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            self.since = now

    def events(self) -> list[XidEvent]:
        """Return the XIDs since the last call. Never raises: a GPU that fell off the bus still reports that."""
        events: list[XidEvent] = []
        while self.since is not None and len(events) < MOST:
            try:
                with self._lock:
                    data = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:  # usually a timeout: there are no more
                break
            if data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                instance = None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId)
                events.append(XidEvent(time.time(), self._pci, int(data.eventData), instance))
        return events

    def close(self) -> None:
        """Free the event set."""
        if self._set is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = self.since = None


# How often the instances of a GPU in MIG mode are listed; after a failed read of one, they are listed at the next read.
PARTITION_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _MigInstance:
    """A MIG instance: NVML's handles of its MIG devices, the first of which is read, and a series for each device."""

    nvml_handles: tuple[Any, ...]
    handle: Handle
    info: tuple[Series, ...]


class NvmlDevice(Device):
    """One GPU. In MIG mode, what instances have is read from the instances, and everything else from the GPU."""

    reads_means = True
    _gpu_handle: Handle

    def __init__(
        self,
        handle: Any,
        gpu: Gpu,
        metrics: Sequence[Metric],
        lock: AbstractContextManager[None],
        proc: Path,
    ) -> None:
        self.gpu = gpu
        self._lock = lock
        self._handle = handle
        read = [row for row in metrics if row.nvml and not isinstance(row.nvml, PerProcess | Buffered)]
        self._metrics = [row for row in read if not row.instead_of]
        unread = (
            metric
            for metric in metrics
            if metric.nvml is None and metric.entity not in NON_GPU_ENTITIES and metric.set not in OF_HOSTS
        )
        self._dcgm_only = dict.fromkeys(unread, "needs_dcgm")
        self._processes = Processes(gpu, metrics, proc)
        self._peers = Peers(handle, gpu, metrics)
        self._placement = Placement(handle, gpu, metrics)
        self._buffers = Buffers(handle, gpu, metrics, lock)
        self._links = range(self._link_count())
        substitutes = [row for row in read if row.instead_of]
        wants_gpm = bool(substitutes) or any(isinstance(metric.nvml, Gpm) for metric in metrics)
        self._without_gpm = self._why_no_gpm() if wants_gpm else None
        without, links = self._without_gpm, self._links
        self._substitutes = (
            Handle(handle, gpu, substitutes, lock, take_sample=without, links=links, beside=True) if without else None
        )
        self._substituted = False
        self._mig: bool | None = None
        self._instances: dict[Instance, _MigInstance] = {}
        self._listed_at = -float("inf")
        self._list_instances()
        self._watch = XidWatch(handle, gpu.pci_bus_id, lock)
        self.xids_since = self._watch.since

    def events(self) -> Sequence[XidEvent]:
        return self._watch.events()

    def _link_count(self) -> int:
        try:
            with self._lock:
                count = pynvml.nvmlDeviceGetFieldValues(self._handle, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])[0]
        except pynvml.NVMLError as error:
            if error.value not in UNSUPPORTED:
                raise  # the caller attaches again later
            return 0
        raise_if_lost(count.nvmlReturn, "number of NVLinks")
        return int(count.value.uiVal) if count.nvmlReturn == pynvml.NVML_SUCCESS else 0

    def _why_no_gpm(self) -> str | None:
        """Return why this GPU has no GPM; None if it has."""
        try:
            with self._lock:
                supported = pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice
        except pynvml.NVMLError as error:
            if error.value not in UNSUPPORTED:
                raise
            return self._reason_without_gpm(outcome(error.value))
        return None if supported else self._reason_without_gpm("not_supported")

    def _reason_without_gpm(self, reason: str) -> str:
        """Return the reason, or that DCGM has the profiling metrics of this GPU."""
        known = dict(self.gpu.info).get("architecture", "") in WITH_MODULE
        return "needs_dcgm" if known and reason == "not_supported" and not why_never_profiled(self.gpu) else reason

    def _list_instances(self) -> set[Series]:
        """Read the MIG mode and the instances again; return the series of those that are gone. Raises NVMLError."""
        mig = mig_mode(self._handle)
        present = instances(self._handle) if mig else {}
        ended: set[Series] = set()
        for instance in self._instances.keys() - present.keys():
            gone = self._instances.pop(instance)
            gone.handle.close()
            ended |= {*gone.handle.answered, *gone.info}
        if mig != self._mig:
            ended |= self._open_gpu_handle(mig)
        for instance, nvml_handles in present.items():
            opened = self._instances.get(instance) or self._open_instance(instance, nvml_handles)
            opened.handle.nvml_handle = nvml_handles[0]  # it may have moved
            self._instances[instance] = replace(opened, nvml_handles=nvml_handles)
        self._listed_at = time.monotonic()
        return ended

    def _open_gpu_handle(self, mig: bool) -> set[Series]:
        ended: set[Series] = set()
        if self._mig is not None:
            self._gpu_handle.close()
            ended = self._gpu_handle.answered
        self._mig = mig
        self._gpu_handle = self._open(
            self._handle,
            (m for m in self._metrics if m.entity is not EntityKind.INSTANCE and not (mig and m.per_instance)),
            partial(pynvml.nvmlGpmSampleGet, self._handle),
            links=self._links,
        )
        return ended

    def _open_instance(self, instance: Instance, nvml_handles: tuple[Any, ...]) -> _MigInstance:
        handle = self._open(
            nvml_handles[0],
            (metric for metric in self._metrics if metric.entity is EntityKind.INSTANCE or metric.per_instance),
            partial(pynvml.nvmlGpmMigSampleGet, self._handle, instance.id),
            labels=instance.labels,
        )
        info = tuple(
            Series(MIG_DEVICE, self.gpu, (*instance.labels, ("compute_instance_id", str(number)), ("mig_uuid", uuid)))
            for number, uuid in instance.devices
        )
        return _MigInstance(nvml_handles, handle, info)

    def _open(
        self,
        nvml_handle: Any,
        metrics: Iterable[Metric],
        take_sample: Callable[[Any], Any],
        *,
        links: range = range(0),
        labels: Labels = (),
    ) -> Handle:
        without = self._without_gpm
        gpm = take_sample if without is None else without
        return Handle(nvml_handle, self.gpu, metrics, self._lock, take_sample=gpm, links=links, labels=labels)

    def read(self, paces: frozenset[Pace]) -> Reading:
        values: dict[Series, float] = {}
        failed: dict[Series, str] = {}
        # checked twice, so that one misread UUID does not lose the GPU
        if Pace.SLOW in paces and not self._is_same() and not self._is_same():
            raise GpuLost(f"GPU {self.gpu.index}: the driver lists another GPU at this index now", "gone")
        ended = self._list_instances_if_due(paces)
        spans = dict(self._gpu_handle.read(_due(self._gpu_handle, paces), values, failed))
        for instance in self._instances.values():
            self._read_instance(instance, paces, values, failed, spans)
        ended |= self._read_substitutes(paces, values, failed)
        ended |= self._peers.read(paces, values, failed)
        ended |= self._placement.read(paces, values, failed)
        buffered = self._buffers.read(paces, failed, self._gpu_handle.unsupported)
        of_instances = [(instance.nvml_handles, instance.handle.labels) for instance in self._instances.values()]
        ended |= self._processes.read(of_instances if self._mig else [((self._handle,), ())], paces, values, failed)
        if failed and not values and Pace.FAST in paces:
            if not self._gpu_handle.answered and set(failed.values()) == {"not_supported"}:  # such as a Jetson's
                raise GpuLost(f"GPU {self.gpu.index}: the driver supports no field of it", "not_supported")
            raise GpuLost(f"GPU {self.gpu.index}: no field answers", "unknown")
        return Reading(time.monotonic(), values, None, failed, self._unsupported(), spans, ended, buffered)

    def _read_substitutes(
        self, paces: frozenset[Pace], values: dict[Series, float], failed: dict[Series, str]
    ) -> set[Series]:
        """Fill in what stands in for other rows; return its series if another source has these now."""
        handle = self._substitutes
        if handle is None:
            return set()
        paces = paces if self._substituted else frozenset(Pace)
        self._substituted = self.substitutes
        if self.substitutes:
            handle.read(paces, values, failed)
            return set()
        ended, handle.answered = handle.answered, set()
        return ended

    def _is_same(self) -> bool:
        """Return whether the driver still lists this GPU at its index, and the handle still belongs to this GPU. Both
        may change without an error."""
        index = self.gpu.index
        try:
            handles = (self._handle, pynvml.nvmlDeviceGetHandleByIndex(index))
            return all(str(pynvml.nvmlDeviceGetUUID(handle)) == self.gpu.uuid for handle in handles)
        except pynvml.NVMLError as error:
            raise_if_lost(error.value, f"GPU {index}")
            return bool(error.value != pynvml.NVML_ERROR_INVALID_ARGUMENT)  # any other error is transient
        except UnicodeDecodeError:
            return False

    def read_means(self) -> Reading | None:
        values: dict[Series, float] = {}
        failed: dict[Series, str] = {}
        spans: dict[Series, float] = {}
        for handle in self._handles():
            spans.update(handle.read_means(values, failed))
        return Reading(time.monotonic(), values, None, failed, spans=spans) if values or failed else None

    def _list_instances_if_due(self, paces: frozenset[Pace]) -> set[Series]:
        due = Pace.SLOW in paces or (self._mig and time.monotonic() - self._listed_at >= PARTITION_SECONDS)
        if not due:
            return set()
        try:
            return self._list_instances()
        except pynvml.NVMLError as error:
            raise_if_lost(error.value, f"GPU {self.gpu.index}, MIG")
            return set()  # an instance was destroyed meanwhile: listed again at the next read

    def _read_instance(
        self,
        instance: _MigInstance,
        paces: frozenset[Pace],
        values: dict[Series, float],
        failed: dict[Series, str],
        spans: dict[Series, float],
    ) -> None:
        """Fill in the values of an instance. After a failure, the instances are listed again at the next read."""
        present: dict[Series, float] = dict.fromkeys(instance.info, 1.0)
        missing: dict[Series, str] = {}
        spans.update(instance.handle.read(_due(instance.handle, paces), present, missing))
        if missing:
            self._listed_at = -float("inf")
        values.update(present)
        failed.update(missing)

    def _unsupported(self) -> dict[Metric, str]:
        """Return the metrics that neither the GPU nor any of its instances supports, with the reason."""
        reasons = {
            **self._dcgm_only,
            **self._gpu_handle.unsupported,
            **(self._substitutes.unsupported if self._substitutes else {}),
            **self._processes.unsupported,
            **self._peers.unsupported,
            **self._placement.unsupported,
            **self._buffers.unsupported,
        }
        handles = [instance.handle for instance in self._instances.values()]
        answered = {series.metric for handle in handles for series in handle.answered}
        for handle in handles:
            reasons.update((metric, why) for metric, why in handle.unsupported.items() if metric not in answered)
        return reasons

    def _handles(self) -> Sequence[Handle]:
        return [self._gpu_handle, *(instance.handle for instance in self._instances.values())]

    def close(self) -> None:
        self._watch.close()
        for handle in self._handles():
            handle.close()


def _due(handle: Handle, paces: frozenset[Pace]) -> frozenset[Pace]:
    """Return these paces, or all for a handle without values: it may have been opened after the slow ones were read."""
    return paces if handle.answered else frozenset(Pace)
