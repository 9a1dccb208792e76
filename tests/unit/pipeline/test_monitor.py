"""The loop without a server: what its start waits for."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.pipeline import monitor as monitor_module
from gpu_exporter.pipeline.monitor import Monitor
from tests.unit.pipeline.test_workers import GatedSource


def test_reads_are_counted_only_while_the_start_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is stuck for days must not make the counts of the others grow."""
    monkeypatch.setattr(monitor_module, "PATIENCE_SECONDS", 0.3)
    source = GatedSource()
    monkeypatch.setattr(source, "count", lambda: 2)
    source.gates[0].set()
    monitor = Monitor(source, (m.GPU_TEMP,), 0.1, 0.1)
    monitor.start()
    before = sum(map(len, monitor._reads.values()))
    gpus = (GpuStatus(Gpu(0), True, "", 1e9, 0.0), GpuStatus(Gpu(1), False, "unread", None, 0.0))
    monitor._publish(Snapshot(0.0, "fake", (), gpus))
    after = sum(map(len, monitor._reads.values()))
    source.gates[1].set()

    assert monitor.stop()
    assert after == before
