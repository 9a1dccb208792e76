"""The loop: what it says of a GPU."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.worker import Worker
from tests.support.tools import until
from tests.unit.pipeline.test_metrics_change import FakeSource


@pytest.mark.parametrize(("stalled", "reason"), [(0.0, ""), (5.0, "stalled")])
def test_a_gpu_is_stalled_while_its_read_does_not_return(
    monkeypatch: pytest.MonkeyPatch, stalled: float, reason: str
) -> None:
    """A read that returns just after it was reported as stuck leaves no GPU that is stalled for 0 s."""
    collector = Collector(FakeSource(), (m.GPU_TEMP,), lambda snapshot: None)
    assert collector.connect()
    collector.tick()
    until(lambda: collector.snapshot().gpus[0].up, 30, "a GPU that was read")
    (state,) = collector._states.identified()
    state.stuck()
    monkeypatch.setattr(Worker, "stalled", stalled)
    (status,) = collector.snapshot().gpus
    monkeypatch.undo()

    assert (status.reason, status.stalled) == (reason, stalled)
    assert collector.stop()
