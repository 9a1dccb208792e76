"""How a drain goes on: what is evicted, what is not, what it waits for, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from gpu_exporter.kubernetes.objects import BudgetObject
from gpu_exporter.remediation import pods, workload
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.drain import advance, needs_pods
from gpu_exporter.remediation.evidence import unknown
from gpu_exporter.remediation.pods import CHECKPOINT, COMPLETION_INDEX, EVICT_AFTER, POLICY, NodePod
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb, reconcile
from gpu_exporter.remediation.settings import DrainSettings, Mode, RemediationScope
from gpu_exporter.remediation.state import DrainProgress, Gang, WatchedNode
from gpu_exporter.remediation.workload import EvictionUnit, JobLoad
from tests.unit.remediation.test_reconcile import CLEAN, CORDONED, FAULTY, NOW, POOL

DRAIN = DrainSettings()
DRAINS = replace(POOL, mode=Mode.DRAIN)
OWN = "gpu"
LIMITS = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
OWNER = {"kind": "ReplicaSet", "name": "web", "controller": True}


def pod(name: str = "p", node: str = "n", spec: Any = None, **metadata: Any) -> NodePod:
    """Return a pod with a GPU and a controller."""
    about = {"name": name, "namespace": "team", "uid": name, "ownerReferences": [OWNER], **metadata}
    item: Any = {"metadata": about, "spec": {"nodeName": node, "containers": [LIMITS], **(spec or {})}}
    return pods.read(item)


def unit(*members: NodePod, drain: DrainSettings = DRAIN) -> EvictionUnit:
    """Return the unit of these pods, of which some are on the node n."""
    here = [each for each in members if each.node == "n"]
    (made,) = workload.units(here, dict.fromkeys(workload.gangs(here, drain), members), drain, OWN)
    return made


def draining(**drain: Any) -> WatchedNode:
    """Return a node whose drain began a minute ago."""
    assert CORDONED.state is not None
    return replace(CORDONED, state=replace(CORDONED.state, drain=s.DrainState(**{"since": NOW - 60, **drain})))


def decide(node: WatchedNode, found: JobLoad, evidence: Any = FAULTY) -> Decision:
    return advance(reconcile(node, evidence, DRAINS, NOW), node, found, DRAINS, NOW)


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, timezone.utc).isoformat()


WEB = unit(pod())
JOB: dict[str, Any] = {"labels": {"job-name": "bert", COMPLETION_INDEX: "0"}}
RANKS = pod("r0", **JOB), pod("r1", "m", **JOB)
GONE = replace(pod(), terminating=True)
BEGUN = Gang("team", "job-name", "bert", ("r0", "r1"))


@pytest.mark.parametrize(
    ("node", "found", "verb", "reason"),
    [
        (CORDONED, JobLoad((WEB,)), Verb.DRAIN, Reason.FAULT),
        (CORDONED, JobLoad(), Verb.DRAINED, Reason.DRAINED),
        (draining(), JobLoad((WEB,)), Verb.EVICT, Reason.FAULT),
        (draining(), JobLoad((unit(*RANKS),)), Verb.EVICT, Reason.FAULT),
        (draining(), JobLoad(), Verb.DRAINED, Reason.DRAINED),
        (draining(), JobLoad((unit(GONE),)), Verb.NONE, Reason.PODS_END),
        (draining(), JobLoad((WEB,), refused={WEB.key: "429"}), Verb.NONE, Reason.EVICTION_REFUSED),
        (draining(), JobLoad((unit(pod(namespace="kube-system")),)), Verb.NONE, Reason.PROTECTED),
        (draining(), JobLoad(problem="forbidden"), Verb.NONE, Reason.PODS_UNKNOWN),
        (draining(since=NOW - 7200), JobLoad((WEB,)), Verb.TIMEOUT, Reason.DRAIN_TIMEOUT),
        (draining(progress=DrainProgress.TIMEOUT), JobLoad((WEB,)), Verb.NONE, Reason.DRAIN_TIMEOUT),
        (draining(progress=DrainProgress.TIMEOUT), JobLoad(), Verb.DRAINED, Reason.DRAINED),
        (draining(gang=BEGUN), JobLoad((WEB,), rest=unit(*RANKS)), Verb.EVICT, Reason.REST_OF_GANG),
        (draining(gang=BEGUN), JobLoad((WEB,)), Verb.EVICTED, Reason.REST_OF_GANG),
    ],
)
def test_steps(node: WatchedNode, found: JobLoad, verb: Verb, reason: Reason) -> None:
    decision = decide(node, found)
    assert (decision.verb, decision.reason) == (verb, reason)
    assert decision.words


@pytest.mark.parametrize("evidence", [unknown("gone"), replace(CLEAN, clean_for=1.0)])
def test_only_faulty_nodes_are_drained(evidence: Any) -> None:
    """Neither an unreachable exporter nor a node that seems healthy is a reason; a job that was begun is finished."""
    for node in (CORDONED, draining()):
        assert decide(node, JobLoad((WEB,)), evidence).verb is Verb.NONE
    assert decide(draining(gang=BEGUN), JobLoad(rest=unit(*RANKS)), evidence).evict == (unit(*RANKS),)


def test_the_rest_of_a_job_waits_for_the_announced_time() -> None:
    """The drain of another node of the job has announced it after this one had begun."""
    wants = {"gpu-exporter.io/checkpoint": "90s"}
    notified = pod("r0", annotations={**wants, pods.EVICT_AFTER: at(30)}, **JOB)
    decision = decide(draining(gang=BEGUN), JobLoad(rest=unit(notified, RANKS[1])))
    assert (decision.verb, decision.reason, decision.evict) == (Verb.NONE, Reason.CHECKPOINT, ())
    over = pod("r0", annotations={**wants, pods.EVICT_AFTER: at(-1)}, **JOB)
    assert decide(draining(gang=BEGUN), JobLoad(rest=unit(over, RANKS[1]))).reason is Reason.REST_OF_GANG


def test_a_person_who_uncordons_ends_the_drain() -> None:
    uncordoned = replace(draining(), unschedulable=False)
    decision = decide(uncordoned, JobLoad((WEB,)))
    assert decision.verb is Verb.HOLD
    assert decision.state is not None
    assert decision.state.drain is None


def test_pods_are_read_only_where_they_matter() -> None:
    assert needs_pods(CORDONED, DRAINS)
    assert needs_pods(draining(), DRAINS)
    assert needs_pods(draining(progress=DrainProgress.DRAINED, gang=BEGUN), DRAINS)
    assert not needs_pods(draining(progress=DrainProgress.DRAINED), DRAINS)
    assert not needs_pods(CORDONED, POOL)
    assert not needs_pods(replace(CORDONED, state=None), DRAINS)


def test_a_job_goes_as_a_whole_and_one_after_the_other() -> None:
    """With its pods on other nodes; if one of them is protected, none goes."""
    job = unit(*RANKS)
    assert decide(draining(), JobLoad((job, WEB))).evict == (job, WEB)
    assert decide(draining(gang=BEGUN), JobLoad((job, WEB), unit(*RANKS), {job.key: "429"})).evict == (WEB,)
    precious = pod("r1", "m", annotations={POLICY: "never"}, **JOB)
    assert decide(draining(), JobLoad((unit(RANKS[0], precious),))).reason is Reason.PROTECTED
    ends = unit(replace(RANKS[0], terminating=True), RANKS[1])
    assert not ends.live, "somebody else has ended it on this node"


@pytest.mark.parametrize(
    ("notes", "notified", "evicted"),
    [
        ({}, False, True),
        ({CHECKPOINT: "10m"}, True, False),
        ({CHECKPOINT: "10m", EVICT_AFTER: at(300)}, True, False),  # from an earlier drain
        ({CHECKPOINT: "10m", EVICT_AFTER: at(570)}, False, False),
        ({CHECKPOINT: "30s", EVICT_AFTER: at(-10)}, False, True),
        ({CHECKPOINT: "soon", EVICT_AFTER: at(570)}, True, False),
        ({CHECKPOINT: "10m", EVICT_AFTER: "soon"}, True, False),
    ],
)
def test_checkpoints(notes: Mapping[str, str], notified: bool, evicted: bool) -> None:
    """A pod that asks for time is notified, and gets all of it; a job gets what its slowest pod asks for."""
    for waiting in (unit(pod(annotations=notes)), unit(RANKS[0], pod("r1", "m", annotations=notes, **JOB))):
        decision = decide(draining(), JobLoad((waiting,)))
        assert (bool(decision.notify), bool(decision.evict)) == (notified, evicted)
        assert (decision.reason is Reason.CHECKPOINT) == (not notified and not evicted)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod(), ""),
        (pod(annotations={POLICY: "never"}), "annotation"),
        (pod(namespace="kube-system"), "namespace"),
        (pod(namespace=OWN), "namespace"),
        (pod(spec={"priority": 2_000_000_000}), "priority 2000000000"),
        (pod(ownerReferences=[]), "no controller"),
        (pod(ownerReferences=[{"kind": "Job", "name": "j"}]), "no controller"),
    ],
)
def test_protected_pods(found: NodePod, why: str) -> None:
    protection = pods.protection(found, DRAIN, OWN)
    assert why in protection
    assert bool(protection) == bool(why)
    assert not pods.protection(pod(ownerReferences=[]), replace(DRAIN, unmanaged=True), OWN)


@pytest.mark.parametrize(
    ("found", "gpu", "every"),
    [
        (pod(), True, True),
        (pod(spec={"containers": [], "initContainers": [LIMITS]}), True, True),
        (pod(spec={"containers": [], "resourceClaims": [{"name": "gpu"}]}), True, True),
        (pod(spec={"containers": [{}]}), False, True),
        (pod(spec={"containers": [{"resources": {"limits": {"nvidia.com/gpu": "0"}}}]}), False, True),
        (pod(ownerReferences=[{**OWNER, "kind": "DaemonSet"}]), False, False),
        (pod(annotations={pods.MIRROR: "x"}), False, False),
        (replace(pod(), ended=True), False, False),
    ],
)
def test_which_pods_must_go(found: NodePod, gpu: bool, every: bool) -> None:
    assert (found.concerns(RemediationScope.GPU), found.concerns(RemediationScope.ALL)) == (gpu, every)


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Gt", "values": ["1"]}]}, True),
    ],
)
def test_pods_of_disruption_budgets(selector: Any, chosen: bool) -> None:
    budget: BudgetObject = {"spec": {"selector": selector}}
    assert pods.selects(budget, {"app": "web"}) is chosen


def test_a_drain_that_was_given_up_begins_anew_with_a_new_fault() -> None:
    decision = reconcile(draining(progress=DrainProgress.TIMEOUT), replace(FAULTY, boot="b3"), DRAINS, NOW)
    assert decision.verb is Verb.UPDATE
    assert decision.state is not None
    assert decision.state.drain is None


def test_a_job_that_is_too_large_is_not_begun() -> None:
    """Its UIDs would not fit into the annotation."""
    many = [pod(f"r{rank}", **JOB) for rank in range(workload.MOST_GANG_PODS + 1)]
    assert "as a whole" in unit(*many).protected
    assert not unit(*many[1:]).protected


STILL, ENDS = "still faulty: GPU GPU-1: stalled", "pod team/p: evicted, but not ended yet"


@pytest.mark.parametrize(
    ("node", "found", "words"),
    [
        (CORDONED, JobLoad((WEB,)), f"pod team/p must go: {STILL}"),
        (CORDONED, JobLoad(tuple(unit(pod(name)) for name in "abc")), f"pods team/a, team/b, team/c must go: {STILL}"),
        (
            CORDONED,
            JobLoad(tuple(unit(pod(name)) for name in "abcde")),
            f"pods team/a, team/b, team/c and 2 more must go: {STILL}",
        ),
        (draining(), JobLoad((WEB, unit(*RANKS))), "evicts pod team/p, 2 pods of team/bert"),
        (draining(), JobLoad(tuple(unit(pod(name)) for name in "abcd")), "evicts pod team/a, pod team/b, pod team/c"),
        (draining(), JobLoad((unit(GONE),)), ENDS),
        (draining(), JobLoad((WEB,), refused={WEB.key: "429"}), "429"),
        (draining(), JobLoad((unit(pod(namespace="kube-system")),)), "pod kube-system/p is in a protected namespace"),
        (draining(), JobLoad(problem="forbidden"), "forbidden"),
        (draining(since=NOW - 7200), JobLoad((WEB,)), "not drained within 2h: pod team/p: still running"),
        (
            draining(progress=DrainProgress.TIMEOUT),
            JobLoad((WEB, unit(GONE), unit(pod("q")), unit(pod("r")))),
            f"the drain was given up; drain it yourself: pod team/p: still running; {ENDS}; pod team/q: still running",
        ),
        (draining(gang=BEGUN), JobLoad(rest=unit(*RANKS)), "evicts the rest of a job: pods team/r0, team/r1"),
        (draining(gang=BEGUN), JobLoad(), "a whole job is evicted"),
    ],
)
def test_steps_in_words(node: WatchedNode, found: JobLoad, words: str) -> None:
    assert decide(node, found).words == words


def test_what_a_checkpoint_waits_for_in_words() -> None:
    """Until the last pod of a job is ready."""
    ranks = [pod(f"r{n}", annotations={CHECKPOINT: "10m", EVICT_AFTER: at(560 + n)}, **JOB) for n in range(2)]
    assert decide(draining(), JobLoad((unit(*ranks),))).words == "2 pods of team/bert: 561 s left to write a checkpoint"
    decision = decide(draining(), JobLoad((unit(pod(annotations={CHECKPOINT: "10m"})),)))
    assert decision.words == "announces the eviction to pod team/p"
    assert (decision.verb, decision.reason, decision.state) == (Verb.EVICT, Reason.FAULT, None)


@pytest.mark.parametrize(
    ("node", "found", "drain"),
    [
        (CORDONED, JobLoad((WEB,)), s.DrainState(NOW)),
        (CORDONED, JobLoad(), s.DrainState(NOW, DrainProgress.DRAINED)),
        (draining(), JobLoad(), s.DrainState(NOW - 60, DrainProgress.DRAINED)),
        (draining(since=NOW - 7200), JobLoad((WEB,)), s.DrainState(NOW - 7200, DrainProgress.TIMEOUT)),
        (draining(gang=BEGUN), JobLoad(), s.DrainState(NOW - 60)),
        (
            draining(gang=BEGUN),
            JobLoad(rest=unit(*RANKS), refused={unit(*RANKS).key: "429"}),
            s.DrainState(NOW - 60, DrainProgress.DRAINED, BEGUN),
        ),
    ],
)
def test_what_is_written_about_a_drain(node: WatchedNode, found: JobLoad, drain: s.DrainState) -> None:
    """When it began never changes, and a job that was begun is not forgotten."""
    state = decide(node, found).state
    assert state is not None
    assert state.drain == drain


@pytest.mark.parametrize(
    ("node", "found", "reason"),
    [
        (draining(since=NOW - 7199.5), JobLoad((WEB,), refused={WEB.key: "429"}), Reason.EVICTION_REFUSED),
        (draining(progress=DrainProgress.DRAINED), JobLoad((WEB,)), Reason.AWAITING_REPAIR),
        (replace(draining(gang=BEGUN), labels={s.OPT_OUT: "disabled"}), JobLoad((WEB,)), Reason.OPTED_OUT),
        (replace(draining(gang=BEGUN), unreadable="broken"), JobLoad((WEB,)), Reason.UNREADABLE),
        (replace(CORDONED, unschedulable=False), JobLoad(problem="forbidden"), Reason.UNCORDONED),
        (draining(gang=BEGUN), JobLoad(problem="forbidden"), Reason.PODS_UNKNOWN),
    ],
)
def test_what_stops_a_drain(node: WatchedNode, found: JobLoad, reason: Reason) -> None:
    assert decide(node, found).reason is reason


def test_the_most_important_reason_to_wait_is_named() -> None:
    """Refused evictions before checkpoints, these before protected pods, and these before pods that end."""
    ends, kept = unit(pod("ends", deletionTimestamp="now")), unit(pod("kept", annotations={POLICY: "never"}))
    writes = unit(pod("writes", annotations={CHECKPOINT: "10m", EVICT_AFTER: at(570)}))
    refused = {WEB.key: "429"}
    assert decide(draining(), JobLoad((ends, kept, writes, WEB), refused=refused)).reason is Reason.EVICTION_REFUSED
    assert decide(draining(), JobLoad((ends, kept, writes))).reason is Reason.CHECKPOINT
    assert decide(draining(), JobLoad((ends, kept))).reason is Reason.PROTECTED
    assert decide(draining(), JobLoad((ends,))).reason is Reason.PODS_END
    gone = unit(pod("kept", annotations={POLICY: "never"}, deletionTimestamp="now"))
    assert decide(draining(), JobLoad((gone,))).reason is Reason.PODS_END


def test_a_second_job_waits_for_the_first() -> None:
    """But not single pods, and not what is left of a job on this node alone."""
    refused = {unit(*RANKS).key: "429"}
    other = unit(
        pod("s0", labels={"job-name": "llama", COMPLETION_INDEX: "0"}),
        pod("s1", "m", labels={"job-name": "llama", COMPLETION_INDEX: "0"}),
    )
    last = unit(pod("s0", labels={"job-name": "llama", COMPLETION_INDEX: "0"}))
    busy = draining(gang=BEGUN)
    assert decide(busy, JobLoad((other, last, WEB), unit(*RANKS), refused)).evict == (last, WEB)
    assert decide(busy, JobLoad((other,), unit(*RANKS), refused)).reason is Reason.PODS_END
    assert decide(draining(), JobLoad((other, last, WEB))).evict == (other, last, WEB)


def test_the_units_of_a_node() -> None:
    """A pod without a job is alone; members that wait for a node, or that have another label now, do not count."""
    waiting, other = pod("r2", "", **JOB), pod("r3", "m", labels={"job-name": "llama", COMPLETION_INDEX: "0"})
    found = workload.units([RANKS[0], pod()], {("team", "job-name", "bert"): [*RANKS, waiting, other]}, DRAIN, OWN)
    assert [[each.name for each in made.pods] for made in found] == [["p"], ["r0", "r1"]]
    assert [made.key for made in found] == ["p", ("team", "job-name", "bert")]
    assert workload.units([pod()], {("team", "job-name", "bert"): RANKS}, DRAIN, OWN) == (WEB,)
    assert found[1].begun() == BEGUN
    assert str(found[1]) == "2 pods of team/bert"
    assert str(unit(RANKS[0])) == "pod team/r0"
    assert workload.concerned([pod(), pod("cpu", spec={"containers": []})], DRAIN) == [pod()]
    assert workload.gangs([pod(), RANKS[1], RANKS[0]], DRAIN) == [("team", "job-name", "bert")]


def test_the_rest_of_a_job() -> None:
    """Those pods that were recorded, are not protected, and have not been evicted."""
    later, kept = pod("r2", **JOB), pod("r1", "m", annotations={POLICY: "never"}, **JOB)
    ends = replace(RANKS[0], terminating=True)
    found = workload.rest(BEGUN, [*RANKS, later], DRAIN, OWN)
    assert found == EvictionUnit(("team", "job-name", "bert"), RANKS)
    assert workload.rest(BEGUN, [RANKS[0], kept, later], DRAIN, OWN) == EvictionUnit(
        ("team", "job-name", "bert"), RANKS[:1]
    )
    assert workload.rest(BEGUN, [ends, kept, later], DRAIN, OWN) is None


@pytest.mark.parametrize(("live", "is_gang"), [(1, False), (2, True)])
def test_a_gang_has_several_live_pods(live: int, is_gang: bool) -> None:
    """Pods that end do not count."""
    members = tuple(replace(pod(f"r{n}"), terminating=n >= live) for n in range(3))
    made = EvictionUnit(("team", "job-name", "bert"), members)
    assert made.is_gang is is_gang
    assert made.begun().uids == tuple(f"r{n}" for n in range(live))
