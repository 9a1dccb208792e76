"""Which pods are evicted together with those of a faulty node, and which are kept because their Job would fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpu_exporter.remediation import pods, retries, workload
from gpu_exporter.remediation.pods import COMPLETION_INDEX, NodePod
from gpu_exporter.remediation.retries import INDEX_FAILURES, JobRetries
from gpu_exporter.remediation.settings import DrainSettings
from gpu_exporter.remediation.workload import EvictionUnit, JobKey
from tests import ROOT

DRAIN = DrainSettings()
FAULTY, OTHER = "faulty", "other"
LIMITS = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
OF_JOB = {"job-name": "bert", "batch.kubernetes.io/job-name": "bert"}
INDEXED = {**OF_JOB, COMPLETION_INDEX: "0"}
IGNORE = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}


def pod(name: str, node: str, owner: Mapping[str, Any], labels: Mapping[str, str], **metadata: Any) -> NodePod:
    """Return a pod with a GPU."""
    about = {"name": name, "namespace": "team", "uid": name, "labels": labels, **metadata}
    owners = [{"controller": True, **owner}]
    item: Any = {"metadata": {**about, "ownerReferences": owners}, "spec": {"nodeName": node, "containers": [LIMITS]}}
    return pods.read(item)


JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "bert"}
SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web"}


def spread(owner: Mapping[str, Any], labels: Mapping[str, str], **metadata: Any) -> list[NodePod]:
    """Return two pods on the faulty node, and three on another one."""
    places = [FAULTY, FAULTY, OTHER, OTHER, OTHER]
    return [pod(f"p{place}", node, owner, labels, **metadata) for place, node in enumerate(places)]


def units(found: Sequence[NodePod], jobs: Mapping[JobKey, JobRetries] | None = None) -> Sequence[EvictionUnit]:
    """Return what a drain of the faulty node would evict."""
    here = [each for each in found if each.node == FAULTY]
    members = {key: found for key in workload.gangs(here, DRAIN)}
    return workload.within_retries(workload.units(here, members, DRAIN, "gpu"), jobs or {})


@pytest.mark.parametrize(
    ("owner", "labels", "metadata", "evicted"),
    [
        # A Job whose pods have no index: each is on its own, and those on healthy nodes stay.
        (JOB, OF_JOB, {}, [1, 1]),
        # An Indexed Job, by the annotation before Kubernetes 1.28 or by the label.
        (JOB, INDEXED, {}, [5]),
        (JOB, OF_JOB, {"annotations": {COMPLETION_INDEX: "3"}}, [5]),
        # Any pods that ask for it.
        (JOB, {**OF_JOB, "gpu-exporter.io/gang": "bert"}, {}, [5]),
        (SET, {"gpu-exporter.io/gang": "web"}, {}, [5]),
        (SET, {}, {}, [1, 1]),
        (SET, {"gpu-exporter.io/gang": ""}, {}, [1, 1]),
        # Other kinds of jobs.
        ({"kind": "RayCluster"}, {"ray.io/cluster": "tune"}, {}, [5]),
        ({"kind": "Workload"}, {"kueue.x-k8s.io/pod-group-name": "group"}, {}, [5]),
        (JOB, {**OF_JOB, "kueue.x-k8s.io/pod-group-name": "group"}, {}, [5]),
        (JOB, {**OF_JOB, "jobset.sigs.k8s.io/jobset-name": "set"}, {}, [5]),
        ({"kind": "PyTorchJob"}, {"training.kubeflow.org/job-name": "bert"}, {}, [5]),
        ({"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1"}, {"volcano.sh/job-name": "bert"}, {}, [5]),
        ({"kind": "StatefulSet"}, {"leaderworkerset.sigs.k8s.io/group-key": "a1"}, {}, [5]),
        ({"kind": "ReplicaSet"}, {"scheduling.x-k8s.io/pod-group": "group"}, {}, [5]),
    ],
)
def test_what_is_evicted_together(
    owner: Mapping[str, Any], labels: Mapping[str, str], metadata: Mapping[str, Any], evicted: Sequence[int]
) -> None:
    """The number of pods of each unit."""
    assert [len(unit.live) for unit in units(spread(owner, labels, **metadata))] == evicted


def test_the_first_label_counts() -> None:
    """A gang that its owner has named comes before all others."""
    labels = {**INDEXED, "ray.io/cluster": "ray", "gpu-exporter.io/gang": "mine"}
    assert pod("p", FAULTY, JOB, labels).gang(DRAIN) == ("gpu-exporter.io/gang", "mine")


def test_the_docs_list_the_labels() -> None:
    """In their order."""
    text = (ROOT / "docs/remediation.md").read_text()
    table = text[text.index("### Which pods are evicted together?") : text.index("### Why is a Job kept?")]
    places = [table.index(f"`{label}`") for label in DRAIN.gang_labels]
    assert places == sorted(places)


def job(failed: int = 0, owner: str = "", **spec: Any) -> JobRetries:
    """Return a Job as the API server has it."""
    owners = [{"kind": owner, "name": "o", "controller": True}] if owner else None
    return retries.read({"metadata": {"ownerReferences": owners}, "spec": spec, "status": {"failed": failed}})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("labels", "found", "refusal"),
    [
        # Two pods of a plain Job: at most as many failures as its backoffLimit, which is 6 by default.
        (OF_JOB, job(), ""),
        (OF_JOB, job(backoffLimit=2), ""),
        (OF_JOB, job(1, backoffLimit=2), "Job team/bert would fail: its backoffLimit is 2, 1 pod has failed, and 2"),
        (OF_JOB, job(backoffLimit=0), "Job team/bert would fail: its backoffLimit is 0, 0 pods have failed, and 2"),
        (
            OF_JOB,
            job(5),
            "its backoffLimit is 6, 5 pods have failed, and 2 would be evicted; raise it, or let its podF",
        ),
        # All five of an Indexed one.
        (INDEXED, job(backoffLimit=5), ""),
        (INDEXED, job(1), ""),
        (INDEXED, job(backoffLimit=4), "its backoffLimit is 4, 0 pods have failed, and 5 would be evicted"),
        # Evictions do not count.
        (OF_JOB, job(9, backoffLimit=0, podFailurePolicy=IGNORE), ""),
        (INDEXED, job(backoffLimit=0, podFailurePolicy=IGNORE), ""),
        (
            OF_JOB,
            job(
                backoffLimit=0, podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {}}, *IGNORE["rules"]]}
            ),
            "",
        ),
        # They do.
        (OF_JOB, job(backoffLimit=0, podFailurePolicy={"rules": None}), "its backoffLimit is 0"),
        (
            OF_JOB,
            job(podFailurePolicy={"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}),
            "would fail: its podFailurePolicy answers DisruptionTarget with FailJob",
        ),
        (
            OF_JOB,
            job(backoffLimit=0, podFailurePolicy={"rules": [{"action": "Ignore", "onPodConditions": [{"type": "X"}]}]}),
            "its backoffLimit is 0",
        ),
        # A limit for each index, of which none has failed.
        (INDEXED, job(backoffLimitPerIndex=1), ""),
        (
            INDEXED,
            job(backoffLimitPerIndex=0),
            "Job team/bert: pod team/p0 would fail its index: backoffLimitPerIndex is 0",
        ),
        # Somebody else decides what follows.
        (INDEXED, job(backoffLimit=0, owner="JobSet"), ""),
        (OF_JOB, job(backoffLimit=0, owner="CronJob"), "its backoffLimit is 0"),
    ],
)
def test_a_job_never_fails_because_of_a_drain(labels: Mapping[str, str], found: JobRetries, refusal: str) -> None:
    """Either all of its pods that the drain would evict may go, or none does."""
    protected = {unit.protected for unit in units(spread(JOB, labels), {("team", "bert"): found})}
    assert len(protected) == 1
    assert refusal in protected.pop()
    assert bool(refusal) is any(unit.protected for unit in units(spread(JOB, labels), {("team", "bert"): found}))


def test_failures_of_an_index() -> None:
    """They are an annotation of its pod; what cannot be read counts as none."""
    found = {("team", "bert"): job(backoffLimitPerIndex=2)}
    for text, refused in (("1", False), ("2", True), ("?", False)):
        made = units(spread(JOB, INDEXED, annotations={INDEX_FAILURES: text}), found)
        assert bool(made[0].protected) is refused


def test_which_jobs_are_read() -> None:
    """Only those of Kubernetes that decide themselves, of pods that may go; each once."""
    volcano = {**JOB, "apiVersion": "batch.volcano.sh/v1alpha1"}
    kept = {"annotations": {"gpu-exporter.io/drain": "never"}}
    assert [*workload.jobs(units(spread(JOB, OF_JOB)))] == [("team", "bert")]
    assert len(workload.jobs(units(spread(JOB, INDEXED)))["team", "bert"]) == 5
    for found in (
        spread(volcano, {}),
        spread(SET, {}),
        spread(JOB, OF_JOB, **kept),
        spread(JOB, {**INDEXED, "jobset.sigs.k8s.io/jobset-name": "set"}),
    ):
        assert not workload.jobs(units(found))
