"""NVML for every GPU, and DCGM in addition for GPUs without profiling counters in NVML (before Hopper).

A node with both kinds of GPUs has all metrics. A node of Hopper or newer never loads DCGM, because only a GPU that
needs DCGM opens it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_exporter.catalogue.metrics import SOURCE_INFO
from gpu_exporter.model.errors import GpuLost, GpuNotSampled, SourceLost
from gpu_exporter.model.gpu import Gpu, Owner, Reading, Sample, Series, XidEvent
from gpu_exporter.model.metric import Gpm, Metric, Pace
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.model.source import Device, Source
from gpu_exporter.sources.backoff import Backoff

if TYPE_CHECKING:
    from gpu_exporter.model.finding import Finding

log = logging.getLogger(__name__)


# How often a GPU must be read until it has profiling values, if a second source samples them at its own rate.
READS_UNTIL_PROFILED = 6


class _DcgmThread(threading.Thread):
    """Keeps DCGM open from its first use on, on its own thread, because opening it may take seconds."""

    def __init__(self, make: Callable[[], Source], interval: float) -> None:
        super().__init__(name="dcgm-open", daemon=True)
        self.down = "no_answer_yet"
        self.opened = 0
        self._make = make
        self._interval = interval
        self._hidden: frozenset[Metric] = frozenset()
        self._source: Source | None = None
        self._wake = threading.Event()
        self._closed = False

    def run(self) -> None:
        retry = Backoff()
        while not self._closed:
            wait = retry.due - time.monotonic()
            if wait <= 0 and self.down:
                self._try_to_open()
                wait = retry.failed()
            elif wait <= 0:  # the connection has lasted for as long as the back-off
                retry.reset()
            self._wake.wait(wait if wait > 0 else None)
            self._wake.clear()
        if self._source:
            self._source.close()

    def _try_to_open(self) -> None:
        try:
            self._open()
        except SourceLost as error:
            self._report(error)
        except Exception:
            log.exception("source dcgm: unexpected error, please report it")

    def _open(self) -> None:
        if self._source is None:
            self._source = self._make()
            self._source.sample_every(self._interval)
        self._source.read_rarely(self._hidden)
        self._source.close()
        self._source.open()
        self.opened += 1
        log.info("source dcgm is used for GPUs without GPM")
        self.down = ""

    def _report(self, error: SourceLost) -> None:
        if self.down != error.reason:
            log.warning("source dcgm is down: %s", error)
        self.down = error.reason

    def read_rarely(self, metrics: frozenset[Metric]) -> None:
        """Set what DCGM samples less often."""
        self._hidden = metrics
        if self._source is not None:
            self._source.read_rarely(metrics)

    def attach(self, gpu: Gpu, metrics: Sequence[Metric]) -> Device:
        """Attach the same GPU through DCGM. Raises GpuLost, SourceLost."""
        opened = self.opened
        if self.down or self._source is None:
            raise SourceLost("DCGM is not open", self.down)
        try:
            index = next((i for i, (uuid, _) in self._source.identities().items() if uuid == gpu.uuid), None)
            if index is None:
                raise GpuLost(f"GPU {gpu.index}: DCGM does not read it", "gone")
            return self._source.attach(index, metrics)
        except SourceLost as error:
            self.lost(error, opened)
            raise

    def lost(self, error: SourceLost, opened: int) -> None:
        """Reopen DCGM, unless it was reopened since: `opened` is the number of the connection that failed."""
        if not self.down and opened == self.opened:
            self._report(error)
            self._wake.set()

    def close(self) -> None:
        """Close DCGM on its own thread, so that no caller waits for a stuck call."""
        self._closed = True
        self._wake.set()


class MixedDevice(Device):
    """One GPU through NVML. Metrics that NVML does not have without GPM are read from DCGM.

    `source_info` is the series that says from what the GPU is read, and why; None before the first read.
    """

    reads_means = True

    def __init__(self, first: Device, metrics: Sequence[Metric], dcgm: Callable[[], _DcgmThread | None]) -> None:
        self.gpu, self.xids_since, self.pcie_port = first.gpu, first.xids_since, first.pcie_port
        self.source_info: Series | None = None
        self.closed = False
        self.in_second = False
        self._first = first
        self._gpm = [metric for metric in metrics if isinstance(metric.nvml, Gpm)]
        self._dcgm = dcgm
        self._second: Device | None = None
        self._opened = 0
        self._given: set[Series] = set()
        self._names: dict[Series, Series] = {}
        self._retry = Backoff()

    def events(self) -> Sequence[XidEvent]:
        return self._first.events()

    @property
    def in_driver(self) -> bool:
        return not self.in_second

    def read(self, paces: frozenset[Pace]) -> Reading:
        """Return NVML's reading, merged with DCGM's. If DCGM fails, only its metrics are missing."""
        self._first.substitutes = self._second is None
        reading = self._first.read(paces)
        if not self._gpm or not all(metric in reading.unsupported for metric in self._gpm):
            self._set_source_info("nvml", "gpm")
            return reading
        dcgm = self._dcgm()
        if dcgm is None:
            self._set_source_info("nvml", "no_gpm_and_no_dcgm")
            return reading
        self.in_second = True
        try:
            merged = _merged(reading, self._read_second(dcgm, reading, paces))
        except GpuNotSampled:
            return self._without_values(reading, "no_data")
        except (GpuLost, SourceLost) as error:
            self._set_source_info("nvml", f"no_gpm_and_dcgm_{error.reason}")
            return self._without_second(reading, error)
        finally:
            self.in_second = False
        self._set_source_info("nvml+dcgm", "no_gpm")
        return merged

    def read_means(self) -> Reading | None:
        """Return NVML's means if the profiling values come from NVML, because DCGM samples at its own rate."""
        return self._first.read_means() if self._second is None else None

    def _set_source_info(self, source: str, reason: str) -> None:
        """Create a new series only if a label has changed."""
        labels = (("source", source), ("reason", reason))
        if self.source_info is None or self.source_info.labels != labels:
            self.source_info = Series(SOURCE_INFO, self.gpu, labels)

    def _read_second(self, dcgm: _DcgmThread, reading: Reading, paces: frozenset[Pace]) -> Reading:
        if self._second is None:
            if self._retry.due > reading.at:
                raise SourceLost("DCGM is asked again later", dcgm.down or "gone")
            wanted = [metric for metric in reading.unsupported if metric.dcgm is not None]
            self._opened = dcgm.opened
            self._second = dcgm.attach(self.gpu, wanted)
            paces = frozenset(Pace)
        try:
            second = self._second.read(paces)
        except SourceLost as error:
            dcgm.lost(error, self._opened)
            raise
        self._retry.reset()
        self._given.update(self._renamed(series) for series in second.values)
        return Reading(
            second.at,
            {self._renamed(series): value for series, value in second.values.items()},
            second.span,
            {self._renamed(series): reason for series, reason in second.failed.items()},
            second.unsupported,
            {self._renamed(series): span for series, span in second.spans.items()},
            {self._renamed(series) for series in second.ended},
        )

    def _renamed(self, series: Series) -> Series:
        """Return the same series with NVML's identity of this GPU, because DCGM may have another index for it."""
        renamed = self._names.get(series)
        if renamed is None:
            renamed = self._names[series] = Series(series.metric, self.gpu, series.labels)
        return renamed

    def _without_second(self, reading: Reading, error: GpuLost | SourceLost) -> Reading:
        if isinstance(error, GpuLost):
            self._retry.failed()
        self._close_second()
        return self._without_values(reading, error.reason)

    def _without_values(self, reading: Reading, reason: str) -> Reading:
        """Return NVML's reading, with which the series that DCGM gave end."""
        ended, self._given = self._given, set()
        return replace(reading, failed={**reading.failed, **dict.fromkeys(ended, reason)}, ended=reading.ended | ended)

    def _close_second(self) -> None:
        second, self._second = self._second, None
        self._names.clear()
        if second:
            second.close()

    def close(self) -> None:
        self.closed, self.source_info = True, None
        self._close_second()
        self._first.close()


