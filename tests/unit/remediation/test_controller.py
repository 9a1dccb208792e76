"""One cycle of the controller, against a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import ledger as lease
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.controller import Controller, Observed, ask_in_parallel
from gpu_exporter.remediation.drainer import Drainer
from gpu_exporter.remediation.evidence import unknown
from gpu_exporter.remediation.fleet import Assessed, FleetPlan
from gpu_exporter.remediation.leader import Leader
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb
from gpu_exporter.remediation.settings import Breaker, Budget, Exporters, Mode, NodePool, Settings
from gpu_exporter.remediation.state import DrainProgress, WatchedNode
from gpu_exporter.remediation.workload import Eviction
from tests.support.remediation_world import Proxy, World
from tests.unit.remediation.test_reconcile import CORDONED, NODE

POOL = NodePool("a", "pool=a", Mode.CORDON, Budget(2, 1.0), confirm="1s")
SETTINGS = Settings("gpu", Exporters("gpu"), (POOL,), breaker=Breaker(9))


def world(pool: NodePool = POOL, breaker: int = 9) -> World:
    """Return a cluster of four nodes in which nothing goes wrong by itself."""
    settings = replace(SETTINGS, pools=(pool,), breaker=Breaker(breaker))
    return World(settings, {f"n{place}": {"pool": "a"} for place in range(4)}, 1, 0.0)


def failed(pool: NodePool = POOL, *names: str) -> World:
    """Return a cluster whose node n0, or these nodes, failed a minute ago."""
    of = world(pool)
    for name in names or ("n0",):
        of.fail(name, "stalled")
    of.now += 60
    return of


def claims(of: World) -> Mapping[str, str]:
    return lease.read(of.lease).claims


class Recorder:
    """Keeps what a controller announces."""

    def __init__(self, controller: Controller) -> None:
        self.acts: list[tuple[str, Verb]] = []
        self.failures: list[tuple[str, str]] = []
        self.evictions: list[Sequence[Eviction]] = []
        self.plans: list[FleetPlan] = []
        controller.announce = self
        controller.__post_init__()

    def planned(self, assessed: Sequence[Assessed], plan: FleetPlan) -> None:
        self.plans.append(plan)

    def failed(self, node: WatchedNode, error: LookupFailed) -> None:
        self.failures.append((node.name, error.reason))

    def acted(self, node: WatchedNode, pool: NodePool, decision: Decision) -> None:
        self.acts.append((node.name, decision.verb))

    def evicted(self, node: WatchedNode, pool: NodePool, results: Sequence[Eviction]) -> None:
        self.evictions.append(results)


def intercept(monkeypatch: pytest.MonkeyPatch, method: str, before: Callable[..., None]) -> None:
    """Call a function with the arguments of a request to the API server before it is answered."""
    answer = getattr(Proxy, method)

    def asked(proxy: Proxy, *arguments: Any, **options: Any) -> Any:
        before(*arguments)
        return answer(proxy, *arguments, **options)

    monkeypatch.setattr(Proxy, method, asked)


def refusal(reason: str, of: str = "n0") -> Callable[..., None]:
    """Return a function that refuses requests about a node."""

    def refuse(name: str, *_: object) -> None:
        if name == of:
            raise LookupFailed(reason, "refused")

    return refuse


def test_a_node_whose_change_is_refused_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admission webhook may refuse one node for ever; another one still is cordoned, and the cycle is complete."""
    of = failed(POOL, "n0", "n1")
    recorder = Recorder(of.controllers[0])
    intercept(monkeypatch, "patch_node", refusal("http_400"))
    assert of.controllers[0].cycle().plan is not None
    assert cordoned(of) == ["n1"]
    assert recorder.failures == [("n0", "http_400")]
    assert recorder.acts == [("n1", Verb.CORDON)]


def cordoned(of: World) -> list[str]:
    return [name for name, item in of.objects.items() if item["spec"].get("unschedulable")]


