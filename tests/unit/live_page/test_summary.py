"""What the page says first: title, problems, the judgement of each GPU, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpu_exporter.catalogue.faults import DOWN
from gpu_exporter.diagnosis.incident_words import as_dicts
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.live_page import first_view
from gpu_exporter.live_page.node_list import ListedNode, list_values
from gpu_exporter.live_page.summary import largest_loss, summarise
from gpu_exporter.model.snapshot import Snapshot
from tests.support.incidents import diagnosed_gpu
from tests.support.table import table_test


def entry(index: int, health: str = "healthy", *problems: str, instance: str = "", **values: Any) -> dict[str, Any]:
    """Return the entry of a GPU or MIG instance."""
    uuid = f"GPU-{index}"
    return {
        "id": f"{uuid}/{instance}" if instance else uuid,
        "index": str(index),
        "instance": instance,
        "profile": "1g.18gb" if instance else "",
        "health": health,
        "problems": [{"what": what} for what in problems],
        "action": "drain" if problems else "none",
        "headline": {"severity": "ok", "words": "the SMs are busy", "since": 5.0},
        "time": {"useful": 0.7, "host": 0.3},
        "since": 40.0 if problems else None,
        "owner": f"ml/train-{index}",
        "unknown": [],
        "up": True,
        "class": "compute-bound",
        "measurements": {"sm_active": 0.5},
        **values,
    }


def incident(
    culprits: Sequence[int], hit: Sequence[int] = (), severity: str = "warning", **values: Any
) -> dict[str, Any]:
    """Return an incident."""
    return {
        "cause": "GpuStragglerSlow",
        "severity": severity,
        "words": f"GPU {culprits[0]} slows down job train",
        "since": 60.0,
        "culprits": [{"UUID": f"GPU-{index}"} for index in culprits],
        "hit": [{"UUID": f"GPU-{index}"} for index in hit],
        "jobs": ["ml/train"],
        "lost_gpu_hours_per_hour": 3.0,
        "action": "",
        "advice": "Balance the work.",
        **values,
    }


EIGHT = [entry(index) for index in range(8)]
LOST = [*EIGHT[:3], entry(3, "unhealthy", "it fell off the bus"), *EIGHT[4:]]
OTHERS = (0, 1, 2, 4, 5, 6, 7)
JOB = {"name": "ml/train", "ranks": [{"id": "GPU-0", "state": "waiting"}, {"id": "GPU-1", "state": "waited_for"}]}


@dataclass(frozen=True, slots=True)
class Case:
    """Some GPUs, jobs and incidents; the title, and the badge of GPUs."""

    name: str
    title: str
    badges: Mapping[int, str]
    gpus: Sequence[Mapping[str, Any]] = field(default_factory=lambda: EIGHT)
    incidents: Sequence[Mapping[str, Any]] = ()
    jobs: Sequence[Mapping[str, Any]] = ()
    missing: int = 0
    tone: str = "bad"
    first: int = 0


CASES = (
    Case("healthy", "All 8 GPUs are healthy", {0: "Healthy"}, tone="good"),
    Case("one GPU", "The GPU is healthy", {0: "Healthy"}, gpus=[entry(0)], tone="good"),
    Case("no GPU", "No GPU", {}, gpus=[], tone="unknown"),
    Case(
        "a healthy GPU holds up its job",
        "GPU 3 holds up GPUs 0-2, 4-7",
        {3: "Root cause", 0: "Hit by GPU 3"},
        incidents=[incident([3], OTHERS)],
        tone="warn",
        first=3,
    ),
    Case(
        "a sick GPU",
        "GPU 3 is unhealthy and holds up GPUs 0-2, 4-7",
        {3: "Unhealthy", 7: "Hit by GPU 3"},
        gpus=LOST,
        incidents=[incident([3], OTHERS, "critical")],
        first=3,
    ),
    Case(
        "a sick GPU without an incident yet",
        "GPU 3 is unhealthy",
        {3: "Unhealthy", 0: "Healthy"},
        gpus=LOST,
        first=3,
    ),
    Case(
        "a finding that hits no other GPU",
        "GPUs 4, 5: GpuStragglerSlow",
        {4: "Warning", 5: "Warning", 0: "Healthy"},
        incidents=[incident([4, 5])],
        tone="warn",
        first=4,
    ),
    Case(
        "info is no problem",
        "All 8 GPUs are healthy",
        {3: "Healthy"},
        incidents=[incident([3], severity="info")],
        tone="good",
    ),
    Case("missing", "1 expected GPU is missing", {0: "Healthy"}, missing=1),
    Case(
        "three problems",
        "2 expected GPUs are missing; GPU 3 is unhealthy, and 1 more",
        {3: "Unhealthy", 1: "Warning"},
        gpus=LOST,
        incidents=[incident([1])],
        missing=2,
        first=3,
    ),
    Case(
        "nobody knows why",
        "Job ml/train is slow",
        {0: "Hit by GPU 1", 1: "Root cause"},
        jobs=[JOB],
        tone="warn",
        first=1,
    ),
    Case(
        "an incident explains why",
        "GPU 7 holds up GPUs 0, 1",
        {0: "Hit by GPU 7", 7: "Root cause"},
        jobs=[JOB],
        incidents=[incident([7], [0, 1])],
        tone="warn",
        first=7,
    ),
    Case(
        "unknown",
        "The health of GPU 0 is unknown",
        {0: "Unknown", 1: "Healthy"},
        gpus=[entry(0, "unknown", unknown=[{"what": "ECC", "why": "no permission"}]), entry(1)],
        tone="unknown",
    ),
)


@table_test("case", CASES)
def test_title_and_judgements(case: Case) -> None:
    made = summarise(case.gpus, case.jobs, case.incidents, case.missing)
    assert (made["title"], made["tone"]) == (case.title, case.tone)
    assert {index: made["judgements"][f"GPU-{index}"]["badge"] for index in case.badges} == case.badges
    assert sorted(made["order"]) == sorted(each["id"] for each in case.gpus)
    if case.gpus:
        assert made["order"][0] == f"GPU-{case.first}"


def test_a_judgement_has_room_for_what_is_wrong_only() -> None:
    """What a verdict says to do is in the problem above the rows; a finding's own explanation stays."""
    words = {"severity": "warning", "words": "Too hot: check the cooling", "since": 5.0}
    slow = {"severity": "warning", "words": "This GPU slows down job a: it waits for its CPU", "since": 5.0}
    gpus = [entry(0, "degraded", "too hot: check the cooling", headline=words), entry(1, headline=slow)]
    judged = summarise(gpus, [], [incident([0]), incident([1])], 0)["judgements"]
    assert [judged[f"GPU-{index}"]["words"] for index in (0, 1)] == ["Too hot", slow["words"]]


