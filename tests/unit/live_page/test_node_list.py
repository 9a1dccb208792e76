"""The summary of the list of several nodes."""

from __future__ import annotations

from gpu_exporter.live_page.node_list import ListedNode, list_values
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Unknown, Verdict
from gpu_exporter.pipeline.pages import NO_METRICS_YET

GPU = Gpu(0, "GPU-0")


def node(name: str, reason: str | None) -> ListedNode:
    """Return a node whose GPU is up, or down for a reason; None if it has made no collection."""
    if reason is None:
        return ListedNode(f"/{name}", name, None, NO_METRICS_YET)
    unknown = (Unknown("any metric", reason),) if reason else ()
    status = GpuStatus(GPU, not reason, reason)
    snapshot = Snapshot(1.0, "simulated", gpus=(status,), verdicts=(Verdict(GPU, (), unknown),))
    return ListedNode(f"/{name}", name, snapshot, "")


def test_nodes_that_were_not_read_yet() -> None:
    """Their health is not unknown: nothing has gone wrong."""
    nodes = [node("a", None), node("b", "unread"), node("c", ""), node("d", "no_permission")]
    shown = list_values(nodes)
    assert shown["summary"] == "1 of 4 nodes healthy, 1 unknown, 2 not read yet"
    assert shown["rows"].count("Not read yet") == 2


def test_a_healthy_node_with_incidents_comes_before_others() -> None:
    """Its incidents are listed with their severity; an info incident is none."""
    straggler = {"severity": "warning", "words": "GPU 3 slows down job <b>"}
    nodes = [
        node("a", ""),
        node("b", "")._replace(incidents=[{"severity": "info", "words": "GPU 1 is idle"}]),
        node("c", "")._replace(incidents=[straggler] * 5),
        node("d", "")._replace(waits=["Job <c>: GPUs 0-7 wait for a rank on another node"]),
    ]
    shown = list_values(nodes)
    assert shown["summary"] == "4 of 4 nodes healthy, but 1 of them has incidents and 1 of them is hit by others"
    rows = shown["rows"]
    assert rows.index('href="c/"') < rows.index('href="d/"') < rows.index('href="a/"') < rows.index('href="b/"')
    assert '<span class="badge warn">Hit</span></td><td>1</td><td><p>Job &lt;c&gt;: GPUs 0-7 wait' in rows
    assert rows.count('<span class="badge healthy">') == 3
    assert rows.count("GPU 3 slows down job &lt;b&gt;") == 3
    assert "<p>2 more</p>" in rows
    assert "idle" not in rows
