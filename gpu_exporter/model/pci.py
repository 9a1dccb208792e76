"""PCI addresses as the driver, the kernel and DCGM write them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple


class PciGpu(NamedTuple):
    """A GPU on the PCI bus: its address in NVML's notation, and the kernel driver that it is bound to ("": none)."""

    address: str
    driver: str


@lru_cache(1024)  # of each line of a kernel log, for each GPU
def pci_bus_id(text: str) -> str:
    """Return an address in NVML's notation (`00000000:0A:00.0`), from any usual one; "" if it is malformed."""
    match = re.fullmatch(r"(?:PCI:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text, re.I)
    if not match:
        return ""
    domain, bus, device, function = match.groups(default="0")
    return f"{int(domain, 16):08X}:{bus.upper()}:{device.upper()}.{function}"


def same_device(one: str, other: str) -> bool:
    """Return whether two PCI addresses, in any notation, are one device; a malformed address equals no other."""
    return pci_bus_id(one) == pci_bus_id(other) != ""
