"""What an API server answers to evictions: the fake one of CI, and a real one in `tests.soak.remediation_cluster`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import patches
from gpu_exporter.remediation.cluster import KubernetesCluster
from gpu_exporter.remediation.pods import EVICT_AFTER, NodePod, read

EXPECTED: Mapping[str, str] = {
    "an old version": "conflict",
    "another UID": "conflict",
    "no pod": "not_found",
    "a disruption budget": "too_many_requests",
    "a disruption budget, dry run": "too_many_requests",
    "dry run": "ok",
    "announcement": "ok",
    "announcement, old version": "conflict",
    "a pod": "ok",
}


def answers(cluster: KubernetesCluster, free: NodePod, kept: NodePod) -> Mapping[str, str]:
    """Return the answers to evictions of a pod, and of one that a disruption budget keeps. The first one goes."""

    def now() -> NodePod:
        return next(pod for pod in map(read, cluster.pods_on(free.node, fresh=True)) if pod.uid == free.uid)

    def evict(pod: NodePod, *, dry_run: bool = False) -> Callable[[], None]:
        return lambda: cluster.evict(pod.namespace, pod.name, pod.uid, pod.version, dry_run=dry_run)

    def announce(pod: NodePod) -> Callable[[], None]:
        return lambda: cluster.patch_pod(pod.namespace, pod.name, patches.announcement(pod, 0.0), dry_run=False)

    first = now()
    found = {
        "an old version": _answer(evict(replace(first, version="1"))),
        "another UID": _answer(evict(replace(first, uid="00000000-0000-0000-0000-000000000000"))),
        "no pod": _answer(evict(replace(first, name="absent"))),
        "a disruption budget": _answer(evict(kept)),
        "a disruption budget, dry run": _answer(evict(kept, dry_run=True)),
        "dry run": _answer(evict(first, dry_run=True)),
        "announcement": _answer(announce(now())),
        "announcement, old version": _answer(announce(first)),
    }
    assert EVICT_AFTER in now().annotations
    return {**found, "a pod": _answer(evict(now()))}


def _answer(ask: Callable[[], None]) -> str:
    try:
        ask()
    except LookupFailed as error:
        return error.reason
    return "ok"
