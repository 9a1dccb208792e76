"""Snapshots: what a page has of each GPU."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import GpuStatus
from gpu_exporter.pipeline.composer import Composer, Context
from gpu_exporter.pipeline.gpu_state import GpuState
from gpu_exporter.pipeline.settings import CollectionSettings
from tests.unit.pipeline.test_metrics_change import FakeSource


def test_a_lost_gpu_hides_no_xid_counts_of_others() -> None:
    """NVML reports the XIDs of GPU 0 only, and there is no kernel log."""
    events = EventLog(load(None), lambda pci: None)
    composer = Composer(FakeSource(), CollectionSettings(), Context(events))
    states = [GpuState(Gpu(index, f"GPU-{index}", f"00000000:0{index}:00.0"), 15.0) for index in range(2)]
    states[0].attached(reports_xids=True)
    gpus = [(state, GpuStatus(state.gpu, not index, "", None, 0.0)) for index, state in enumerate(states)]
    samples = composer.compose(gpus, "", (), {m.EXP_XID_COUNT}).samples

    def values(metric: Metric) -> dict[int, set[float]]:
        indices = {series.gpu.index for series, _ in samples if series.metric is metric and series.gpu}
        return {
            index: {value for series, value in samples if series.metric is metric and series.gpu == states[index].gpu}
            for index in indices
        }

    assert [values(metric) for metric in (m.XID_ERRORS, m.XID_EVENTS, m.EXP_XID_COUNT)] == [{0: {0.0}}] * 3
    witnesses = {dict(series.labels)["witness"]: value for series, value in samples if series.metric is m.WITNESS}
    assert witnesses == {"nvml": 0, "kernel": 0}
