"""What nodes have kept becomes the incidents of a job, and lists of hosts are read as Slurm writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpu_exporter.diagnosis.job_history import joined
from gpu_exporter.diagnosis.job_sources import hosts
from gpu_exporter.diagnosis.kept_records import KeptIncident


def incident(cause: str, start: float, end: float, node: str, job: str = "ml/train", **others: Any) -> KeptIncident:
    """Return an incident of GPU 0 of a node."""
    gpus = [{"gpu": "0", "UUID": f"{node}-0", "node": node}]
    return KeptIncident(f"{cause}{start}{node}", cause, "warning", cause, start, end, end, gpus, jobs=[job], **others)


@pytest.mark.parametrize(
    ("found", "causes"),
    [
        ([("GpuStragglerSlow", 0, 600, "a"), ("GpuCommunicationBound", 30, 600, "b")], ["GpuStragglerSlow"]),
        # What lasts long after it has another cause.
        ([("GpuStragglerSlow", 0, 600, "a"), ("GpuCommunicationBound", 500, 5000, "b")], None),
        # Other jobs.
        ([("GpuStragglerSlow", 0, 600, "a"), ("GpuCommunicationBound", 0, 600, "b", "ml/other")], None),
        ([("GpuCommunicationBound", 0, 600, "a"), ("GpuCommunicationBound", 30, 600, "b")], ["GpuCommunicationBound"]),
        ([("GpuCommunicationBound", 0, 600, "a"), ("GpuCommunicationBound", 900, 999, "b")], None),
    ],
)
def test_what_belongs_together(found: Sequence[tuple[Any, ...]], causes: Sequence[str] | None) -> None:
    expected = [each[0] for each in found] if causes is None else list(causes)
    assert [each.cause for each in joined(incident(*each) for each in found)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node-1", ["node-1"]),
        ("node[08-10,12]", ["node08", "node09", "node10", "node12"]),
        ("a[1-2]b[3-4],login", ["a1b3", "a1b4", "a2b3", "a2b4", "login"]),
        ("n1,n1", ["n1"]),
    ],
)
def test_lists_of_hosts(text: str, expected: Sequence[str]) -> None:
    assert hosts(text) == expected


@pytest.mark.parametrize("text", ["", "node[", "node[a-b]", "node[5-1]", "n[0-99999]", "a b", "http://x/y"])
def test_bad_lists_of_hosts(text: str) -> None:
    with pytest.raises(ValueError, match=r"node|range"):
        hosts(text)
