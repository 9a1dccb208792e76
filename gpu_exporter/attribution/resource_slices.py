"""ResourceSlices of NVIDIA's driver for resource claims -> the GPU that a device of a pool is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_exporter.attribution.listing import DRIVER
from gpu_exporter.kubernetes.client import Api, Object
from gpu_exporter.model.lookup import LookupFailed

GROUP = "/apis/resource.k8s.io"
# The newest that the server has is asked for. Those before v1beta1 had no slices of this form.
VERSIONS = ("v1", "v1beta2", "v1beta1")


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: the UUID of a GPU or MIG device by device name, or "" where the driver does not publish one."""

    pool: str
    generation: int
    devices: Mapping[str, str]


def path(api: Api) -> str:
    """Where the server lists slices. Raises LookupFailed if it does not."""
    served = api.get(GROUP).get("versions")
    known = {each.get("version") for each in served or () if isinstance(each, dict)}
    version = next((each for each in VERSIONS if each in known), None)
    if version is None:
        raise LookupFailed(
            "not_found", f"API server: {GROUP} has none of {', '.join(VERSIONS)}: switch --kubernetes-dra off"
        )
    return f"{GROUP}/{version}/resourceslices"


def read(item: Object) -> Slice | None:
    """A slice; None if it is another driver's."""
    spec = item.get("spec")
    if not isinstance(spec, dict) or spec.get("driver") != DRIVER:
        return None
    pool = spec.get("pool") or {}
    devices = {}
    for device in spec.get("devices") or ():
        # until v1beta1 one level deeper
        attributes = (device.get("basic") or device).get("attributes") or {}
        kind = _attribute(attributes, "type")
        if kind in ("gpu", "mig"):
            devices[str(device.get("name", ""))] = _attribute(attributes, "uuid")
    return Slice(str(pool.get("name", "")), int(pool.get("generation") or 0), devices)


def _attribute(attributes: Object, name: str) -> str:
    """A driver's own attributes may be written with its name before them."""
    value = attributes.get(name) or attributes.get(f"{DRIVER}/{name}") or {}
    return str(value.get("string") or value.get("stringValue") or "") if isinstance(value, dict) else ""


def uuids(slices: Iterable[Slice]) -> Mapping[tuple[str, str], str]:
    """UUIDs by pool and device, of each pool's newest generation: of older ones a pool may still have slices."""
    slices = list(slices)
    newest: dict[str, int] = {}
    for each in slices:
        newest[each.pool] = max(newest.get(each.pool, 0), each.generation)
    return {
        (each.pool, device): uuid
        for each in slices
        if each.generation == newest[each.pool]
        for device, uuid in each.devices.items()
    }
