"""The bounds of the fleet at their edges: budget, zones, breaker, windows, and who comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpu_exporter.remediation.evidence import Evidence, unknown
from gpu_exporter.remediation.fleet import Assessed, PoolUse, plan
from gpu_exporter.remediation.ledger import Ledger
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb, reconcile
from gpu_exporter.remediation.settings import Breaker, Budget, Exporters, NodePool, Settings
from gpu_exporter.remediation.state import DrainPhase, WatchedNode
from gpu_exporter.remediation.workload import JobLoad
from tests.unit.remediation.test_drain import DRAINS, RANKS, WEB, decide, draining, unit
from tests.unit.remediation.test_reconcile import CLEAN, CORDONED, FAULT, FAULTY, NODE, NOW, POOL, STATE

WIDE = replace(POOL, budget=Budget(9, 1.0))
CLOSED = ("Mon 00:00-00:01",)  # NOW is a Tuesday


def aged(age: float, reason: str = "stalled") -> Evidence:
    """Return evidence of one fault."""
    return replace(FAULTY, faults=(replace(FAULT, reason=reason, age=age),))


def assessed(pool: NodePool, evidence: Evidence = FAULTY, **nodes: Mapping[str, Any]) -> list[Assessed]:
    """Return nodes by name, with what differs from a schedulable one, and what is decided about each."""
    made = [replace(NODE, name=name, **changes) for name, changes in nodes.items()]
    return [Assessed(node, pool, reconcile(node, evidence, pool, NOW)) for node in made]


def planned(
    found: Sequence[Assessed], ledger: Ledger | None = None, breaker: Breaker | None = None, now: float = NOW
) -> Any:
    pools = tuple({each.pool.name: each.pool for each in found}.values())
    return plan(
        found, ledger or Ledger(), Settings("gpu", Exporters("gpu"), pools, breaker=breaker or Breaker(99)), now
    )


def cordons(result: Any) -> list[str]:
    return [name for name, decision in result.decisions.items() if decision.verb is Verb.CORDON]


def test_the_use_of_a_pool_is_that_before_the_plan() -> None:
    found = assessed(replace(POOL, budget=Budget(2, 1.0)), a={}, b={}, c={"unschedulable": True}, d={"ready": False})
    result = planned(found, Ledger(claims={"a": "all", "new": "all", "other": "gone"}))
    assert result.pools == {"all": PoolUse(4, 5, 2)}
    assert result.pools["all"].remaining == 0
    assert PoolUse(9, 1, 3).remaining == 2


def test_a_claim_counts_in_its_pool_wherever_the_node_is_listed() -> None:
    """A node of this pool that another pool has claimed counts in both; one of another pool does not."""
    other = replace(POOL, name="b")
    found = [*assessed(POOL, CLEAN, a={}), *assessed(other, CLEAN, b={})]
    uses = planned(found, Ledger(claims={"a": "b", "x": "b"})).pools
    assert {name: use.used for name, use in uses.items()} == {"all": 1, "b": 2}


def test_who_has_a_claim_is_cordoned_whatever_the_budget_is() -> None:
    """It was counted when it was claimed. Then the oldest fault comes first, then the name."""
    pool = replace(POOL, budget=Budget(2, 1.0))
    found = [
        *assessed(pool, aged(100), a={}, b={}),
        *assessed(pool, aged(200), d={}, c={}),
        *assessed(pool, aged(90), e={}),
    ]
    assert list(planned(found).decisions) == ["c", "d", "a", "b", "e"]
    assert cordons(planned(found)) == ["c", "d"]
    assert cordons(planned(found, Ledger(claims={"e": "all", "b": "all"}))) == ["b", "e"]
    assert cordons(planned(found, Ledger(claims={"e": "all"}))) == ["e", "c"]
    refusal = planned(found).decisions["a"]
    assert (refusal.reason, refusal.words) == (
        Reason.BUDGET,
        "2 of 5 nodes are out of service: the budget allows 2",
    )


@pytest.mark.parametrize(
    ("busy", "claims", "allowed"),
    [
        ({}, {}, ["a0", "a1"]),
        ({"unschedulable": True}, {}, ["a0"]),
        ({}, {"a2": "all"}, ["a2", "a0"]),
        ({}, {"new": "all"}, ["a0"]),
        ({"unschedulable": True}, {"new": "all"}, []),
    ],
)
def test_the_budget_of_a_zone(busy: Any, claims: Any, allowed: list[str]) -> None:
    """Nodes that are out of service and claims use it; a claim of a node that is not listed may be in any zone."""
    pool = replace(POOL, budget=Budget(9, 1.0, "zone", 2))
    zone: Any = {"labels": {"zone": "a"}}
    found = assessed(pool, a0=zone, a1=zone, a2=zone)
    found += assessed(pool, CLEAN, x={**zone, **busy}, y={"labels": {"zone": "b"}, "ready": False})
    assert cordons(planned(found, Ledger(claims=claims))) == allowed
    if not claims and not busy:
        refusal = planned(found).decisions["a2"]
        assert refusal.words == "2 nodes with zone=a are out of service: the budget allows 2"


def test_without_a_topology_key_there_are_no_zones() -> None:
    found = assessed(replace(POOL, budget=Budget(9, 1.0, per_topology=1)), a={}, b={}, c={})
    assert cordons(planned(found)) == ["a", "b", "c"]


DRAIN_NODE = draining()
REST = JobLoad(rest=unit(*RANKS))


@pytest.mark.parametrize(
    ("node", "decision", "windows", "breaker", "reason"),
    [
        (NODE, reconcile(NODE, FAULTY, POOL, NOW), CLOSED, {}, Reason.WINDOW),
        (CORDONED, decide(CORDONED, JobLoad((WEB,))), CLOSED, {}, Reason.WINDOW),
        (DRAIN_NODE, decide(DRAIN_NODE, JobLoad((WEB,))), CLOSED, {}, None),
        (CORDONED, reconcile(CORDONED, CLEAN, POOL, NOW), CLOSED, {"stalled": NOW}, None),
        (NODE, reconcile(NODE, FAULTY, POOL, NOW), (), {"stalled": NOW}, Reason.BREAKER),
        (NODE, reconcile(NODE, FAULTY, POOL, NOW), (), {"lost": NOW}, None),
        (DRAIN_NODE, decide(DRAIN_NODE, JobLoad((WEB,))), (), {"stalled": NOW}, Reason.BREAKER),
        (
            NODE,
            replace(decide(DRAIN_NODE, REST), verb=Verb.EVICT, reason=Reason.REST_OF_GANG),
            CLOSED,
            {"stalled": NOW},
            None,
        ),
        (CORDONED, reconcile(CORDONED, unknown("gone"), POOL, NOW), CLOSED, {"stalled": NOW}, None),
    ],
)
def test_what_is_refused(
    node: WatchedNode, decision: Decision, windows: Any, breaker: Any, reason: Reason | None
) -> None:
    """Cordons and new drains outside a window; with the breaker open, also evictions. Never the rest of a job."""
    found = [Assessed(node, replace(DRAINS, windows=windows, budget=Budget(9, 1.0)), decision)]
    found += assessed(found[0].pool, CLEAN, x={}, y={})
    result = planned(found, Ledger(breaker=breaker)).decisions[node.name]
    assert result == decision if reason is None else (result.verb, result.reason) == (Verb.NONE, reason)


def test_why_something_is_refused() -> None:
    found = assessed(replace(WIDE, windows=CLOSED), a={}, b={}, c={})
    assert planned(found).decisions["a"].words == "outside the windows of pool all"
    assert planned(found, Ledger(paused="rollout")).decisions["a"].words == "paused: rollout"
    assert planned(found, Ledger(problem="broken", paused="rollout")).decisions["a"].words == "broken"
    words = planned(assessed(WIDE, a={}, b={}, c={}), Ledger(breaker={"stalled": NOW})).decisions["a"].words
    assert words == "the breaker is open: many nodes have the new fault stalled"


@pytest.mark.parametrize(
    ("age", "reset", "opens"),
    [(600.0, 0.0, True), (601.0, 0.0, False), (60.0, NOW - 61, True), (60.0, NOW - 60, False)],
)
def test_a_fault_is_new_for_ten_minutes(age: float, reset: float, opens: bool) -> None:
    """Unless a person has closed the breaker since."""
    found = assessed(WIDE, aged(age), a={}, b={}, c={})
    assert planned(found, Ledger(reset=reset), Breaker(3)).breaker == ({"stalled": NOW} if opens else {})
    assert planned(found[:2], Ledger(reset=reset), Breaker(3)).breaker == {}


@pytest.mark.parametrize(
    ("ages", "opens"),
    [
        ([500.0, 300.0, 100.0], False),
        ([500.0, 400.0, 300.0, 200.0, 100.0], True),
        ([500.0, 220.0, 160.0, 100.0], True),
        ([500.0, 221.0, 160.0, 100.0], False),
        ([601.0, 500.0, 400.0, 300.0, 100.0], False),
    ],
)
def test_the_breaker_needs_a_share_of_the_fleet(ages: Sequence[float], opens: bool) -> None:
    """In a fleet of a hundred nodes, three faults within two minutes suffice, or five within ten minutes."""
    found = [assessed(WIDE, aged(age), **{f"faulty-{number}": {}})[0] for number, age in enumerate(ages)]
    found += assessed(WIDE, CLEAN, **{f"healthy-{number}": {} for number in range(100 - len(ages))})
    assert planned(found, breaker=Breaker()).breaker == ({"stalled": NOW} if opens else {})


@pytest.mark.parametrize(
    ("at", "reset", "kept"),
    [(NOW - 1799, 0.0, True), (NOW - 1800, 0.0, False), (NOW - 60, NOW - 60, False), (NOW - 60, NOW - 61, True)],
)
def test_the_breaker_stays_open_for_half_an_hour(at: float, reset: float, kept: bool) -> None:
    ledger = Ledger(breaker={"lost": at}, reset=reset)
    assert planned(assessed(POOL, CLEAN, a={}), ledger).breaker == ({"lost": at} if kept else {})


@pytest.mark.parametrize(
    ("phase", "cordoned_at", "age", "evidence", "opens"),
    [
        (DrainPhase.CORDONED, NOW - 60, 30.0, None, {"stalled": NOW}),
        (DrainPhase.CORDONED, NOW - 700, 30.0, None, {}),
        (DrainPhase.HELD, NOW - 700, 30.0, None, {}),
        (DrainPhase.RETURNED, NOW - 700, 30.0, None, {"stalled": NOW}),
        (DrainPhase.CORDONED, NOW - 60, 700.0, None, {}),
        (DrainPhase.CORDONED, NOW - 60, 0.0, CLEAN, {"stalled": NOW}),
        (DrainPhase.CORDONED, NOW - 700, 0.0, CLEAN, {}),
        (DrainPhase.RETURNED, NOW - 60, 0.0, CLEAN, {}),
        (DrainPhase.CORDONED, NOW - 60, 0.0, unknown("gone"), {"stalled": NOW}),
    ],
)
def test_a_fault_began_no_later_than_the_cordon(
    phase: DrainPhase, cordoned_at: float, age: float, evidence: Evidence | None, opens: Any
) -> None:
    state = replace(STATE, phase=phase, at=cordoned_at)
    nodes: Any = {name: {"state": state, "unschedulable": phase is DrainPhase.CORDONED} for name in "abc"}
    assert planned(assessed(WIDE, evidence or aged(age), **nodes), breaker=Breaker(3)).breaker == opens


def test_evidence_that_proves_nothing_has_no_faults() -> None:
    """Whatever it lists."""
    odd = replace(unknown("gone"), faults=(FAULT,))
    assert planned(assessed(WIDE, odd, a={}, b={}, c={}), breaker=Breaker(3)).breaker == {}
