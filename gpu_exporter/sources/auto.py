"""NVML for every GPU, and DCGM beside it for a GPU whose NVML has no profiling counters (before Hopper).

So a node of mixed GPUs loses nothing, and a node of Hopper or newer never loads DCGM: it is opened when a GPU needs it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from gpu_exporter.catalogue.metrics import SOURCE_INFO
from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.gpu import Gpu, Owner, Reading, Sample, Series, XidEvent
from gpu_exporter.model.metric import Gpm, Metric, Pace
from gpu_exporter.model.source import Device, Glancing, Sampled, Source
from gpu_exporter.sources.backoff import Backoff

log = logging.getLogger(__name__)


# How often a GPU is read until it surely has profiling values, with a second source that samples in its own time.
READS_UNTIL_PROFILED = 6


class Second(Source, Sampled, Protocol):
    """A source that can tell its GPUs by what another one calls them."""

    def identities(self) -> Mapping[int, tuple[str, str]]:
        """UUID and PCI address of each GPU that can be read now, by its own index. Raises SourceLost."""


class _Dcgm(threading.Thread):
    """Keeps DCGM open from when it is first wanted, on a thread of its own: opening it may take seconds."""

    def __init__(self, make: Callable[[], Second], interval: float) -> None:
        super().__init__(name="dcgm", daemon=True)
        self.down = "no_answer_yet"
        self._make = make
        self._interval = interval
        self._source: Second | None = None
        self._wake = threading.Event()
        self._closed = False

    def run(self) -> None:
        retry = Backoff()
        while not self._closed:
            wait = None
            if self.down:
                try:
                    self._open()
                    retry.reset()
                except SourceLost as error:
                    self._say(error)
                    wait = retry.failed()
                except Exception:
                    log.exception("source dcgm: unexpected error, please report it")
                    wait = retry.failed()
            self._wake.wait(wait)
            self._wake.clear()
        if self._source:
            self._source.close()

    def _open(self) -> None:
        if self._source is None:
            self._source = self._make()
            self._source.sample_every(self._interval)
        self._source.close()
        self._source.open()
        log.info("source dcgm is used for GPUs without GPM")
        self.down = ""

    def _say(self, error: SourceLost) -> None:
        if self.down != error.reason:
            log.warning("source dcgm is down: %s", error)
        self.down = error.reason

    def attach(self, gpu: Gpu, metrics: Sequence[Metric]) -> Device:
        """The same GPU in DCGM. Raises GpuLost, SourceLost."""
        if self.down or self._source is None:
            raise SourceLost("DCGM is not open", self.down)
        try:
            index = next((i for i, (uuid, _) in self._source.identities().items() if uuid == gpu.uuid), None)
            if index is None:
                raise GpuLost(f"GPU {gpu.index}: DCGM does not read it", "gone")
            return self._source.attach(index, metrics)
        except SourceLost as error:
            self.lost(error)
            raise

    def lost(self, error: SourceLost) -> None:
        """Have it opened again."""
        if not self.down:
            self._say(error)
            self._wake.set()

    def close(self) -> None:
        """Give it back, on its own thread: nobody waits for a call that is stuck."""
        self._closed = True
        self._wake.set()


class MixedDevice:
    """One GPU by NVML. What its NVML can't answer for want of GPM, DCGM is asked for."""

    def __init__(self, first: Device, metrics: Sequence[Metric], dcgm: Callable[[], _Dcgm | None]) -> None:
        self.gpu = first.gpu
        self.told: Series | None = None
        self._first = first
        self._glance = first.glance if isinstance(first, Glancing) else None
        self._gpm = [metric for metric in metrics if isinstance(metric.nvml, Gpm)]
        self._dcgm = dcgm
        self._second: Device | None = None
        self._given: set[Series] = set()
        self._names: dict[Series, Series] = {}
        self._retry = Backoff()

    @property
    def xids_since(self) -> float | None:
        """When the driver was asked to tell of Xids; None if it does not."""
        return self._first.xids_since

    def events(self) -> Sequence[XidEvent]:
        """Xids that the driver told since the last call."""
        return self._first.events()

    def read(self, paces: frozenset[Pace]) -> Reading:
        """NVML's reading, and DCGM's in it. What befalls DCGM costs its part alone."""
        reading = self._first.read(paces)
        if not self._gpm or not all(metric in reading.unsupported for metric in self._gpm):
            self._tell("nvml", "gpm")
            return reading
        dcgm = self._dcgm()
        if dcgm is None:
            self._tell("nvml", "no_gpm_and_no_dcgm")
            return reading
        try:
            merged = _merged(reading, self._read_second(dcgm, reading, paces))
        except (GpuLost, SourceLost) as error:
            self._tell("nvml", f"no_gpm_and_dcgm_{error.reason}")
            return self._without_second(reading, error)
        self._tell("nvml+dcgm", "no_gpm")
        return merged

    def glance(self) -> Reading | None:
        """NVML's, if its profiling values are what is read: DCGM samples in its own time."""
        return self._glance() if self._second is None and self._glance else None

    def _tell(self, source: str, reason: str) -> None:
        """Say what reads this GPU, and why: the same series for as long as that holds."""
        labels = (("source", source), ("reason", reason))
        if self.told is None or self.told.labels != labels:
            self.told = Series(SOURCE_INFO, self.gpu, labels)

    def _read_second(self, dcgm: _Dcgm, reading: Reading, paces: frozenset[Pace]) -> Reading:
        if self._second is None:
            if self._retry.due > reading.at:
                raise SourceLost("DCGM is asked again later", dcgm.down or "gone")
            wanted = [metric for metric in reading.unsupported if metric.dcgm is not None]
            self._second = dcgm.attach(self.gpu, wanted)
            paces = frozenset(Pace)
        try:
            second = self._second.read(paces)
        except SourceLost as error:
            dcgm.lost(error)
            raise
        self._retry.reset()
        self._given.update(self._ours(series) for series in second.values)
        return Reading(
            second.at,
            {self._ours(series): value for series, value in second.values.items()},
            second.span,
            {self._ours(series): reason for series, reason in second.failed.items()},
            second.unsupported,
            {self._ours(series): span for series, span in second.spans.items()},
            {self._ours(series) for series in second.ended},
        )

    def _ours(self, series: Series) -> Series:
        """The same of this GPU as NVML calls it: an index may be another in DCGM."""
        known = self._names.get(series)
        if known is None:
            known = self._names[series] = Series(series.metric, self.gpu, series.labels)
        return known

    def _without_second(self, reading: Reading, error: GpuLost | SourceLost) -> Reading:
        if isinstance(error, GpuLost):
            self._retry.failed()
        ended, self._given = self._given, set()
        self._close_second()
        return replace(
            reading,
            failed={**reading.failed, **dict.fromkeys(ended, error.reason)},
            ended=reading.ended | ended,
        )

    def _close_second(self) -> None:
        second, self._second = self._second, None
        self._names.clear()
        if second:
            second.close()

    def close(self) -> None:
        self.told = None
        self._close_second()
        self._first.close()


