"""One cycle of the controller: read everything, decide, and carry the decisions out, each after another look."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import drain, fleet, patches
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.cluster import Cluster
from gpu_exporter.remediation.drainer import Drainer, Evictions
from gpu_exporter.remediation.evidence import Evidence, unknown
from gpu_exporter.remediation.fleet import Assessed, FleetPlan
from gpu_exporter.remediation.leader import Leader
from gpu_exporter.remediation.reconcile import Decision, Verb, reconcile
from gpu_exporter.remediation.settings import Mode, NodePool, Settings
from gpu_exporter.remediation.state import WatchedNode

# Exporters that are asked at the same time.
ASKED_AT_ONCE = 16
# Failures that may concern a single node. Whether the server is there at all is not one of them.
REFUSALS = ("forbidden", "not_found", "http_400", "http_500")
Addresses = Mapping[str, Sequence[str]]
Asked = tuple[WatchedNode, NodePool]
Ask = Callable[[WatchedNode, Sequence[str], NodePool], Evidence]


class Announce(Evictions, Protocol):
    """Makes decisions visible to people."""

    def planned(self, assessed: Sequence[Assessed], plan: FleetPlan) -> None:
        """Report the result of a cycle: log and count the decisions that are new."""

    def failed(self, node: WatchedNode, error: LookupFailed) -> None:
        """Report that the API server refused an action, for example by an admission webhook."""

    def acted(self, node: WatchedNode, pool: NodePool, decision: Decision) -> None:
        """Report an action that was carried out, or in observe mode would have been."""


def ask_in_parallel(ask: Callable[[Asked], Evidence], nodes: Sequence[Asked]) -> Iterator[tuple[str, Evidence]]:
    """Yield the name of each node and the answer, which are asked for by a few threads."""
    with ThreadPoolExecutor(ASKED_AT_ONCE, "exporter") as executor:
        for (node, _), answer in zip(nodes, executor.map(ask, nodes), strict=True):
            yield node.name, answer


@dataclass(slots=True)
class Controller:
    """Carries out one cycle at a time, in one thread. `ask` reads an exporter and never fails; any thread may call it.

    `wall` is unix time.
    """

    cluster: Cluster
    settings: Settings
    leader: Leader
    ask: Ask
    announce: Announce
    wall: Callable[[], float] = time.time
    ask_all: Callable[[Callable[[Asked], Evidence], Sequence[Asked]], Iterator[tuple[str, Evidence]]] = ask_in_parallel
    drainer: Drainer = field(init=False)

    def __post_init__(self) -> None:
        self.drainer = Drainer(self.cluster, self.leader, self.settings, self.announce, self.wall)

    def cycle(self, hinted: Collection[str] | None = None, known: Mapping[str, Evidence] | None = None) -> Observed:
        """Do what is due, and return what was seen. Raises LookupFailed.

        With `hinted`, only the exporters of these nodes are asked; for other nodes the evidence `known` is used. Before
        a node is changed, its exporter is asked again in any case.
        """
        if self.leader.take() is None:
            return Observed({}, None)
        observed = self.observe(hinted, known or {})
        assert observed.plan is not None
        self.announce.planned(observed.assessed, observed.plan)
        if self.leader.ledger is None or self.leader.ledger.problem:
            return observed  # what cannot be read must not be overwritten
        self.leader.set_breaker(observed.plan.breaker)
        self._tidy(observed)
        for each in observed.assessed:
            decision = observed.plan.decisions[each.node.name]
            if decision.verb is not Verb.NONE:
                self.leader.keep()
                self._try(each, observed)
        return observed

    def observe(self, hinted: Collection[str] | None, known: Mapping[str, Evidence]) -> Observed:
        """Read nodes and exporters, and plan; write nothing. The Lease must have been read."""
        addresses = self.cluster.addresses()
        pools = {}
        for item in self.cluster.nodes():
            node = s.read(item, self.settings.gpu_resources)
            pool = self.settings.pool(node.labels)
            if pool and (node.has_gpus or node.name in addresses or node.state):
                pools[node.name] = (node, pool)
        evidence = self._evidence(pools, addresses, hinted, known)
        assessed = [
            Assessed(node, pool, self._decide(node, evidence[name], pool)) for name, (node, pool) in pools.items()
        ]
        now = self.wall()
        ledger = self.leader.ledger
        assert ledger is not None
        return Observed(evidence, fleet.plan(assessed, ledger, self.settings, now), assessed, addresses)

    def _decide(self, node: WatchedNode, evidence: Evidence, pool: NodePool, *, fresh: bool = False) -> Decision:
        """Return the decision about a node without the bounds of the fleet."""
        load = self.drainer.load(node, pool, fresh=fresh)
        now = self.wall()
        return drain.advance(reconcile(node, evidence, pool, now), node, load, pool, now)

    def _evidence(
        self,
        pools: Mapping[str, tuple[WatchedNode, NodePool]],
        addresses: Addresses,
        hinted: Collection[str] | None,
        known: Mapping[str, Evidence],
    ) -> Mapping[str, Evidence]:
        """Ask the exporters, several at a time."""
        fresh = [
            (node, pool)
            for name, (node, pool) in pools.items()
            if pool.mode is not Mode.OFF and (hinted is None or name in hinted or name not in known)
        ]
        found = {}
        for name, answer in self.ask_all(lambda one: self.ask(one[0], addresses.get(one[0].name, ()), one[1]), fresh):
            found[name] = answer
            self.leader.renew()
        return {name: found.get(name) or known.get(name) or unknown("not asked") for name in pools}

    def _try(self, each: Assessed, observed: Observed) -> None:
        """Carry out a decision. If the server refuses this node alone, the other nodes do not wait for it."""
        try:
            self._act(each, observed)
        except LookupFailed as error:
            if error.reason not in REFUSALS or not self.leader.leads:
                raise
            self.announce.failed(each.node, error)

    def _act(self, each: Assessed, observed: Observed) -> None:
        """Look at the node and its exporter again, and carry out the decision if it is still the same."""
        item = self.cluster.node(each.node.name)
        if item is None:
            return
        node = s.read(item)
        evidence = self.ask(node, observed.addresses.get(node.name, ()), each.pool)
        decision = self._decide(node, evidence, each.pool, fresh=True)
        if decision.verb is not each.decision.verb or self.settings.pool(node.labels) != each.pool:
            return
        if decision.verb is Verb.EVICT:
            self.drainer.evict(node, each.pool, decision)
            return
        dry_run = not each.pool.mode.acts
        if decision.verb is Verb.CORDON and not dry_run:
            self.leader.claim(node.name, each.pool.name)
        try:
            self.cluster.patch_node(node.name, patches.patch(node, decision), dry_run=dry_run)
        except LookupFailed as error:
            if error.reason != "conflict":
                raise
            return  # the next cycle decides anew
        self.announce.acted(node, each.pool, decision)
        if dry_run and decision.verb is Verb.CORDON:
            self.drainer.rehearse(node, each.pool, decision)
        if decision.verb in (Verb.RETURN, Verb.HOLD) and not dry_run:
            self.leader.unclaim(node.name)

    def _tidy(self, observed: Observed) -> None:
        """Give back claims of nodes that are not cordoned, and claim those that are cordoned without a claim."""
        plan, ledger = observed.plan, self.leader.ledger
        assert plan is not None
        assert ledger is not None
        for each in observed.assessed:
            if each.node.cordoned and each.node.name not in ledger.claims and self._is_cordoned(each.node.name):
                self.leader.claim(each.node.name, each.pool.name)
        listed = {each.node.name: each.node for each in observed.assessed}
        for name in ledger.claims:
            wanted = name in plan.decisions and plan.decisions[name].verb is Verb.CORDON
            in_use = wanted or (name in listed and listed[name].cordoned)
            if not in_use and self._fenced(name, ledger.claims[name]):
                self.leader.unclaim(name)

    def _is_cordoned(self, name: str) -> bool:
        item = self.cluster.node(name)
        return item is not None and s.read(item).cordoned

    def _fenced(self, name: str, pool: str) -> bool:
        """Return whether no earlier write can cordon the node any more: an older leader may still be about to."""
        item = self.cluster.node(name)
        if item is None:
            return True
        node = s.read(item)
        modes = {each.mode for each in self.settings.pools if each.name == pool}
        if node.cordoned or not any(mode.acts for mode in modes or {each.mode for each in self.settings.pools}):
            return False  # in other modes, nodes are not written
        try:
            self.cluster.patch_node(name, patches.fence(node, self.leader.identity), dry_run=False)
        except LookupFailed as error:
            if error.reason in ("conflict", "not_found"):
                return False
            raise
        return True


@dataclass(frozen=True, slots=True)
class Observed:
    """What a cycle saw: the evidence about each node, and the plan; None if another controller leads."""

    evidence: Mapping[str, Evidence]
    plan: FleetPlan | None
    assessed: Sequence[Assessed] = ()
    addresses: Addresses = field(default_factory=dict)

    @property
    def draining(self) -> frozenset[str]:
        """The nodes that are cordoned or drained right now, to look at again soon."""
        decisions = self.plan.decisions if self.plan else {}
        return frozenset(
            each.node.name
            for each in self.assessed
            if each.pool.mode is Mode.DRAIN and (decisions[each.node.name].verb is Verb.CORDON or _drains(each.node))
        )


def _drains(node: WatchedNode) -> bool:
    state = node.state
    return state is not None and state.drain is not None and state.drain.progress is s.DrainProgress.DRAINING
