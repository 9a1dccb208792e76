"""Each step of a drain: what is requested in which order, what a refusal means, and what waits for how long."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from gpu_exporter.kubernetes.writer import Operation
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.cluster import Cluster
from gpu_exporter.remediation.drainer import Drainer
from gpu_exporter.remediation.leader import Leader
from gpu_exporter.remediation.pods import CHECKPOINT, COMPLETION_INDEX, EVICT_AFTER, POLICY
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb
from gpu_exporter.remediation.settings import Exporters, NodePool, Settings
from gpu_exporter.remediation.state import DrainProgress, WatchedNode
from gpu_exporter.remediation.workload import Eviction, EvictionUnit, JobLoad
from tests.support.json_patch import patched
from tests.unit.remediation.test_drain import BEGUN, DRAINS, OWN, at, decide, draining, unit
from tests.unit.remediation.test_drain import pod as pod_of
from tests.unit.remediation.test_reconcile import CLEAN, CORDONED, FAULTY, NOW


class Server:
    """Answers with what a test sets, refuses what it names in `refused`, and keeps the writes and the reports."""

    def __init__(self) -> None:
        self.now = NOW
        self.pods: Mapping[str, Any] = {}
        self.node_object: Any = None
        self.listed: list[Any] = []
        self.jobs: Mapping[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.lists: list[tuple[Any, ...]] = []
        self.writes: list[tuple[Any, ...]] = []
        self.reports: list[list[str]] = []
        self.kept = 0
        me = cast(Any, self)
        self.drainer = Drainer(
            cast(Cluster, self), cast(Leader, me), Settings(OWN, Exporters(OWN, ""), ()), me, lambda: self.now
        )

    def keep(self) -> None:
        """Count how often the Lease is renewed."""
        self.kept += 1

    def evicted(self, node: WatchedNode, pool: NodePool, results: Sequence[Eviction]) -> None:
        self.reports.append([f"{each.pod} {each.uid} {each.result}" for each in results])

    def pods_on(self, node: str, *, fresh: bool) -> Sequence[Any]:
        self.lists.append((node, fresh))
        self._refuse("pods_on")
        return [item for item in self.pods.values() if item["spec"]["nodeName"] == node]

    def pods_of(self, *key: str, fresh: bool) -> Sequence[Any]:
        self.lists.append((*key, fresh))
        self._refuse("pods_of")
        return [item for item in self.pods.values() if item["metadata"].get("labels", {}).get(key[1]) == key[2]]

    def job(self, namespace: str, name: str) -> Any:
        self.lists.append(("job", namespace, name))
        self._refuse("job")
        return self.jobs.get(name)

    def budgets(self, namespace: str) -> Sequence[Any]:
        self.lists.append(("budgets", namespace))
        self._refuse("budgets")
        return self.listed

    def node(self, name: str) -> Any:
        self.lists.append(("node", name))
        return self.node_object

    def patch_node(self, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        self._refuse("patch_node")
        self.writes.append(("node", name, dry_run))
        self.node_object = patched(self.node_object, operations)

    def patch_pod(self, namespace: str, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        self.writes.append(("notify", name, operations[-1]["value"], dry_run))
        self._refuse(f"notify {name}")

    def evict(self, namespace: str, name: str, uid: str, version: str, *, dry_run: bool) -> None:
        self.writes.append(("evict", name, dry_run))
        self._refuse(f"try {name}" if dry_run else f"evict {name}")

    def _refuse(self, what: str) -> None:
        if what in self.refused:
            raise LookupFailed(self.refused[what], what)

    def waits(self) -> Mapping[Any, str]:
        """Return which units wait now, and why."""
        found = self.drainer.load(CORDONED, DRAINS)
        assert found is not None
        return found.refused


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server, for a drainer that waits for as long as it may."""
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    return Server()


def item(name: str, node: str = "n", **metadata: Any) -> Any:
    """Return the object of the pod that `pod_of` makes."""
    about = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1", **metadata}
    owner = {"kind": "ReplicaSet", "name": "web", "controller": True}
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"ownerReferences": [owner], **about},
        "spec": {"nodeName": node, "containers": [limits]},
    }


