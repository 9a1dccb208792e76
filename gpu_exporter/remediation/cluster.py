"""The requests that the controller makes: to the API server, and to the exporter of each node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gpu_exporter.http.client import Remote
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.user_text import duration
from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.objects import (
    ApiGroup,
    BudgetList,
    BudgetObject,
    Ignored,
    JobObject,
    LeaseObject,
    NodeList,
    NodeObject,
    PodList,
    PodObject,
    ResourceList,
)
from gpu_exporter.kubernetes.writer import KubernetesWriter, Operation
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import evidence
from gpu_exporter.remediation.evidence import Evidence
from gpu_exporter.remediation.settings import Exporters, NodePool, Settings
from gpu_exporter.remediation.state import WatchedNode

T = TypeVar("T")
NODES = "/api/v1/nodes"
# `kubectl describe node` looks for events in this namespace: nodes have none.
EVENTS = "/api/v1/namespaces/default/events"
PODS = "/api/v1/pods"
POLICY = "/apis/policy"


class Cluster(Protocol):
    """What the controller asks of the API server. Every method raises LookupFailed."""

    def nodes(self) -> Sequence[NodeObject]:
        """Return all nodes; they may be old."""

    def node(self, name: str) -> NodeObject | None:
        """Return a node as it is now; None if there is none."""

    def patch_node(self, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        """Change a node. Raises LookupFailed with the reason `conflict` if it has changed since it was read."""

    def addresses(self) -> Mapping[str, Sequence[str]]:
        """Return the addresses of the running exporter pods of each node."""

    def pods_on(self, node: str, *, fresh: bool) -> Sequence[PodObject]:
        """Return the pods of a node; unless `fresh`, they may be old."""

    def pods_of(self, namespace: str, label: str, value: str, *, fresh: bool) -> Sequence[PodObject]:
        """Return the pods of a namespace with a label; unless `fresh`, they may be old."""

    def budgets(self, namespace: str) -> Sequence[BudgetObject]:
        """Return the PodDisruptionBudgets of a namespace as they are now."""

    def job(self, namespace: str, name: str) -> JobObject | None:
        """Return a Job as it is now; None if there is none."""

    def patch_pod(self, namespace: str, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        """Change the annotations of a pod. Raises LookupFailed as `patch_node` does."""

    def evict(self, namespace: str, name: str, uid: str, version: str, *, dry_run: bool) -> None:
        """Evict a pod if it is still the one that was read.

        Raises LookupFailed: `conflict` if it has changed, `too_many_requests` if a disruption budget does not allow it.
        """

    def lease(self) -> LeaseObject | None:
        """Return the controller's Lease; None if there is none."""

    def create_lease(self, lease: LeaseObject) -> LeaseObject:
        """Create the Lease and return it."""

    def patch_lease(self, operations: Sequence[Operation]) -> LeaseObject:
        """Change the Lease and return it."""

    def create_event(self, event: Mapping[str, Any], *, dry_run: bool) -> None:
        """Create an Event about a node."""


