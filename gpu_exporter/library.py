"""GPUs as plain Python values, for a training loop, a notebook or a test, without a server or Prometheus."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.collection.monitor import Monitor
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu, Sample
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.sources.choice import local_gpus

INTERVAL_SECONDS = 1.0
# Two first calls at the same time would start two loops.
ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at unix time `at`: its identity, whether it responds (if not, `reason` says why), and its samples."""

    at: float
    gpu: Gpu
    up: bool
    reason: str
    samples: tuple[Sample, ...]

    @property
    def index(self) -> int:
        """The index of the GPU in NVML and nvidia-smi."""
        return self.gpu.index

    def as_dict(self) -> dict[str, float]:
        """Return values by metric name and the labels beyond the GPU's: `gpu_clock_event_seconds_total{reason="…"}`.

        Names, units and ranges are those of the metric reference. A metric that could not be read has no entry.
        """
        return {_key(sample): sample.value for sample in self.samples}


def _key(sample: Sample) -> str:
    metric = sample.series.metric
    labels = ",".join(f'{name}="{text}"' for name, text in metric.labels + sample.series.labels)
    return f"{sample.series.name}{{{labels}}}" if labels else sample.series.name


def readings(snapshot: Snapshot) -> tuple[GpuReading, ...]:
    """Split a snapshot by GPU: what was read and its integrals, without metrics of the exporter itself."""
    samples: dict[Gpu, list[Sample]] = {status.gpu: [] for status in snapshot.gpus}
    for sample in snapshot.samples:
        metric, gpu = sample.series.metric, sample.series.gpu
        if gpu is not None and (metric.nvml or metric.integral_of):
            samples[gpu].append(sample)
    return tuple(
        GpuReading(snapshot.at, status.gpu, status.up, status.reason, tuple(samples[status.gpu]))
        for status in snapshot.gpus
    )


def read(*, metrics: str = "default", gpus: Sequence[int] | None = None) -> tuple[GpuReading, ...]:
    """Return the current state of this machine's GPUs, which a loop in the background collects once a second.

    The first call starts the loop and takes up to a second; later calls take 0.3 ms and never wait for a driver.
    Profiling values (SM active, tensor, DRAM …) are means over the last second. For an exact mean between two calls,
    subtract their time integrals (`gpu_sm_active_seconds_total`). `metrics` is `default` or `full`. `gpus` are the
    indices to read, as nvidia-smi counts: in a job with one process per GPU, pass the index of its GPU.

    Raises GpuExporterError, in one line, if there is no driver, no GPU, or not every one of `gpus`. A GPU that is lost
    or stuck is `up=False`.
    """
    with ONE_AT_A_TIME:
        monitor = _monitor(MetricSet(metrics), None if gpus is None else tuple(gpus), os.getpid())
    return readings(monitor.snapshot())


@cache
def _monitor(metrics: MetricSet, gpus: tuple[int, ...] | None, process: int) -> Monitor:
    """Return the monitor of this process: a forked child needs its own, since threads do not survive a fork."""
    monitor = Monitor(local_gpus(gpus=gpus), selected(metrics), INTERVAL_SECONDS, INTERVAL_SECONDS)
    try:
        monitor.start()
    except GpuExporterError:
        monitor.stop()
        raise
    atexit.register(monitor.stop)  # no thread may be inside the driver's library when its destructors run
    return monitor