@pytest.mark.parametrize("annotation", [lease.CLAIMS, lease.BREAKER, lease.BREAKER_RESET])
def test_what_cannot_be_read_is_not_overwritten(annotation: str) -> None:
    """An unreadable Lease stops everything until a person repairs it: it may have the claims of another leader."""
    of = world()
    of.fail("n0", "stalled")
    of.now += 60
    of.cycle(0)
    assert cordoned(of) == ["n0"]
    annotations = of.lease["metadata"]["annotations"]
    before, annotations[annotation] = annotations.get(annotation), "broken"
    of.fail("n1", "stalled")
    for _ in range(3):
        of.now += 60
        of.cycle(0)
    assert of.lease["metadata"]["annotations"][annotation] == "broken"
    assert cordoned(of) == ["n0"]
    of.lease["metadata"]["annotations"][annotation] = before
    if before is None:
        del of.lease["metadata"]["annotations"][annotation]
    of.now += 60
    of.cycle(0)
    assert cordoned(of) == ["n0", "n1"]


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_claim_lasts_from_before_the_cordon_until_after_the_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a second leader with an old list of nodes would cordon one node too many."""
    of = failed()
    recorder = Recorder(of.controllers[0])
    at_write: list[Mapping[str, str]] = []
    intercept(monkeypatch, "patch_node", lambda *_: at_write.append(claims(of)))
    of.controllers[0].cycle()
    assert cordoned(of) == ["n0"]
    assert claims(of) == {"n0": "a"}
    of.repair("n0")
    of.now += 7200
    of.controllers[0].cycle()
    assert cordoned(of) == []
    assert claims(of) == {}
    assert at_write == [{"n0": "a"}, {"n0": "a"}]
    assert recorder.acts == [("n0", Verb.CORDON), ("n0", Verb.RETURN)]


def test_a_claim_ends_when_a_person_uncordons_the_node() -> None:
    of = failed()
    of.controllers[0].cycle()
    of.uncordon("n0")
    of.controllers[0].cycle()
    assert claims(of) == {}


def test_other_changes_leave_the_claim() -> None:
    """A further fault, and each step of a drain."""
    of = failed(replace(POOL, mode=Mode.DRAIN))
    recorder = Recorder(of.controllers[0])
    of.pods.items.clear()
    of.pods.create("n0", {})
    of.controllers[0].cycle()
    of.fail("n0", "uncorrectable_ecc")
    for _ in range(6):
        of.now += 20
        of.go_on()
        of.controllers[0].cycle()
        assert claims(of) == {"n0": "a"}
    assert [verb for _, verb in recorder.acts] == [Verb.CORDON, Verb.UPDATE, Verb.DRAIN, Verb.DRAINED]


def test_observe_mode_writes_nothing() -> None:
    """Nodes neither change nor are claimed; each action is reported, and evictions are tried once."""
    of = failed(replace(POOL, mode=Mode.OBSERVE))
    recorder = Recorder(of.controllers[0])
    of.pods.items.clear()
    of.pods.create("n0", {})
    for _ in range(2):
        of.controllers[0].cycle()
    assert (of.writes, claims(of)) == (0, {})
    assert recorder.acts == [("n0", Verb.CORDON)] * 2
    assert [[each.result for each in results] for results in recorder.evictions] == [["evicted"]]


@pytest.mark.parametrize(("end", "verb"), [(World.repair, Verb.RETURN), (World.uncordon, Verb.HOLD)])
def test_a_pool_that_is_only_observed_from_now_on_keeps_its_claims(end: Callable[..., None], verb: Verb) -> None:
    """Its nodes stay cordoned, because only a dry run returns them."""
    of = failed()
    controller = of.controllers[0]
    controller.cycle()
    controller.settings = replace(SETTINGS, pools=(replace(POOL, mode=Mode.OBSERVE),))
    recorder = Recorder(controller)
    end(of, "n0")
    of.now += 7200
    controller.cycle()
    assert recorder.acts == [("n0", verb)]
    assert claims(of) == {"n0": "a"}


def test_a_cordon_is_no_reason_to_evict_at_once() -> None:
    """Nor are evictions rehearsed where nodes are really cordoned."""
    of = failed()
    recorder = Recorder(of.controllers[0])
    of.controllers[0].cycle()
    assert recorder.evictions == []


def test_a_node_that_changed_in_between_is_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim stays for the next cycle, which still wants to cordon the node."""
    of = failed()
    recorder = Recorder(of.controllers[0])
    with monkeypatch.context() as patch:
        intercept(patch, "patch_node", refusal("conflict"))
        of.controllers[0].cycle()
    assert (recorder.acts, recorder.failures, claims(of)) == ([], [], {"n0": "a"})
    of.controllers[0].cycle()
    assert (cordoned(of), claims(of)) == (["n0"], {"n0": "a"})


@pytest.mark.parametrize(
    ("change", "acts"),
    [
        (lambda of: of.heal("n0"), []),
        (lambda of: of.change("n0", lambda item: item["metadata"]["labels"].update(pool="b")), []),
        (lambda of: of.lose_exporter("n0"), []),
        (lambda of: of.change("n0", lambda item: item["metadata"]["labels"].update(rack="r1")), [("n0", Verb.CORDON)]),
    ],
)
def test_a_decision_is_checked_right_before_it_is_carried_out(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[World], None], acts: list[tuple[str, Verb]]
) -> None:
    """The list of nodes may be old, and a cycle may take minutes."""
    of = failed()
    recorder = Recorder(of.controllers[0])
    changes = [change]
    intercept(monkeypatch, "node", lambda _: changes.pop()(of) if changes else None)
    of.controllers[0].cycle()
    assert recorder.acts == acts
    assert claims(of) == {name: "a" for name, _ in acts}


