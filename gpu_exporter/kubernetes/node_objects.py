"""What the remediation controller reads of nodes, pods, disruption budgets and its Lease."""

from __future__ import annotations

from typing import Any, TypedDict

from gpu_exporter.kubernetes.objects import OwnerReference

FieldsV1 = TypedDict("FieldsV1", {"f:spec": dict[str, Any]}, total=False)


class ManagedFields(TypedDict, total=False):
    """The fields that a client has written."""

    manager: str
    fieldsV1: FieldsV1 | None


class FullMetadata(TypedDict, total=False):
    """Metadata with all annotations, and who wrote which field."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    managedFields: list[ManagedFields] | None
    ownerReferences: list[OwnerReference] | None
    deletionTimestamp: str | None


class NodeSpec(TypedDict, total=False):
    """Whether a node is cordoned, and its taints with all their keys."""

    unschedulable: bool
    taints: list[dict[str, Any]] | None


class NodeCondition(TypedDict, total=False):
    """A condition of a node."""

    type: str
    status: str


class NodeInfo(TypedDict, total=False):
    """The boot of a node."""

    bootID: str


class NodeStatus(TypedDict, total=False):
    """The state of a node as kubelet reports it."""

    conditions: list[NodeCondition] | None
    nodeInfo: NodeInfo
    capacity: dict[str, str] | None


class NodeObject(TypedDict, total=False):
    """A node."""

    metadata: FullMetadata
    spec: NodeSpec
    status: NodeStatus


class NodeList(TypedDict):
    """A page of nodes."""

    items: list[NodeObject] | None


class Resources(TypedDict, total=False):
    """The resources of a container; those of devices are always limits, too."""

    limits: dict[str, str] | None


class Container(TypedDict, total=False):
    """A container."""

    resources: Resources


class PodSpec(TypedDict, total=False):
    """The node, the priority and the resources of a pod. Of `resourceClaims`, only whether there are any matters."""

    nodeName: str
    priority: int | None
    containers: list[Container] | None
    initContainers: list[Container] | None
    resourceClaims: list[dict[str, Any]] | None


class PodStatus(TypedDict, total=False):
    """The phase and the address of a pod."""

    phase: str
    podIP: str


class PodObject(TypedDict, total=False):
    """A pod."""

    metadata: FullMetadata
    spec: PodSpec
    status: PodStatus


class PodList(TypedDict):
    """A page of pods."""

    items: list[PodObject] | None


class Requirement(TypedDict, total=False):
    """An expression of a label selector."""

    key: str
    operator: str
    values: list[str] | None


class Selector(TypedDict, total=False):
    """A label selector."""

    matchLabels: dict[str, str] | None
    matchExpressions: list[Requirement] | None


class BudgetSpec(TypedDict, total=False):
    """The pods of a PodDisruptionBudget."""

    selector: Selector | None


class BudgetStatus(TypedDict, total=False):
    """How many more pods may be evicted now."""

    disruptionsAllowed: int


class BudgetObject(TypedDict, total=False):
    """A PodDisruptionBudget."""

    metadata: FullMetadata
    spec: BudgetSpec
    status: BudgetStatus


class BudgetList(TypedDict):
    """A page of PodDisruptionBudgets."""

    items: list[BudgetObject] | None


class Resource(TypedDict, total=False):
    """A resource that the server has, and its group and version if they are not those of the list."""

    name: str
    group: str
    version: str


class ResourceList(TypedDict):
    """The resources of a group and version."""

    resources: list[Resource] | None


class LeaseSpec(TypedDict, total=False):
    """Who holds a Lease, and for how long."""

    holderIdentity: str | None
    leaseDurationSeconds: int | None
    acquireTime: str | None
    renewTime: str | None
    leaseTransitions: int | None


class LeaseObject(TypedDict, total=False):
    """A Lease."""

    metadata: FullMetadata
    spec: LeaseSpec


class Ignored(TypedDict, total=False):
    """An answer whose content does not matter."""
