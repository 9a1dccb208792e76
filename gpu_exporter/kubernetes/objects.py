"""What the exporter reads of the API server's objects. Other fields are skipped and never stored."""

from __future__ import annotations

from typing import TypedDict

# The UID by which the cgroups of a static pod are named, and the GPUs that the schedulers of HAMi and Volcano chose.
Annotations = TypedDict(
    "Annotations",
    {"kubernetes.io/config.hash": str, "hami.io/vgpu-devices-allocated": str, "volcano.sh/vgpu-ids-new": str},
    total=False,
)


class OwnerReference(TypedDict, total=False):
    """The object that made another one; `controller` is set for the one that manages it."""

    kind: str
    name: str
    controller: bool


class Metadata(TypedDict, total=False):
    """Metadata of an object, and of an event without an object."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: dict[str, str] | None
    annotations: Annotations | None
    ownerReferences: list[OwnerReference] | None


class PodStatus(TypedDict, total=False):
    """The phase of a pod."""

    phase: str


class Attribute(TypedDict, total=False):
    """A value of a device attribute, if it is text."""

    string: str


class BasicDevice(TypedDict, total=False):
    """The attributes of a device by name."""

    attributes: dict[str, Attribute] | None


class Device(BasicDevice, total=False):
    """A device of a ResourceSlice. Until v1beta1 its attributes are in `basic`."""

    name: str
    basic: BasicDevice | None


class Pool(TypedDict, total=False):
    """The pool of a ResourceSlice."""

    name: str
    generation: int


class SliceSpec(TypedDict, total=False):
    """The spec of a ResourceSlice; that of a pod has none of these fields."""

    driver: str
    pool: Pool | None
    devices: list[Device] | None


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


class Event(EventHead):
    """An event of a watch."""

    object: Object


class Failure(TypedDict, total=False):
    """The object of an ERROR event."""

    code: int
    message: str


class FailureEvent(EventHead):
    """An event that ends a watch."""

    object: Failure


class GroupVersion(TypedDict, total=False):
    """A version of an API group."""

    version: str


class ApiGroup(TypedDict):
    """The versions of an API group that the server has."""

    versions: list[GroupVersion]
