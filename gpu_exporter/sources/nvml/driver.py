"""What the system shows of the driver without calling it: its GPUs, and whether library and kernel module match."""

from __future__ import annotations

import _ctypes
import ctypes
import os
from contextlib import suppress
from pathlib import Path

LIBRARY = "libnvidia-ml.so."


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


def count_bound_gpus(sysfs: Path) -> int | None:
    """Return the number of PCI functions of display class that are bound to the `nvidia` kernel driver.

    None if that is unknown, for example in a container that has only some of the GPUs.
    """
    if os.environ.get("NVIDIA_VISIBLE_DEVICES", "all") != "all":
        return None
    folder = sysfs / "bus/pci/drivers/nvidia"
    if not folder.is_dir():
        return None
    gpus = 0
    for function in folder.glob("*:*:*.*"):
        with suppress(OSError):
            gpus += (function / "class").read_text().startswith("0x03")
    return gpus or None