LABELS: Any = {"labels": {"job-name": "bert", COMPLETION_INDEX: "0"}}
WANTS: Any = {"annotations": {CHECKPOINT: "90s"}}
WEB, DB = unit(pod_of("web")), unit(pod_of("db"))
BERT = unit(pod_of("r0", **LABELS), pod_of("r1", "m", **LABELS))
LLAMA = unit(
    pod_of("s0", labels={"job-name": "llama", COMPLETION_INDEX: "0"}),
    pod_of("s1", "m", labels={"job-name": "llama", COMPLETION_INDEX: "0"}),
)
NODE_OBJECT: Any = {
    "metadata": {
        "name": "n",
        "uid": "uid",
        "resourceVersion": "7",
        "annotations": {s.STATE: cast(s.RemediationState, draining().state).text()},
    },
    "spec": {"unschedulable": True},
    "status": {"nodeInfo": {"bootID": "b1"}},
}


def evicts(*units: EvictionUnit, notify: Sequence[EvictionUnit] = (), reason: Reason = Reason.FAULT) -> Decision:
    """Return the decision to evict units of a node that is drained."""
    decision = decide(draining(), JobLoad(units))
    return replace(decision, verb=Verb.EVICT, reason=reason, evict=units, notify=tuple(notify))


@pytest.mark.parametrize("fresh", [False, True])
def test_what_a_drain_waits_for(server: Server, fresh: bool) -> None:
    """The pods of the node, those of their jobs on other nodes, and what is left of the job that was begun."""
    server.pods = {
        each["metadata"]["name"]: each for each in (item("web"), item("r0", **LABELS), item("r1", "m", **LABELS))
    }
    found = server.drainer.load(draining(gang=BEGUN), DRAINS, fresh=fresh)
    assert found is not None
    assert [(str(each), len(each.pods)) for each in found.units] == [("pod team/web", 1), ("2 pods of team/bert", 2)]
    assert found.rest is not None
    assert [each.name for each in found.rest.pods] == ["r0", "r1"]
    assert server.lists == [("n", fresh), *[("team", "job-name", "bert", fresh)] * 2]
    server.lists.clear()
    assert server.drainer.load(draining(progress=DrainProgress.DRAINED), DRAINS, fresh=fresh) is None
    assert server.lists == []
    without = server.drainer.load(draining(), DRAINS, fresh=fresh)
    assert without is not None
    assert without.rest is None
    assert server.drainer.load(CORDONED, DRAINS, fresh=fresh) == without


@pytest.mark.parametrize("what", ["pods_on", "pods_of"])
def test_pods_that_cannot_be_listed(server: Server, what: str) -> None:
    """A missing right is the node's problem; any other failure ends the cycle."""
    server.pods = {"r0": item("r0", **LABELS)}
    server.refused[what] = "forbidden"
    assert server.drainer.load(CORDONED, DRAINS) == JobLoad(problem=f"its pods or their Jobs cannot be read: {what}")
    for reason in ("timeout", "absent", "zero"):
        server.refused[what] = reason
        with pytest.raises(LookupFailed):
            server.drainer.load(CORDONED, DRAINS)


def of_job(name: str, node: str = "n") -> Any:
    """Return a pod of the Job bert, which is not Indexed."""
    found = item(name, node, labels={"job-name": "bert"})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "bert", "controller": True}
    return {**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}}


@pytest.mark.parametrize(
    ("job", "kept"),
    [({"spec": {"backoffLimit": 2}}, ""), ({"spec": {"backoffLimit": 1}}, "backoffLimit is 1"), (None, "")],
)
def test_a_job_that_would_fail_is_kept(server: Server, job: Any, kept: str) -> None:
    """Its pods on other nodes are not even listed; a Job that is gone counts nothing."""
    server.pods = {each["metadata"]["name"]: each for each in (of_job("a"), of_job("b"), of_job("c", "m"))}
    server.jobs = {"bert": job}
    found = server.drainer.load(draining(), DRAINS, fresh=True)
    assert found is not None
    assert [str(each) for each in found.units] == ["pod team/a", "pod team/b"]
    assert all((kept in each.protected) and bool(each.protected) is bool(kept) for each in found.units)
    assert server.lists == [("n", True), ("job", "team", "bert")]


def test_jobs_that_cannot_be_read(server: Server) -> None:
    """Without the right to, nothing is evicted."""
    server.pods = {"a": of_job("a")}
    server.refused["job"] = "forbidden"
    assert server.drainer.load(CORDONED, DRAINS) == JobLoad(problem="its pods or their Jobs cannot be read: job")


