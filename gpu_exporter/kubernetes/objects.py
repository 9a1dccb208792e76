"""What is read of the API server's objects. Other fields are skipped and never stored.

The exporter reads pods and ResourceSlices, of which it keeps many, with few of their fields; the remediation controller
reads nodes, pods, disruption budgets and its Lease.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, TypedDict

# Whole GPUs, shares of a GPU (time-slicing, MPS), and MIG instances, as NVIDIA's device plugin names them. Below
# nvidia.com/ there are also network cards (hostdev, rdma_*), amounts (gpumem, gpucores), and GPUs that are handed to
# VMs (GV100GL_Tesla_V100): their device ids are PCI addresses, IOMMU groups or numbers, not GPUs of this node.
_GPU = re.compile(r"nvidia[.]com/(?:gpu|gpu[.]shared|mig-.+)")


def is_gpu(resource: str, configured: Collection[str] = ()) -> bool:
    """Return whether a resource is GPUs, shares or instances of them; `configured` are further names."""
    return resource in configured or _GPU.fullmatch(resource) is not None


# The UID by which the cgroups of a static pod are named, and the GPUs that the schedulers of HAMi and Volcano chose.
Annotations = TypedDict(
    "Annotations",
    {"kubernetes.io/config.hash": str, "hami.io/vgpu-devices-allocated": str, "volcano.sh/vgpu-ids-new": str},
    total=False,
)


class OwnerReference(TypedDict, total=False):
    """The object that made another one; `controller` is set for the one that manages it."""

    apiVersion: str
    kind: str
    name: str
    controller: bool


def is_job(owner: OwnerReference) -> bool:
    """Return whether an owner is a Job of Kubernetes: Volcano has a kind of the same name."""
    return owner.get("kind") == "Job" and owner.get("apiVersion", "batch/v1").startswith("batch/")


class _Identity(TypedDict, total=False):
    """The part of the metadata that every reader needs."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: dict[str, str] | None
    ownerReferences: list[OwnerReference] | None


class Metadata(_Identity, total=False):
    """Metadata of an object, and of an event without an object, with few annotations: the exporter keeps those of
    every pod of its node."""

    annotations: Annotations | None


class PodStatus(TypedDict, total=False):
    """The phase and the address of a pod."""

    phase: str
    podIP: str


class Attribute(TypedDict, total=False):
    """A value of a device attribute, if it is text."""

    string: str


class BasicDevice(TypedDict, total=False):
    """The attributes of a device by name."""

    attributes: dict[str, Attribute] | None


class SliceDevice(BasicDevice, total=False):
    """A device of a ResourceSlice. Until v1beta1 its attributes are in `basic`."""

    name: str
    basic: BasicDevice | None


class SlicePool(TypedDict, total=False):
    """The pool of a ResourceSlice."""

    name: str
    generation: int


class SliceSpec(TypedDict, total=False):
    """The spec of a ResourceSlice; that of a pod has none of these fields."""

    driver: str
    pool: SlicePool | None
    devices: list[SliceDevice] | None


class Object(TypedDict, total=False):
    """A pod or a ResourceSlice."""

    metadata: Metadata
    spec: SliceSpec
    status: PodStatus


# `continue` is a keyword.
ListMetadata = TypedDict("ListMetadata", {"continue": str, "resourceVersion": str}, total=False)


class ListHead(TypedDict):
    """The metadata of a page of a list."""

    metadata: ListMetadata


class ObjectList(TypedDict):
    """A page of a list. Go writes an empty list as null, but never leaves it out."""

    metadata: ListMetadata
    items: list[Object] | None


class EventHead(TypedDict):
    """The type of an event, which decides what its object is."""

    type: str


class WatchEvent(EventHead):
    """An event of a watch."""

    object: Object


class WatchFailure(TypedDict, total=False):
    """The object of an ERROR event."""

    code: int
    message: str


class FailureEvent(EventHead):
    """An event that ends a watch."""

    object: WatchFailure


class GroupVersion(TypedDict, total=False):
    """A version of an API group."""

    version: str


class ApiGroup(TypedDict):
    """The versions of an API group that the server has."""

    versions: list[GroupVersion]


FieldsV1 = TypedDict("FieldsV1", {"f:spec": dict[str, Any]}, total=False)


class ManagedFields(TypedDict, total=False):
    """The fields that a client has written."""

    manager: str
    fieldsV1: FieldsV1 | None


class FullMetadata(_Identity, total=False):
    """Metadata with all annotations, and who wrote which field."""

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


class PodCondition(TypedDict, total=False):
    """A condition of pods in a podFailurePolicy."""

    type: str


class FailureRule(TypedDict, total=False):
    """A rule of a podFailurePolicy."""

    action: str
    onPodConditions: list[PodCondition] | None


class FailurePolicy(TypedDict, total=False):
    """Which failures of pods count."""

    rules: list[FailureRule] | None


class JobSpec(TypedDict, total=False):
    """How many failures of its pods a Job tolerates."""

    backoffLimit: int | None
    backoffLimitPerIndex: int | None
    podFailurePolicy: FailurePolicy | None


class JobStatus(TypedDict, total=False):
    """How many pods of a Job have failed."""

    failed: int


class JobObject(TypedDict, total=False):
    """A Job."""

    metadata: FullMetadata
    spec: JobSpec
    status: JobStatus


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