def _merged(first: Reading, second: Reading) -> Reading:
    """Both readings of one GPU as one: what the second was asked for, it answers for."""
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


class AutoSource:
    """The GPUs of this machine, each read by what knows most of it; `gpu_source_info` tells the choice.

    `dcgm` makes the second source; None where there is no DCGM. `named` is a host engine that was asked for by name.
    """

    def __init__(self, nvml: Source, dcgm: Callable[[], Second] | None, named: str = "") -> None:
        self.name, self.description, self.live = nvml.name, nvml.description, nvml.live
        self._named = named
        self._nvml = nvml
        self._make = dcgm
        self._interval = 1.0
        self._dcgm: _Dcgm | None = None
        self._starting = threading.Lock()
        self._devices: dict[str, MixedDevice] = {}

    @property
    def reads_until_profiled(self) -> int:
        """Two where NVML has all; known once a GPU was read."""
        return READS_UNTIL_PROFILED if self._dcgm else 2

    def sample_every(self, seconds: float) -> None:
        """NVML is asked at each tick, DCGM samples by itself."""
        self._interval = seconds

    def open(self) -> None:
        self._nvml.open()

    def count(self) -> int:
        found = self._nvml.count()
        if not found and self._named:
            raise SourceLost(f"the driver here shows no GPU; --source dcgm reads those of the {self._named}", "no_gpu")
        return found

    def expected(self) -> int | None:
        return self._nvml.expected()

    def reload_needed(self) -> bool | None:
        return self._nvml.reload_needed()

    def attach(self, index: int, metrics: Sequence[Metric]) -> MixedDevice:
        device = MixedDevice(self._nvml.attach(index, metrics), metrics, self._second)
        self._devices[device.gpu.uuid] = device
        return device

    def _second(self) -> _Dcgm | None:
        if self._make is None:
            return None
        with self._starting:  # GPUs are read side by side
            if self._dcgm is None:
                self._dcgm = _Dcgm(self._make, self._interval)
                self._dcgm.start()
            return self._dcgm

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        return self._nvml.owners(gpu)

    def non_gpu_samples(self) -> Sequence[Sample]:
        """What each GPU is read by, and why."""
        return [Sample(device.told, 1.0) for device in self._devices.copy().values() if device.told]

    def close(self) -> None:
        self._devices.clear()
        dcgm, self._dcgm = self._dcgm, None
        if dcgm:
            dcgm.close()
            with suppress(RuntimeError):  # it was never started
                dcgm.join(1.0)
        self._nvml.close()