class KubernetesCluster:
    """The API server of this pod's cluster. For one thread."""

    def __init__(self, api: KubernetesWriter, settings: Settings) -> None:
        self._api, self._exporters = api, settings.exporters
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self._lease = f"{self._leases}/{settings.lease}"
        self._eviction = ""

    def nodes(self) -> Sequence[NodeObject]:
        """Return all nodes; they may be old."""
        found = [item for page in self._api.pages(NODES, NodeList) for item in page["items"] or ()]
        if len(found) > limits.MOST_OBJECTS:
            raise LookupFailed("too_large", f"API server: more than {limits.MOST_OBJECTS} nodes")
        return found

    def node(self, name: str) -> NodeObject | None:
        """Return a node as it is now; None if there is none."""
        return self._find(f"{NODES}/{name}", NodeObject)

    def _find(self, path: str, kind: type[T]) -> T | None:
        """Return an object as it is now; None if there is none."""
        try:
            return self._api.get(path, kind)
        except LookupFailed as error:
            if error.reason == "not_found":
                return None
            raise

    def patch_node(self, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        """Change a node; with `dry_run`, only check whether it could be changed."""
        self._api.patch(f"{NODES}/{name}", operations, Ignored, dry_run=dry_run)

    def addresses(self) -> Mapping[str, Sequence[str]]:
        """Return the addresses of the running exporter pods of each node: identity is `spec.nodeName`, not a label."""
        path = f"/api/v1/namespaces/{self._exporters.namespace}/pods"
        found: dict[str, list[str]] = defaultdict(list)
        for page in self._api.pages(path, PodList, labelSelector=self._exporters.selector):
            for pod in page["items"] or ():
                address = pod.get("status", {}).get("podIP", "")
                running = pod.get("status", {}).get("phase") == "Running"
                if address and running and not pod.get("metadata", {}).get("deletionTimestamp"):
                    found[pod.get("spec", {}).get("nodeName", "")].append(address)
        return found

    def pods_on(self, node: str, *, fresh: bool) -> Sequence[PodObject]:
        """Return the pods of a node; unless `fresh`, they may be old."""
        pages = self._api.pages(PODS, PodList, fresh=fresh, fieldSelector=f"spec.nodeName={node}")
        return [pod for page in pages for pod in page["items"] or ()]

    def pods_of(self, namespace: str, label: str, value: str, *, fresh: bool) -> Sequence[PodObject]:
        """Return the pods of a namespace with a label; unless `fresh`, they may be old."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        pages = self._api.pages(path, PodList, fresh=fresh, labelSelector=f"{label}={value}")
        return [pod for page in pages for pod in page["items"] or ()]

    def budgets(self, namespace: str) -> Sequence[BudgetObject]:
        """Return the PodDisruptionBudgets of a namespace as they are now."""
        served = {group.get("version") for group in self._api.get(POLICY, ApiGroup)["versions"]}
        version = "v1" if "v1" in served else "v1beta1"
        path = f"{POLICY}/{version}/namespaces/{namespace}/poddisruptionbudgets"
        return [budget for page in self._api.pages(path, BudgetList, fresh=True) for budget in page["items"] or ()]

    def job(self, namespace: str, name: str) -> JobObject | None:
        """Return a Job as it is now; None if there is none."""
        return self._find(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}", JobObject)

    def patch_pod(self, namespace: str, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        """Change the annotations of a pod.

        By its status: the right to change that cannot be used to change what the pod runs.
        """
        self._api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", operations, Ignored, dry_run=dry_run)

    def evict(self, namespace: str, name: str, uid: str, version: str, *, dry_run: bool) -> None:
        """Evict a pod if it is still the one that was read."""
        self._eviction = self._eviction or self._eviction_version()
        eviction = {
            "apiVersion": f"policy/{self._eviction}",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid, "resourceVersion": version}},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        try:
            self._api.create(path, eviction, Ignored, dry_run=dry_run)
        except LookupFailed:
            self._eviction = ""  # the server may have another version by now
            raise

    def _eviction_version(self) -> str:
        """Return the version of Eviction that the server has: not always that of other objects of its group."""
        listed = self._api.get("/api/v1", ResourceList)["resources"] or ()
        versions = {one.get("version", "") for one in listed if one.get("name") == "pods/eviction"}
        return "v1" if "v1" in versions else "v1beta1"

    def lease(self) -> LeaseObject | None:
        """Return the controller's Lease; None if there is none."""
        return self._find(self._lease, LeaseObject)

    def create_lease(self, lease: LeaseObject) -> LeaseObject:
        """Create the Lease and return it."""
        return self._api.create(self._leases, lease, LeaseObject)

    def patch_lease(self, operations: Sequence[Operation]) -> LeaseObject:
        """Change the Lease and return it."""
        return self._api.patch(self._lease, operations, LeaseObject)

    def create_event(self, event: Mapping[str, Any], *, dry_run: bool) -> None:
        """Create an Event about a node."""
        self._api.create(EVENTS, event, Ignored, dry_run=dry_run)


def ask(exporters: Exporters, node: WatchedNode, addresses: Sequence[str], pool: NodePool) -> Evidence:
    """Return what the exporter of a node says. Any failure is an unknown, with the reason. Any thread may call it."""
    if not addresses:
        return evidence.unknown("no exporter pod runs on it")
    if len(addresses) > 1:
        return evidence.unknown(f"{len(addresses)} exporter pods run on it: only one may")
    (address,) = addresses
    host = f"[{address}]" if ":" in address else address
    remote = Remote(
        f"{exporters.scheme}://{host}:{exporters.port}",
        user=exporters.user,
        password_file=_path(exporters.password_file),
        ca_file=_path(exporters.ca_file),
        server_name=exporters.server_name,
    )
    try:
        answer = remote.get("/api/v1/node", duration(exporters.timeout))
    except GpuExporterError as error:
        return evidence.unknown(f"the exporter does not answer: {printable(str(error), 200)}")
    return evidence.judge(answer, node.name, node.boot, degraded=pool.degraded)


def _path(text: str) -> Path | None:
    return Path(text) if text else None
