"""The controller's own metrics, which docs/remediation.md lists."""

from __future__ import annotations

import threading
import time
from collections import Counter as Count
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gpu_exporter.remediation.fleet import Assessed, FleetPlan
from gpu_exporter.remediation.reconcile import Reason
from gpu_exporter.remediation.state import DrainProgress

# Reasons that most nodes have most of the time.
QUIET = (Reason.OFF, Reason.OPTED_OUT, Reason.HEALTHY)


class ControllerMetrics:
    """Counters and gauges in a registry of their own. Any thread may call `text`. `wall` is unix time."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self.leads = False
        self._wall = wall
        self._since: dict[str, tuple[Reason, float]] = {}
        self._whole = threading.Lock()
        self._registry = CollectorRegistry()
        self._add_counters(self._registry)
        self._add_gauges(self._registry)

    def _add_counters(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter(
            "gpu_remediation_decisions",
            "Decisions about nodes, each counted when it changes",
            ("pool", "mode", "verb", "reason"),
            registry=registry,
        )
        self.actions = Counter(
            "gpu_remediation_actions",
            "Actions carried out; in observe mode with dryRun",
            ("pool", "mode", "verb"),
            registry=registry,
        )
        self.evictions = Counter(
            "gpu_remediation_evictions",
            "Attempts to evict a pod; in observe mode with dryRun",
            ("pool", "mode", "result"),
            registry=registry,
        )
        self.errors = Counter("gpu_remediation_errors", "Failed cycles and reports", ("reason",), registry=registry)
        self.webhooks = Counter(
            "gpu_remediation_webhooks", "Requests from Alertmanager by HTTP status", ("code",), registry=registry
        )

    def _add_gauges(self, registry: CollectorRegistry) -> None:
        self.leader = Gauge("gpu_remediation_leader", "1 if this process holds the Lease", registry=registry)
        self.cycled = Gauge(
            "gpu_remediation_last_cycle_timestamp_seconds", "When the last cycle was complete", registry=registry
        )
        self.nodes = Gauge(
            "gpu_remediation_nodes", "Nodes by the reason of the last decision", ("pool", "reason"), registry=registry
        )
        self.states = Gauge(
            "gpu_remediation_node_state_since_timestamp_seconds",
            "When this process first decided so about a node, by reason; not for nodes that are healthy or left alone",
            ("pool", "node", "reason"),
            registry=registry,
        )
        self.remaining = Gauge(
            "gpu_remediation_budget_remaining", "How many more nodes may be cordoned", ("pool",), registry=registry
        )
        self.breaker = Gauge(
            "gpu_remediation_breaker_open", "1 for each fault that the breaker stops", ("fault",), registry=registry
        )
        self.cordoned = Gauge(
            "gpu_remediation_cordoned_since_timestamp_seconds",
            "When the controller cordoned the node",
            ("pool", "node"),
            registry=registry,
        )
        self.draining = Gauge(
            "gpu_remediation_draining_since_timestamp_seconds",
            "When the drain began, until the node is drained",
            ("pool", "node"),
            registry=registry,
        )

    def set(self, assessed: Sequence[Assessed], plan: FleetPlan) -> None:
        """Set the gauges about nodes from a plan."""
        with self._whole:
            self._set(assessed, plan)

    def _set(self, assessed: Sequence[Assessed], plan: FleetPlan) -> None:
        self._clear()
        counts = Count((each.pool.name, plan.decisions[each.node.name].reason.value) for each in assessed)
        for (pool, reason_name), count in counts.items():
            self.nodes.labels(pool, reason_name).set(count)
        for pool, use in plan.pools.items():
            self.remaining.labels(pool).set(use.remaining)
        for fault in plan.breaker:
            self.breaker.labels(fault).set(1)
        names = (each.node.name for each in assessed)
        self._since = {name: self._began(name, plan.decisions[name].reason) for name in names}
        for each in assessed:
            state, (reason, since) = each.node.state, self._since[each.node.name]
            if reason not in QUIET:
                self.states.labels(each.pool.name, each.node.name, reason.value).set(since)
            if each.node.cordoned and state:
                self.cordoned.labels(each.pool.name, each.node.name).set(state.at)
                if state.drain and state.drain.progress is not DrainProgress.DRAINED:
                    self.draining.labels(each.pool.name, each.node.name).set(state.drain.since)

    def _began(self, node: str, reason: Reason) -> tuple[Reason, float]:
        """Return the reason of a decision, and since when it is the same."""
        last = self._since.get(node)
        return last if last and last[0] is reason else (reason, self._wall())

    def _clear(self) -> None:
        """Remove the gauges about nodes, which only the leader has."""
        for gauge in (self.nodes, self.states, self.remaining, self.breaker, self.cordoned, self.draining):
            gauge.clear()

    def lead(self, *, leads: bool) -> None:
        """Set whether this process holds the Lease."""
        self.leads = leads
        self.leader.set(leads)
        if not leads:
            with self._whole:
                self._clear()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        with self._whole:
            return generate_latest(self._registry)
