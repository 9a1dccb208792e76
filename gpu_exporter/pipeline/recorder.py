"""Records a source to a file: every raw value of every GPU, tick by tick."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue.metrics import OF_HOSTS
from gpu_exporter.model.errors import GpuExporterError, GpuLost, GpuNotSampled
from gpu_exporter.model.gpu import Gpu, Reading, Sample
from gpu_exporter.model.metric import Buffered, Details, EntityKind, Metric, Pace
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.model.source import Device, HostEvidence, Source
from gpu_exporter.pipeline.accumulator import INTEGRALS
from gpu_exporter.pipeline.plausibility import Zeros
from gpu_exporter.sources.choice import origin
from gpu_exporter.sources.recording.writer import RecordingWriter

log = logging.getLogger(__name__)

PROFILED = frozenset(metric.key for metric in INTEGRALS)
# How long the last read may take; after that it is stuck in the driver.
GRACE_SECONDS = 2.0
# How long attaching all GPUs may take.
START_SECONDS = 30.0


def record(
    source: Source,
    metrics: Sequence[Metric],
    path: Path,
    interval: float,
    duration: float,
    *,
    mask: bool = False,
    host: HostEvidence | None = None,
    stop: threading.Event,
) -> tuple[int, bool]:
    """Record for `duration` seconds or until `stop`; return the number of ticks, and False if a driver call is stuck.

    With `host`, the recording also has the evidence of the host; `metrics` must include the processes.

    The file is complete in either case, and says from which source the values come. Raises GpuExporterError.
    """
    recorder = _Recorder(source, _raw(metrics), path, interval, mask=mask, host=host)
    thread = threading.Thread(target=recorder.run, args=(duration, stop), name="record", daemon=True)
    thread.start()
    end = time.monotonic() + duration + START_SECONDS
    while thread.is_alive() and not stop.is_set() and time.monotonic() < end:
        thread.join(0.1)
    stop.set()
    thread.join(GRACE_SECONDS)
    recorder.finish()
    if host:
        host.stop()
    if recorder.error:
        raise recorder.error
    if not recorder.ticks and thread.is_alive():
        raise GpuExporterError(
            f"source {source.name}: nothing was recorded: a driver call hangs; see `gpu-exporter doctor`"
        )
    return recorder.ticks, not thread.is_alive()


def _raw(metrics: Sequence[Metric]) -> list[Metric]:
    """Return one row for each field of a whole GPU, and those of processes, which only host evidence uses.

    The field's other rows are derived from it. Links and samples that the driver keeps have no row.
    """
    rows = [
        metric
        for metric in metrics
        if metric.nvml and metric.entity is EntityKind.GPU and not isinstance(metric.nvml, Buffered | Details)
    ]
    fields = {metric.nvml: metric for metric in reversed(rows) if metric.bit is None}
    processes = (metric for metric in metrics if metric.entity is EntityKind.PROCESS)
    return [*(metric for metric in rows if fields.get(metric.nvml) is metric), *processes]


class _Recorder:
    """Reads on its own thread, because a driver call may never return. The waiting thread completes the file."""

    def __init__(
        self,
        source: Source,
        metrics: Sequence[Metric],
        path: Path,
        interval: float,
        *,
        mask: bool,
        host: HostEvidence | None,
    ) -> None:
        self.ticks = 0
        self.error: Exception | None = None
        self._source, self._metrics = source, metrics
        self._path, self._interval, self._mask = path, interval, mask
        self._writer: RecordingWriter | None = None
        self._host = host
        self._read: dict[int, GpuSamples] = {}
        self._zeros: dict[int, Zeros] = defaultdict(Zeros)
        # Of the start: the wall clock may be set meanwhile, and no reader accepts a time that goes backwards.
        self._unix_offset = time.time() - time.monotonic()

    def run(self, duration: float, stop: threading.Event) -> None:
        """Record for `duration` seconds or until `stop`. An error is stored in `error`."""
        devices: list[Device] = []
        self._source.sample_every(self._interval)
        try:
            self._source.open()
            for index in range(self._source.count()):
                try:
                    devices.append(self._source.attach(index, self._metrics))
                except GpuLost as error:
                    log.warning("%s; it is not recorded", error)
            if not devices:
                raise GpuExporterError(f"source {self._source.name}: no GPU to record; `gpu-exporter doctor` says why")
            if stop.is_set():  # nobody waits for this thread any more: it must not write
                return
            gpus = [device.gpu for device in devices]
            self._writer = RecordingWriter(
                self._path, gpus, self._interval, source=origin(self._source), mask=self._mask
            )
            if self._host:
                self._host.start()
            self._record(devices, duration, stop)
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            self.error = error
        finally:
            for device in devices:
                device.close()
            self._source.close()

    def finish(self) -> None:
        """Complete the file."""
        if self._writer:
            self._writer.close()

    def _record(self, devices: list[Device], duration: float, stop: threading.Event) -> None:
        read_at = dict.fromkeys(Pace, -float("inf"))
        latest: dict[int, dict[str, float]] = {device.gpu.index: {} for device in devices}
        begin = tick = time.monotonic()
        while tick < begin + duration + self._interval and not stop.wait(tick - time.monotonic()):
            due = frozenset(pace for pace in Pace if tick - read_at[pace] >= pace.value)
            read_at.update((pace, tick) for pace in due)
            for device in list(devices):
                try:
                    self._write(device.gpu, latest[device.gpu.index], device.read(due), stop)
                except GpuNotSampled:
                    continue
                except GpuLost as error:
                    log.warning("%s; it is not recorded further", error)
                    devices.remove(device)
            self._look(latest)
            tick = max(tick + self._interval, time.monotonic())

    def _look(self, latest: Mapping[int, dict[str, float]]) -> None:
        """Replace the values of the host among the latest values by those of its last look."""
        for row in self._host.rows(tuple(self._read.values())) if self._host else ():
            if row.gpu and row.metric.set in OF_HOSTS and not row.labels:
                latest[row.gpu.index][row.metric.key] = row.value

    def _write(self, gpu: Gpu, values: dict[str, float], reading: Reading, stop: threading.Event) -> None:
        """Write one line: the values read now, and the last values of fields that are read less often.

        A profiling value is the mean of one tick, so it is not repeated.
        """
        for name in PROFILED & values.keys():
            del values[name]
        if self._host:
            samples = [Sample(series, value) for series, value in reading.values.items()]
            self._read[gpu.index] = GpuSamples(gpu, reading.at, samples, {})
        zeros = self._zeros[gpu.index].take(reading.values)
        for series in (*reading.failed, *zeros):
            values.pop(series.metric.key, None)
        values.update(
            (series.metric.key, value)
            for series, value in reading.values.items()
            # whole GPUs, no MIG instances
            if series.metric.in_range(value) and series not in zeros and not series.labels
        )
        if self._writer and not stop.is_set():
            self._writer.tick(time.monotonic() + self._unix_offset, gpu.index, values)
            self.ticks += 1
