"""Whether the driver's library on disk and the kernel driver that is loaded are of one version."""

from __future__ import annotations

from pathlib import Path

LIBRARY = "libnvidia-ml.so."


def reload_needed(sysfs: Path, procfs: Path) -> bool | None:
    """True after an upgrade without a reload of the driver: what runs goes on, what starts now fails.

    This process keeps the old library, so its own calls don't tell. None if it can't be told, as where a container was
    given the library under another name.
    """
    try:
        loaded = (sysfs / "module/nvidia/version").read_text(encoding="ascii").strip()
        maps = (procfs / "self/maps").read_text(encoding="utf-8", errors="replace")
    except (OSError, UnicodeDecodeError):
        return None
    mapped = next((line[line.index("/") :] for line in maps.splitlines() if LIBRARY in line and "/" in line), "")
    if not mapped or not loaded:
        return None
    try:
        installed = Path(mapped).with_name(f"{LIBRARY}1").resolve(strict=True).name.removeprefix(LIBRARY)
    except OSError:
        return None
    return installed != loaded if "." in installed else None