def test_a_node_that_is_gone_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    of = failed()
    recorder = Recorder(of.controllers[0])
    monkeypatch.setattr(Proxy, "node", lambda *_: None)
    of.controllers[0].cycle()
    assert (recorder.acts, claims(of)) == ([], {})


def test_pods_are_read_anew_before_an_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the plan, the list of the server's cache is good enough."""
    of = failed(replace(POOL, mode=Mode.DRAIN))
    reads: list[bool] = []
    monkeypatch.setattr(Drainer, "load", lambda *_, fresh: reads.append(fresh))
    of.controllers[0].cycle()
    assert reads == [False] * 4 + [True]


@pytest.mark.parametrize("reason", ["forbidden", "not_found", "http_400", "http_500"])
@pytest.mark.parametrize("leads", [True, False])
def test_a_refusal_concerns_one_node(monkeypatch: pytest.MonkeyPatch, reason: str, leads: bool) -> None:
    """Unless it came when this controller did not lead any more, which may be why."""
    of = failed(POOL, "n0", "n1")
    controller = of.controllers[0]
    recorder = Recorder(controller)

    def refuse(name: str, *_: object) -> None:
        if not leads:
            controller.leader.lose()
        refusal(reason)(name)

    intercept(monkeypatch, "patch_node", refuse)
    if leads:
        controller.cycle()
        assert (recorder.failures, cordoned(of)) == ([("n0", reason)], ["n1"])
    else:
        with pytest.raises(LookupFailed, match="refused"):
            controller.cycle()
        assert (recorder.failures, cordoned(of)) == ([], [])


def test_a_lost_answer_ends_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    of = failed(POOL, "n0", "n1")
    recorder = Recorder(of.controllers[0])
    intercept(monkeypatch, "patch_node", refusal("timeout"))
    with pytest.raises(LookupFailed, match="refused"):
        of.controllers[0].cycle()
    assert (recorder.failures, cordoned(of)) == ([], [])


def test_a_leader_that_is_too_slow_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that stops leading leaves the next node to the new leader."""
    of = failed(POOL, "n0", "n1")

    def pass_by(*_: object) -> None:
        of.now += 31

    intercept(monkeypatch, "patch_node", pass_by)
    with pytest.raises(LookupFailed, match="has expired during a cycle"):
        of.controllers[0].cycle()
    assert cordoned(of) == ["n0"]


# --- claims of earlier leaders ----------------------------------------------------------------------------------------


def claimed(of: World, found: Mapping[str, str]) -> None:
    """Let the Lease have these claims."""
    controller = of.controllers[0]
    controller.leader.take()
    for name, pool in found.items():
        controller.leader.claim(name, pool)


def fences(of: World) -> list[str]:
    return [name for name, item in of.objects.items() if s.FENCE in item["metadata"]["annotations"]]


def test_a_claim_without_a_cordon_is_given_back_behind_a_fence() -> None:
    """The leader that made it may still be about to cordon the node: that write must fail. Node n9 does not exist."""
    of = world()
    claimed(of, {"n0": "a", "n9": "a"})
    before = of.objects["n0"]["metadata"]["resourceVersion"]
    of.controllers[0].cycle()
    assert claims(of) == {}
    assert fences(of) == ["n0"]
    assert of.objects["n0"]["metadata"]["annotations"][s.FENCE] == "pod-1"
    assert of.objects["n0"]["metadata"]["resourceVersion"] != before


@pytest.mark.parametrize("reason", ["conflict", "not_found"])
def test_without_the_fence_the_claim_is_kept(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    of = world()
    claimed(of, {"n0": "a", "n1": "a"})
    intercept(monkeypatch, "patch_node", refusal(reason))
    of.controllers[0].cycle()
    assert claims(of) == {"n0": "a"}


def test_a_fence_whose_answer_is_lost_ends_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    of = world()
    claimed(of, {"n0": "a"})
    intercept(monkeypatch, "patch_node", refusal("timeout"))
    with pytest.raises(LookupFailed, match="refused"):
        of.controllers[0].cycle()
    assert claims(of) == {"n0": "a"}


@pytest.mark.parametrize(
    ("mode", "pool", "given_back"),
    [
        (Mode.CORDON, "a", True),
        (Mode.CORDON, "removed", True),
        (Mode.OBSERVE, "a", False),
        (Mode.OBSERVE, "removed", False),
    ],
)
def test_no_fence_is_written_in_observe_mode(mode: Mode, pool: str, given_back: bool) -> None:
    """A claim of a pool that is not configured any more may be of a node of any pool."""
    of = world(replace(POOL, mode=mode))
    claimed(of, {"n0": pool})
    of.controllers[0].cycle()
    assert claims(of) == ({} if given_back else {"n0": pool})
    assert fences(of) == (["n0"] if given_back else [])


def test_a_pool_in_observe_mode_is_not_written_because_another_one_acts() -> None:
    settings = replace(SETTINGS, pools=(POOL, NodePool("b", mode=Mode.OBSERVE)))
    of = World(settings, {"n0": {"pool": "a"}, "n1": {"pool": "b"}}, 1, 0.0)
    claimed(of, {"n0": "a", "n1": "b"})
    of.controllers[0].cycle()
    assert claims(of) == {"n1": "b"}


def test_a_claim_of_a_node_that_is_to_be_cordoned_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used: the leader that made it ended before the cordon."""
    of = failed()
    claimed(of, {"n0": "a"})
    seen: list[Mapping[str, str]] = []
    intercept(monkeypatch, "patch_node", lambda *_: seen.append(claims(of)))
    of.controllers[0].cycle()
    assert seen == [{"n0": "a"}]
    assert fences(of) == []


