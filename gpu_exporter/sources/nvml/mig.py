"""Lists the MIG instances of a GPU without privileges, through the MIG devices that are visible to this process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from gpu_exporter.model.metric import Labels
from gpu_exporter.sources.nvml.errors import LIBRARY_LOST, LOST, UNSUPPORTED


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance and its MIG devices (compute instances), as pairs of compute instance id and UUID.

    An instance that was destroyed and created again in the same way may be equal; then its counters continue.
    """

    id: int
    profile: str
    devices: tuple[tuple[int, str], ...]

    @property
    def labels(self) -> Labels:
        """Its labels, as dcgm-exporter has them."""
        return (("GPU_I_ID", str(self.id)), ("GPU_I_PROFILE", self.profile))


def mig_mode(handle: Any) -> bool:
    """Return whether the GPU is in MIG mode now. Raises NVMLError if it is lost."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED:
            return False
        raise


def instances(handle: Any) -> dict[Instance, tuple[Any, ...]]:
    """Return the GPU instances that have MIG devices, each with their handles. Raises NVMLError if the GPU is lost.

    In a GPU instance without a compute instance nothing can run, and NVML has no counters of it.
    """
    by_instance: dict[tuple[int, str], list[tuple[int, str, Any]]] = {}
    for device in _devices(handle):
        gpu_instance = pynvml.nvmlDeviceGetGpuInstanceId(device)
        compute_instance = pynvml.nvmlDeviceGetComputeInstanceId(device)
        uuid = str(pynvml.nvmlDeviceGetUUID(device))
        key = (gpu_instance, _profile(str(pynvml.nvmlDeviceGetName(device))))
        by_instance.setdefault(key, []).append((compute_instance, uuid, device))
    return {
        Instance(number, profile, tuple((compute, uuid) for compute, uuid, _ in devices)): tuple(
            device for *_, device in devices
        )
        for (number, profile), devices in by_instance.items()
    }


def _devices(handle: Any) -> Iterator[Any]:
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:  # not every slot is used, and not every instance is visible here
            if error.value in LIBRARY_LOST or error.value in LOST:
                raise


def _profile(name: str) -> str:
    """Return the profile of the GPU instance that the device is in: `NVIDIA H200 MIG 1c.2g.35gb` -> `2g.35gb`."""
    profile = name.rpartition(" ")[2]
    return re.sub(r"^\d+c\.", "", profile)
