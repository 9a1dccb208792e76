"""Decides what to do with one node, from its state and the evidence alone. Pure; `fleet.py` then applies the bounds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import Enum

from gpu_exporter.model.verdict import Action, most_drastic
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.evidence import Evidence, NodeFinding
from gpu_exporter.remediation.settings import Mode, NodePool
from gpu_exporter.remediation.state import DrainPhase, DrainProgress, RemediationState, WatchedNode
from gpu_exporter.remediation.workload import EvictionUnit, JobLoad


class Verb(Enum):
    """What the controller does with a node.

    UPDATE: adds new faults to the node's annotations. HOLD: gives up a node that a person has uncordoned. DRAIN: begins
    a drain, of which EVICT is each step; EVICTED: all pods of a gang are evicted. DRAINED and TIMEOUT end a drain.
    """

    NONE = "none"
    CORDON = "cordon"
    UPDATE = "update"
    RETURN = "return"
    HOLD = "hold"
    DRAIN = "drain"
    EVICT = "evict"
    EVICTED = "gang_evicted"
    DRAINED = "drained"
    TIMEOUT = "drain_timeout"


class Reason(Enum):
    """Why; a label value of `gpu_remediation_decisions_total`."""

    OFF = "off"
    OPTED_OUT = "opted_out"
    UNREADABLE = "unreadable_state"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    HELD = "held"
    FOREIGN = "already_cordoned"
    CONFIRMING = "confirming"
    FAULT = "fault"
    NEW_FAULT = "new_fault"
    AWAITING_REPAIR = "awaiting_repair"
    NEEDS_REPLACEMENT = "needs_replacement"
    GPU_ABSENT = "gpu_absent"
    NEEDS_REBOOT = "needs_reboot"
    NEEDS_ACTIVE_CHECK = "needs_active_check"
    VERIFYING = "verifying"
    RECOVERED = "recovered"
    UNCORDONED = "uncordoned_by_a_person"
    TAKEN_OVER = "cordoned_by_a_person"
    REST_OF_GANG = "rest_of_gang"
    PODS_UNKNOWN = "pods_unknown"
    PODS_END = "pods_end"
    PROTECTED = "protected_pods"
    CHECKPOINT = "checkpoint"
    EVICTION_REFUSED = "eviction_refused"
    DRAINED = "drained"
    DRAIN_TIMEOUT = "drain_timeout"
    PAUSED = "paused"
    WINDOW = "outside_window"
    BREAKER = "breaker_open"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a node, and why. `state` is the node's new state; None if it does not change.

    `load` are the pods that a drain waits for, `evict` those of them to evict now, and `notify` those to announce it
    to.
    """

    verb: Verb
    reason: Reason
    words: str
    state: RemediationState | None = None
    evidence: Evidence = field(default_factory=lambda: Evidence(NodeFinding.UNKNOWN))
    load: JobLoad | None = None
    evict: tuple[EvictionUnit, ...] = ()
    notify: tuple[EvictionUnit, ...] = ()

    def refused(self, reason: Reason, words: str) -> Decision:
        """Return that nothing is done, although it should be."""
        return replace(self, verb=Verb.NONE, reason=reason, words=words, state=None, evict=(), notify=())


def reconcile(node: WatchedNode, evidence: Evidence, pool: NodePool, now: float) -> Decision:
    """Return what to do with a node of this pool at the unix time `now`."""
    verb, reason, words, state = _decide(node, evidence, pool, now)
    return Decision(verb, reason, words, state, evidence)


_Result = tuple[Verb, Reason, str, "RemediationState | None"]


def _nothing(reason: Reason, words: str) -> _Result:
    return Verb.NONE, reason, words, None


def _decide(node: WatchedNode, evidence: Evidence, pool: NodePool, now: float) -> _Result:
    if pool.mode is Mode.OFF:
        return _nothing(Reason.OFF, f"pool {pool.name} is off")
    if node.labels.get(s.OPT_OUT) == "disabled":
        return _nothing(Reason.OPTED_OUT, f"the label {s.OPT_OUT}=disabled keeps the controller away")
    if node.unreadable:
        words = f"the annotation {s.STATE} cannot be read ({node.unreadable}): uncordon the node yourself and remove it"
        return _nothing(Reason.UNREADABLE, words)
    if node.state is not None and node.state.phase is DrainPhase.CORDONED:
        return _cordoned(node, node.state, evidence, pool, now)
    if evidence.finding is NodeFinding.UNKNOWN:
        return _nothing(Reason.UNKNOWN, evidence.why)
    if evidence.finding is NodeFinding.CLEAN:
        return _nothing(Reason.HEALTHY, "all GPUs are healthy")
    if node.state is not None and node.state.phase is DrainPhase.HELD and not _is_new(node.state, evidence):
        return _nothing(Reason.HELD, "a person has taken over: the controller waits for a new fault or a reboot")
    if node.unschedulable:
        return _nothing(Reason.FOREIGN, "the node is already cordoned, not by the controller")
    confirm = pool.confirm_seconds
    if evidence.age < confirm:
        return _nothing(Reason.CONFIRMING, f"the fault is {evidence.age:.0f} s old: it must last for {confirm:.0f} s")
    return Verb.CORDON, Reason.FAULT, _words(evidence), _new_state(node, evidence, now)


