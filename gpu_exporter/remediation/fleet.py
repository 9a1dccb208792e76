"""Applies the bounds of the whole fleet to the decisions about its nodes: pause, windows, breaker, budget. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue.fleet_faults import is_of_fleet
from gpu_exporter.io.user_text import duration
from gpu_exporter.remediation.evidence import NodeFinding
from gpu_exporter.remediation.ledger import Ledger
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb
from gpu_exporter.remediation.settings import Breaker, NodePool, Settings
from gpu_exporter.remediation.state import DrainPhase, WatchedNode


@dataclass(frozen=True, slots=True)
class Assessed:
    """A node with its pool, and what `reconcile` decided about it."""

    node: WatchedNode
    pool: NodePool
    decision: Decision


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How many nodes a pool has, how many are out of service, and how many may be."""

    total: int
    used: int
    limit: int

    @property
    def remaining(self) -> int:
        """How many more nodes may be cordoned."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The decisions within the bounds, by node; the new state of the breaker; and the use of each pool before them."""

    decisions: Mapping[str, Decision]
    breaker: Mapping[str, float]
    pools: Mapping[str, PoolUse]


class _Budget:
    """Counts the nodes of a pool that are out of service or claimed."""

    def __init__(self, pool: NodePool, assessed: Sequence[Assessed], ledger: Ledger, pools: frozenset[str]) -> None:
        self._pool, self._claims = pool, ledger.claims
        nodes = [each.node for each in assessed if each.pool.name == pool.name]
        listed = {node.name: node for node in nodes}
        busy = {node.name for node in nodes if node.out_of_service}
        # A claim counts wherever its node may be, and in every pool if its pool is unknown.
        claimed = {name for name, of in ledger.claims.items() if of == pool.name or of not in pools or name in listed}
        self.total, self.used = len(nodes), len(busy | claimed)
        self._limit = pool.budget.limit(self.total)
        # A node that an old list lacks may be in any place.
        self._anywhere = len(claimed - listed.keys())
        self._in_place: dict[str, int] = defaultdict(int)
        for name in (busy | claimed) & listed.keys():
            self._in_place[self._place(listed[name])] += 1

    @property
    def use(self) -> PoolUse:
        return PoolUse(self.total, self.used, self._limit)

    def _place(self, node: WatchedNode) -> str:
        return node.labels.get(self._pool.budget.topology_key, "")

    def problem(self, node: WatchedNode) -> str:
        """Return why a node cannot be cordoned; empty if it can. Counts it then."""
        if node.name in self._claims:  # counted already: the claim was made, the cordon not
            return ""
        key, place = self._pool.budget.topology_key, self._place(node)
        if self.used >= self._limit:
            return f"{self.used} of {self.total} nodes are out of service: the budget allows {self._limit}"
        in_place, most = self._in_place[place] + self._anywhere, self._pool.budget.per_topology
        if key and in_place >= most:
            return f"{in_place} nodes with {key}={place} are out of service: the budget allows {most}"
        self.used += 1
        self._in_place[place] += 1
        return ""


def plan(assessed: Sequence[Assessed], ledger: Ledger, settings: Settings, now: float) -> FleetPlan:
    """Return what may be done about these nodes at the unix time `now`."""
    breaker = _breaker(assessed, ledger, settings.breaker, now)
    names = frozenset(pool.name for pool in settings.pools)
    budgets = {pool.name: _Budget(pool, assessed, ledger, names) for pool in settings.pools}
    uses = {name: budget.use for name, budget in budgets.items()}
    decisions = {}
    # Those that have a claim first, then the oldest fault.
    for each in sorted(assessed, key=lambda one: _order(one, ledger)):
        refusal = _refusal(each, ledger, breaker, budgets[each.pool.name], now)
        decisions[each.node.name] = each.decision.refused(*refusal) if refusal else each.decision
    return FleetPlan(decisions, breaker, uses)


def _order(each: Assessed, ledger: Ledger) -> tuple[bool, float, str]:
    return each.node.name not in ledger.claims, -each.decision.evidence.age, each.node.name


def _refusal(
    each: Assessed, ledger: Ledger, breaker: Mapping[str, float], budget: _Budget, now: float
) -> tuple[Reason, str] | None:
    """Return why a decision must not be carried out; None if it may be."""
    decision, verb = each.decision, each.decision.verb
    if verb is Verb.NONE:
        return None
    if ledger.problem:
        return Reason.PAUSED, ledger.problem
    if ledger.paused:
        return Reason.PAUSED, f"paused: {ledger.paused}"
    if verb not in (Verb.CORDON, Verb.DRAIN, Verb.EVICT) or decision.reason is Reason.REST_OF_GANG:
        return None
    if verb is not Verb.EVICT and not each.pool.is_open(now):
        return Reason.WINDOW, f"outside the windows of pool {each.pool.name}"
    tripped = [reason for _, reason in decision.evidence.keys if reason in breaker]
    if tripped:
        return Reason.BREAKER, f"the breaker is open: many nodes have the new fault {tripped[0]}"
    problem = budget.problem(each.node) if verb is Verb.CORDON else ""
    return (Reason.BUDGET, problem) if problem else None


def _breaker(assessed: Sequence[Assessed], ledger: Ledger, settings: Breaker, now: float) -> Mapping[str, float]:
    """Return the reasons for which the breaker is open, and when they last had too many new faults."""
    window, quiet = duration(settings.window), duration(settings.quiet)
    times: dict[str, dict[str, float]] = defaultdict(dict)
    for each in assessed:
        for reason, began in _beginnings(each, now):
            if now - began <= window and began > ledger.reset:
                first = times[reason].get(each.node.name, began)
                times[reason][each.node.name] = min(first, began)
    of_fleet = {
        reason: now
        for reason, began in times.items()
        if is_of_fleet(began.values(), len(assessed), settings.nodes, settings.share)
    }
    kept = {reason: at for reason, at in ledger.breaker.items() if now - at < quiet and at > ledger.reset}
    return kept | of_fleet


def _beginnings(each: Assessed, now: float) -> Iterator[tuple[str, float]]:
    """Yield the faults of a node, present and those it was cordoned for, and when each began (unix seconds).

    A restarted exporter dates all faults anew, but what the node was cordoned for began no later than the cordon. The
    cordons themselves are not the beginning: of faults that waited for the budget, they would look like a storm.
    """
    state, evidence = each.node.state, each.decision.evidence
    latest = (
        dict.fromkeys(state.reasons, state.at) if state is not None and state.phase is not DrainPhase.RETURNED else {}
    )
    faults = evidence.faults if evidence.finding is NodeFinding.FAULTY else ()
    for fault in faults:
        yield fault.reason, min(now - fault.age, latest.get(fault.reason, now))
    yield from (part for part in latest.items() if part[0] not in {fault.reason for fault in faults})