def test_a_gpu_with_a_problem_may_also_be_a_victim() -> None:
    hot = {"severity": "warning", "words": "Too hot", "since": 5.0}
    gpus = [*LOST[:6], entry(6, "degraded", "too hot", headline=hot), *LOST[7:]]
    judged = summarise(gpus, [], [incident([3], OTHERS, "critical"), incident([6])], 0)["judgements"]
    assert (judged["GPU-6"]["badge"], judged["GPU-6"]["words"]) == ("Degraded", "Hit by GPU 3. Too hot")
    assert "Hit" not in judged["GPU-3"]["words"]


def test_victims_come_after_the_cause_and_before_the_rest() -> None:
    made = summarise(EIGHT, [], [incident([5], [7, 2])], 0)
    assert made["order"] == [f"GPU-{index}" for index in (5, 2, 7, 0, 1, 3, 4, 6)]


def test_problems_are_in_the_order_of_incidents() -> None:
    """Also if a later one hits others."""
    made = summarise(EIGHT, [], [incident([6]), incident([5], [7, 2])], 0)
    assert [problem["gpus"] for problem in made["problems"]] == [["GPU-6"], ["GPU-5"]]
    assert made["order"] == [f"GPU-{index}" for index in (6, 5, 2, 7, 0, 1, 3, 4)]


@pytest.mark.parametrize(
    ("gpus", "jobs", "incidents", "words"),
    [
        (EIGHT, [], [], "All 8 GPUs are healthy"),
        (EIGHT, [], [incident([3], OTHERS)], "All 8 GPUs are healthy; 7 are hit by GPU 3"),
        (
            LOST,
            [],
            [incident([3], OTHERS), incident([1], OTHERS)],
            "7 of 8 GPUs healthy; 7 are hit by GPUs 1, 3",
        ),
        (
            EIGHT,
            [{**JOB, "ranks": JOB["ranks"][:1]}],
            [],
            "All 8 GPUs are healthy; 1 is hit by a rank on another node",
        ),
        ([entry(1)], [], [incident([1])], "The GPU is healthy"),
        (
            [entry(0)],
            [{**JOB, "ranks": JOB["ranks"][:1]}],
            [],
            "The GPU is healthy; it is hit by a rank on another node",
        ),
    ],
)
def test_gpus_that_others_hit(
    gpus: Sequence[Mapping[str, Any]],
    jobs: Sequence[Mapping[str, Any]],
    incidents: Sequence[Mapping[str, Any]],
    words: str,
) -> None:
    """The same number as in the title, whatever their health. A victim of two incidents counts once."""
    assert summarise(gpus, jobs, incidents, 0)["health"] == words


