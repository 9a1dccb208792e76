"""Decides how a drain goes on, from what `reconcile` decided about the node and from its pods. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.pods import NodePod
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb
from gpu_exporter.remediation.settings import DrainSettings, Mode, NodePool
from gpu_exporter.remediation.state import DrainPhase, DrainProgress, RemediationState, WatchedNode
from gpu_exporter.remediation.workload import EvictionUnit, JobLoad
from gpu_exporter.reports.numbers import first_of

# Pods that are named in a sentence.
MOST_NAMED = 3


def needs_pods(node: WatchedNode, pool: NodePool) -> bool:
    """Return whether the next decision about a node depends on its pods."""
    state = node.state
    if pool.mode is not Mode.DRAIN or state is None or state.phase is not DrainPhase.CORDONED:
        return False
    return state.drain is None or state.drain.progress is not DrainProgress.DRAINED or state.drain.gang is not None


def advance(decision: Decision, node: WatchedNode, load: JobLoad | None, pool: NodePool, now: float) -> Decision:
    """Return the decision about a node, of which `load` are the pods; None if they do not matter.

    A gang whose eviction has begun is evicted to its end, whatever else is known by now: without some of its pods, the
    others are of no use. Only an announced time is waited for, which the drain of another node may have set since.
    Apart from that, only a node that is faulty now is drained.
    """
    state = node.state
    if load is None or state is None or decision.reason in (Reason.OFF, Reason.OPTED_OUT, Reason.UNREADABLE):
        return decision
    decision = replace(decision, load=load)
    if load.problem:
        waits = decision.reason is Reason.AWAITING_REPAIR
        return decision.refused(Reason.PODS_UNKNOWN, load.problem) if waits else decision
    if state.drain and state.drain.gang and not (load.rest and load.rest.key in load.refused):
        return _finish(decision, state, load, pool.drain, now)
    if decision.reason is not Reason.AWAITING_REPAIR:
        return decision
    return _step(decision, state, load, pool.drain, now)


def _finish(decision: Decision, state: RemediationState, load: JobLoad, drain: DrainSettings, now: float) -> Decision:
    """Go on with a gang of which some pods may have been evicted."""
    if load.rest and any(pod.waits(drain, now) for pod in load.rest.live):
        return decision.refused(Reason.CHECKPOINT, _waiting(load.rest, load, now))
    if load.rest:
        words, evict = f"evicts the rest of a job: {_named(load.rest.pods)}", (load.rest,)
        return replace(decision, verb=Verb.EVICT, reason=Reason.REST_OF_GANG, words=words, state=None, evict=evict)
    assert state.drain is not None
    done = replace(state, drain=replace(state.drain, gang=None))
    return replace(decision, verb=Verb.EVICTED, reason=Reason.REST_OF_GANG, words="a whole job is evicted", state=done)


def _step(decision: Decision, state: RemediationState, load: JobLoad, drain: DrainSettings, now: float) -> Decision:
    """Begin the drain of a faulty node, go on with it, or end it."""

    def changed(verb: Verb, reason: Reason, words: str, progress: DrainProgress, since: float) -> Decision:
        new = replace(state, drain=s.DrainState(since, progress, state.drain.gang if state.drain else None))
        return replace(decision, verb=verb, reason=reason, words=words, state=new)

    begun = state.drain
    pods = tuple(pod for unit in load.units for pod in unit.pods)
    if begun and begun.progress is DrainProgress.DRAINED:
        return decision
    if not pods:
        since = begun.since if begun else now
        return changed(Verb.DRAINED, Reason.DRAINED, "no pod is left to evict", DrainProgress.DRAINED, since)
    if begun is None:
        words = f"{_named(pods)} must go: {decision.words}"
        return changed(Verb.DRAIN, Reason.FAULT, words, DrainProgress.DRAINING, now)
    if begun.progress is DrainProgress.TIMEOUT:
        return decision.refused(Reason.DRAIN_TIMEOUT, f"the drain was given up; drain it yourself: {_why(load, now)}")
    if now - begun.since >= drain.timeout_seconds:
        words = f"not drained within {drain.timeout}: {_why(load, now)}"
        return changed(Verb.TIMEOUT, Reason.DRAIN_TIMEOUT, words, DrainProgress.TIMEOUT, begun.since)
    return _evictions(decision, begun, load, drain, now)


def _evictions(decision: Decision, begun: s.DrainState, load: JobLoad, drain: DrainSettings, now: float) -> Decision:
    """Return which pods are to be notified and which evicted, or what the drain waits for."""
    allowed = [unit for unit in load.units if unit.live and not unit.protected]
    tried = [unit for unit in allowed if unit.key not in load.refused]
    notify = tuple(unit for unit in tried if any(not pod.is_notified(begun.since, drain) for pod in unit.live))
    evict = tuple(
        unit
        for unit in tried
        if unit not in notify
        and not any(pod.waits(drain, now) for pod in unit.live)
        and not (unit.is_gang and begun.gang)  # one after the other
    )
    if notify or evict:
        what, whom = ("evicts", evict) if evict else ("announces the eviction to", notify)
        words = f"{what} {', '.join(map(str, whom[:MOST_NAMED]))}"
        return replace(decision, verb=Verb.EVICT, reason=Reason.FAULT, words=words, evict=evict, notify=notify)
    reason = Reason.PODS_END
    if any(unit.live and unit.protected for unit in load.units):
        reason = Reason.PROTECTED
    if any(pod.waits(drain, now) for unit in allowed for pod in unit.live):
        reason = Reason.CHECKPOINT
    if any(unit.key in load.refused for unit in allowed):
        reason = Reason.EVICTION_REFUSED
    return decision.refused(reason, _why(load, now))


def _why(load: JobLoad, now: float) -> str:
    """Return what the drain waits for, of the first few units."""
    return "; ".join(_waiting(unit, load, now) for unit in load.units[:MOST_NAMED])


def _waiting(unit: EvictionUnit, load: JobLoad, now: float) -> str:
    if not unit.live:
        return f"{unit}: evicted, but not ended yet"
    if unit.protected:
        return unit.protected
    if unit.key in load.refused:
        return load.refused[unit.key]
    until = max((pod.evict_after or 0.0 for pod in unit.live), default=0.0)
    return f"{unit}: {until - now:.0f} s left to write a checkpoint" if until > now else f"{unit}: still running"


def _named(pods: tuple[NodePod, ...]) -> str:
    return f"{'pods' if len(pods) > 1 else 'pod'} {first_of(pods, MOST_NAMED)}"
