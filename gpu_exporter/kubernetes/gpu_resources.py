"""Which extended resources of Kubernetes are GPUs, by their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

# Whole GPUs, shares of a GPU (time-slicing, MPS), and MIG instances, as NVIDIA's device plugin names them. Below
# nvidia.com/ there are also network cards (hostdev, rdma_*), amounts (gpumem, gpucores), and GPUs that are handed to
# VMs (GV100GL_Tesla_V100): their device ids are PCI addresses, IOMMU groups or numbers, not GPUs of this node.
_GPU = re.compile(r"nvidia[.]com/(?:gpu|gpu[.]shared|mig-.+)")


def is_gpu(resource: str, configured: Collection[str] = ()) -> bool:
    """Return whether a resource is GPUs, shares or instances of them; `configured` are further names."""
    return resource in configured or _GPU.fullmatch(resource) is not None