def _cordoned(node: WatchedNode, state: RemediationState, evidence: Evidence, pool: NodePool, now: float) -> _Result:
    """Decide about a node that the controller has cordoned."""
    if not node.unschedulable:
        return Verb.HOLD, Reason.UNCORDONED, "a person uncordoned it", state.ended(DrainPhase.HELD, now)
    if node.foreign:
        return Verb.HOLD, Reason.TAKEN_OVER, "a person cordoned it again", state.ended(DrainPhase.HELD, now)
    if evidence.finding is NodeFinding.UNKNOWN:
        return _nothing(Reason.UNKNOWN, evidence.why)
    if evidence.finding is NodeFinding.FAULTY:
        if _is_new(state, evidence):
            return Verb.UPDATE, Reason.NEW_FAULT, _words(evidence), _merged(state, evidence)
        return _nothing(Reason.AWAITING_REPAIR, f"still faulty: {_words(evidence)}")
    confirmed = node.annotations.get(s.REPAIRED) == state.fault
    if not confirmed and (blocked := _unproven(state, evidence, pool)):
        return _nothing(*blocked)
    needed = s.clean_seconds(pool.clean_seconds, state.history, now)
    if evidence.clean_for < needed:
        words = f"healthy for {evidence.clean_for:.0f} s: it must be for {needed:.0f} s"
        return _nothing(Reason.VERIFYING, words)
    words = f"healthy for {evidence.clean_for:.0f} s"
    return Verb.RETURN, Reason.RECOVERED, words, state.ended(DrainPhase.RETURNED, now)


def _unproven(state: RemediationState, evidence: Evidence, pool: NodePool) -> tuple[Reason, str] | None:
    """Return why a clean node is not proven to be repaired; None if it is."""
    confirm = f"confirm the repair with the annotation {s.REPAIRED}={state.fault}"
    if state.action == Action.REPLACE.value:
        return Reason.NEEDS_REPLACEMENT, f"a GPU needs replacement: {confirm}"
    absent = {uuid for uuid, _ in state.faults if uuid} - evidence.gpus
    if absent or evidence.expected < state.gpus:
        return Reason.GPU_ABSENT, f"the GPU with the fault is no longer listed: if it was replaced, {confirm}"
    if pool.new_boot and evidence.boot == state.boot:
        return Reason.NEEDS_REBOOT, f"it has not rebooted since the fault: reboot it, or {confirm}"
    if pool.active_check and evidence.checked_at <= state.at:
        words = "its GPUs have not passed `gpu-exporter check --active` since the fault: run it on the node"
        return Reason.NEEDS_ACTIVE_CHECK, f"{words}, or {confirm}"
    return None


def _is_new(state: RemediationState, evidence: Evidence) -> bool:
    """Return whether there is a fault that the state does not have, or one on another boot."""
    return evidence.boot != state.boot or not set(evidence.keys) <= set(state.faults)


def _merged(state: RemediationState, evidence: Evidence) -> RemediationState:
    # The present faults first: they always fit, so that they are not new a second time.
    faults = tuple(dict.fromkeys((*evidence.keys, *state.faults)))[: s.MOST_FAULTS]
    action = most_drastic((Action(state.action), evidence.action))
    gpus = max(state.gpus, evidence.expected)
    # A drain that was given up begins anew, but the rest of a gang is not forgotten.
    again = state.drain is not None and state.drain.progress is DrainProgress.TIMEOUT and not state.drain.gang
    drain = None if again else state.drain
    return replace(state, boot=evidence.boot, faults=faults, action=action.value, gpus=gpus, drain=drain)


def _new_state(node: WatchedNode, evidence: Evidence, now: float) -> RemediationState:
    keys = tuple(dict.fromkeys(evidence.keys))
    text = f"{node.uid}{evidence.boot}{sorted(keys)}{now:.0f}"
    return RemediationState(
        DrainPhase.CORDONED,
        hashlib.sha256(text.encode()).hexdigest()[:12],
        now,
        evidence.boot,
        evidence.action.value,
        keys,
        evidence.expected,
        node.state.history if node.state else (),
    )


def _words(evidence: Evidence) -> str:
    first = evidence.faults[0]
    more = f" and {len(evidence.faults) - 1} more" if len(evidence.faults) > 1 else ""
    where = f"GPU {first.uuid}: " if first.uuid else ""
    return f"{where}{first.words or first.reason}{more}"
