"""Reads the pods of a node that is drained, and evicts them. It acts for `controller.py`, in the same thread."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from gpu_exporter.kubernetes.objects import PodObject
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import drain, patches, pods, retries, state, workload
from gpu_exporter.remediation.cluster import Cluster
from gpu_exporter.remediation.leader import Leader
from gpu_exporter.remediation.pods import NodePod
from gpu_exporter.remediation.reconcile import Decision, Reason, reconcile
from gpu_exporter.remediation.settings import NodePool, Settings
from gpu_exporter.remediation.state import WatchedNode
from gpu_exporter.remediation.workload import Eviction, EvictionUnit, GangKey, JobLoad

# How long a refused unit waits (seconds): it doubles with each refusal.
FIRST_WAIT, LONGEST_WAIT = 5.0, 60.0
# A refusal is forgotten after this time (seconds) without another attempt.
FORGOTTEN = 600.0
# The results of evictions, by the reason of a failure. Others end the cycle.
RESULTS = {
    "not_found": "gone",
    "conflict": "changed",
    "too_many_requests": "disruption_budget",
    "forbidden": "forbidden",
}


class Evictions(Protocol):
    """Makes evictions visible to people."""

    def evicted(self, node: WatchedNode, pool: NodePool, results: Sequence[Eviction]) -> None:
        """Report attempts to evict pods, and what came of them."""


class Drainer:
    """Evicts pods. What was refused waits in memory alone: if that is lost, it is tried again sooner.

    `wall` is unix time.
    """

    def __init__(
        self, cluster: Cluster, leader: Leader, settings: Settings, announce: Evictions, wall: Callable[[], float]
    ) -> None:
        self._cluster, self._leader = cluster, leader
        self._namespace, self._gpu_resources = settings.namespace, settings.gpu_resources
        self._announce, self._wall = announce, wall
        # Until when a unit waits, for how long it did, and why.
        self._refused: dict[GangKey | str, tuple[float, float, str]] = {}
        self._rehearsed: dict[str, object] = {}

    def load(self, node: WatchedNode, pool: NodePool, *, fresh: bool = False) -> JobLoad | None:
        """Return the pods that the drain of a node waits for; None if they do not matter. Raises LookupFailed.

        Unless it is `fresh`, it comes from the server's cache, which may be old.
        """
        if not drain.needs_pods(node, pool):
            return None
        gang = node.state.drain.gang if node.state and node.state.drain else None
        try:
            found = self._units(node, pool, fresh=fresh)
            members = self._members((gang.namespace, gang.label, gang.value), pool, fresh=fresh) if gang else ()
        except LookupFailed as error:
            if error.reason != "forbidden":
                raise
            return JobLoad(problem=f"its pods or their Jobs cannot be read: {error.message}")
        left = workload.rest(gang, members, pool.drain, self._namespace) if gang else None
        now = self._wall()
        self._refused = {key: one for key, one in self._refused.items() if now - one[0] < FORGOTTEN}
        return JobLoad(found, left, {key: why for key, (until, _, why) in self._refused.items() if now < until})

    def _units(self, node: WatchedNode, pool: NodePool, *, fresh: bool) -> tuple[EvictionUnit, ...]:
        listed = map(self._pod, self._cluster.pods_on(node.name, fresh=fresh))
        on_node = workload.concerned(listed, pool.drain)
        keys = workload.gangs(on_node, pool.drain)
        members = {key: self._members(key, pool, fresh=fresh) for key in keys}
        found = workload.units(on_node, members, pool.drain, self._namespace)
        jobs = {key: self._cluster.job(*key) for key in workload.jobs(found)}
        return workload.within_retries(found, {key: retries.read(item) for key, item in jobs.items() if item})

    def _pod(self, item: PodObject) -> NodePod:
        return pods.read(item, self._gpu_resources)

    def _members(self, key: GangKey, pool: NodePool, *, fresh: bool) -> list[NodePod]:
        return workload.concerned(map(self._pod, self._cluster.pods_of(*key, fresh=fresh)), pool.drain)

    def evict(self, node: WatchedNode, pool: NodePool, decision: Decision) -> None:
        """Carry out a decision about a node and its pods as they were just read. Raises LookupFailed.

        At most one gang begins, because the record of it changes the node.
        """
        since = node.state.drain.since if node.state and node.state.drain else 0.0
        for unit in decision.notify:
            self._notify(unit, pool, since, dry_run=False)
        begins = [unit for unit in decision.evict if unit.is_gang and decision.reason is not Reason.REST_OF_GANG]
        for unit in decision.evict:
            if unit not in begins:
                self._evict(node, pool, unit)
        for unit in begins:
            if self._is_possible(unit) and self._begin(node.name, pool, decision, unit):
                self._evict(node, pool, unit)
                break

    def rehearse(self, node: WatchedNode, pool: NodePool, decision: Decision) -> None:
        """Evict the pods of a node as a dry run, once for each fault. Raises LookupFailed."""
        if self._rehearsed.get(node.name) == decision.evidence.keys:
            return
        self._rehearsed[node.name] = decision.evidence.keys
        results: list[Eviction] = []
        try:
            for unit in self._units(node, pool, fresh=True):
                if not unit.protected:
                    self._notify(unit, pool, self._wall(), dry_run=True)
                    self._attempt(unit, results, dry_run=True)
        except LookupFailed as error:
            if error.reason != "forbidden":
                raise
            results.append(Eviction("(list of pods)", "", "forbidden"))
        self._announce.evicted(node, pool, results)

    def _notify(self, unit: EvictionUnit, pool: NodePool, since: float, *, dry_run: bool) -> None:
        """Announce to the pods of a unit when they are evicted."""
        problem = ""
        for pod in unit.live:
            if pod.is_notified(since, pool.drain):
                continue
            operations = patches.announcement(pod, self._wall() + pod.checkpoint_seconds(pool.drain))
            try:
                self._cluster.patch_pod(pod.namespace, pod.name, operations, dry_run=dry_run)
            except LookupFailed as error:
                _result(error)
                problem = f"the annotation {pods.EVICT_AFTER} cannot be set: {error.message}"
        if problem and not dry_run:
            self._refuse(unit, problem)

    def _is_possible(self, unit: EvictionUnit) -> bool:
        """Return whether all pods of a gang can be evicted now; otherwise it waits."""
        problem = self._exceeded(unit)
        results: list[Eviction] = []
        problem = problem or self._attempt(unit, results, dry_run=True)
        if not problem and not all(each.done for each in results):
            problem = "one of its pods has just changed"
        if problem:
            self._refuse(unit, problem)
        return not problem

    def _exceeded(self, unit: EvictionUnit) -> str:
        """Return which disruption budget does not allow the eviction of a whole gang; empty if all do."""
        try:
            budgets = self._cluster.budgets(unit.pods[0].namespace)
        except LookupFailed as error:
            if error.reason != "forbidden":
                raise
            return f"disruption budgets cannot be listed: {error.message}"
        for budget in budgets:
            count = sum(pods.selects(budget, pod.labels) for pod in unit.live)
            allowed = budget.get("status", {}).get("disruptionsAllowed", 0)
            if count > allowed:
                name = budget.get("metadata", {}).get("name", "")
                return f"PodDisruptionBudget {name} allows {allowed} of the {count} evictions"
        return ""

    def _begin(self, name: str, pool: NodePool, decision: Decision, unit: EvictionUnit) -> bool:
        """Record in the node that the eviction of a gang begins; return False if that is not decided any more.

        The node is read again: the dry runs take a while, and kubelet changes the node every few seconds.
        """
        item = self._cluster.node(name)
        if item is None:
            return False
        node, now = state.read(item), self._wall()
        again = drain.advance(reconcile(node, decision.evidence, pool, now), node, decision.load, pool, now)
        if unit not in again.evict or node.state is None or node.state.drain is None or not pool.matches(node.labels):
            return False
        begun = replace(node.state, drain=replace(node.state.drain, gang=unit.begun()))
        try:
            self._cluster.patch_node(name, patches.patch(node, replace(again, state=begun)), dry_run=False)
        except LookupFailed as error:
            if error.reason != "conflict":
                raise
            return False
        return True

    def _evict(self, node: WatchedNode, pool: NodePool, unit: EvictionUnit) -> None:
        """Evict the pods of a unit, and report what came of it. Raises LookupFailed."""
        results: list[Eviction] = []
        try:
            if problem := self._attempt(unit, results, dry_run=False):
                self._refuse(unit, problem)
        finally:
            self._announce.evicted(node, pool, results)

    def _attempt(self, unit: EvictionUnit, results: list[Eviction], *, dry_run: bool) -> str:
        """Try to evict the pods of a unit, add the results, and return why one is refused. Raises LookupFailed."""
        problem = ""
        for pod in unit.live:
            self._leader.keep()
            result = "evicted"
            try:
                self._cluster.evict(pod.namespace, pod.name, pod.uid, pod.version, dry_run=dry_run)
            except LookupFailed as error:
                result = _result(error)
                problem = error.message if result not in ("gone", "changed") else problem
            results.append(Eviction(str(pod), pod.uid, result))
        return problem

    def _refuse(self, unit: EvictionUnit, why: str) -> None:
        """Let a unit wait."""
        _, waited, _ = self._refused.get(unit.key, (0.0, 0.0, ""))
        wait = min(LONGEST_WAIT, max(FIRST_WAIT, 2 * waited))
        self._refused[unit.key] = (self._wall() + wait * random.uniform(0.8, 1.0), wait, f"{unit}: {why}")


def _result(error: LookupFailed) -> str:
    """Return the result that a failure means for one pod. Raises the failure if it concerns more than that."""
    # The server answers 500 to the eviction of a pod with two disruption budgets, and webhooks may use any 4xx.
    if error.reason not in RESULTS and error.reason != "http_500" and not error.reason.startswith("http_4"):
        raise error
    return RESULTS.get(error.reason, error.reason)
