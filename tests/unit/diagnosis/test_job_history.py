"""What nodes have kept becomes the incidents of a job, and lists of hosts are read as Slurm writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpu_exporter.diagnosis.job_history import MODE, NodeHistory, PastJob, job_history, joined
from gpu_exporter.diagnosis.job_report import as_json, lines
from gpu_exporter.diagnosis.job_sources import hosts
from gpu_exporter.diagnosis.kept_records import GpuUsage, KeptIncident, KeptUsage
from tests.rules.loops import MEASURED


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


def past_job(
    own: Sequence[float | None],
    incidents: Sequence[KeptIncident] = (),
    each: Sequence[Mapping[str, float]] = (),
    **others: Any,
) -> PastJob:
    """Return the history of a job whose ranks have these self times in each of 1000 steps of a second.

    `each` are further fields of each rank, `others` those of the first.
    """
    gpus = [
        GpuUsage(f"GPU-{rank}", str(rank), rank=str(rank), job="ml/train", seconds=1000.0, steps=1000, step_seconds=1e3)
        for rank in range(len(own))
    ]
    for gpu, seconds in zip(gpus, own, strict=True):
        if seconds is not None:
            gpu.self_seconds, gpu.self_steps = seconds * 1000, 1000
    for gpu, fields in zip(gpus, [*each] or [others], strict=False):
        for name, value in fields.items():
            setattr(gpu, name, value)
    node = NodeHistory("node", "1", incidents=[*incidents], usage=[KeptUsage(0.0, 1000.0, gpus)])
    return job_history("train", 0.0, 1000.0, [node])


@pytest.mark.parametrize(
    ("own", "others", "stragglers"),
    [
        # Many ranks that hardly differ: by more than chance and 5 % of a step.
        ([0.7, 0.5, 0.5, 0.5, 0.51], {}, ["0"]),
        ([0.6, 0.5, 0.5, 0.5, 0.51], {}, ["0"]),
        ([0.54, 0.5, 0.5, 0.5, 0.51], {}, []),
        # They differ anyway.
        ([0.7, 0.4, 0.5, 0.6, 0.45, 0.55], {}, []),
        # Of a few ranks, by 25 % of the lowest.
        ([0.6, 0.5], {}, []),
        ([0.65, 0.5, 0.52], {}, ["0"]),
        # The others wait while it saves checkpoints.
        ([0.6, 0.5, 0.5, 0.5, 0.51], {"activity": {"checkpoint": 200.0, "training": 800.0}}, []),
        # Only some steps are profiled.
        ([0.5, 0.5, 0.5, 0.5], {"self_seconds": 5.0, "self_steps": 10.0}, []),
        ([0.5, 0.5, 0.5, 0.5], {"self_seconds": 8.0, "self_steps": 10.0}, ["0"]),
    ],
)
def test_stragglers(own: Sequence[float | None], others: Mapping[str, Any], stragglers: Sequence[str]) -> None:
    """The live diagnosis judges the last seconds by the same rule: see test_training_loops.py."""
    assert [rank.rank for rank in past_job(own, **others).ranks if rank.excess] == stragglers


@pytest.mark.parametrize("name", MEASURED)
def test_stragglers_by_measured_times(name: str) -> None:
    own, waits, slow = MEASURED[name]
    waiting = [{"waiting_seconds": share * 1000} for share in waits]
    assert [int(rank.rank) for rank in past_job(own, each=waiting).ranks if rank.excess] == list(slow)


def test_a_rank_that_does_not_tell_its_self_time_is_not_compared() -> None:
    history = past_job([None, 0.5, 0.5])
    assert not [rank for rank in history.ranks if rank.excess]
    assert [remark for remark in history.remarks if remark.startswith("rank 0 did not tell")]
    assert not past_job([0.5, 0.5, 0.5]).remarks


def test_a_rank_that_was_a_straggler_for_a_while_is_marked() -> None:
    """On average over the whole period it hardly differs."""
    gpus = [{"gpu": "1", "UUID": "GPU-1"}]
    found = KeptIncident("1", "GpuJobStraggler", "warning", "slow", 100.0, 400.0, 400.0, gpus, jobs=["ml/train"])
    history = past_job([0.5, 0.51, 0.5, 0.5], [found])
    assert [(rank.excess, rank.straggled) for rank in history.ranks] == [(0, 0), (0, 300), (0, 0), (0, 0)]
    assert [line for line in lines(history) if line.endswith("straggler for 5 min")]
    assert as_json(history)["ranks"][1]["straggler_seconds"] == 300


def test_a_kept_incident_has_the_advice_of_the_live_one() -> None:
    """That of the branch that held; without it, what the failure mode says in general."""
    gpus = [{"gpu": "1", "UUID": "GPU-1"}]
    found = KeptIncident("1", "GpuJobStraggler", "warning", "slow", 100.0, 400.0, 400.0, gpus, jobs=["ml/train"])
    general = MODE["GpuJobStraggler"].advice
    for advice, said in (("Raise the power limit.", "Raise the power limit."), ("", general)):
        text = lines(past_job([0.5, 0.5], [replace(found, advice=advice)]))
        assert f"    -> {said}" in list(text)


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
