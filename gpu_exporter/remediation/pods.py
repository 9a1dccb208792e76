"""What the controller knows of a pod: whether it uses GPUs, what protects it, and which gang it belongs to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from gpu_exporter.io.user_text import duration
from gpu_exporter.kubernetes.objects import BudgetObject, OwnerReference, PodObject, Requirement, is_gpu, is_job
from gpu_exporter.remediation.settings import JOB_LABELS, DrainSettings, RemediationScope
from gpu_exporter.remediation.state import PREFIX

# Annotations that the owner of a pod writes: `never` keeps it, and a duration asks for time to write a checkpoint.
POLICY = f"{PREFIX}/drain"
CHECKPOINT = f"{PREFIX}/checkpoint"
# The annotation with which the controller answers the latter: the time before which it does not evict the pod.
EVICT_AFTER = f"{PREFIX}/evict-after"
# The annotation, and since Kubernetes 1.28 the label, of a pod of an Indexed Job.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
MIRROR = "kubernetes.io/config.mirror"
# The clocks of two controllers may differ by this much (seconds).
CLOCKS = 1.0
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod as the API server has it. `claims`: it has resource claims, which on GPU nodes are mostly of GPUs.

    `owner` is the kind of its controller, `job` the name of that if it is a Job of Kubernetes.
    """

    namespace: str
    name: str
    uid: str
    version: str
    node: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owner: str
    priority: int
    has_gpus: bool
    claims: bool
    ended: bool
    terminating: bool
    job: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def concerns(self, scope: RemediationScope) -> bool:
        """Return whether a drain waits for this pod to end."""
        if self.ended or self.owner == "DaemonSet" or MIRROR in self.annotations:
            return False
        return scope is RemediationScope.ALL or self.has_gpus or self.claims

    def gang(self, drain: DrainSettings) -> tuple[str, str] | None:
        """Return the label, and its value, that makes the pod a member of a gang; None if it is of none."""
        indexed = COMPLETION_INDEX in self.annotations or COMPLETION_INDEX in self.labels
        labels = (label for label in drain.gang_labels if indexed or label not in JOB_LABELS)
        return next(((label, self.labels[label]) for label in labels if self.labels.get(label)), None)

    def checkpoint_seconds(self, drain: DrainSettings) -> float:
        """Return for how long the pod asks to write a checkpoint; what cannot be read asks for the longest time."""
        if CHECKPOINT not in self.annotations:
            return 0.0
        try:
            return min(duration(self.annotations[CHECKPOINT]), drain.checkpoint_seconds)
        except ValueError:
            return drain.checkpoint_seconds

    def is_notified(self, since: float, drain: DrainSettings) -> bool:
        """Return whether the pod knows when it is evicted in a drain that began then, or need not know."""
        wanted = self.checkpoint_seconds(drain)
        return not wanted or (self.evict_after or 0.0) >= since + wanted - CLOCKS

    def waits(self, drain: DrainSettings, now: float) -> bool:
        """Return whether the pod still has time to write a checkpoint."""
        return bool(self.checkpoint_seconds(drain)) and now < (self.evict_after or 0.0)

    @property
    def evict_after(self) -> float | None:
        """The unix time before which the pod is not evicted; None if it has not been notified."""
        try:
            return datetime.fromisoformat(self.annotations[EVICT_AFTER].replace("Z", "+00:00")).timestamp()
        except (KeyError, ValueError):
            return None


def read(item: PodObject, gpu_resources: Collection[str] = ()) -> NodePod:
    """Return a pod from the API server's object; `gpu_resources` are further names of resources that are GPUs."""
    metadata, spec = item.get("metadata", {}), item.get("spec", {})
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    limits = [pair for one in containers for pair in (one.get("resources", {}).get("limits") or {}).items()]
    owner = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), OwnerReference())
    return NodePod(
        namespace=metadata.get("namespace", ""),
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        version=metadata.get("resourceVersion", ""),
        node=spec.get("nodeName", ""),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        owner=owner.get("kind", ""),
        priority=spec.get("priority") or 0,
        has_gpus=any(is_gpu(name, gpu_resources) and amount != "0" for name, amount in limits),
        claims=bool(spec.get("resourceClaims")),
        ended=item.get("status", {}).get("phase") in ENDED,
        terminating=bool(metadata.get("deletionTimestamp")),
        job=owner.get("name", "") if is_job(owner) else "",
    )


def protection(pod: NodePod, drain: DrainSettings, own_namespace: str) -> str:
    """Return why a pod must not be evicted; empty if it may be."""
    if pod.annotations.get(POLICY) == "never":
        return f"pod {pod} has the annotation {POLICY}=never"
    if pod.namespace == own_namespace or any(fnmatchcase(pod.namespace, each) for each in drain.protected_namespaces):
        return f"pod {pod} is in a protected namespace"
    if pod.priority >= drain.protected_priority:
        return f"pod {pod} has the priority {pod.priority}"
    if not pod.owner and not drain.unmanaged:
        return f"pod {pod} has no controller that would replace it"
    return ""


def selects(budget: BudgetObject, labels: Mapping[str, str]) -> bool:
    """Return whether a PodDisruptionBudget counts a pod with these labels."""
    selector = budget.get("spec", {}).get("selector")
    if selector is None:
        return False
    pairs = (selector.get("matchLabels") or {}).items()
    requirements = selector.get("matchExpressions") or ()
    return all(labels.get(key) == value for key, value in pairs) and all(_holds(each, labels) for each in requirements)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.get("key", "")), requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return True  # unknown: as if the budget counted the pod