def test_instances_follow_their_gpu() -> None:
    """Also if one of them is the cause."""
    gpus = [entry(0), entry(1), entry(1, instance="1"), entry(1, instance="2")]
    cause = incident([1]) | {"culprits": [{"UUID": "GPU-1", "GPU_I_ID": "2"}]}
    made = summarise(gpus, [], [cause], 0)
    assert made["order"] == ["GPU-1", "GPU-1/1", "GPU-1/2", "GPU-0"]
    assert made["title"] == "GPU 1 instance 2: GpuStragglerSlow"


@pytest.mark.parametrize("reason", DOWN)
def test_the_page_says_of_a_lost_gpu_what_its_incident_says(reason: str) -> None:
    """`top`, `diagnose` and the API show the incident; the page shows the verdict, which also has XIDs."""
    gpu = diagnosed_gpu(3, "GpuLost", is_down=True)
    gpu.identity.gpu, gpu.identity.down = "3", reason
    (found,) = as_dicts(of_diagnoses([gpu]))
    entries = [entry(3, "unhealthy", DOWN[reason].words) | {"up": False}]

    (problem,) = summarise(entries, [], [found], 0)["problems"]

    assert found["words"] == problem["words"].replace("GPU 3", "GPU 3 on n1")
    assert problem["words"].startswith("GPU 3 does not answer: ")


def test_what_a_problem_says() -> None:
    """A verdict is more precise than the incident; both are said, and the action is not said twice."""
    first, second = summarise(
        LOST,
        [],
        [
            incident([3], OTHERS, "critical", action="drain the node", advice="Drain it: drain the node."),
            incident([3], severity="warning", action="reset the GPU"),
        ],
        0,
    )["problems"]
    assert first["words"] == "GPU 3: it fell off the bus"
    assert (first["also_hit"], first["owner"], first["cost"]) == (
        "also hit: GPUs 0-2, 4-7",
        "ml/train",
        "costs 3.0 GPU-hours an hour",
    )
    assert (first["since"], first["action"], first["runbook"]) == (40.0, "", "gpustragglerslow")
    assert (second["words"], second["action"]) == ("GPU 3 slows down job train", "reset the GPU")


@pytest.mark.parametrize(("severity", "tone"), [("critical", "bad"), ("warning", "warn")])
@pytest.mark.parametrize("hit", [(), OTHERS])
def test_the_colour_of_an_incident_is_that_of_its_severity(severity: str, tone: str, hit: Sequence[int]) -> None:
    """On the page as in the list of nodes, whether it hits other GPUs or not."""
    cause = incident([3], hit, severity)
    page = first_view.problems({"at": 60.0, "gpus": EIGHT, "summary": summarise(EIGHT, [], [cause], 0)}, "")
    listed = list_values([ListedNode("/a", "a", Snapshot(1.0, "simulated"), "", [cause])])["rows"]
    badge = f'<span class="badge {tone}">{severity.capitalize()}</span>'
    assert badge in page
    assert badge in listed


def test_what_several_problems_cost_together() -> None:
    """Their GPUs may be the same. One problem says what it costs itself."""
    both = [incident([3], OTHERS), incident([1], OTHERS)]
    assert summarise(EIGHT, [], both[:1], 0, 3.0)["cost"] == ""
    made = summarise(EIGHT, [], both, 0, 4.0)
    assert made["cost"] == "Together, they cost 4.0 GPU-hours an hour"
    assert made["cost"] in first_view.problems({"at": 60.0, "gpus": EIGHT, "summary": made}, "")


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ({"useful": 0.7, "host": 0.3}, "Waiting for the host: 30 % of the time"),
        ({"useful": 0.95, "host": 0.05}, ""),
        ({}, ""),
    ],
)
def test_the_largest_loss(time: Mapping[str, float], words: str) -> None:
    assert largest_loss(time) == words


def test_the_page_without_javascript() -> None:
    """Problems and values are there, times say that they are UTC, and names are text."""
    gpus = [entry(0, owner="<b>"), entry(0, instance="2")]
    answer: dict[str, Any] = {"at": 3660.0, "gpus": gpus}
    answer["summary"] = summarise(gpus, [], [incident([0], words="GPU 0 <slows>", since=60.0, code=["/a.py(<3>)"])], 0)
    problems, table = first_view.problems(answer, "../../"), first_view.table(answer)
    for text in (
        "GPU 0 &lt;slows&gt;",
        '<span title="1970-01-01 00:01:00 UTC">since 00:01 UTC (1 h)</span>',
        '<a href="../../runbooks/gpustragglerslow">',
        "Balance the work.",
        '<p class="where">/a.py(&lt;3&gt;)</p>',
    ):
        assert text in problems
    for text in (
        "GPU 0 instance 2 1g.18gb",
        "<td>50 %</td>",
        "&lt;b&gt;",
        "Values of 1970-01-01 01:01:00 UTC",
        'UTC">since',
    ):
        assert text in table
    assert first_view.tab_title(answer["summary"]) == "▲ GPU 0: GpuStragglerSlow"
