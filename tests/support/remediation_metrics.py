"""The metrics of a remediation controller with one node in each state that has series of its own."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.remediation.evidence import unknown
from gpu_exporter.remediation.fleet import Assessed, FleetPlan, plan
from gpu_exporter.remediation.ledger import Ledger
from gpu_exporter.remediation.metrics import ControllerMetrics
from gpu_exporter.remediation.reconcile import reconcile
from gpu_exporter.remediation.settings import Breaker, Exporters, Mode, NodePool, Settings
from gpu_exporter.remediation.state import DrainPhase, DrainState, RemediationState, WatchedNode

POOL = NodePool("training", mode=Mode.DRAIN)
BEGAN = 1_700_000_000.0
STATE = RemediationState(
    DrainPhase.CORDONED, "id", BEGAN, "b1", "node_reboot", (("GPU-1", "stalled"),), 1, drain=DrainState(BEGAN + 60)
)


def node(name: str, state: RemediationState | None = None) -> WatchedNode:
    """Return a node."""
    return WatchedNode(
        name, "uid", "7", "b1", {}, {}, unschedulable=bool(state), foreign=False, ready=True, has_gpus=True, state=state
    )


def planned(
    nodes: Sequence[WatchedNode], now: float, ledger: Ledger | None = None
) -> tuple[Sequence[Assessed], FleetPlan]:
    """Return what the controller decides about nodes whose exporters do not answer."""
    assessed = [Assessed(each, POOL, reconcile(each, unknown("no answer"), POOL, now)) for each in nodes]
    return assessed, plan(
        assessed, ledger or Ledger(), Settings("gpu", Exporters("gpu"), (POOL,), breaker=Breaker()), now
    )


def full() -> ControllerMetrics:
    """Return metrics in which each family has a series."""
    metrics = ControllerMetrics(lambda: BEGAN)
    metrics.lead(leads=True)
    metrics.set(*planned([node("idle"), node("draining", STATE)], BEGAN, Ledger(breaker={"lost": BEGAN})))
    for action in ("cordon", "drain"):
        metrics.decisions.labels("training", "drain", action, "fault").inc()
        metrics.actions.labels("training", "drain", action).inc()
    metrics.evictions.labels("training", "drain", "evicted").inc()
    metrics.errors.labels("timeout").inc()
    metrics.webhooks.labels("202").inc()
    return metrics
