"""What kubelet lists of NVIDIA's devices."""

from __future__ import annotations

from typing import NamedTuple

DOMAIN = "nvidia.com/"
# NVIDIA's driver for resource claims, of GPUs.
DRIVER = "gpu.nvidia.com"


class Held(NamedTuple):
    """A device that a device plugin gave to a container, by its id."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str


class Claimed(NamedTuple):
    """A device that a container has by a resource claim: the name of it in its pool."""

    namespace: str
    pod: str
    container: str
    pool: str
    device: str


class Listing(NamedTuple):
    """All that kubelet knows of NVIDIA's devices, in a fixed order."""

    held: tuple[Held, ...] = ()
    claimed: tuple[Claimed, ...] = ()
