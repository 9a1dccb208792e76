"""How many of its pods a Job of Kubernetes may lose before it fails. Pure.

An eviction counts as a failure of the pod, unless the Job's podFailurePolicy ignores it: see
https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_exporter.kubernetes.objects import FailurePolicy, JobObject
from gpu_exporter.remediation.pods import NodePod

# The condition of a pod that is evicted.
DISRUPTED = "DisruptionTarget"
# The annotation of a pod with the number of failures of its index.
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
# Of Kubernetes, for a Job that does not say.
BACKOFF_LIMIT = 6


@dataclass(frozen=True, slots=True)
class JobRetries:
    """What a Job tolerates. `action` is what its podFailurePolicy does with an eviction.

    `managed`: another controller than a CronJob owns it, such as a JobSet, and decides what follows if it fails.
    """

    limit: int
    failed: int
    per_index: int | None = None
    action: str = "Count"
    managed: bool = False

    def refusal(self, pods: Sequence[NodePod]) -> str:
        """Return why the eviction of all these pods would make the Job fail; empty if it would not."""
        if self.managed or self.action == "Ignore" or not pods:
            return ""
        job = f"Job {pods[0].namespace}/{pods[0].job}"
        cure = f"let its podFailurePolicy ignore {DISRUPTED}"
        if self.action != "Count":
            return f"{job} would fail: its podFailurePolicy answers {DISRUPTED} with {self.action}; {cure}"
        if self.per_index is not None:
            spent = [pod for pod in pods if _failures(pod) >= self.per_index]
            what = f"pod {spent[0]} would fail its index: backoffLimitPerIndex is {self.per_index}" if spent else ""
            return f"{job}: {what}; raise it, or {cure}" if spent else ""
        if self.failed + len(pods) <= self.limit:
            return ""
        count = f"{self.failed} pod{' has' if self.failed == 1 else 's have'} failed, and {len(pods)} would be evicted"
        return f"{job} would fail: its backoffLimit is {self.limit}, {count}; raise it, or {cure}"


def read(item: JobObject) -> JobRetries:
    """Return what a Job tolerates, from the API server's object."""
    spec = item.get("spec", {})
    limit, per_index = spec.get("backoffLimit"), spec.get("backoffLimitPerIndex")
    owners = item.get("metadata", {}).get("ownerReferences") or ()
    return JobRetries(
        limit=BACKOFF_LIMIT if limit is None else limit,
        failed=item.get("status", {}).get("failed", 0),
        per_index=per_index,
        action=_action(spec.get("podFailurePolicy") or FailurePolicy()),
        managed=any(owner.get("controller") and owner.get("kind") != "CronJob" for owner in owners),
    )


def _action(policy: FailurePolicy) -> str:
    """Return what the first rule about evictions does. Rules about exit codes are left out: nobody knows the code."""
    for rule in policy.get("rules") or ():
        if any(each.get("type") == DISRUPTED for each in rule.get("onPodConditions") or ()):
            return rule.get("action", "Count")
    return "Count"


def _failures(pod: NodePod) -> int:
    text = pod.annotations.get(INDEX_FAILURES, "0")
    return int(text) if text.isdecimal() else 0