def test_pods_go_before_the_first_job_that_can(server: Server) -> None:
    """One job at a time, because recording it changes the node; pods are warned before any is evicted."""
    server.node_object, wants = NODE_OBJECT, unit(pod_of("slow", **WANTS))
    server.listed = [{"metadata": {"name": "none"}, "spec": {"selector": {"matchLabels": {"job-name": "bert"}}}}]
    third = unit(
        pod_of("t0", labels={"job-name": "third", COMPLETION_INDEX: "0"}),
        pod_of("t1", "m", labels={"job-name": "third", COMPLETION_INDEX: "0"}),
    )
    units = (BERT, WEB, LLAMA, third, DB)
    decision = replace(evicts(*units, notify=[wants]), load=JobLoad((*units, wants)))
    server.drainer.evict(draining(), DRAINS, decision)
    tried = [("evict", name, True) for name in ("s0", "s1")]
    assert server.writes == [
        ("notify", "slow", "2023-11-14T22:14:50.000000Z", False),
        ("evict", "web", False),
        ("evict", "db", False),
        *tried,
        ("node", "n", False),
        ("evict", "s0", False),
        ("evict", "s1", False),
    ]
    assert server.reports == [
        ["team/web web evicted"],
        ["team/db db evicted"],
        ["team/s0 s0 evicted", "team/s1 s1 evicted"],
    ]
    assert server.waits() == {BERT.key: "2 pods of team/bert: PodDisruptionBudget none allows 0 of the 2 evictions"}
    assert server.kept == 6, "before each eviction, also a dry one"
    state = s.read(server.node_object).state
    assert state is not None
    assert state.drain == s.DrainState(NOW - 60, gang=LLAMA.begun())


def test_the_rest_of_a_job_is_not_begun_again(server: Server) -> None:
    server.drainer.evict(draining(gang=BEGUN), DRAINS, evicts(BERT, reason=Reason.REST_OF_GANG))
    assert server.writes == [("evict", "r0", False), ("evict", "r1", False)]


def test_a_failure_ends_the_cycle_and_what_was_done_is_reported(server: Server) -> None:
    server.refused["evict r1"] = "timeout"
    with pytest.raises(LookupFailed):
        server.drainer.evict(draining(gang=BEGUN), DRAINS, evicts(BERT, WEB, reason=Reason.REST_OF_GANG))
    assert server.reports == [["team/r0 r0 evicted"]]


@pytest.mark.parametrize(
    ("reason", "result", "waits"),
    [
        ("not_found", "gone", False),
        ("conflict", "changed", False),
        ("too_many_requests", "disruption_budget", True),
        ("forbidden", "forbidden", True),
        ("http_400", "http_400", True),
        ("http_422", "http_422", True),
        ("http_500", "http_500", True),
        ("http_503", "", False),
        ("timeout", "", False),
    ],
)
def test_what_a_refused_eviction_means(server: Server, reason: str, result: str, waits: bool) -> None:
    """For this pod, or, without a result, for everything."""
    server.refused["evict web"] = reason
    if result:
        server.drainer.evict(draining(), DRAINS, evicts(WEB))
        assert server.reports == [[f"team/web web {result}"]]
    else:
        with pytest.raises(LookupFailed, match="evict web"):
            server.drainer.evict(draining(), DRAINS, evicts(WEB))
        assert server.reports == [[]]
    assert server.waits() == ({WEB.key: "pod team/web: evict web"} if waits else {})


def test_a_pod_of_a_job_that_changed_hides_no_refusal(server: Server) -> None:
    """Whatever the order of the pods."""
    for first, second in (("r0", "r1"), ("r1", "r0")):
        server.refused = {f"evict {first}": "too_many_requests", f"evict {second}": "conflict"}
        server.drainer.evict(draining(gang=BEGUN), DRAINS, evicts(BERT, reason=Reason.REST_OF_GANG))
        assert server.waits() == {BERT.key: f"2 pods of team/bert: evict {first}"}
        server.now += 60


