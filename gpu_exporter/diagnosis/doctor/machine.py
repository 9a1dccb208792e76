"""Checks what gpu-exporter runs on: platform and container. No check blocks or needs root."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from gpu_exporter.model.finding import Finding, Level
from gpu_exporter.version import __version__

ROOT = Path("/")


def read(path: Path) -> str:
    """Return the content of a small file of the system; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def software(root: Path = ROOT, system: str = "", processor: str = "") -> list[Finding]:
    """Return versions, user and platform; a second finding if gpu-exporter is untested on this platform."""
    system, processor = system or platform.system(), processor or platform.machine()
    user = f", uid {os.geteuid()}" if hasattr(os, "geteuid") else ""
    what = f"gpu-exporter {__version__}, Python {platform.python_version()}, {system} {processor}{user}"
    untested = _untested(root, system, processor)
    return [Finding("platform", Level.OK, what), *([Finding("platform", Level.NOTE, untested)] if untested else [])]


def _untested(root: Path, system: str, processor: str) -> str:
    """Return what is untested on this platform; docs/platforms.md has the reasons."""
    if system == "Windows":
        return "Windows: not tested; NVML works the same, but kernel log, PCI bus and pods cannot be read"
    if system != "Linux":
        return f"{system}: NVIDIA has no driver for it; only `--source replay` and `--source simulated` work"
    if "microsoft" in read(root / "proc/sys/kernel/osrelease").lower():
        return "WSL: not tested; its NVML supports a part of what Linux has, and its kernel logs no GPU faults"
    if (root / "etc/nv_tegra_release").exists() or "nvidia,tegra" in read(root / "proc/device-tree/compatible"):
        return "Jetson: not tested; its GPU is not a PCIe device, and NVML supports little of it: use tegrastats"
    if processor not in ("x86_64", "AMD64"):
        return f"Linux {processor}: not tested; no difference from x86_64 is known"
    return ""


def container(environ: Mapping[str, str] = os.environ, *, mig: bool = False) -> list[Finding]:
    """Check the variables of NVIDIA's container runtime, which limit what a container sees. `mig`: MIG mode is on."""
    findings = []
    visible = environ.get("NVIDIA_VISIBLE_DEVICES")
    # the runtime sets `void` when something else allocates the GPUs
    if visible == "none":
        what, cure = "NVIDIA_VISIBLE_DEVICES=none: this container gets no GPU", "set it to all"
        findings.append(Finding("container", Level.WARN, what, cure))
    elif visible not in (None, "", "all", "void"):
        what = f"NVIDIA_VISIBLE_DEVICES={visible}: this container sees only these GPUs of the node"
        findings.append(Finding("container", Level.NOTE, what))
    granted = environ.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if granted and not {"utility", "all"} & {name.strip() for name in granted.split(",")}:
        what, cure = f"NVIDIA_DRIVER_CAPABILITIES={granted} lacks utility, which provides NVML", "add utility"
        findings.append(Finding("container", Level.WARN, what, cure))
    if mig and visible is not None and environ.get("NVIDIA_MIG_MONITOR_DEVICES") != "all":
        what = "a GPU is in MIG mode, and this container may not see all instances"
        cure = "set NVIDIA_MIG_MONITOR_DEVICES=all and add CAP_SYS_ADMIN"
        findings.append(Finding("container", Level.NOTE, what, cure))
    return findings
