"""What the controller knows of a node: the node as the API server has it, and the state in its annotations."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum

from gpu_exporter.io.decoding import json_as
from gpu_exporter.kubernetes.objects import NodeObject, is_gpu
from gpu_exporter.kubernetes.writer import FIELD_MANAGER

PREFIX = "gpu-exporter.io"
# Annotations that the controller writes.
STATE = f"{PREFIX}/remediation-state"
REPAIR = f"{PREFIX}/repair"
FENCE = f"{PREFIX}/fence"
# The labels and the taint that it writes.
REPAIR_LABEL = f"{PREFIX}/repair"
DRAIN_LABEL = f"{PREFIX}/drain"
TAINT = f"{PREFIX}/unhealthy"
# Written by people: a label that keeps the controller away, and an annotation with the id of a fault that is repaired.
OPT_OUT = f"{PREFIX}/remediation"
REPAIRED = f"{PREFIX}/repaired"

# A node that is returned again within this time (seconds) needs to be clean for twice as long; at most for a day.
REPEAT_SECONDS = 7 * 86400.0
LONGEST_CLEAN = 86400.0
MOST_HISTORY = 8
# The faults of all boots since the node was cordoned.
MOST_FAULTS = 64


class DrainPhase(Enum):
    """What the controller has done with a node.

    HELD: a person uncordoned it, or cordoned it instead; the controller waits for a new fault.
    """

    CORDONED = "cordoned"
    HELD = "held"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class NodePast:
    """A time in the past when the controller had cordoned the node (unix seconds), and why."""

    at: float
    until: float
    reasons: tuple[str, ...]


class DrainProgress(Enum):
    """How far the drain of a node is. TIMEOUT: it was given up, and people have to look at it."""

    DRAINING = "draining"
    DRAINED = "drained"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang whose eviction has begun: its namespace, label and value, and the UIDs of its pods.

    It is written before the first of its pods is evicted, so that the next leader evicts the others, too.
    """

    namespace: str
    label: str
    value: str
    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DrainState:
    """The drain of a node: since when (unix seconds), how far, and the gang whose eviction has begun."""

    since: float
    progress: DrainProgress = DrainProgress.DRAINING
    gang: Gang | None = None


@dataclass(frozen=True, slots=True)
class RemediationState:
    """The state of a node, as stored in its annotation STATE.

    `fault` is the id of the fault, `at` when the node was cordoned (unix seconds), `boot` the boot on which the fault
    was seen last, `action` what repairs it, `faults` the UUIDs and reasons, `gpus` how many GPUs the node should have.
    """

    phase: DrainPhase
    fault: str
    at: float
    boot: str
    action: str
    faults: tuple[tuple[str, str], ...]
    gpus: int = 0
    history: tuple[NodePast, ...] = ()
    drain: DrainState | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of the faults, each once, in order."""
        return tuple(dict.fromkeys(reason for _, reason in self.faults))

    def ended(self, phase: DrainPhase, now: float) -> RemediationState:
        """Return the state after the cordon has ended, with its time in the history."""
        past = NodePast(self.at, now, self.reasons)
        return replace(self, phase=phase, history=(*self.history, past)[-MOST_HISTORY:], drain=None)

    def text(self) -> str:
        """Return the content of the annotation."""
        return json.dumps(asdict(self), separators=(",", ":"), default=lambda enum: enum.value)


def clean_seconds(base: float, history: tuple[NodePast, ...], now: float) -> float:
    """Return for how long a node must be clean: twice as long for each cordon that ended in the last week."""
    repeats = sum(now - past.until < REPEAT_SECONDS for past in history)
    return max(base, min(base * float(2**repeats), LONGEST_CLEAN))


@dataclass(frozen=True, slots=True)
class WatchedNode:
    """A node as the API server has it. `foreign`: another client than the controller set `unschedulable` last.

    `state` is None without the annotation, `unreadable` says what is wrong with it.
    """

    name: str
    uid: str
    version: str
    boot: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    unschedulable: bool
    foreign: bool
    ready: bool
    has_gpus: bool
    taints: tuple[Mapping[str, str], ...] = ()
    state: RemediationState | None = None
    unreadable: str = ""

    @property
    def cordoned(self) -> bool:
        """Whether the controller has cordoned it, by its annotation."""
        return self.state is not None and self.state.phase is DrainPhase.CORDONED

    @property
    def out_of_service(self) -> bool:
        """Whether it takes no new pods, for whatever reason."""
        return self.unschedulable or not self.ready or self.cordoned


def read(item: NodeObject, gpu_resources: Collection[str] = ()) -> WatchedNode:
    """Return a node from the API server's object; `gpu_resources` are further names of resources that are GPUs."""
    metadata, spec, status = item.get("metadata", {}), item.get("spec", {}), item.get("status", {})
    annotations = metadata.get("annotations") or {}
    state, unreadable = None, ""
    if STATE in annotations:
        try:
            state = json_as(RemediationState, annotations[STATE])
        except ValueError as error:
            unreadable = str(error)
    conditions = status.get("conditions") or ()
    return WatchedNode(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        version=metadata.get("resourceVersion", ""),
        boot=status.get("nodeInfo", {}).get("bootID", ""),
        labels=metadata.get("labels") or {},
        annotations=annotations,
        unschedulable=spec.get("unschedulable", False),
        foreign=_is_foreign(item),
        ready=not any(each.get("type") == "Ready" and each.get("status") != "True" for each in conditions),
        has_gpus=any(is_gpu(name, gpu_resources) for name in status.get("capacity") or ()),
        taints=tuple(spec.get("taints") or ()),
        state=state,
        unreadable=unreadable,
    )


def _is_foreign(item: NodeObject) -> bool:
    """Return whether the last client that set `unschedulable` is another one, by `managedFields`."""
    managers = {
        each.get("manager", "")
        for each in item.get("metadata", {}).get("managedFields") or ()
        if "f:unschedulable" in ((each.get("fieldsV1") or {}).get("f:spec") or {})
    }
    return bool(managers) and FIELD_MANAGER not in managers