def test_a_refused_unit_waits_twice_as_long_each_time(server: Server) -> None:
    """From 5 s to a minute; without another attempt for ten minutes, it begins anew."""
    server.refused["evict web"] = "forbidden"

    def waited() -> float:
        server.drainer.evict(draining(), DRAINS, evicts(WEB))
        began = server.now
        while server.waits():
            server.now += 0.5
        return server.now - began

    assert [waited() for _ in range(6)] == [5, 10, 20, 40, 60, 60]
    server.now += 599
    server.waits()
    assert waited() == 60
    server.now += 600
    server.waits()
    assert waited() == 5


def test_refused_units_do_not_all_return_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda shortest, _: shortest)
    server = Server()
    server.refused["evict web"] = "forbidden"
    server.drainer.evict(draining(), DRAINS, evicts(WEB))
    server.now += 3.5
    assert server.waits()
    server.now += 0.5
    assert not server.waits()


@pytest.mark.parametrize("reason", ["too_many_requests", "conflict", "not_found"])
def test_a_job_is_begun_only_if_all_its_pods_can_go(server: Server, reason: str) -> None:
    server.node_object = NODE_OBJECT
    server.refused["try r1"] = reason
    server.drainer.evict(draining(), DRAINS, evicts(BERT))
    begun = reason == "not_found"
    assert (("node", "n", False) in server.writes) is begun
    why = {"too_many_requests": "try r1", "conflict": "one of its pods has just changed"}
    assert server.waits() == ({} if begun else {BERT.key: f"2 pods of team/bert: {why[reason]}"})


@pytest.mark.parametrize(
    ("budget", "begun"),
    [
        ({"status": {"disruptionsAllowed": 2}}, True),
        ({"status": {"disruptionsAllowed": 1}}, False),
        ({}, False),
    ],
)
def test_disruption_budgets_must_allow_a_whole_job(server: Server, budget: Any, begun: bool) -> None:
    """A dry run of one eviction after the other would not notice: none of them counts for the next one."""
    server.node_object = NODE_OBJECT
    other = {"spec": {"selector": {"matchLabels": {"job-name": "llama"}}}, "status": {"disruptionsAllowed": 0}}
    mine = {"metadata": {"name": "pdb"}, "spec": {"selector": {"matchLabels": {"job-name": "bert"}}}, **budget}
    server.listed = [other, mine]
    server.drainer.evict(draining(), DRAINS, evicts(BERT))
    assert (("node", "n", False) in server.writes) is begun
    assert server.lists[0] == ("budgets", "team")
    assert bool(server.waits()) is not begun


def test_disruption_budgets_that_cannot_be_listed(server: Server) -> None:
    server.refused["budgets"] = "forbidden"
    server.drainer.evict(draining(), DRAINS, evicts(BERT))
    assert server.waits() == {BERT.key: "2 pods of team/bert: disruption budgets cannot be listed: budgets"}
    for reason in ("timeout", "absent"):
        server.refused["budgets"] = reason
        with pytest.raises(LookupFailed):
            server.drainer.evict(draining(), DRAINS, evicts(BERT))


def changed(**about: Any) -> Any:
    """Return the node's object with other metadata or another specification."""
    return {
        **NODE_OBJECT,
        "metadata": {**NODE_OBJECT["metadata"], **about.get("metadata", {})},
        "spec": about.get("spec", NODE_OBJECT["spec"]),
    }


@pytest.mark.parametrize(
    ("found", "pool"),
    [
        (None, DRAINS),
        (changed(spec={}), DRAINS),
        (changed(metadata={"annotations": {}}), DRAINS),
        (changed(metadata={"annotations": {s.STATE: cast(s.RemediationState, CORDONED.state).text()}}), DRAINS),
        (
            changed(metadata={"annotations": {s.STATE: cast(s.RemediationState, draining(gang=BEGUN).state).text()}}),
            DRAINS,
        ),
        (NODE_OBJECT, replace(DRAINS, selector="pool=other")),
    ],
)
def test_a_job_is_not_begun_on_a_node_that_changed(server: Server, found: Any, pool: NodePool) -> None:
    """It is gone, was uncordoned, has another state, or belongs to another pool by now."""
    server.node_object = found
    server.drainer.evict(draining(), pool, evicts(BERT))
    assert [write for write in server.writes if not write[-1]] == []


