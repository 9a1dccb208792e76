"""PCI addresses as the driver, the kernel and DCGM write them."""

from __future__ import annotations

import re


def pci_bus_id(text: str) -> str:
    """An address as NVML writes it (`00000000:0A:00.0`), from any usual way to write it; "" if it is none."""
    found = re.fullmatch(r"(?:PCI:)?(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text, re.I)
    if not found:
        return ""
    domain, bus, device, function = found.groups(default="0")
    return f"{int(domain, 16):08X}:{bus.upper()}:{device.upper()}.{function}"


def same_device(one: str, other: str) -> bool:
    """Whether two PCI addresses, however written, are one device; an address that is none is nobody's."""
    return pci_bus_id(one) == pci_bus_id(other) != ""
