"""Device ids as device plugins, drivers of claims and Slurm write them -> a GPU of this node, or an instance of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.model.gpu import Gpu

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# A replica of a shared device: NVIDIA's plugin counts them behind `::`, GKE's behind `/vgpu`.
_REPLICA = re.compile(r"(?P<id>.+?)(?:::(?P<n>\d{1,6})|/vgpu(?P<v>\d{1,6}))", re.ASCII)
_LEGACY_MIG = re.compile(rf"MIG-(?P<uuid>GPU-{_UUID})/(?P<instance>\d{{1,3}})/\d{{1,3}}", re.ASCII)
_GKE = re.compile(r"(?P<device>nvidia\d{1,4})(?:/gi(?P<instance>\d{1,3}))?", re.ASCII)
_INDEX = re.compile(r"(?P<index>\d{1,4})(?:\.(?P<instance>\d{1,3}))?", re.ASCII)


class Place(NamedTuple):
    """A device of this node: a GPU by its UUID, and the GPU instance of it, or "" for all of it."""

    uuid: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class DeviceId:
    """What an id says. Of `uuid`, `mig`, `device` (`nvidia0`, by minor number) and `index` one is set."""

    uuid: str = ""
    mig: str = ""
    device: str = ""
    index: str = ""
    instance: str = ""
    replica: str = ""


def parse(text: str) -> DeviceId | None:
    """Read an id; None if it is of no known form.

    `GPU-<uuid>`, `MIG-<uuid>`, `MIG-GPU-<uuid>/<gi>/<ci>` (drivers before 470), an index (`0`, of an instance `0.2`),
    `nvidia<minor>`, `nvidia<minor>/gi<gi>`; each may be a replica: `…::<n>`, `…/vgpu<n>`.
    """
    replica = ""
    if shared := _REPLICA.fullmatch(text):
        text, replica = shared["id"], shared["n"] or shared["v"]
    if re.fullmatch(f"GPU-{_UUID}", text):
        return DeviceId(uuid=text, replica=replica)
    if re.fullmatch(f"MIG-{_UUID}", text):
        return DeviceId(mig=text, replica=replica)
    if found := _LEGACY_MIG.fullmatch(text):
        return DeviceId(uuid=found["uuid"], instance=_number(found["instance"]), replica=replica)
    if found := _GKE.fullmatch(text):
        return DeviceId(device=found["device"], instance=_number(found["instance"]), replica=replica)
    if found := _INDEX.fullmatch(text):
        return DeviceId(index=_number(found["index"]), instance=_number(found["instance"]), replica=replica)
    return None


def _number(text: str | None) -> str:
    return "" if text is None else str(int(text))


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs of this node, and in MIG mode their instances: `migs` has the place of each MIG device by UUID."""

    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    migs: Mapping[str, Place] = field(default_factory=dict)

    def place(self, device: DeviceId) -> Place | None:
        """Where that is; None if there is no such device here now."""
        if device.mig:
            return self.migs.get(device.mig)
        uuid = device.uuid or next((uuid for uuid, gpu in self.gpus.items() if self._is(gpu, device)), "")
        place = Place(uuid, device.instance)
        if uuid not in self.gpus or (device.instance and place not in self.migs.values()):
            return None
        return place

    @staticmethod
    def _is(gpu: Gpu, device: DeviceId) -> bool:
        return gpu.device == device.device if device.device else str(gpu.index) == device.index


def devices(gpus: Iterable[Gpu], migs: Mapping[str, Place]) -> Devices:
    """Those that have a UUID."""
    return Devices({gpu.uuid: gpu for gpu in gpus if gpu.uuid}, migs)