@pytest.mark.parametrize(("reason", "ends"), [("conflict", False), ("timeout", True), ("absent", True)])
def test_a_job_whose_record_cannot_be_written(server: Server, reason: str, ends: bool) -> None:
    """Nothing of it is evicted."""
    server.node_object, server.refused["patch_node"] = NODE_OBJECT, reason
    if ends:
        with pytest.raises(LookupFailed):
            server.drainer.evict(draining(), DRAINS, evicts(BERT))
    else:
        server.drainer.evict(draining(), DRAINS, evicts(BERT))
    assert [write for write in server.writes if not write[-1]] == []
    assert server.waits() == {}


@pytest.mark.parametrize(
    ("annotations", "told"),
    [
        ({}, False),
        ({CHECKPOINT: "90s"}, True),
        ({CHECKPOINT: "90s", EVICT_AFTER: at(30)}, False),
        ({CHECKPOINT: "90s", EVICT_AFTER: at(28)}, True),
    ],
)
def test_pods_are_told_once_in_each_drain(server: Server, annotations: Any, told: bool) -> None:
    """The drain began a minute ago, so a pod that asks for 90 s was told to have 30 s from now."""
    waiting = unit(pod_of("slow", annotations=annotations))
    server.drainer.evict(draining(), DRAINS, evicts(notify=[waiting]))
    assert server.writes == ([("notify", "slow", "2023-11-14T22:14:50.000000Z", False)] if told else [])


def test_a_pod_that_ends_need_not_be_told(server: Server) -> None:
    ends = EvictionUnit("k", (pod_of("ends", deletionTimestamp="now", **WANTS), pod_of("slow", **WANTS)))
    server.drainer.evict(draining(), DRAINS, evicts(notify=[ends]))
    assert [name for _, name, *_ in server.writes] == ["slow"]


def test_a_pod_that_cannot_be_told_waits(server: Server) -> None:
    """The others of its job are told nevertheless."""
    job = unit(pod_of("r0", **LABELS, **WANTS), pod_of("r1", "m", **LABELS, **WANTS))
    server.refused["notify r0"] = "forbidden"
    server.drainer.evict(draining(), DRAINS, evicts(notify=[job]))
    assert [name for _, name, *_ in server.writes] == ["r0", "r1"]
    why = f"the annotation {EVICT_AFTER} cannot be set: notify r0"
    assert server.waits() == {job.key: f"2 pods of team/bert: {why}"}
    server.refused["notify r0"] = "timeout"
    with pytest.raises(LookupFailed):
        server.drainer.evict(draining(), DRAINS, evicts(notify=[job]))


def test_a_rehearsal(server: Server) -> None:
    """Once for each fault: of all pods but those that are protected. Nothing waits because of it."""
    kept = item("kept", annotations={POLICY: "never"})
    listed = (item("web"), item("slow", **WANTS), item("r0", **LABELS), item("r1", "m", **LABELS), kept)
    server.pods = {each["metadata"]["name"]: each for each in listed}
    server.refused = {"try web": "too_many_requests", "notify slow": "forbidden"}
    decision = replace(evicts(), evidence=FAULTY)
    for _ in range(2):
        server.drainer.rehearse(CORDONED, DRAINS, decision)
    assert server.writes == [
        ("evict", "web", True),
        ("notify", "slow", "2023-11-14T22:14:50.000000Z", True),
        ("evict", "slow", True),
        ("evict", "r0", True),
        ("evict", "r1", True),
    ]
    assert server.reports == [
        [
            "team/web web disruption_budget",
            "team/slow slow evicted",
            "team/r0 r0 evicted",
            "team/r1 r1 evicted",
        ]
    ]
    assert server.lists == [("n", True), ("team", "job-name", "bert", True)]
    assert server.waits() == {}
    server.drainer.rehearse(CORDONED, DRAINS, replace(decision, evidence=CLEAN))
    server.drainer.rehearse(replace(CORDONED, name="m"), DRAINS, decision)
    assert len(server.reports) == 3


def test_a_rehearsal_without_the_right_to_list_pods(server: Server) -> None:
    """It says so; another failure ends the cycle."""
    server.refused["pods_on"] = "forbidden"
    server.drainer.rehearse(CORDONED, DRAINS, evicts())
    assert server.reports == [["(list of pods)  forbidden"]]
    for reason in ("timeout", "absent"):
        server.refused["pods_on"] = reason
        with pytest.raises(LookupFailed):
            server.drainer.rehearse(replace(CORDONED, name=reason), DRAINS, evicts())