def _merged(first: Reading, second: Reading) -> Reading:
    """Return both readings of one GPU as one; the second has the metrics that it was attached for."""
    answered = {series.metric for series in (*second.values, *second.failed)}
    spans = dict(second.spans)
    if second.span is not None:
        spans = {**dict.fromkeys(second.values, second.span), **spans}
    return replace(
        first,
        values={**first.values, **second.values},
        failed={**first.failed, **second.failed},
        unsupported={
            **{metric: why for metric, why in first.unsupported.items() if metric not in answered},
            **second.unsupported,
        },
        spans={**first.spans, **spans},
        ended=first.ended | second.ended,
    )


class AutoSource(Source):
    """The GPUs of this machine, each read by the source with most of its metrics; `gpu_source_info` shows which.

    `dcgm` makes the second source; None where there is no DCGM. `hostengine` is that of --dcgm-hostengine, if set.
    """

    def __init__(self, nvml: Source, dcgm: Callable[[], Source] | None, hostengine: str = "") -> None:
        self.name, self.description, self.live = nvml.name, nvml.description, nvml.live
        self._hostengine = hostengine
        self._nvml = nvml
        self._make = dcgm
        self._interval = 1.0
        self._hidden: frozenset[Metric] = frozenset()
        self._dcgm: _DcgmThread | None = None
        self._starting = threading.Lock()
        self._refused = False
        self._devices: dict[str, list[MixedDevice]] = {}

    @property
    def reads_until_profiled(self) -> int:
        """Two if NVML has all metrics, which is known once every GPU was read."""
        return READS_UNTIL_PROFILED if self._dcgm else 2

    def sample_every(self, seconds: float) -> None:
        """Set how often DCGM samples; NVML is read at each collection."""
        self._interval = seconds

    def read_rarely(self, metrics: frozenset[Metric]) -> None:
        """Set what DCGM samples less often."""
        self._hidden = metrics
        if self._dcgm:
            self._dcgm.read_rarely(metrics)

    def open(self) -> None:
        self._nvml.open()

    def count(self) -> int:
        count = self._nvml.count()
        if not count and self._hostengine:
            fix = f"use --source dcgm to read those of the {self._hostengine}"
            raise SourceLost("the driver of this machine lists no GPU", "no_gpu", fix=fix)
        return count

    def bus(self) -> Sequence[PciGpu]:
        return self._nvml.bus()

    def reload_needed(self) -> bool | None:
        return self._nvml.reload_needed()

    def attach(self, index: int, metrics: Sequence[Metric]) -> MixedDevice:
        device = MixedDevice(self._nvml.attach(index, metrics), metrics, self._second)
        others = [other for other in self._devices.get(device.gpu.uuid, ()) if not other.closed]
        self._devices[device.gpu.uuid] = [*others, device]  # while metrics change, a GPU is attached twice
        return device

    def _second(self) -> _DcgmThread | None:
        if self._make is None:
            return None
        with self._starting:  # GPUs are read by several threads
            if self._dcgm is None:
                thread = _DcgmThread(self._make, self._interval)
                thread.read_rarely(self._hidden)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads: NVML's values are served without DCGM's
                    if not self._refused:
                        log.warning("source dcgm is not used: %s; raise the limit on processes or memory", error)
                    self._refused = True
                    return None
                self._dcgm = thread
            return self._dcgm

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        return self._nvml.owners(gpu)

    def non_gpu_samples(self) -> Sequence[Sample]:
        """Return from what each GPU is read, and why."""
        attached = self._devices.copy().values()
        latest = ([device.source_info for device in devices if device.source_info][-1:] for devices in attached)
        return [Sample(info, 1.0) for infos in latest for info in infos]

    def findings(self) -> Sequence[Finding]:
        return self._nvml.findings()

    def close(self) -> None:
        self._devices.clear()
        dcgm, self._dcgm = self._dcgm, None
        if dcgm:
            dcgm.close()
            with suppress(RuntimeError):  # it was never started
                dcgm.join(1.0)
        self._nvml.close()
