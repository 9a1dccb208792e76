"""Source -> recording file: every raw value of every GPU, tick by tick."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_exporter.accumulate import INTEGRALS
from gpu_exporter.model import Device, GpuExporterError, GpuLost, Metric, Pace, Source
from gpu_exporter.recording import Writer

log = logging.getLogger(__name__)


def record(
    source: Source,
    metrics: Sequence[Metric],
    path: Path,
    interval: float,
    duration: float,
    *,
    mask: bool = False,
    stop: threading.Event,
) -> int:
    """Record for `duration` seconds or until `stop`; return the number of ticks. Raises GpuExporterError."""
    source.open()
    try:
        devices = [source.attach(index, _raw(metrics)) for index in range(source.count())]
        if not devices:
            raise GpuExporterError(f"source {source.name}: there is no GPU to record")
        writer = Writer(path, [device.gpu for device in devices], interval, mask=mask)
        try:
            return _ticks(devices, writer, interval, duration, stop)
        finally:
            writer.close()
            for device in devices:
                device.close()
    finally:
        source.close()


def _raw(metrics: Sequence[Metric]) -> list[Metric]:
    """One row of each field, and none that belongs to a link: what the others say is derived from these."""
    fields = {metric.nvml: metric for metric in reversed(metrics) if metric.bit is None}
    return [metric for metric in metrics if fields.get(metric.nvml) is metric and metric.entity.value == "gpu"]


def _ticks(devices: list[Device], writer: Writer, interval: float, duration: float, stop: threading.Event) -> int:
    ticks, read_at = 0, dict.fromkeys(Pace, -float("inf"))
    latest: dict[int, dict[str, float]] = {device.gpu.index: {} for device in devices}
    begin = tick = time.monotonic()
    while tick < begin + duration + interval and not stop.wait(tick - time.monotonic()):
        due = frozenset(pace for pace in Pace if tick - read_at[pace] >= pace.value)
        read_at.update((pace, tick) for pace in due)
        for device in list(devices):
            try:
                reading = device.read(due)
            except GpuLost as error:
                log.warning("%s; it is not recorded further", error)
                devices.remove(device)
                continue
            values = latest[device.gpu.index]
            for name in [name for name in values if name in PROFILED]:
                del values[name]  # a mean is of one tick only
            for series in reading.failed:
                values.pop(series.metric.key, None)
            values.update(
                (series.metric.key, value)
                for series, value in reading.values.items()
                if series.metric.low <= value <= series.metric.high
            )
            if any(name in PROFILED for name in values) or reading.span is None:
                writer.tick(time.time(), device.gpu.index, values)
                ticks += 1
        tick = max(tick + interval, time.monotonic())
    return ticks


PROFILED = frozenset(metric.key for metric in INTEGRALS)
