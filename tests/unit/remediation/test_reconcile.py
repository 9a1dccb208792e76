"""What is decided about one node, and what the bounds of the fleet allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_exporter.model.verdict import Action
from gpu_exporter.remediation import evidence as e
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.evidence import Evidence, NodeFinding, ReportedFault
from gpu_exporter.remediation.fleet import Assessed, plan
from gpu_exporter.remediation.ledger import Ledger
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb, reconcile
from gpu_exporter.remediation.settings import Breaker, Budget, Exporters, Mode, NodePool, Settings
from gpu_exporter.remediation.state import DrainPhase, NodePast, RemediationState, WatchedNode

NOW = 1_700_000_000.0
POOL = NodePool("all", mode=Mode.CORDON)
NODE = WatchedNode("n", "uid", "7", "b1", {}, {}, unschedulable=False, foreign=False, ready=True, has_gpus=True)
FAULT = ReportedFault("GPU-1", "stalled", Action.NODE_REBOOT, 120.0)
FAULTY = Evidence(NodeFinding.FAULTY, "b1", (FAULT,), gpus=frozenset({"GPU-1"}), expected=1)
CLEAN = Evidence(NodeFinding.CLEAN, "b2", clean_for=1e4, gpus=frozenset({"GPU-1"}), expected=1)
STATE = RemediationState(DrainPhase.CORDONED, "id", NOW - 3600, "b1", "node_reboot", (("GPU-1", "stalled"),), 1)
CORDONED = replace(NODE, unschedulable=True, state=STATE)
WORN = replace(CORDONED, state=replace(STATE, action="replace"))


@pytest.mark.parametrize(
    ("node", "evidence", "verb", "reason"),
    [
        (NODE, CLEAN, Verb.NONE, Reason.HEALTHY),
        (NODE, FAULTY, Verb.CORDON, Reason.FAULT),
        (NODE, e.unknown("gone"), Verb.NONE, Reason.UNKNOWN),
        (NODE, replace(FAULTY, faults=(replace(FAULT, age=1.0),)), Verb.NONE, Reason.CONFIRMING),
        (replace(NODE, unschedulable=True), FAULTY, Verb.NONE, Reason.FOREIGN),
        (replace(NODE, labels={s.OPT_OUT: "disabled"}), FAULTY, Verb.NONE, Reason.OPTED_OUT),
        (replace(CORDONED, labels={s.OPT_OUT: "disabled"}), CLEAN, Verb.NONE, Reason.OPTED_OUT),
        (replace(NODE, unreadable="broken"), FAULTY, Verb.NONE, Reason.UNREADABLE),
        (CORDONED, FAULTY, Verb.NONE, Reason.AWAITING_REPAIR),
        (CORDONED, replace(FAULTY, boot="b2"), Verb.UPDATE, Reason.NEW_FAULT),
        (CORDONED, e.unknown("gone"), Verb.NONE, Reason.UNKNOWN),
        (CORDONED, CLEAN, Verb.RETURN, Reason.RECOVERED),
        (CORDONED, replace(CLEAN, boot="b1"), Verb.NONE, Reason.NEEDS_REBOOT),
        (CORDONED, replace(CLEAN, clean_for=60.0), Verb.NONE, Reason.VERIFYING),
        (CORDONED, replace(CLEAN, gpus=frozenset({"GPU-2"})), Verb.NONE, Reason.GPU_ABSENT),
        (CORDONED, replace(CLEAN, expected=0), Verb.NONE, Reason.GPU_ABSENT),
        (WORN, CLEAN, Verb.NONE, Reason.NEEDS_REPLACEMENT),
        (
            replace(WORN, annotations={s.REPAIRED: "other"}),
            CLEAN,
            Verb.NONE,
            Reason.NEEDS_REPLACEMENT,
        ),
        (replace(WORN, annotations={s.REPAIRED: "id"}), CLEAN, Verb.RETURN, Reason.RECOVERED),
        (replace(CORDONED, unschedulable=False), FAULTY, Verb.HOLD, Reason.UNCORDONED),
        (replace(CORDONED, foreign=True), CLEAN, Verb.HOLD, Reason.TAKEN_OVER),
    ],
)
def test_decisions(node: WatchedNode, evidence: Evidence, verb: Verb, reason: Reason) -> None:
    decision = reconcile(node, evidence, POOL, NOW)
    assert (decision.verb, decision.reason) == (verb, reason)
    assert decision.words
    assert (decision.state is None) == (verb is Verb.NONE)


@pytest.mark.parametrize(
    ("checked_at", "reason"),
    [
        (0.0, Reason.NEEDS_ACTIVE_CHECK),
        (STATE.at - 1, Reason.NEEDS_ACTIVE_CHECK),
        (STATE.at, Reason.NEEDS_ACTIVE_CHECK),
        (STATE.at + 1, Reason.RECOVERED),
    ],
)
def test_a_pool_that_needs_active_checks(checked_at: float, reason: Reason) -> None:
    """A node returns only if its GPUs have passed one after the fault, or if a person has confirmed the repair."""
    evidence, pool = replace(CLEAN, checked_at=checked_at), replace(POOL, active_check=True)
    assert reconcile(CORDONED, evidence, pool, NOW).reason is reason
    confirmed = replace(CORDONED, annotations={s.REPAIRED: "id"})
    assert reconcile(confirmed, evidence, pool, NOW).reason is Reason.RECOVERED


HELD = replace(NODE, state=replace(STATE, phase=DrainPhase.HELD))
CONFIRM = "confirm the repair with the annotation gpu-exporter.io/repaired=id"


def aged(seconds: float) -> Evidence:
    return replace(FAULTY, faults=(replace(FAULT, age=seconds),))


@pytest.mark.parametrize(
    ("node", "evidence", "pool", "reason", "words"),
    [
        (NODE, FAULTY, NodePool("a", mode=Mode.OFF), Reason.OFF, "pool a is off"),
        (replace(NODE, labels={s.OPT_OUT: "enabled"}), FAULTY, POOL, Reason.FAULT, "GPU GPU-1: stalled"),
        (CORDONED, e.unknown("gone"), POOL, Reason.UNKNOWN, "gone"),
        (NODE, CLEAN, POOL, Reason.HEALTHY, "all GPUs are healthy"),
        (
            replace(HELD, unschedulable=True),
            replace(FAULTY, boot="b9"),
            POOL,
            Reason.FOREIGN,
            "already cordoned",
        ),
        (NODE, aged(59.6), POOL, Reason.CONFIRMING, "the fault is 60 s old: it must last for 60 s"),
        (NODE, aged(60.0), POOL, Reason.FAULT, "GPU GPU-1: stalled"),
        (CORDONED, aged(0.0), POOL, Reason.AWAITING_REPAIR, "still faulty: GPU GPU-1: stalled"),
        (
            CORDONED,
            replace(CLEAN, clean_for=899.5),
            POOL,
            Reason.VERIFYING,
            "healthy for 900 s: it must be for 900 s",
        ),
        (CORDONED, replace(CLEAN, clean_for=900.0), POOL, Reason.RECOVERED, "healthy for 900 s"),
        (WORN, CLEAN, POOL, Reason.NEEDS_REPLACEMENT, f"a GPU needs replacement: {CONFIRM}"),
        (CORDONED, replace(CLEAN, boot="b1"), POOL, Reason.NEEDS_REBOOT, f"reboot it, or {CONFIRM}"),
        (CORDONED, replace(CLEAN, boot="b1"), replace(POOL, new_boot=False), Reason.RECOVERED, "healthy"),
        (
            CORDONED,
            CLEAN,
            replace(POOL, active_check=True),
            Reason.NEEDS_ACTIVE_CHECK,
            f"on the node, or {CONFIRM}",
        ),
        (CORDONED, replace(CLEAN, gpus=frozenset()), POOL, Reason.GPU_ABSENT, f"if it was replaced, {CONFIRM}"),
        (
            replace(CORDONED, state=replace(STATE, faults=(("", "missing"),))),
            CLEAN,
            POOL,
            Reason.RECOVERED,
            "healthy",
        ),
    ],
)
def test_reasons_in_words(node: WatchedNode, evidence: Evidence, pool: NodePool, reason: Reason, words: str) -> None:
    """People read them in `kubectl describe node`; the limits are inclusive."""
    decision = reconcile(node, evidence, pool, NOW)
    assert decision.reason is reason
    assert words in decision.words


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ((FAULT,), "GPU GPU-1: stalled"),
        ((replace(FAULT, words="It hangs"),), "GPU GPU-1: It hangs"),
        ((replace(FAULT, uuid="", reason="missing"),), "missing"),
        ((FAULT, FAULT, FAULT), "GPU GPU-1: stalled and 2 more"),
    ],
)
def test_faults_in_words(faults: tuple[ReportedFault, ...], words: str) -> None:
    assert reconcile(NODE, replace(FAULTY, faults=faults), POOL, NOW).words == words


def test_the_state_of_a_new_cordon() -> None:
    """With an id that the same fault has again only by the time, and the history of the node."""
    history = (NodePast(1.0, 2.0, ("lost",)),)
    faults = (FAULT, replace(FAULT, reason="lost", action=Action.REPLACE), FAULT)
    evidence = replace(FAULTY, faults=faults, expected=4)
    node = replace(NODE, state=replace(STATE, phase=DrainPhase.RETURNED, history=history))
    state = reconcile(node, evidence, POOL, NOW).state
    assert state is not None
    assert len(state.fault) == 12
    keys = (("GPU-1", "stalled"), ("GPU-1", "lost"))
    assert state == RemediationState(DrainPhase.CORDONED, state.fault, NOW, "b1", "replace", keys, 4, history)
    assert reconcile(NODE, evidence, POOL, NOW).state == replace(state, history=())
    later = reconcile(NODE, evidence, POOL, NOW + 1).state
    assert later is not None
    assert later.fault != state.fault


def test_further_faults_are_added() -> None:
    """The present ones first, at most 64; the node had the most GPUs that were ever seen."""
    before = replace(STATE, gpus=8, faults=tuple(("GPU-9", str(number)) for number in range(64)))
    decision = reconcile(replace(CORDONED, state=before), replace(FAULTY, boot="b3"), POOL, NOW)
    assert decision.state == replace(before, boot="b3", faults=(("GPU-1", "stalled"), *before.faults[:63]))
    more = reconcile(CORDONED, replace(FAULTY, boot="b3", expected=9), POOL, NOW).state
    assert more is not None
    assert more.gpus == 9


@pytest.mark.parametrize(
    ("progress", "gang", "kept"),
    [
        (s.DrainProgress.DRAINING, None, True),
        (s.DrainProgress.DRAINED, None, True),
        (s.DrainProgress.TIMEOUT, None, False),
        (s.DrainProgress.TIMEOUT, s.Gang("team", "job-name", "bert", ("r0",)), True),
    ],
)
def test_a_drain_goes_on_with_further_faults(progress: s.DrainProgress, gang: s.Gang | None, kept: bool) -> None:
    """One that was given up begins anew, unless pods of a job that was begun are left."""
    drain = s.DrainState(NOW, progress, gang)
    node = replace(CORDONED, state=replace(STATE, drain=drain))
    state = reconcile(node, replace(FAULTY, boot="b3"), POOL, NOW).state
    assert state is not None
    assert state.drain == (drain if kept else None)


def test_a_held_node_waits_for_new_evidence() -> None:
    """The same fault on the same boot is known to the person who uncordoned it."""
    held = replace(NODE, state=replace(STATE, phase=DrainPhase.HELD))
    assert reconcile(held, FAULTY, POOL, NOW).reason is Reason.HELD
    worse = replace(FAULTY, faults=(FAULT, replace(FAULT, reason="lost")))
    assert reconcile(held, worse, POOL, NOW).verb is Verb.CORDON
    assert reconcile(held, replace(FAULTY, boot="b2"), POOL, NOW).verb is Verb.CORDON


def test_a_worse_fault_makes_the_repair_more_drastic_never_less() -> None:
    worse = replace(FAULTY, faults=(replace(FAULT, reason="sram_threshold", action=Action.REPLACE),))
    state = reconcile(CORDONED, worse, POOL, NOW).state
    assert state is not None
    assert state.action == "replace"
    milder = replace(FAULTY, faults=(replace(FAULT, reason="ecc", action=Action.GPU_RESET),))
    merged = reconcile(replace(CORDONED, state=state), milder, POOL, NOW).state
    assert merged is not None
    assert merged.action == "replace"


@pytest.mark.parametrize(("repeats", "factor"), [(0, 1), (1, 2), (3, 8), (20, 96)])
def test_flapping_nodes_wait_longer(repeats: int, factor: int) -> None:
    """Twice as long for each return in the last week, at most a day; older ones do not count."""
    history = (NodePast(0, NOW - 8 * 86400, ("old",)), *(NodePast(0, NOW - 60, ("x",)) for _ in range(repeats)))
    assert s.clean_seconds(900, history, NOW) == 900 * factor


def assessed(count: int, pool: NodePool = POOL, **changes: Any) -> list[Assessed]:
    """Return faulty nodes, and what `reconcile` decides about them."""
    nodes = [replace(NODE, name=f"n{place}", **changes) for place in range(count)]
    return [Assessed(node, pool, reconcile(node, FAULTY, pool, NOW)) for node in nodes]


def settings(pool: NodePool = POOL, breaker: int = 99) -> Settings:
    return Settings("gpu", Exporters("gpu"), (pool,), breaker=Breaker(breaker))


def allowed(decisions: dict[str, Decision]) -> list[str]:
    return [name for name, decision in decisions.items() if decision.verb is Verb.CORDON]


def test_foreign_cordons_and_nodes_that_are_not_ready_use_the_budget() -> None:
    pool = replace(POOL, budget=Budget(2, 1.0))
    faulty = assessed(3, pool)
    assert len(allowed(dict(plan(faulty, Ledger(), settings(pool), NOW).decisions))) == 2
    for busy in (replace(NODE, name="x", unschedulable=True), replace(NODE, name="x", ready=False)):
        other = Assessed(busy, pool, reconcile(busy, CLEAN, pool, NOW))
        assert len(allowed(dict(plan([*faulty, other], Ledger(), settings(pool), NOW).decisions))) == 1
    ledger = Ledger(claims={"somewhere": "all", "of-no-pool": "gone"})
    assert allowed(dict(plan(faulty, ledger, settings(pool), NOW).decisions)) == []


def test_a_zone_loses_one_node() -> None:
    pool = replace(POOL, budget=Budget(9, 1.0, "zone"))
    found = [
        Assessed(node, pool, reconcile(node, FAULTY, pool, NOW))
        for node in (replace(NODE, name=f"n{n}", labels={"zone": f"z{n % 2}"}) for n in range(6))
    ]
    assert allowed(dict(plan(found, Ledger(), settings(pool), NOW).decisions)) == ["n0", "n1"]
    # A node that the list lacks, because it is old, may be in any zone.
    assert allowed(dict(plan(found, Ledger(claims={"new": "all"}), settings(pool), NOW).decisions)) == []


def test_the_breaker_stops_cordons_but_not_returns() -> None:
    """Three nodes with the same new fault; it stays open for a while, until a person closes it."""
    pool = replace(POOL, budget=Budget(9, 1.0))
    back = Assessed(CORDONED, pool, reconcile(CORDONED, CLEAN, pool, NOW))
    found = [*assessed(3, pool), back]
    result = plan(found, Ledger(), settings(pool, 3), NOW)
    assert result.breaker == {"stalled": NOW}
    assert {name: each.reason for name, each in result.decisions.items() if name != "n"} == {
        f"n{place}": Reason.BREAKER for place in range(3)
    }
    assert result.decisions["n"].verb is Verb.RETURN
    one = assessed(1, pool)
    assert allowed(dict(plan(one, Ledger(breaker=result.breaker), settings(pool, 3), NOW + 60).decisions)) == []
    assert allowed(dict(plan(one, Ledger(breaker=result.breaker), settings(pool, 3), NOW + 1801).decisions)) == ["n0"]
    closed = Ledger(breaker=result.breaker, reset=NOW + 1)
    assert allowed(dict(plan(one, closed, settings(pool, 3), NOW + 60).decisions)) == ["n0"]


def test_a_rollout_of_exporters_does_not_open_the_breaker() -> None:
    """A restarted exporter dates all faults anew: those that nodes are already cordoned for are not new."""
    old = [replace(CORDONED, name=f"n{n}", state=replace(STATE, at=NOW - 86400)) for n in range(5)]
    nodes = [*old[:3], *(replace(each, state=replace(STATE, at=NOW - 9e4, phase=DrainPhase.HELD)) for each in old[3:])]
    found = [Assessed(node, POOL, reconcile(node, FAULTY, POOL, NOW)) for node in nodes]
    assert plan(found, Ledger(), settings(POOL, 3), NOW).breaker == {}
    other = replace(FAULTY, faults=(FAULT, replace(FAULT, reason="lost")))
    found = [Assessed(node, POOL, reconcile(node, other, POOL, NOW)) for node in nodes]
    assert plan(found, Ledger(), settings(POOL, 3), NOW).breaker == {"lost": NOW}


def test_cordons_of_old_faults_do_not_open_the_breaker() -> None:
    """Faults that waited for the budget or a window are cordoned one after the other, however old they are."""
    nodes = [replace(CORDONED, name=f"n{n}", state=replace(STATE, at=NOW - 60)) for n in range(5)]
    for age, breaker in ((7200.0, {}), (90.0, {"stalled": NOW})):
        evidence = replace(FAULTY, faults=(replace(FAULT, age=age),))
        found = [Assessed(node, POOL, reconcile(node, evidence, POOL, NOW)) for node in nodes]
        assert plan(found, Ledger(), settings(POOL, 3), NOW).breaker == breaker


def test_pause_and_windows() -> None:
    """A pause stops everything; outside a window, only new cordons are stopped."""
    back = Assessed(CORDONED, POOL, reconcile(CORDONED, CLEAN, POOL, NOW))
    paused = plan([*assessed(3), back], Ledger(paused="upgrade"), settings(), NOW)
    assert {each.reason for each in paused.decisions.values()} == {Reason.PAUSED}
    closed = replace(POOL, windows=("Mon 00:00-00:01",))  # NOW is a Tuesday
    outside = plan([*assessed(3, closed), replace(back, pool=closed)], Ledger(), settings(closed), NOW)
    assert outside.decisions["n0"].reason is Reason.WINDOW
    assert outside.decisions["n"].verb is Verb.RETURN
    broken = plan(assessed(3), Ledger(problem="broken"), settings(), NOW)
    assert {each.reason for each in broken.decisions.values()} == {Reason.PAUSED}


ANSWER = (
    '{"apiVersion": 1, "node": "n", "boot_id": "b1", "at": 100, "live": true, "ready": true, "expected": 1,'
    ' "missing": 0, "gpus": [{"gpu": 0, "UUID": "GPU-1", "health": "healthy", "since": 40, "problems": []}]}'
)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"apiVersion": 1', '"apiVersion": 2', "version 2"),
        ('"live": true', '"live": false', "simulated"),
        ('"node": "n"', '"node": "m"', "'m'"),
        ('"boot_id": "b1"', '"boot_id": ""', "another machine"),
        ('"boot_id": "b1"', '"boot_id": "b0"', "another boot"),
        ('"missing": 0', '"missing": 0, "released_until": 500', "released"),
        ('"ready": true', '"ready": false, "problem": "no GPU has been read"', "no GPU has been read"),
        ('"healthy"', '"unknown"', "GPU 0 is unknown"),
        ('"healthy"', '"degraded"', "GPU 0 is degraded"),
        ('"gpus": [', '"gpus": [], "more": [', "lists no GPU"),
        ('"at": 100', '"at": "now"', "cannot be read"),
        ('"at": 100', '"at": 100, "age": 3600', "last collected 3600 s ago"),
    ],
)
def test_what_says_nothing(old: str, new: str, why: str) -> None:
    """Neither fault nor recovery."""
    assert old in ANSWER
    found = e.judge(ANSWER.replace(old, new), "n", "b1", degraded=False)
    assert found.finding is NodeFinding.UNKNOWN
    assert why in found.why


def test_what_the_exporter_says() -> None:
    found = e.judge(ANSWER, "n", "b1", degraded=False)
    assert (found.finding, found.clean_for) == (NodeFinding.CLEAN, 60.0)
    missing = e.judge(ANSWER.replace('"missing": 0', '"missing": 1, "missing_since": 90'), "n", "b1", degraded=False)
    assert [(fault.reason, fault.age, fault.action) for fault in missing.faults] == [
        ("missing", 10.0, Action.NODE_REBOOT)
    ]
    problem = '"problems": [{"reason": "heat", "health": "degraded", "action": "gpu_reset", "since": 70}]'
    text = ANSWER.replace('"healthy"', '"degraded"').replace('"problems": []', problem)
    assert e.judge(text, "n", "b1", degraded=False).finding is NodeFinding.UNKNOWN
    assert e.judge(text, "n", "b1", degraded=True).keys == (("GPU-1", "heat"),)
