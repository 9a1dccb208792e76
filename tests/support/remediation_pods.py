"""The pods of `remediation_world.py`: single ones and jobs over several nodes, protected ones, and disruption budgets.

Every eviction is checked: of whom, when, and on what evidence. A pod that has been evicted ends after a while, and is
replaced by another one wherever there is room.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_exporter.io.user_text import duration
from gpu_exporter.kubernetes.objects import BudgetObject, PodObject
from gpu_exporter.kubernetes.writer import Operation
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation.pods import CHECKPOINT, COMPLETION_INDEX, POLICY, NodePod, read
from tests.support.json_patch import PatchFailed, patched

GPU = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
CPU = {"name": "main", "resources": {"limits": {"cpu": "1"}}}
JOBS = ("bert", "llama")
ENDS_AFTER = 30.0
# What makes a pod one that must not be evicted, or need not be.
KEPT: Sequence[Mapping[str, Any]] = (
    {"metadata": {"annotations": {POLICY: "never"}}},
    {"metadata": {"namespace": "kube-system"}},
    {"metadata": {"namespace": "gpu"}},
    {"metadata": {"ownerReferences": []}},
    {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}},
    {"spec": {"priority": 2_000_000_000}},
    {"spec": {"containers": [CPU]}},
    {"status": {"phase": "Succeeded"}},
)


class Pods:
    """All pods by UID. `allowed` is how many pods of each app may be evicted now. `begun` are the jobs, by UIDs, whose
    eviction was begun; `excused` are pods whose eviction was refused although a job's had begun."""

    def __init__(self, choose: random.Random, nodes: Sequence[str]) -> None:
        self._random, self._nodes = choose, nodes
        self.items: dict[str, Any] = {}
        self.allowed = {"web": 1, **dict.fromkeys(JOBS, 9)}
        self.evicted: Counter[str] = Counter()
        self.begun: list[frozenset[str]] = []
        self.excused: set[str] = set()
        self.told: dict[str, tuple[float, float]] = {}
        self._ends: dict[str, float] = {}
        self.version = 0
        for node in nodes:
            for _ in range(choose.randrange(3)):
                self.create(node, {"labels": {"app": "web"}})
            if choose.random() < 0.5:
                kept = choose.choice(KEPT)
                self.create(node, kept.get("metadata", {}), kept.get("spec", {}), kept.get("status", {}))
            if choose.random() < 0.2:
                self.create(node, {"annotations": {CHECKPOINT: "60s"}})
            for job in JOBS:
                if choose.random() < 0.5:
                    annotations = {CHECKPOINT: "90s"} if job == "llama" and choose.random() < 0.3 else {}
                    self.create(
                        node,
                        {"labels": {"app": job, "job-name": job, COMPLETION_INDEX: "0"}, "annotations": annotations},
                    )

    def create(self, node: str, metadata: Any, spec: Any = None, status: Any = None) -> None:
        """Create a pod."""
        self.version += 1
        uid = f"pod-{self.version}"
        owners = [{"kind": "ReplicaSet", "controller": True}]
        about = {
            "namespace": "team",
            "name": uid,
            "uid": uid,
            "labels": {},
            "annotations": {},
            "ownerReferences": owners,
        }
        item = {
            "metadata": {**about, **metadata},
            "spec": {"nodeName": node, "containers": [GPU], **(spec or {})},
            "status": {"phase": "Running", **(status or {})},
        }
        self._put(item)

    def _put(self, item: Any, **metadata: Any) -> None:
        """Store an object with these metadata as a new version."""
        self.version += 1
        metadata = {**item["metadata"], **metadata, "resourceVersion": str(self.version)}
        self.items[metadata["uid"]] = {**item, "metadata": metadata}

    # --- what happens -------------------------------------------------------------------------------------------------

    def go_on(self, now: float, free: Sequence[str]) -> None:
        """End the pods that are due, and create their successors on nodes that take pods."""
        for uid, at in [*self._ends.items()]:
            if at <= now:
                del self._ends[uid]
                item = self.items.pop(uid)
                app = item["metadata"]["labels"].get("app")
                if app in self.allowed:
                    self.allowed[app] += 1
                if free:
                    metadata = {key: item["metadata"][key] for key in ("labels", "ownerReferences", "namespace")}
                    self.create(self._random.choice(free), metadata, {"containers": item["spec"]["containers"]})

    def disturb(self, now: float) -> None:
        """A person protects or deletes a pod, a pod changes, or a disruption budget does."""
        uid = self._random.choice([*self.items] or [""])
        match self._random.randrange(4):
            case 0:
                self.allowed[self._random.choice([*self.allowed])] = self._random.randrange(3)
            case 1 if uid:
                annotations = self.items[uid]["metadata"]["annotations"]
                policy = self._random.choice(("never", "evict"))
                self._put(self.items[uid], annotations={**annotations, POLICY: policy})
            case 2 if uid:
                self._put(self.items[uid])
            case 3 if uid:
                self._terminate(uid, now)

    def _terminate(self, uid: str, now: float) -> None:
        if not self.items[uid]["metadata"].get("deletionTimestamp"):
            self._put(self.items[uid], deletionTimestamp="now")
            self._ends[uid] = now + ENDS_AFTER

    # --- requests -----------------------------------------------------------------------------------------------------

    def on(self, node: str) -> list[PodObject]:
        """Return the pods of a node."""
        return [item for item in self.items.values() if item["spec"]["nodeName"] == node]

    def of(self, namespace: str, label: str, value: str) -> list[PodObject]:
        """Return the pods of a namespace with a label."""
        return [
            item
            for item in self.items.values()
            if item["metadata"]["namespace"] == namespace and item["metadata"]["labels"].get(label) == value
        ]

    def budgets(self) -> list[BudgetObject]:
        """Return the PodDisruptionBudgets."""
        return [
            {
                "metadata": {"name": app},
                "spec": {"selector": {"matchLabels": {"app": app}}},
                "status": {"disruptionsAllowed": allowed},
            }
            for app, allowed in self.allowed.items()
        ]

    def patch(self, name: str, operations: Sequence[Operation], now: float) -> None:
        """Apply a patch of a pod's annotations, which tells when it is evicted."""
        if name not in self.items:
            raise LookupFailed("not_found", name)
        try:
            new = patched(self.items[name], operations)
        except PatchFailed as error:
            raise LookupFailed("conflict", str(error)) from error
        assert new["spec"] == self.items[name]["spec"]
        self._put(new)
        self.told[name] = now, read(self.items[name]).evict_after or 0.0

    def evict(self, name: str, uid: str, version: str, now: float, *, dry_run: bool) -> None:
        """Evict a pod, and check that it may be."""
        if name not in self.items:
            raise LookupFailed("not_found", name)
        pod = read(self.items[name])
        if (pod.uid, pod.version) != (uid, version):
            raise LookupFailed("conflict", name)
        self._check(pod, now)
        app = pod.labels.get("app", "")
        if self.allowed.get(app, 1) <= 0:
            if not dry_run:
                self.excused.add(uid)
            raise LookupFailed("too_many_requests", name)
        if not dry_run:
            if app in self.allowed:
                self.allowed[app] -= 1
            self.evicted[uid] += 1
            self._terminate(uid, now)

    # --- what must always hold ----------------------------------------------------------------------------------------

    def _check(self, pod: NodePod, now: float) -> None:
        assert not pod.terminating, f"{pod} is evicted although it ends"
        assert not self.evicted[pod.uid], f"{pod} is evicted twice"
        assert not is_kept(pod), f"{pod} is protected"
        if CHECKPOINT in pod.annotations:
            told, after = self.told.get(pod.uid, (now, now))
            wanted = duration(pod.annotations[CHECKPOINT])
            assert now >= after, f"{pod} is evicted before the time that it was told"
            assert now - told >= wanted - 1, f"{pod} had only {now - told:.0f} s for its checkpoint"

    def members(self, pod: NodePod) -> set[str]:
        """Return the UIDs of the live pods of a pod's job."""
        job = pod.labels.get("job-name", "")
        found = map(read, self.of(pod.namespace, "job-name", job) if job else list[PodObject]())
        return {each.uid for each in found if not each.terminating and not each.ended and each.has_gpus}

    def check_begun(self, uids: frozenset[str], allowed: Mapping[str, int]) -> None:
        """The eviction of a job begins only if the disruption budgets, as they were read, allow all of it."""
        apps = Counter(read(self.items[uid]).labels.get("app", "") for uid in uids & {*self.items})
        assert all(count <= allowed.get(app, 0) for app, count in apps.items()), f"{apps} with {allowed}"

    def check_jobs(self) -> None:
        """Each job has lost all its pods or none by evictions."""
        for uids in self.begun:
            left = {uid for uid in uids & {*self.items} if not read(self.items[uid]).terminating}
            left = {uid for uid in left if not is_kept(read(self.items[uid]))}
            lost = [uid for uid in uids if self.evicted[uid]]
            assert not (lost and left and not uids & self.excused), f"a job lost {lost}, but not {left}"


def is_kept(pod: NodePod) -> bool:
    """Return whether a pod must not be evicted, or need not be."""
    return (
        pod.annotations.get(POLICY) == "never"
        or pod.namespace != "team"
        or pod.owner in ("", "DaemonSet")
        or pod.priority > 1_000_000_000
        or not pod.has_gpus
        or pod.ended
    )
