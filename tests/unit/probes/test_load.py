"""Only readings of GPUs that compute count as their load."""

from __future__ import annotations

from dataclasses import replace

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.probes.load import RISE_SECONDS, Loads

ONE, OTHER = Gpu(0, "GPU-0", "H100"), Gpu(1, "GPU-1", "H100")


def test_a_gpu_that_waits() -> None:
    """While one GPU is measured alone, the clock of the other falls; so it does before a GPU begins."""
    loads, both = Loads(), (ONE, OTHER)
    samples = (Sample(Series(m.SM_CLOCK, ONE), 1700.0), Sample(Series(m.SM_CLOCK, OTHER), 345.0))
    snapshot = Snapshot(1.0, "nvml", samples, tuple(GpuStatus(gpu, up=True, read_at=100.0) for gpu in both))
    loads.take(snapshot, {0: 100 - RISE_SECONDS})
    loads.take(replace(snapshot, at=2.0), {1: 100 - RISE_SECONDS / 2})
    assert {index: load.clock_low for index, load in loads.by_gpu.items()} == {0: 1700.0}
