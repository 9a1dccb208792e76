"""The summary of the list of several nodes."""

from __future__ import annotations

from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Unknown, Verdict
from gpu_exporter.pipeline.pages import Pages
from gpu_exporter.serving.endpoint import Endpoint, Health
from gpu_exporter.serving.live.node_list import values

GPU = Gpu(0, "GPU-0")


def node(name: str, reason: str | None) -> Endpoint:
    """Return a node whose GPU is up, or down for a reason; None if it has made no collection."""
    health = Health(1.0, Pages())
    if reason is not None:
        unknown = (Unknown("any metric", reason),) if reason else ()
        status = GpuStatus(GPU, not reason, reason)
        health.snapshot = Snapshot(1.0, "simulated", gpus=(status,), verdicts=(Verdict(GPU, (), unknown),))
        health.liveness_problem = str  # type: ignore[method-assign]
    return Endpoint(name, health)


def test_nodes_that_were_not_read_yet() -> None:
    """Their health is not unknown: nothing has gone wrong."""
    nodes = {"/a": node("a", None), "/b": node("b", "unread"), "/c": node("c", ""), "/d": node("d", "no_permission")}
    shown = values(nodes)
    assert shown["summary"] == "1 of 4 nodes healthy, 1 unknown, 2 not read yet"
    assert shown["rows"].count("Not read yet") == 2
