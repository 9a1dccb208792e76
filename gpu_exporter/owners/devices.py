"""Device ids of device plugins, drivers of resource claims and Slurm -> a GPU of this node, or an instance of it.

kubelet lists such devices with the containers that have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpu_exporter.model.gpu import Gpu, by_device_file

# The name of NVIDIA's driver for resource claims of GPUs.
DRIVER = "gpu.nvidia.com"


class Allocated(NamedTuple):
    """A device, by its id, that a device plugin allocated to a container."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str


class Claimed(NamedTuple):
    """A device, by its name in a pool, that a container has through a resource claim."""

    namespace: str
    pod: str
    container: str
    pool: str
    device: str


class Listing(NamedTuple):
    """All NVIDIA devices that kubelet lists, sorted."""

    allocated: tuple[Allocated, ...] = ()
    claimed: tuple[Claimed, ...] = ()


_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# Replicas of a shared device are numbered after `::` by NVIDIA's plugin, after `/vgpu` by GKE's. Other plugins write
# `-` (HAMi, Volcano, AWS), `-_-` (Alibaba) or `__` (nvshare), which are unambiguous only after a UUID.
_REPLICA = re.compile(
    rf"(?:(?P<id>.+?)(?:::|/vgpu)|(?P<of_uuid>(?:GPU|MIG|MIG-GPU)-{_UUID}(?:/\d{{1,3}}/\d{{1,3}})?)[-_]{{1,3}})"
    r"(?P<n>\d{1,6})",
    re.ASCII,
)
_LEGACY_MIG = re.compile(rf"MIG-(?P<uuid>GPU-{_UUID})/(?P<instance>\d{{1,3}})/\d{{1,3}}", re.ASCII)
_GKE = re.compile(r"(?P<device>nvidia\d{1,4})(?:/gi(?P<instance>\d{1,3}))?", re.ASCII)
_INDEX = re.compile(r"(?P<index>\d{1,4})(?:\.(?P<instance>\d{1,3}))?", re.ASCII)


class DeviceRef(NamedTuple):
    """A device of this node: a GPU by UUID, with one of its GPU instances, or "" for the whole GPU."""

    uuid: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class DeviceId:
    """A parsed id. Exactly one of `uuid`, `mig`, `device` (`nvidia0`, by minor number) and `index` is set."""

    uuid: str = ""
    mig: str = ""
    device: str = ""
    index: str = ""
    instance: str = ""
    replica: str = ""


def parse(text: str) -> DeviceId | None:
    """Parse an id; None if its form is unknown.

    `GPU-<uuid>`, `MIG-<uuid>`, `MIG-GPU-<uuid>/<gi>/<ci>` (drivers before 470), an index (`0`, of an instance `0.2`),
    `nvidia<minor>`, `nvidia<minor>/gi<gi>`; each may be a replica: `…::<n>`, `…/vgpu<n>`; with a UUID also `…-<n>`,
    `…-_-<n>`, `…__<n>`.
    """
    replica = ""
    if shared := _REPLICA.fullmatch(text):
        text, replica = shared["id"] or shared["of_uuid"], shared["n"]
    if re.fullmatch(f"GPU-{_UUID}", text):
        return DeviceId(uuid=text, replica=replica)
    if re.fullmatch(f"MIG-{_UUID}", text):
        return DeviceId(mig=text, replica=replica)
    if match := _LEGACY_MIG.fullmatch(text):
        return DeviceId(uuid=match["uuid"], instance=_number(match["instance"]), replica=replica)
    if match := _GKE.fullmatch(text):
        return DeviceId(device=match["device"], instance=_number(match["instance"]), replica=replica)
    if match := _INDEX.fullmatch(text):
        return DeviceId(index=_number(match["index"]), instance=_number(match["instance"]), replica=replica)
    return None


def parse_job_file(name: str) -> DeviceId | None:
    """Parse the name of a job file, in which a number is that of the device file: Slurm counts GPUs so."""
    device = parse(name)
    return replace(device, index="", device=f"nvidia{device.index}") if device and device.index else device


def _number(text: str | None) -> str:
    return "" if text is None else str(int(text))


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The GPUs of this node by UUID, and in MIG mode their MIG devices by UUID."""

    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    migs: Mapping[str, DeviceRef] = field(default_factory=dict)

    def find(self, device: DeviceId) -> DeviceRef | None:
        """Return the device with this id; None if this node has no such device now."""
        if device.mig:
            return self.migs.get(device.mig)
        gpus = self.gpus.values()
        if device.uuid:
            gpu = self.gpus.get(device.uuid)
        elif device.device:
            gpu = by_device_file(gpus).get(device.device)
        else:
            gpu = next((gpu for gpu in gpus if str(gpu.index) == device.index), None)
        ref = DeviceRef(gpu.uuid, device.instance) if gpu else None
        return ref if not device.instance or ref in self.migs.values() else None


def devices(gpus: Iterable[Gpu], migs: Mapping[str, DeviceRef]) -> NodeDevices:
    """Collect the GPUs that have a UUID."""
    return NodeDevices({gpu.uuid: gpu for gpu in gpus if gpu.uuid}, migs)
