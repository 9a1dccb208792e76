"""ResourceSlices of NVIDIA's DRA driver -> the GPU behind each device of a pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.client import Api
from gpu_exporter.kubernetes.objects import ApiGroup, Attribute, Object
from gpu_exporter.model.lookup import Incomplete, LookupFailed
from gpu_exporter.owners.devices import DRIVER

GROUP = "/apis/resource.k8s.io"
# The newest that the server has is used. Versions before v1beta1 had no slices of this form.
VERSIONS = ("v1", "v1beta2", "v1beta1")


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice. `devices` has the UUID of each GPU or MIG device by name, or "" where the driver publishes none."""

    pool: str
    generation: int
    devices: Mapping[str, str]


def path(api: Api) -> str:
    """Return the path of the list of slices. Raises LookupFailed if the server has none."""
    try:
        served = {group.get("version") for group in api.get(GROUP, ApiGroup)["versions"]}
    except LookupFailed as error:
        if error.reason != "not_found":
            raise
        served = set()  # the server does not have the group
    version = next((version for version in VERSIONS if version in served), None)
    if version is None:
        message = f"API server: {GROUP} has none of {', '.join(VERSIONS)}"
        raise LookupFailed("not_found", message, fix="switch --kubernetes-dra off")
    return f"{GROUP}/{version}/resourceslices"


def read(item: Object) -> Slice | None:
    """Return a slice; None if it is another driver's. Raises Incomplete if it exceeds a limit."""
    spec = item.get("spec", {})
    if spec.get("driver") != DRIVER:
        return None
    pool, listed = spec.get("pool") or {}, spec.get("devices") or ()
    limits.check_length("the pool", pool.get("name", ""), limits.LONGEST_POOL)
    if len(listed) > limits.MOST_SLICE_DEVICES:
        why = f"a ResourceSlice has {len(listed)} devices, more than {limits.MOST_SLICE_DEVICES}: it is left out"
        raise Incomplete("too_many", why)
    devices = {}
    for device in listed:
        # one level deeper until v1beta1
        attributes = (device.get("basic") or device).get("attributes") or {}
        if _attribute(attributes, "type") in ("gpu", "mig"):
            name, uuid = device.get("name", ""), _attribute(attributes, "uuid")
            limits.check_length("the device", name, limits.LONGEST_DEVICE)
            limits.check_length("the UUID", uuid, limits.LONGEST_DEVICE)
            devices[name] = uuid
    return Slice(pool.get("name", ""), pool.get("generation", 0), devices)


def _attribute(attributes: Mapping[str, Attribute], name: str) -> str:
    """Return a text attribute, whose name may be qualified with the driver's."""
    value: Attribute = attributes.get(name) or attributes.get(f"{DRIVER}/{name}") or {}
    return value.get("string", "")


def uuids(slices: Iterable[Slice]) -> Mapping[tuple[str, str], str]:
    """Return UUIDs by pool and device, of each pool's newest generation: slices of older ones may still exist."""
    slices = list(slices)
    newest: dict[str, int] = {}
    for slice_ in slices:
        newest[slice_.pool] = max(newest.get(slice_.pool, 0), slice_.generation)
    return {
        (slice_.pool, device): uuid
        for slice_ in slices
        if slice_.generation == newest[slice_.pool]
        for device, uuid in slice_.devices.items()
    }
