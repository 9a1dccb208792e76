"""The pods that a drain waits for, in units that are evicted together: a pod, or a gang over several nodes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_exporter.remediation.pods import NodePod, protection
from gpu_exporter.remediation.retries import JobRetries
from gpu_exporter.remediation.settings import JOBSET, DrainSettings
from gpu_exporter.remediation.state import Gang

# The UIDs of a larger gang would not fit into an annotation.
MOST_GANG_PODS = 2000
GangKey = tuple[str, str, str]
# Namespace and name.
JobKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class EvictionUnit:
    """One pod, or all pods of a gang on whatever nodes. `protected` is why it must not be evicted; empty if it may be.

    `key` is its namespace, label and value for a gang, and otherwise its UID.
    """

    key: GangKey | str
    pods: tuple[NodePod, ...]
    protected: str = ""

    @property
    def live(self) -> tuple[NodePod, ...]:
        """The pods that do not end yet."""
        return tuple(pod for pod in self.pods if not pod.terminating)

    @property
    def is_gang(self) -> bool:
        """Whether several pods have to be evicted together."""
        return len(self.live) > 1

    def __str__(self) -> str:
        if isinstance(self.key, str) or len(self.pods) == 1:
            return f"pod {self.pods[0]}"
        return f"{len(self.pods)} pods of {self.key[0]}/{self.key[2]}"

    def begun(self) -> Gang:
        """Return the record of a gang whose eviction begins."""
        assert not isinstance(self.key, str)
        namespace, label, value = self.key
        return Gang(namespace, label, value, tuple(pod.uid for pod in self.live))


@dataclass(frozen=True, slots=True)
class Eviction:
    """An attempt to evict a pod, and its result; in a dry run `evicted` means that it could be."""

    pod: str
    uid: str
    result: str

    @property
    def done(self) -> bool:
        """Whether the pod goes."""
        return self.result in ("evicted", "gone")


@dataclass(frozen=True, slots=True)
class JobLoad:
    """What a drain waits for. `rest` are the pods that are left of a gang whose eviction has begun.

    `refused` says why units are not tried again yet, by their keys; `problem` why nothing is known.
    """

    units: tuple[EvictionUnit, ...] = ()
    rest: EvictionUnit | None = None
    refused: Mapping[GangKey | str, str] = field(default_factory=dict)
    problem: str = ""


def concerned(pods: Iterable[NodePod], drain: DrainSettings) -> list[NodePod]:
    """Return the pods that a drain waits for."""
    return [pod for pod in pods if pod.concerns(drain.pods)]


def gangs(pods: Iterable[NodePod], drain: DrainSettings) -> list[GangKey]:
    """Return the gangs that these pods belong to, in order."""
    return sorted({key for pod in pods if (key := _key(pod, drain))})


def _key(pod: NodePod, drain: DrainSettings) -> GangKey | None:
    gang = pod.gang(drain)
    return (pod.namespace, *gang) if gang else None


def units(
    on_node: Sequence[NodePod], members: Mapping[GangKey, Sequence[NodePod]], drain: DrainSettings, namespace: str
) -> tuple[EvictionUnit, ...]:
    """Return the units with pods on a node. `members` are the pods of each gang, `namespace` the controller's own."""
    made = [_unit(pod.uid, (pod,), drain, namespace) for pod in on_node if not pod.gang(drain)]
    for key, pods in members.items():
        found = {pod.uid: pod for pod in (*pods, *on_node) if pod.node and _key(pod, drain) == key}
        here = tuple(pod for pod in on_node if pod.uid in found)
        if here:
            # If somebody else ends its pods on this node, the others are none of the controller's business.
            goes = any(not pod.terminating for pod in here)
            made.append(_unit(key, tuple(found.values()) if goes else here, drain, namespace))
    return tuple(made)


def jobs(units: Iterable[EvictionUnit]) -> Mapping[JobKey, Sequence[NodePod]]:
    """Return the pods of each Job that may count their eviction as a failure."""
    found: dict[JobKey, list[NodePod]] = defaultdict(list)
    for pod in (pod for unit in units if not unit.protected for pod in unit.live):
        if pod.job and JOBSET not in pod.labels:
            found[pod.namespace, pod.job].append(pod)
    return found


def within_retries(units: Iterable[EvictionUnit], retries: Mapping[JobKey, JobRetries]) -> tuple[EvictionUnit, ...]:
    """Return the units, of which those are protected whose eviction would make a Job fail.

    All pods of a Job that a drain would evict count together: if not all of them may go, none does.
    """
    units = tuple(units)
    refusals = {key: retries[key].refusal(pods) for key, pods in jobs(units).items() if key in retries}

    def refusal(unit: EvictionUnit) -> str:
        return next(filter(None, (refusals.get((pod.namespace, pod.job), "") for pod in unit.live)), "")

    return tuple(unit if unit.protected else replace(unit, protected=refusal(unit)) for unit in units)


def rest(gang: Gang, members: Sequence[NodePod], drain: DrainSettings, namespace: str) -> EvictionUnit | None:
    """Return what is left of a gang whose eviction has begun; None if nothing is."""
    left = (pod for pod in members if pod.uid in gang.uids and not pod.terminating)
    pods = tuple(pod for pod in left if not protection(pod, drain, namespace))
    return EvictionUnit((gang.namespace, gang.label, gang.value), pods) if pods else None


def _unit(key: GangKey | str, pods: tuple[NodePod, ...], drain: DrainSettings, namespace: str) -> EvictionUnit:
    live = [pod for pod in pods if not pod.terminating]
    reasons = (protection(pod, drain, namespace) for pod in live)
    protected = next(filter(None, reasons), "")
    if len(live) > MOST_GANG_PODS:
        protected = f"a job of more than {MOST_GANG_PODS} pods cannot be evicted as a whole"
    return EvictionUnit(key, pods, protected)
