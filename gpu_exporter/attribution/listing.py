"""NVIDIA devices and the containers that have them, as kubelet lists them."""

from __future__ import annotations

from typing import NamedTuple

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