def test_a_claim_of_a_node_that_an_old_list_shows_uncordoned_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    of = failed()
    old = [*of.objects.values()]
    of.controllers[0].cycle()
    assert claims(of) == {"n0": "a"}
    of.heal("n0")
    monkeypatch.setattr(Proxy, "nodes", lambda _: old)
    of.controllers[0].cycle()
    assert claims(of) == {"n0": "a"}
    assert fences(of) == []


@pytest.mark.parametrize("gone", [False, True])
def test_a_cordoned_node_without_a_claim_is_claimed(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """A person may have removed the claims; a node that has only been cordoned in an old list needs none."""
    of = failed(POOL, "n0")
    of.controllers[0].cycle()
    of.lease["metadata"]["annotations"][lease.CLAIMS] = "{}"
    if gone:
        monkeypatch.setattr(Proxy, "node", lambda *_: None)
    of.controllers[0].cycle()
    assert claims(of) == ({} if gone else {"n0": "a"})


def test_a_node_that_only_an_old_list_shows_cordoned_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    of = failed()
    of.controllers[0].cycle()
    old = [*of.objects.values()]
    of.uncordon("n0")
    of.heal("n0")
    of.controllers[0].cycle()
    assert claims(of) == {}
    monkeypatch.setattr(Proxy, "nodes", lambda _: old)
    monkeypatch.setattr(Leader, "claim", lambda *_: pytest.fail("claimed"))
    of.controllers[0].cycle()
    assert claims(of) == {}


# --- what a cycle looks at --------------------------------------------------------------------------------------------


def test_only_the_leader_looks_at_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    of = failed()
    of.controllers[1].cycle()
    of.now += 1
    monkeypatch.setattr(Proxy, "nodes", lambda _: pytest.fail("read"))
    assert of.controllers[0].cycle() == Observed({}, None)


def test_the_breaker_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next leader knows it, and it stays open after the faults are old."""
    of = world(replace(POOL, budget=Budget(4, 1.0)), breaker=3)
    for name in ("n0", "n1", "n2"):
        of.fail(name, "stalled")
    of.now += 60
    recorder = Recorder(of.controllers[0])
    of.controllers[0].cycle()
    assert lease.read(of.lease).breaker == {"stalled": of.now}
    assert cordoned(of) == []
    assert [plan.breaker for plan in recorder.plans] == [{"stalled": of.now}]


@pytest.mark.parametrize(
    ("labels", "capacity", "address", "cordon", "listed"),
    [
        ({"pool": "a"}, {"nvidia.com/gpu": "1"}, False, False, True),
        ({"pool": "a"}, {"cpu": "1"}, True, False, True),
        ({"pool": "a"}, {"cpu": "1"}, False, True, True),
        ({"pool": "a"}, {"cpu": "1"}, False, False, False),
        ({"pool": "b"}, {"nvidia.com/gpu": "1"}, True, True, False),
    ],
)
def test_nodes_that_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, labels: Any, capacity: Any, address: bool, cordon: bool, listed: bool
) -> None:
    """Those of a pool that have GPUs, an exporter, or a state that the controller has given them."""
    of = failed()
    if cordon:
        of.controllers[0].cycle()

    def change(item: Any) -> None:
        item["metadata"]["labels"] = labels
        item["status"]["capacity"] = capacity

    of.change("n0", change)
    monkeypatch.setattr(Proxy, "addresses", lambda _: {"n0": ["10.0.0.9"]} if address else {})
    of.controllers[0].leader.take()
    observed = of.controllers[0].observe(None, {})
    assert ("n0" in [each.node.name for each in observed.assessed]) is listed
    assert ("n0" in observed.evidence) is listed


@pytest.mark.parametrize(
    ("hinted", "known", "mode", "asked"),
    [
        (None, (), Mode.CORDON, ["n0", "n1", "n2", "n3"]),
        (None, ("n0",), Mode.CORDON, ["n0", "n1", "n2", "n3"]),
        ({"n1"}, ("n0", "n1", "n2", "n3"), Mode.CORDON, ["n1"]),
        ({"n1"}, ("n0", "n1"), Mode.CORDON, ["n1", "n2", "n3"]),
        (set(), ("n0", "n1", "n2", "n3"), Mode.CORDON, []),
        (None, (), Mode.OBSERVE, ["n0", "n1", "n2", "n3"]),
        (None, (), Mode.OFF, []),
    ],
)
def test_exporters_that_are_asked(
    monkeypatch: pytest.MonkeyPatch, hinted: Any, known: Sequence[str], mode: Mode, asked: Sequence[str]
) -> None:
    """All, or those of hinted nodes and of nodes about which nothing is known."""
    of = world(replace(POOL, mode=mode))
    controller, found = of.controllers[0], list[tuple[str, Sequence[str]]]()

    def ask(node: WatchedNode, addresses: Sequence[str], _: NodePool) -> Any:
        found.append((node.name, addresses))
        return unknown("new")

    controller.ask = ask
    controller.leader.take()
    observed = controller.observe(hinted, {name: unknown("old") for name in known})
    assert found == [(name, ("10.0.0.1",)) for name in asked]
    assert {name: evidence.why for name, evidence in observed.evidence.items()} == {
        name: "new" if name in asked else "old" if name in known else "not asked" for name in of.objects
    }


def test_the_lease_is_renewed_while_exporters_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    of = failed()

    def slow(*_: object) -> Any:
        of.now += 20
        return unknown("slow")

    of.controllers[0].ask = slow
    of.controllers[0].cycle()
    assert of.controllers[0].leader.leads


def test_a_hint_reaches_the_cycle() -> None:
    """Only the node that is hinted at is asked, and cordoned."""
    of = failed(POOL, "n0", "n1")
    known = {name: unknown("old") for name in of.objects}
    of.controllers[0].cycle({"n1"}, known)
    assert cordoned(of) == ["n1"]


def test_several_exporters_are_asked_at_once() -> None:
    """Each answer belongs to its node, in whatever order they come."""
    nodes = [(replace(NODE, name=f"n{number}"), POOL) for number in range(40)]
    found = dict(ask_in_parallel(lambda one: unknown(one[0].name), nodes))
    assert {name: evidence.why for name, evidence in found.items()} == {f"n{n}": f"n{n}" for n in range(40)}


DRAINING = replace(CORDONED, state=replace(CORDONED.state, drain=s.DrainState(0.0)))  # type: ignore[type-var]
DRAINED = replace(CORDONED, state=replace(CORDONED.state, drain=s.DrainState(0.0, DrainProgress.DRAINED)))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("node", "verb", "mode", "draining"),
    [
        (NODE, Verb.CORDON, Mode.DRAIN, True),
        (NODE, Verb.CORDON, Mode.CORDON, False),
        (NODE, Verb.NONE, Mode.DRAIN, False),
        (CORDONED, Verb.NONE, Mode.DRAIN, False),
        (DRAINING, Verb.NONE, Mode.DRAIN, True),
        (DRAINING, Verb.NONE, Mode.CORDON, False),
        (DRAINED, Verb.NONE, Mode.DRAIN, False),
    ],
)
def test_nodes_to_look_at_again_soon(node: WatchedNode, verb: Verb, mode: Mode, draining: bool) -> None:
    decision = Decision(verb, Reason.FAULT, "")
    each = Assessed(node, replace(POOL, mode=mode), decision)
    observed = Observed({}, FleetPlan({node.name: decision}, {}, {}), (each,))
    assert observed.draining == ({node.name} if draining else set())


def test_nobody_is_drained_without_a_plan() -> None:
    assert Observed({}, None).draining == frozenset()
