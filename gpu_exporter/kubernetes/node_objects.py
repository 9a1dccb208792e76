"""What the remediation controller reads of nodes, of the exporter's pods and of its Lease."""

from __future__ import annotations

from typing import Any, TypedDict

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


class PodSpec(TypedDict, total=False):
    """The node of a pod."""

    nodeName: str


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
