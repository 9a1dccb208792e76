"""Only readings of GPUs that compute count as their load."""

from __future__ import annotations

from dataclasses import replace

from gpu_exporter.active_checks.load import RISE_SECONDS, LoadExtremes, Loads, readings
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuStatus, Snapshot

ONE, OTHER = Gpu(0, "GPU-0", "H100"), Gpu(1, "GPU-1", "H100")


def test_a_gpu_that_waits() -> None:
    """While one GPU is measured alone, the clock of the other falls; so it does before a GPU begins."""
    loads, both = Loads(), (ONE, OTHER)
    samples = (Sample(Series(m.SM_CLOCK, ONE), 1700.0), Sample(Series(m.SM_CLOCK, OTHER), 345.0))
    snapshot = Snapshot(1.0, "nvml", samples, tuple(GpuStatus(gpu, up=True, read_at=100.0) for gpu in both))
    loads.take(snapshot, {0: 100 - RISE_SECONDS})
    loads.take(replace(snapshot, at=2.0), {1: 100 - RISE_SECONDS / 2})
    assert {index: load.clock_low for index, load in loads.by_gpu.items()} == {0: 1700.0}


def test_extremes() -> None:
    """Of all readings; a reading may lack anything."""
    load = LoadExtremes()
    for clock, power, heat, memory in (
        (1500.0, 600.0, 60.0, 80.0),
        (1700.0, 650.0, 64.0, 85.0),
        (1600.0, 610.0, 62.0, 81.0),
    ):
        load.take({m.SM_CLOCK: clock, m.POWER: power, m.GPU_TEMP: heat, m.MEMORY_TEMP: memory, m.MAX_SM_CLOCK: 1980.0})
    load.take({m.POWER_LIMIT: 700.0})
    assert load == LoadExtremes(1500.0, 1700.0, 1980.0, 650.0, 700.0, 64.0, 85.0, 0)
    load.take({m.POWER: 900.0, m.POWER_INSTANT: 660.0})
    assert load.power == 660.0


def test_an_idle_gpu_has_only_limits() -> None:
    load = LoadExtremes()
    load.take({m.CLOCK_EVENTS: 0x1, m.SM_CLOCK: 345.0, m.MAX_SM_CLOCK: 1980.0, m.POWER_LIMIT: 700.0, m.POWER: 70.0})
    assert load == LoadExtremes(clock_max=1980.0, power_limit=700.0)


def test_reasons_by_name() -> None:
    """Bits of nvmlClocksEventReasons: 2 is the power limit, 6 heat; 0 only says that it is idle."""
    load = LoadExtremes()
    load.take({m.CLOCK_EVENTS: float(1 << 2)})
    load.take({m.CLOCK_EVENTS: float(1 << 6)})
    assert (load.events, load.reasons) == (1 << 2 | 1 << 6, ["sw_power_cap", "hw_thermal_slowdown"])
    assert LoadExtremes(events=1).reasons == []


def test_a_snapshot_counts_once() -> None:
    """Only series of a GPU without further labels, of GPUs that answer, and readings since their clock has risen."""
    samples = (
        Sample(Series(m.SM_CLOCK, ONE), 1700.0),
        Sample(Series(m.GPU_TEMP, ONE, (("sensor", "1"),)), 99.0),
        Sample(Series(m.POWER, None), 5.0),
        Sample(Series(m.SM_CLOCK, OTHER), 345.0),
    )
    statuses = (GpuStatus(ONE, up=True, read_at=100.0), GpuStatus(OTHER, up=False))
    snapshot = Snapshot(1.0, "nvml", samples, statuses)
    assert readings(snapshot) == {0: {m.SM_CLOCK: 1700.0}}
    loads = Loads()
    loads.take(snapshot, {0: 100 - RISE_SECONDS + 0.01})
    assert not loads.by_gpu
    loads.take(snapshot, {0: 0.0})  # it was seen before
    assert not loads.by_gpu
    loads.take(replace(snapshot, at=2.0), {0: 0.0, 1: 0.0})
    assert loads.by_gpu == {0: LoadExtremes(1700.0, 1700.0)}
    assert 0 < RISE_SECONDS < 1
    unread = replace(snapshot, at=3.0, gpus=(GpuStatus(ONE, up=True),))
    loads.take(unread, {0: 1.0})
    assert loads.by_gpu == {0: LoadExtremes(1700.0, 1700.0)}
