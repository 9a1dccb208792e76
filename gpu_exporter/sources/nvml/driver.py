"""What the system shows of the driver without calling it: its GPUs, and whether library and kernel module match."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path

from gpu_exporter.model.pci import PciGpu, pci_bus_id

LIBRARY = "libnvidia-ml.so."
# NVIDIA in the registry of PCI vendors; VGA and 3D controllers; drivers that keep a function for a virtual machine.
VENDOR = b"0x10de"
DISPLAY_CLASSES = (b"0x0300", b"0x0302")
RESERVED = re.compile(r"vfio|^pci-stub$|^(xen-)?pciback$")


def library_exists() -> bool:
    """Return whether the driver's library can be loaded; unload it again."""
    try:
        library = ctypes.CDLL(f"{LIBRARY}1")
    except OSError:
        return False
    if hasattr(_ctypes, "dlclose"):
        _ctypes.dlclose(library._handle)
    return True


def _library_mapping(procfs: Path) -> str:
    """Return the first line of this process's memory map for the driver's library; empty if it is not loaded."""
    maps = (procfs / "self/maps").read_text(encoding="utf-8", errors="replace")
    return next((line for line in maps.splitlines() if LIBRARY in line and "/" in line), "")


def reload_needed(sysfs: Path, procfs: Path) -> bool | None:
    """Return whether the driver was upgraded without a reload: running programs continue, programs that start now fail.

    This process keeps the old library, so its own calls succeed. None if that is unknown, for example in a container
    where the library has another name.
    """
    try:
        loaded = (sysfs / "module/nvidia/version").read_text(encoding="ascii").strip()
        mapped = _library_mapping(procfs)
    except (OSError, UnicodeDecodeError):
        return None
    if not mapped or not loaded:
        return None
    try:
        library = Path(mapped[mapped.index("/") :]).with_name(f"{LIBRARY}1").resolve(strict=True)
    except OSError:
        return None
    installed = library.name.removeprefix(LIBRARY)
    return installed != loaded if "." in installed else None


def gpus_on_bus(sysfs: Path) -> tuple[PciGpu, ...]:
    """Return the NVIDIA GPUs on the PCI bus that the driver should list, also those that it could not initialise.

    Not those that are reserved for virtual machines, nor virtual functions of a GPU. Empty if that is unknown: in a
    container that has only some of the GPUs, or without NVIDIA's kernel driver.
    """
    if os.environ.get("NVIDIA_VISIBLE_DEVICES", "all") != "all" or not (sysfs / "bus/pci/drivers/nvidia").is_dir():
        return ()
    gpus, devices = [], f"{sysfs}/bus/pci/devices"
    functions: list[str] = []
    with suppress(OSError):  # /sys is not mounted completely
        functions = sorted(os.listdir(devices))
    for function in functions:
        place = f"{devices}/{function}"
        with suppress(OSError):  # it was just removed
            # Raw reads: there may be hundreds of functions, and this runs every few seconds.
            if _line(f"{place}/vendor") != VENDOR or not _line(f"{place}/class").startswith(DISPLAY_CLASSES):
                continue
            driver = os.path.basename(os.readlink(f"{place}/driver")) if os.path.islink(f"{place}/driver") else ""
            if not RESERVED.search(driver) and not os.path.exists(f"{place}/physfn"):
                gpus.append(PciGpu(pci_bus_id(function), driver))
    return tuple(gpus)


# Vendors of virtual ports (Red Hat and VirtIO, VMware, Microsoft): what these allow says nothing about the slot.
VIRTUAL = (b"0x1b36", b"0x1af4", b"0x15ad", b"0x1414")
# Generations by the transfer rate of a lane, as sysfs writes it.
GENERATIONS = {b"2.5": 1, b"5.0": 2, b"5": 2, b"8.0": 3, b"16.0": 4, b"32.0": 5, b"64.0": 6}


def pcie_port(sysfs: Path, procfs: Path, address: str) -> tuple[float, float] | None:
    """Return the highest generation and number of lanes of the port above a GPU, with the address in NVML's notation.

    None if that is unknown: sysfs does not show it, or this is a virtual machine, whose ports are not the host's.
    """
    domain, _, place = address.lower().partition(":")
    try:
        if b" hypervisor" in _beginning(f"{procfs}/cpuinfo"):
            return None
        port = os.path.dirname(os.path.realpath(f"{sysfs}/bus/pci/devices/{int(domain, 16):04x}:{place}", strict=True))
        if _line(f"{port}/vendor") in VIRTUAL:
            return None
        generation = GENERATIONS.get(_line(f"{port}/max_link_speed").partition(b" ")[0])
        lanes = int(_line(f"{port}/max_link_width"))
    except (OSError, ValueError):
        return None
    return (float(generation), float(lanes)) if generation and 0 < lanes <= 32 else None


def _beginning(path: str) -> bytes:
    """Return the part of /proc/cpuinfo that describes the first processor; empty if there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 4096).replace(b"\n", b" ")
    finally:
        os.close(file)


def _line(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 64).strip()
    finally:
        os.close(file)
